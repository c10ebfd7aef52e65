"""Damage, full disks, lost permissions and wrong paths: each is found and named, and what is sound stays readable."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from precollapse import store
from precollapse.errors import RequestError, StoreError
from precollapse.store.files import local as store_files

STATES = [
    {"id": f"b/{i}/{regime}", "benchmark": "b", "regime": regime, "item_id": f"item {i}"}
    for regime in ("baseline", "cot")
    for i in range(8)
]
SETTINGS = {
    "plan": store.Plan.build(STATES, 4),
    "config": {"model": "m"},
    "arrays": {"x": store.ArraySpec((3, 300), "float32", (0, 1, 2)), "k": store.ArraySpec((4,), "int64")},
    "columns": {"text": "string"},
    "ragged": {"rows": "float32"},
}


def contents(index):
    rng = np.random.default_rng(index)
    return {
        "arrays": {"x": rng.standard_normal((4, 3, 300)).astype(np.float32), "k": rng.integers(0, 9, (4, 4))},
        "table": {"text": ["a", None, "b", "c"]},
        "ragged": {"rows": [rng.random(n + 5).astype(np.float32) for n in range(4)]},
        "blobs": {"moments": rng.bytes(64)},
    }


def fill(path, shards=range(4)):
    with store.open_writer(path, **SETTINGS) as writer:
        for index in shards:
            assert writer.claim(index) and writer.write(index, **contents(index))
    return path


@pytest.fixture
def tmp_path():
    """A folder in memory where there is one: what is tested here does not depend on a disk, only waits for it."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def path(tmp_path):
    return fill(tmp_path / "run.zarr")


def flip(file, at=-1, bit=4):
    data = bytearray(file.read_bytes())
    data[at] ^= bit
    file.write_bytes(data)


def chunk(path, shard):
    cell = SETTINGS["plan"].cell_of(shard)
    return path / cell.folder / "x" / f"c.{shard - cell.first_shard}.0.0"


# Damage on disk


@pytest.mark.parametrize("at", [0, 1199, 1200, 3000, -5, -30])
def test_a_flipped_byte_anywhere_in_a_shard_is_found_and_named(path, at):
    assert store.verify(path) == []
    flip(chunk(path, 1), at)
    faults = store.verify(path)
    assert {(fault.where, fault.shard) for fault in faults} == {(str(chunk(path, 1).relative_to(path)), 1)}


def test_a_damaged_chunk_is_never_returned_and_the_rest_is(path):
    flip(chunk(path, 1), 4804 + 8)  # layer 1
    run = store.open_run(path)
    whole = np.concatenate([contents(k)["arrays"]["x"] for k in range(4)])
    np.testing.assert_array_equal(run.resid([0, 2], "x"), whole[:, [0, 2]])
    np.testing.assert_array_equal(run.resid(1, "x", regime="cot"), whole[8:, 1])
    with pytest.raises(StoreError, match="c.1.0.0 is damaged.*precollapse verify"):
        run.resid(1, "x")


@pytest.mark.parametrize("kind", ["tables", "ragged", "blobs"])
def test_a_flipped_byte_in_other_files_is_found(path, kind):
    file = next(file for file in (path / kind).iterdir() if file.name.startswith("00000002"))
    flip(file, -3)
    assert [(fault.where, fault.shard) for fault in store.verify(path)] == [(f"{kind}/{file.name}", 2)]
    run = store.open_run(path)
    reads = {
        "tables": lambda: run.states,
        "ragged": lambda: run.ragged("rows", 11),
        "blobs": lambda: list(run.blobs("moments")),
    }
    with pytest.raises(StoreError, match="damaged"):
        reads[kind]()
    assert len(run.select(regime="baseline").states) == 8


