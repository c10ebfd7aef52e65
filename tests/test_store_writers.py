"""Several writers on one run: no row lost, none twice, and a late one cannot damage what is committed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np
import pytest

from precollapse import store
from precollapse.errors import StoreError
from precollapse.store import writer as writer_module
from precollapse.store.files import open_files
from precollapse.store.opening import read_plan

ROOT = Path(__file__).parents[1]
STATES = [{"id": f"b/{i}/r", "benchmark": "b", "regime": "r", "item_id": str(i)} for i in range(48)]
PLAN = store.Plan.build(STATES, 4)
ARRAYS = {"x": store.ArraySpec((2, 300), "float32", (0, 1))}


@pytest.fixture
def path():
    """A run in memory where there is memory to write to."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
    yield folder / "run.zarr"
    shutil.rmtree(folder, ignore_errors=True)


def opened(path, **changes):
    return store.open_writer(path, **{"plan": PLAN, "config": {}, "arrays": ARRAYS, **changes})


def values(index, salt=0):
    return np.random.default_rng([index, salt]).standard_normal((4, 2, 300)).astype(np.float32)


def check(path, n=PLAN.n_shards):
    assert store.verify(path) == []
    run = store.open_run(path)
    assert list(run.states["id"]) == [s["id"] for s in STATES[: 4 * n]]
    np.testing.assert_array_equal(run.array("x"), np.concatenate([values(k) for k in range(n)]))


