"""Exports and imports that are killed: nothing that is left looks whole, and the same command goes on."""

from __future__ import annotations

import itertools
import os
import signal

import numpy as np
import pytest

from precollapse import store
from precollapse.errors import RequestError

STATES = [{"id": f"{r}/{i}", "benchmark": "b", "regime": r, "item_id": str(i)} for r in ("r", "s") for i in range(6)]


def killed(left, copy):
    """Whether a process that makes a copy was killed, at its change number `left` of the file system."""
    child = os.fork()
    if child == 0:
        changes = itertools.count(1)

        def dying(original):
            def call(*arguments, **options):
                if next(changes) > left:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*arguments, **options)

            return call

        for name in ("replace", "fsync", "mkdir", "rmdir", "unlink", "link"):
            setattr(os, name, dying(getattr(os, name)))
        try:
            copy()
            os._exit(0)
        except BaseException:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("killed") / "run.zarr"
    arrays = {"x": store.ArraySpec((2, 300), "float32", (0, 1))}
    plan = store.Plan.build(STATES, 3)
    with store.open_writer(path, plan=plan, config={}, arrays=arrays, columns={"c": "int64"}) as writer:
        for index in writer.claimed():
            x = np.random.default_rng(index).standard_normal((3, 2, 300)).astype(np.float32)
            writer.write(index, arrays={"x": x}, table={"c": [index] * 3})
    return path


def files(folder):
    if not folder.exists():
        return {}
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.mark.parametrize("fmt", ["safetensors", "npz", "parquet"])
def test_a_killed_export_does_not_look_whole_and_is_made_anew(run, tmp_path, fmt):
    store.export(run, fmt, tmp_path / "whole")
    whole = files(tmp_path / "whole")
    kills = 0
    for left in range(40):
        out = tmp_path / f"out{left}"
        if not killed(left, lambda out=out: store.export(run, fmt, out)):
            assert files(out).keys() == whole.keys()
            break
        kills += 1
        assert (out / ".export.part").exists() or (out / ".export.moved").exists() or not files(out)
        store.export(run, fmt, out)
        assert files(out).keys() == whole.keys()
        if fmt != "npz":  # a zip file says when it was made
            assert files(out) == whole
    assert 8 < kills < 39


def test_an_export_leaves_the_files_of_others_alone(run, tmp_path):
    out = tmp_path / "out"
    (out / "below").mkdir(parents=True)
    (out / ".export.moved").write_bytes(b"../kept\nstates.jsonl\n..\nbelow\n\xff\n")
    (tmp_path / "kept").write_text("x")
    (out / "mine.txt").write_text("x")
    with pytest.raises(RequestError, match="not empty"):
        store.export(run, "npz", out)
    assert (tmp_path / "kept").exists() and (out / "mine.txt").exists()


@pytest.mark.parametrize("out", ["s3://bucket/out", "s3:/bucket/out", "gs://bucket/out", "https://host/out"])
def test_an_export_to_an_address_is_refused(run, tmp_path, monkeypatch, out):
    """A folder named `s3:` was made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="local folder"):
        store.export(run, "npz", out)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_import_goes_on(run, tmp_path):
    store.export(run, "safetensors", tmp_path / "saved")
    kills, step = 0, 7
    while killed(step, lambda: store.import_activations(tmp_path / "saved", tmp_path / "again.zarr", shard_size=1)):
        kills, step = kills + 1, step + 13
        if (tmp_path / "again.zarr" / "plan.json").exists():
            assert store.verify(tmp_path / "again.zarr") == []
    again = store.open_run(tmp_path / "again.zarr")
    assert kills > 3 and again.progress.complete and store.verify(tmp_path / "again.zarr") == []
    np.testing.assert_array_equal(again.array("x"), store.open_run(run).array("x"))