@pytest.mark.parametrize("at", range(0, 400, 37))
def test_a_flipped_byte_in_a_commit_hides_its_shard_only(path, at):
    flip(path / "_commits" / "00000002.json", at)
    with pytest.warns(UserWarning, match="Commit 2"):
        run = store.open_run(path)
    assert list(run.states["shard"].unique()) == [0, 1, 3]
    assert list(run.faults) == [2]
    assert [fault.shard for fault in store.verify(path)] == [2]
    with pytest.raises(StoreError, match="Commit 2.*precollapse repair"):
        store.open_writer(path, **SETTINGS)


@pytest.mark.parametrize("size", [0, 1, 40, 300])
def test_a_truncated_commit_is_found(path, size):
    os.truncate(path / "_commits" / "00000001.json", size)
    assert [fault.where for fault in store.verify(path)] == ["_commits/00000001.json"]
    with pytest.warns(UserWarning, match="damaged"):
        assert len(store.open_run(path)) == 12


def test_a_commit_of_another_run_is_refused(path, tmp_path):
    other = store.Plan.build([{**state, "id": state["id"] + "x"} for state in STATES], 4)
    with store.open_writer(tmp_path / "other", **{**SETTINGS, "plan": other}) as writer:
        writer.write(0, **contents(0))
    shutil.copy(tmp_path / "other" / "_commits" / "00000000.json", path / "_commits" / "00000000.json")
    assert "another plan" in store.verify(path)[0].what


@pytest.mark.parametrize("at", [3, 14, 40, 400, -3])
def test_a_flipped_byte_in_the_plan_is_found(path, at):
    flip(path / "plan.json", at)
    assert [fault.where for fault in store.verify(path)] == ["plan.json"]
    for use in (store.open_run, lambda p: store.open_writer(p, **SETTINGS), store.repair):
        with pytest.raises(StoreError, match="plan.json"):
            use(path)


@pytest.mark.parametrize("change", ["cut", "gone", "longer"])
def test_a_shard_that_is_cut_short_longer_or_gone_is_found(path, change):
    file = chunk(path, 3)
    if change == "gone":
        file.unlink()
    else:
        os.truncate(file, file.stat().st_size + (10 if change == "longer" else -10))
    assert [fault.shard for fault in store.verify(path)] == [3]
    if change == "gone":
        with pytest.raises(StoreError, match="is gone.*precollapse repair"):
            store.open_run(path).array("x")
    assert len(store.open_run(path).resid(0, "x", regime="baseline")) == 8


def test_files_that_no_commit_names_are_told(path):
    (path / "tables" / "00000099.safetensors").write_bytes(b"x")
    assert [fault.where for fault in store.verify(path)] == ["tables/00000099.safetensors"]
    store.repair(path)
    assert store.verify(path) == []
    (path / "tables" / "00000099.safetensors").write_bytes(b"y")
    store.repair(path)
    assert {file.read_bytes() for file in (path / "_damaged").iterdir()} == {b"x", b"y"}  # both are kept


def test_repair_takes_damaged_shards_out_and_a_resume_does_them_again(path):
    flip(chunk(path, 1), 100)
    os.truncate(path / "_commits" / "00000002.json", 50)
    (path / "ragged" / "00000003.safetensors").unlink()
    done = store.repair(path)
    assert done.withdrawn == (1, 2, 3)
    assert store.verify(path) == []
    assert len(store.open_run(path)) == 4
    assert len(list((path / "_damaged").iterdir())) >= 8  # set aside, not deleted
    fill(path, [1, 2, 3])
    assert store.verify(path) == []
    whole = np.concatenate([contents(k)["arrays"]["x"] for k in range(4)])
    np.testing.assert_array_equal(store.open_run(path).array("x"), whole)


def test_repair_leaves_a_sound_run_alone(path):
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    done = store.repair(path)
    assert (done.moved, done.removed, done.rewritten, done.withdrawn) == (0, 0, (), ())
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_repair_refuses_while_a_writer_is_alive(path):
    with store.open_writer(path.parent / "busy", **SETTINGS) as writer:
        writer.claim(0)
        with pytest.raises(RequestError, match="may be in use by process"):
            store.repair(path.parent / "busy")