def forked(work):
    """Run `work` in a child process."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def finished(*pids):
    return all(os.waitpid(pid, 0)[1] == 0 for pid in pids)


def test_four_processes_share_a_run(path):
    def work():
        with opened(path) as writer:
            done = 0
            for index in writer.claimed(poll_seconds=0.01):
                assert writer.write(index, arrays={"x": values(index)})
                done += 1
            writer.update_manifest({"done": {writer._name: done}})

    assert finished(*[forked(work) for _ in range(4)])
    check(path)
    done = store.open_run(path).manifest["done"]
    assert sum(done.values()) == PLAN.n_shards and len(done) == 4  # no shard was done twice
    assert not list((path / "_leases").iterdir()) and not list((path / "_staging").iterdir())


def test_processes_that_ignore_claims_still_lose_and_double_nothing(path):
    def work(seed):
        with opened(path) as writer:
            for index in np.random.default_rng(seed).permutation(PLAN.n_shards):
                writer.write(int(index), arrays={"x": values(index)})

    assert finished(*[forked(lambda seed=seed: work(seed)) for seed in range(4)])
    check(path)
    assert not list((path / "_staging").iterdir())


def test_the_first_commit_stays_and_the_second_withdraws(path):
    with opened(path) as first, opened(path) as second:
        assert first.write(0, arrays={"x": values(0)}) is True
        before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
        assert second.write(0, arrays={"x": values(0, salt=1)}) is False
        assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    check(path, 1)


def test_a_zombie_that_wakes_before_its_commit_finds_itself_beaten(path, monkeypatch):
    """Stopped after staging, taken for dead, and woken when another has committed the shard."""
    zombie = opened(path)
    assert zombie.claim(0)
    original = zombie._files.settle

    def pause():
        original()
        with opened(path, lease_seconds=0.0) as other:
            assert other.write(0, arrays={"x": values(0)})

    monkeypatch.setattr(zombie._files, "settle", pause)
    assert zombie.write(0, arrays={"x": values(0, salt=1)}) is False
    zombie.close()
    check(path, 1)


def test_two_commits_at_the_same_instant_leave_one(path, monkeypatch):
    """Beaten between the last look and the commit."""
    late = opened(path)
    original = late._files.create

    def pause(name, data, durable=True):
        if name.startswith("_commits"):
            with opened(path) as other:
                assert other.write(0, arrays={"x": values(0)})
        return original(name, data, durable)

    monkeypatch.setattr(late._files, "create", pause)
    assert late.write(0, arrays={"x": values(0, salt=1)}) is False
    late.close()
    check(path, 1)
    assert not list((path / "_staging").iterdir())


def test_a_sweep_leaves_the_files_of_a_live_writer(path, monkeypatch):
    with opened(path) as writer:
        original = writer._files.settle

        def pause():
            original()
            opened(path).close()
            store.repair(path)

        monkeypatch.setattr(writer._files, "settle", pause)
        assert writer.write(0, arrays={"x": values(0)}) is True
    check(path, 1)


def test_a_sweep_keeps_the_files_of_a_writer_that_commits_and_dies_while_it_looks(path, monkeypatch):
    """Committed just before its death, files still under their staged names: they are the shard."""
    module = sys.modules["precollapse.store.log.sweep"]
    with opened(path):
        pass
    writer, gone = opened(path), []
    monkeypatch.setattr(writer._files, "move", lambda source, target: False)
    monkeypatch.setattr(module, "surely_dead", lambda who: bool(gone))
    for name in ("read_notes", "read_commits"):
        original = getattr(module, name)

        def meanwhile(*arguments, original=original):
            found = original(*arguments)
            if not gone and (path / "_staging").exists():
                gone.append(writer.write(0, arrays={"x": values(0)}))
            return found

        monkeypatch.setattr(module, name, meanwhile)
    (path / "_staging" / "00000000.nobody.0.0").write_bytes(b"")  # so that the sweep has something to look at
    module.sweep(open_files(path), read_plan(open_files(path)))
    monkeypatch.undo()
    assert gone == [True] and store.verify(path) == []
    check(path, 1)


def test_a_zombie_whose_files_were_swept_commits_nothing(path, monkeypatch):
    zombie = opened(path)
    original = zombie._files.settle

    def pause():
        original()
        for file in (path / "_staging").iterdir():
            file.unlink()

    monkeypatch.setattr(zombie._files, "settle", pause)
    with pytest.raises(StoreError, match="were removed"):
        zombie.write(0, arrays={"x": values(0)})
    assert zombie.pending()[0] == 0
    zombie.close()


def test_a_zombie_that_wakes_after_its_commit_changes_nothing(path, monkeypatch):
    """Stopped between its commit and the renames; another completes them; then it wakes."""
    zombie = opened(path)
    original = zombie._files.move
    seen = []

    def pause(source, target):
        if not seen:
            seen.append(True)
            assert len(store.open_run(path)) == 4  # readable before any rename
            np.testing.assert_array_equal(store.open_run(path).array("x"), values(0))
            opened(path).close()
            check(path, 1)
        return original(source, target)

    monkeypatch.setattr(zombie._files, "move", pause)
    assert zombie.write(0, arrays={"x": values(0)}) is True
    zombie.close()
    assert seen
    check(path, 1)


def test_a_live_lease_is_respected_and_a_dead_process_is_replaced_at_once(path):
    with opened(path) as writer:
        ready, hold = os.pipe()

        def work():
            other = opened(path)
            assert other.claim(3)
            os.write(hold, b"1")
            time.sleep(60)

        pid = forked(work)
        os.read(ready, 1)
        assert not writer.claim(3)
        assert writer._leases.holder(3).startswith(f"process {pid} on ")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert writer.claim(3)
        assert writer.write(3, arrays={"x": values(3)})


def test_a_writer_elsewhere_is_replaced_when_its_beat_stands_still(path, monkeypatch):
    """A lease of a machine that cannot be asked dies by time without a beat, on the observer's own clock."""
    elsewhere = opened(path, lease_seconds=0.4)
    elsewhere._leases._identity = {**elsewhere._leases._identity, "host": "another"}
    with opened(path, lease_seconds=0.4) as writer:
        assert elsewhere.claim(0)
        begun = time.monotonic()
        while time.monotonic() - begun < 1.2:  # it beats, so it lives
            assert not writer.claim(0)
            time.sleep(0.05)
        elsewhere._leases._stop.set()
        begun = time.monotonic()
        while not writer.claim(0):
            time.sleep(0.02)
            assert time.monotonic() - begun < 5
        assert time.monotonic() - begun > 0.3
        assert writer.write(0, arrays={"x": values(0)})
        assert elsewhere.write(0, arrays={"x": values(0, salt=1)}) is False
    elsewhere.close()
    check(path, 1)


