"""What a shard costs does not grow with the run: requests to a service, and files open at once."""

from __future__ import annotations

import collections
import itertools
import os
import subprocess
import sys

import pytest

from precollapse import store
from precollapse.perf import s3_requests
from precollapse.store import writer as writing
from precollapse.store.files import LocalFiles

GROUP = 5


class CountedFiles:
    """A local folder that counts what a service would be asked: each call, and each thousand names of a listing."""

    immediate = False

    def __init__(self, path, counts):
        self._files = LocalFiles(path)
        self._counts = counts
        self.path = path

    def __getattr__(self, name):
        method = getattr(self._files, name)

        def call(*arguments, **options):
            answer = method(*arguments, **options)
            requests = {"list": lambda: len(answer) // 1000 + 1, "read_many": lambda: len(answer), "move": lambda: 2}
            self._counts[name] += requests.get(name, lambda: 1)()
            return answer

        return call


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


def calls_per_shard(tmp_path, monkeypatch, shards):
    counts = collections.Counter()
    monkeypatch.setattr(writing, "open_files", lambda path, owner="": CountedFiles(path, counts))
    s3_requests.write_run(str(tmp_path / f"{shards}.zarr"), shards, GROUP)
    assert store.verify(tmp_path / f"{shards}.zarr") == []
    return sum(counts.values()) / shards


def test_calls_per_shard_do_not_grow_with_the_shards(tmp_path, monkeypatch):
    """Each fold asked for the size of every earlier shard, so that a run of n shards cost n² / 2 requests."""
    ten = calls_per_shard(tmp_path, monkeypatch, 10)
    assert calls_per_shard(tmp_path, monkeypatch, 100) <= ten


def test_requests_per_shard_on_s3_do_not_grow_with_the_shards():
    pytest.importorskip("obstore", reason="obstore is not installed")
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    with s3_requests.counted_server() as counter:
        few, more = (s3_requests.measure(counter, shards, GROUP)["all"] for shards in (10, 30))
    assert 0 < more <= 1.05 * few


def test_commits_are_not_listed_for_each_shard(tmp_path, monkeypatch):
    listed = []
    original = LocalFiles.list
    monkeypatch.setattr(
        LocalFiles, "list", lambda files, *bounds: listed.append(bounds) or original(files, *bounds), raising=True
    )
    s3_requests.write_run(str(tmp_path / "run.zarr"), 40, GROUP)
    assert len([bounds for bounds in listed if bounds == ("_commits",)]) < 8


@pytest.mark.parametrize("order", [range(12), [*range(11, -1, -1)], [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]])
def test_what_a_dead_writer_left_of_a_fold_is_cleared(tmp_path, order, monkeypatch):
    """A writer that died after a fold and before it removed the parts; the next one folds on and clears both."""
    states = [{"id": str(i), "benchmark": "b", "regime": "r", "item_id": str(i)} for i in range(12)]
    settings = {"plan": store.Plan.build(states, 1), "config": {}, "columns": {"c": "int64"}}

    def work(shards):
        with store.open_writer(tmp_path / "run.zarr", **settings) as writer:
            for index in shards:
                writer.write(index, table={"c": [index]}, blobs={"moments": bytes([index])})
                writer.fold(index, "moments", 3, b"".join)
            writer.fold(0, "moments", 3, b"".join)

    order = list(order)
    with monkeypatch.context() as patch:
        removals = itertools.count()

        def dying(files, name):
            if next(removals) > 3 and name.startswith(("folds", "blobs")):
                raise KeyboardInterrupt
            return original(files, name)

        original = LocalFiles.remove
        patch.setattr(LocalFiles, "remove", dying)
        with pytest.raises(KeyboardInterrupt):
            work(order)
    done = set(store.open_run(tmp_path / "run.zarr").commits)
    work([index for index in order if index not in done])
    run = store.open_run(tmp_path / "run.zarr")
    assert [b"".join(parts) for _, parts in run.parts("moments")] == [bytes(range(12))]
    assert [p.name for p in (tmp_path / "run.zarr" / "folds").iterdir()] == ["0000.00000012.moments"]
    assert list((tmp_path / "run.zarr" / "blobs").iterdir()) == []
    assert store.verify(tmp_path / "run.zarr") == []


MANY = """
import resource, sys
from precollapse import store
from precollapse.store.files import LocalFiles
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = [open(sys.executable) for _ in range(100)]  # a model, other readers
run = store.open_run(sys.argv[1])
print(len(run.states), run.array("x").shape, run.resid(1, "x").shape, len(store.verify(sys.argv[1])), len(run.take([3, 1]).states))
names = [f"many/{k}" for k in range(600)]
print(sum(data is not None for data in LocalFiles(sys.argv[2]).read_many(names)))
"""


def test_many_shards_are_read_within_the_open_file_limit(tmp_path):
    """256 files were opened at once, where a process may have no more than that in all."""
    s3_requests.write_run(str(tmp_path / "run.zarr"), 150, GROUP)
    (tmp_path / "many").mkdir()
    for k in range(600):
        (tmp_path / "many" / str(k)).write_bytes(b"x")
    command = [sys.executable, "-c", MANY, tmp_path / "run.zarr", tmp_path]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    assert output.splitlines() == ["150 (150, 2, 300) (150, 300) 0 2", "600"]