def test_repair_does_not_take_a_run_apart_whose_commits_are_gone(path):
    """Its data could not be told from strays; with the commits restored all is there."""
    (path / "_commits").rename(path.parent / "kept")
    with pytest.raises(RequestError, match="half-deleted run.*Restore _commits"):
        store.repair(path)
    (path.parent / "kept").rename(path / "_commits")
    assert store.verify(path) == [] and len(store.open_run(path)) == 16


def test_a_torn_lease_does_not_keep_repair_out(path):
    """What a machine that went down may leave: nobody beats it, and nobody can be named."""
    (path / "_leases" / "00000001.000001.json").write_bytes(b"x")
    flip(chunk(path, 1), 100)
    done = store.repair(path)
    assert done.withdrawn == (1,) and done.aside == ("_leases/00000001.000001.json",)
    assert list((path / "_leases").iterdir()) == []


def test_a_manifest_that_is_gone_is_told(path):
    """The numbers are whole, but nobody can tell what model they are of."""
    shutil.rmtree(path / "_manifest")
    assert [str(fault) for fault in store.verify(path)] == [
        "_manifest: it is missing or empty, so how the run came about is not known: restore it."
    ]
    assert len(store.open_run(path)) == 16


def test_a_sweep_leaves_the_lease_of_a_repair(path, monkeypatch):
    """Another writer would do the shard again while its files are being moved."""
    module, seen = sys.modules["precollapse.store.repair"], []
    original = module._set_aside

    def meanwhile(files, shard, commit):
        store.open_writer(path, **SETTINGS).close()
        seen.append([file.name for file in (path / "_leases").iterdir()])
        original(files, shard, commit)

    monkeypatch.setattr(module, "_set_aside", meanwhile)
    flip(chunk(path, 1), 100)
    assert store.repair(path).withdrawn == (1,)
    assert seen == [["00000001.000001.json"]] and list((path / "_leases").iterdir()) == []