def test_waiting_workers_take_over_the_shard_of_a_killed_one(path):
    def stuck():
        writer = opened(path)
        assert writer.claim(5)
        time.sleep(60)

    pid = forked(stuck)
    while not list((path / "_leases").glob("00000005.*")):
        time.sleep(0.01)

    def work():
        with opened(path) as writer:
            for index in writer.claimed(poll_seconds=0.02):
                writer.write(index, arrays={"x": values(index)})

    other = forked(work)
    time.sleep(0.5)
    assert [k for k in opened(path).pending()] == [5]  # all but the held one
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert finished(other)
    check(path)


def test_without_waiting_the_held_shards_are_left(path):
    with opened(path) as first, opened(path) as second:
        assert first.claim(0) and first.claim(7)
        done = []
        for index in second.claimed(wait=False):
            second.write(index, arrays={"x": values(index)})
            done.append(index)
        assert done == [k for k in range(PLAN.n_shards) if k not in (0, 7)]


def test_only_one_of_many_takes_over_a_dead_lease(path):
    first = opened(path)
    first._leases._identity = {**first._leases._identity, "pid": 2**22 + 1}
    assert first.claim(0)
    first._leases._stop.set()
    ready, go = os.pipe()
    won, count = os.pipe()

    def work():
        with opened(path) as writer:
            os.read(ready, 1)
            if writer.claim(0):
                os.write(count, b"1")
                time.sleep(0.5)

    pids = [forked(work) for _ in range(6)]
    time.sleep(1.0)
    os.write(go, b"123456")
    time.sleep(0.4)
    assert os.read(won, 100) == b"1"
    assert finished(*pids)


def test_torchrun_workers_begin_with_their_own_share(path, monkeypatch):
    with opened(path) as writer:
        monkeypatch.setenv("WORLD_SIZE", "5")
        monkeypatch.setenv("RANK", "2")
        assert writer.pending()[:3] == [2, 7, 3] and sorted(writer.pending()) == list(range(12))
        monkeypatch.setenv("RANK", "x")
        assert writer.pending() == list(range(12))


def test_two_creators_agree_on_one_plan(path):
    def work():
        with opened(path) as writer:
            for index in writer.claimed(poll_seconds=0.01):
                writer.write(index, arrays={"x": values(index)})

    for _ in range(5):
        assert finished(*[forked(work) for _ in range(3)])
        check(path)
        shutil.rmtree(path)


def test_a_creation_that_was_cut_off_is_completed(path, monkeypatch):
    class Cut(Exception):
        pass

    def cut(*arguments):
        raise Cut

    monkeypatch.setattr(writer_module, "_complete", cut)
    with pytest.raises(Cut):
        opened(path)
    monkeypatch.undo()
    assert len(store.open_run(path)) == 0
    with opened(path) as writer:
        for index in writer.claimed():
            writer.write(index, arrays={"x": values(index)})
    check(path)


def test_two_writers_manifests_do_not_undo_each_other(path):
    with opened(path, manifest={"a": {"x": 1}}) as first, opened(path) as second:
        second.update_manifest({"a": {"y": 2}, "b": 1})
        first.update_manifest({"b": 2})
        second.update_manifest({"c": 3})
    manifest = store.open_run(path).manifest
    assert manifest["a"] == {"x": 1, "y": 2} and manifest["c"] == 3
    assert len(manifest["writers"]) == 2


def test_twenty_kills_lose_double_and_invent_nothing(path):
    """perf/kill.py, the measurement, on few rounds."""
    folder = path.parent
    done = subprocess.run(
        [sys.executable, str(ROOT / "perf" / "kill.py"), "--rounds", "20", "--folder", str(folder), "--json"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found["rounds"] == 20 and found["killed"] > 10
    bad = ("lost", "duplicated", "invented", "files_that_differ", "commits_changed", "left_over", "moments_that_differ")
    assert {name: found[name] for name in bad} == dict.fromkeys(bad, 0)
    assert done.returncode == 0


def test_a_run_that_grows_while_it_is_opened_is_not_taken_for_half_deleted(path, monkeypatch):
    """The first commit comes between an opener's look at the commits and its look at the tables."""
    from precollapse.store import opening

    with opened(path) as writer:
        original = opening.skeleton_faults

        def meanwhile(files, run):
            writer.write(0, arrays={"x": values(0)})
            return original(files, run)

        monkeypatch.setattr(opening, "skeleton_faults", meanwhile)
        assert len(store.open_run(path)) == 0
        monkeypatch.undo()
    check(path, 1)