def test_a_file_system_that_takes_no_advice(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(store_files, "_BEGIN_WRITING", 1)
    monkeypatch.setattr(os, "posix_fadvise", refuse)
    path = fill(tmp_path / "other")
    assert store.verify(path) == [] and len(store.open_run(path).resid(0, "x")) == 16


def test_metadata_that_disagree_with_the_plan_are_refused_and_repaired(path):
    file = path / SETTINGS["plan"].cells[0].folder / "x" / "zarr.json"
    file.write_text(file.read_text().replace("float32", "float64"))
    for use in (store.open_run, lambda p: store.open_writer(p, **SETTINGS)):
        with pytest.raises(RequestError, match="disagrees with plan.json"):
            use(path)
    assert store.verify(path)[0].what == "it disagrees with plan.json."
    assert len(store.repair(path).rewritten) == 1
    assert store.verify(path) == [] and len(store.open_run(path)) == 16


# Wrong requests


def refusals(path):
    for use in (store.open_run, store.verify, store.repair, store.describe):
        with pytest.raises(RequestError) as caught:
            use(path)
        assert caught.value.exit_status == 2
        yield str(caught.value)


def test_a_path_without_a_run(tmp_path):
    assert all("no run at" in text for text in refusals(tmp_path / "none"))
    (tmp_path / "folder").mkdir()
    assert all("is not a precollapse run" in text for text in refusals(tmp_path / "folder"))
    (tmp_path / "file").write_text("x")
    assert all("is a file, not a run" in text for text in refusals(tmp_path / "file"))


def test_a_writer_refuses_a_folder_that_holds_something_else(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RequestError, match="holds thesis.tex"):
        store.open_writer(tmp_path, **SETTINGS)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(RequestError, match="lies in or on a file"):
        store.open_writer(tmp_path / "thesis.tex", **SETTINGS)
    with pytest.raises(RequestError, match="lies in or on a file"):
        store.open_writer(tmp_path / "thesis.tex" / "run", **SETTINGS)


@pytest.mark.parametrize("sealed", [True, False])
def test_a_newer_format_is_refused(path, sealed):
    from precollapse.store.files.sealed import seal

    body = json.loads((path / "plan.json").read_bytes())["body"]
    body["format"] = store.FORMAT + 1
    (path / "plan.json").write_bytes(seal(body) if sealed else json.dumps(body).encode())
    assert all("update precollapse" in text for text in refusals(path))
    with pytest.raises(RequestError, match="update precollapse"):
        store.open_writer(path, **SETTINGS)


def test_half_deleted_runs_are_told(path):
    cell = SETTINGS["plan"].cells[0].folder
    for gone in ("plan.json", "_commits", cell):
        copy = path.parent / gone.replace("/", ".")
        shutil.copytree(path, copy)
        target = copy / gone
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        for use in (store.open_run, lambda p: store.open_writer(p, **SETTINGS)):
            with pytest.raises(RequestError, match="half-deleted run"):
                use(copy)


def test_repair_keeps_what_is_whole_of_a_half_deleted_run(path):
    shutil.rmtree(path / SETTINGS["plan"].cells[0].folder)
    assert store.repair(path).withdrawn == (0, 1)
    assert list(store.open_run(path).states["shard"].unique()) == [2, 3]
    fill(path, [0, 1])
    assert store.verify(path) == [] and len(store.open_run(path)) == 16


def unprivileged(code, path):
    """Run code as a user who owns nothing (a superuser ignores permissions)."""
    script = "import os, sys, numpy as np, pandas, precollapse.store as store\npath = sys.argv[1]\nstore.provenance()\n"
    if os.geteuid() == 0:
        script += "os.setgid(65534); os.setuid(65534)\n"
    script += textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


PLAN_CODE = """
plan = store.Plan.build([{"id": str(i), "benchmark": "b", "regime": "r", "item_id": str(i)} for i in range(8)], 4)
settings = dict(plan=plan, config={}, arrays={"x": store.ArraySpec((300,), "float32")})
"""


def test_a_read_only_folder_is_a_wrong_request(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o755)
    folder.chmod(0o555)
    for place in (folder, folder / "run.zarr"):
        status, text = unprivileged(
            PLAN_CODE
            + """
            from precollapse.errors import RequestError
            try:
                store.open_writer(path, **settings)
            except RequestError as error:
                print("REFUSED", error)
            """.replace("            ", ""),
            place,
        )
        assert "REFUSED There is no permission to write" in text, text
        assert status == 0


def test_a_run_on_a_read_only_folder_can_be_read(path):
    for folder in (path, *path.rglob("*")):
        folder.chmod(0o555 if folder.is_dir() else 0o444)
    code = """
    run = store.open_run(path)
    print("READ", len(run), run.resid(0, "x").shape, store.verify(path))
    """
    status, text = unprivileged(textwrap.dedent(code), path)
    assert "READ 16 (16, 300) []" in text, text


# Failures while writing


def test_permission_lost_midway_is_told_and_costs_one_shard(tmp_path):
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    code = PLAN_CODE + textwrap.dedent("""
    import os
    from precollapse.errors import StoreError
    writer = store.open_writer(path, **settings)
    x = np.ones((4, 300), np.float32)
    writer.write(0, arrays={"x": x})
    os.chmod(path + "/_staging", 0o555)
    try:
        writer.write(1, arrays={"x": x})
    except StoreError as error:
        print("STOPPED", error)
    os.chmod(path + "/_staging", 0o755)
    print("THEN", writer.write(1, arrays={"x": x}), store.verify(path), len(store.open_run(path)))
    """)
    status, text = unprivileged(code, open_folder / "run.zarr")
    assert "permission was denied" in text and "Nothing that was committed is lost" in text, text
    assert "THEN True [] 8" in text, text


def test_a_removed_folder_is_told_and_not_invented_anew(tmp_path):
    with store.open_writer(tmp_path / "run", **SETTINGS) as writer:
        writer.write(0, **contents(0))
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(StoreError, match="its folder is gone"):
            writer.write(1, **contents(1))
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("call", range(1, 12))
def test_a_full_disk_at_any_write_costs_the_shard_in_flight_only(tmp_path, monkeypatch, call):
    path = fill(tmp_path / "run", [0, 1])
    with store.open_writer(path, **SETTINGS) as writer:
        original, calls = os.write, 0

        def full(fd, data):
            nonlocal calls
            calls += 1
            if calls >= call:
                original(fd, bytes(data[: len(data) // 2]))
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return original(fd, data)

        monkeypatch.setattr(store_files.os, "write", full)
        with pytest.raises(StoreError, match="the disk is full.*Nothing that was committed is lost") as caught:
            writer.write(2, **contents(2))
        assert caught.value.exit_status == 1
        monkeypatch.undo()
        assert not list((path / "_staging").iterdir())
        assert store.verify(path) == [] and len(store.open_run(path)) == 8
        assert writer.write(2, **contents(2))
    assert store.verify(path) == [] and len(store.open_run(path)) == 12


def test_a_small_disk_that_fills_up(tmp_path):
    mount = tmp_path / "disk"
    mount.mkdir()
    try:
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mount)], capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if made.returncode:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        states = [{"id": str(i), "benchmark": "b", "regime": "r", "item_id": str(i)} for i in range(40)]
        settings = {
            "plan": store.Plan.build(states, 4),
            "config": {},
            "arrays": {"x": store.ArraySpec((3, 4096), "float32", (0, 1, 2))},
        }
        x = np.random.default_rng(0).standard_normal((4, 3, 4096)).astype(np.float32)
        with store.open_writer(mount / "run", **settings) as writer:
            with pytest.raises(StoreError, match="the disk is full"):
                for index in writer.claimed():
                    writer.write(index, arrays={"x": x})
            done = len(store.open_run(mount / "run"))
            assert 0 < done < 40
            assert store.verify(mount / "run") == []
            np.testing.assert_array_equal(store.open_run(mount / "run").array("x"), np.tile(x, (done // 4, 1, 1)))
        subprocess.run(["mount", "-o", "remount,size=16m", str(mount)], check=True)
        with store.open_writer(mount / "run", **settings) as writer:
            for index in writer.claimed():
                writer.write(index, arrays={"x": x})
        assert store.verify(mount / "run") == [] and len(store.open_run(mount / "run")) == 40
    finally:
        subprocess.run(["umount", str(mount)], check=False)


def test_an_interrupt_at_any_system_call_leaves_a_sound_run(tmp_path, monkeypatch):
    """Ctrl-C may come between the commit and the bookkeeping after it."""
    for name in ("link", "replace", "write", "open"):
        for call in range(1, 8):
            path = fill(tmp_path / f"{name}-{call}", [0])
            writer = store.open_writer(path, **SETTINGS)
            original, calls = getattr(os, name), 0

            def interrupt(*arguments, _original=original, _call=call, **options):
                nonlocal calls
                calls += 1
                result = _original(*arguments, **options)
                if calls == _call:
                    raise KeyboardInterrupt
                return result

            monkeypatch.setattr(store_files.os, name, interrupt)
            try:
                writer.write(1, **contents(1))
            except KeyboardInterrupt:
                pass
            monkeypatch.undo()
            assert store.verify(path) == []
            run = store.open_run(path)
            assert len(run) in (4, 8)
            whole = np.concatenate([contents(k)["arrays"]["x"] for k in range(len(run) // 4)])
            np.testing.assert_array_equal(run.array("x"), whole)
            writer.close()
            fill(path, [k for k in range(len(run) // 4, 4)])
            assert store.verify(path) == [] and not list((path / "_staging").iterdir())


def test_a_file_system_without_hard_links_is_refused(tmp_path, monkeypatch):
    def no_links(*arguments):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(store_files.os, "link", no_links)
    with pytest.raises(StoreError, match="refused a hard link"):
        store.open_writer(tmp_path / "run", **SETTINGS)


def test_a_clock_that_goes_back_changes_nothing(tmp_path, monkeypatch):
    path = fill(tmp_path / "run", [0])
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 86400 * 365)
    with store.open_writer(path, **SETTINGS) as first, store.open_writer(path, **SETTINGS) as second:
        assert first.claim(1) and not second.claim(1)
        assert first.write(1, **contents(1)) and not second.claim(1)
        assert second.claim(2) and second.write(2, **contents(2))
    assert store.verify(path) == [] and len(store.open_run(path)) == 12
    manifest = store.open_run(path).manifest
    assert manifest["writers"]


def test_a_commit_that_names_other_states_is_found(path):
    from precollapse.store.files.sealed import seal

    file = path / "_commits" / "00000001.json"
    body = json.loads(file.read_bytes())["body"]
    body["ids"][0], body["ids"][1] = body["ids"][1], body["ids"][0]
    file.write_bytes(seal(body))
    assert [(fault.shard, fault.what) for fault in store.verify(path)] == [
        (1, "it names other states than the plan does.")
    ]
    assert store.repair(path).withdrawn == (1,)


@pytest.mark.parametrize("call", range(1, 12))
def test_verify_while_files_get_their_final_names_finds_nothing_wrong(tmp_path, monkeypatch, call):
    """The moves come between looking a file up and reading it, at any of the calls."""
    path = fill(tmp_path / "run", [0])
    with store.open_writer(path, **SETTINGS) as writer:
        moves = []
        monkeypatch.setattr(writer._files, "move", lambda *names: moves.append(names) or True)
        writer.write(1, **contents(1))
        assert moves
        from precollapse.store.files import LocalFiles

        calls = [0]
        for name in ("size", "read_into", "read"):
            original = getattr(LocalFiles, name)

            def counted(self, *arguments, original=original):
                calls[0] += 1
                while calls[0] >= call and moves:
                    source, target = moves.pop()
                    os.replace(path / source, path / target)
                return original(self, *arguments)

            monkeypatch.setattr(LocalFiles, name, counted)
        assert store.verify(path) == []
        assert not moves


def test_a_run_of_an_older_format_is_read_continued_and_repaired(tmp_path, monkeypatch):
    """The day FORMAT is raised: a run that is there keeps its own."""
    path = fill(tmp_path / "run", [0, 1])
    plan = sys.modules["precollapse.store.run_plan"]
    monkeypatch.setattr(plan, "FORMAT", store.FORMAT + 1)
    assert store.describe(path)["format"] == store.FORMAT
    fill(path, [2])
    flip(chunk(path, 1), 100)
    assert store.repair(path).withdrawn == (1,)
    fill(path, [1, 3])
    assert store.verify(path) == [] and len(store.open_run(path)) == 16
    assert {json.loads(file.read_bytes())["body"]["format"] for file in (path / "_commits").iterdir()} == {store.FORMAT}
    other = fill(tmp_path / "new", [0])
    assert store.describe(other)["format"] == store.FORMAT + 1


def test_verify_while_a_shard_is_committed_finds_nothing_wrong(tmp_path, monkeypatch):
    module = sys.modules["precollapse.store.verify"]
    path = fill(tmp_path / "run", [0])
    with store.open_writer(path, **SETTINGS) as writer:
        original = module.shard_faults

        def meanwhile(files, run, commit):
            if 1 in writer.pending():
                writer.write(1, **contents(1))
            return original(files, run, commit)

        monkeypatch.setattr(module, "shard_faults", meanwhile)
        assert store.verify(path) == []
        assert 1 not in writer.pending()


def test_a_short_last_shard_is_checked_when_all_of_it_is_read(tmp_path):
    """One row of a chunk of 8: all that are there were wanted, so nothing of it may go unchecked."""
    states = [{"id": str(i), "benchmark": "b", "regime": "r", "item_id": str(i)} for i in range(57)]
    settings = {
        "plan": store.Plan.build(states, 8),
        "config": {},
        "arrays": {"x": store.ArraySpec((2, 300), "float32")},
    }
    x = np.random.default_rng(0).standard_normal((57, 2, 300)).astype(np.float32)
    with store.open_writer(tmp_path / "r", **settings) as writer:
        for index in writer.claimed():
            shard = writer.shard(index)
            writer.write(index, arrays={"x": x[shard.start : shard.stop]})
    run = store.open_run(tmp_path / "r")
    last = sorted((tmp_path / "r").glob("cells/*/x/c.*"))[-1]
    rows = len(run.plan.shard_rows(run.plan.n_shards - 1))
    assert rows * 4 < run.plan.cells[0].rows  # else this test shows nothing
    np.testing.assert_array_equal(run.array("x"), x)
    flip(last, 3)
    with pytest.raises(StoreError, match="is damaged"):
        run.array("x")


def test_a_damaged_header_of_ragged_arrays_is_never_read_past(path):
    """Its names and types are outside of what the checksums of the rows cover."""
    file = path / "ragged" / "00000001.safetensors"
    whole = file.read_bytes()
    run = store.open_run(path)
    wanted = run.ragged("rows", 5)
    start = 8 + int.from_bytes(whole[:8], "little")
    told = 0
    for at in range(start):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            np.testing.assert_array_equal(store.open_run(path).ragged("rows", 5), wanted)
        except StoreError:
            told += 1
    assert told > start // 2
    file.write_bytes(whole.replace(b'"F32"', b'"I32"'))
    with pytest.raises(StoreError, match="damaged"):
        store.open_run(path).ragged("rows", 5)


@pytest.mark.parametrize(
    ("locked", "told"),
    [
        ("_commits/00000001.json", "OPENED 12; STATES 12; FAULTS 1"),
        ("_commits", "STOPPED There is no permission to read"),
        ("tables/00000001.safetensors", "OPENED 16; STOPPED There is no permission to read"),
        ("ragged/00000001.safetensors", "OPENED 16; STATES 16; FAULTS 1"),
        ("_manifest", "OPENED 16; STATES 16; STOPPED There is no permission to read"),
    ],
)
def test_what_may_not_be_read_is_named_and_hides_no_more(path, locked, told):
    for folder in (path, *path.rglob("*")):
        folder.chmod(0o755 if folder.is_dir() else 0o644)
    (path / locked).chmod(0o000)
    code = """
    import warnings
    from precollapse.errors import StoreError
    warnings.simplefilter("ignore")
    said = []
    try:
        run = store.open_run(path)
        said.append(f"OPENED {len(run)}")
        said.append(f"STATES {len(run.states)}")
        run.manifest
        said.append(f"FAULTS {len([f for f in store.verify(path) if 'permission' in str(f)])}")
    except StoreError as error:
        said.append(f"STOPPED {error}")
    print("; ".join(said))
    """
    status, text = unprivileged(textwrap.dedent(code), path)
    (path / locked).chmod(0o755)
    assert status == 0 and told in text, text


def test_repair_keeps_the_staged_files_of_a_damaged_commit(path, monkeypatch):
    """A kill right after a commit leaves them there; with the commit damaged nothing else says whose they are."""
    (path.parent / "killed").mkdir()
    place = path.parent / "killed" / "run.zarr"
    with monkeypatch.context() as patch:
        patch.setattr(store_files.LocalFiles, "move", lambda *_: False)
        patch.setattr("precollapse.store.writer.sweep", lambda *_: None)
        fill(place, [0, 1])
    flip(place / "_commits" / "00000001.json", 200)
    staged = [name for name in os.listdir(place / "_staging") if name.startswith("00000001.")]
    assert staged
    store.repair(place)
    kept = os.listdir(place / "_damaged")
    assert all(any(name in k for k in kept) for name in staged)
    assert len(store.open_run(place)) == 4 and store.verify(place) == []


def test_a_probe_that_a_kill_left_is_no_stranger(tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "_probe.0123").write_bytes(b"1")
    fill(tmp_path / "r")
    assert len(store.open_run(tmp_path / "r")) == 16
