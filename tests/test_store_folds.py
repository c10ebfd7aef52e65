"""Blobs merged into one per cell: every committed shard counts once, whatever was killed, raced, damaged or done again."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import precollapse as pc
from precollapse import store
from precollapse.errors import StoreError
from precollapse.studies import StudyConfig, run_study
from precollapse.studies.study import moments

STATES = [
    {"id": f"b/{i}/{regime}", "benchmark": "b", "regime": regime, "item_id": f"item {i}"}
    for regime in ("baseline", "cot")
    for i in range(15)
]
SETTINGS = {"plan": store.Plan.build(STATES, 2), "config": {"model": "m"}, "columns": {"text": "string"}}
GROUP = 3  # of 8 shards in each cell


def blob(shard):
    return bytes([shard]) * 5


def work(path, order=range(16), linger=0.0):
    with store.open_writer(path, **SETTINGS) as writer:
        for index in order:
            if index in writer.pending() and writer.claim(index):
                text = ["x"] * len(writer.shard(index))
                writer.write(index, table={"text": text}, blobs={"moments": blob(index)})
                time.sleep(linger)
                writer.fold(index, "moments", GROUP, b"".join)
        for cell in writer.plan.cells:  # what a writer that was killed after its commit left
            writer.fold(cell.first_shard, "moments", GROUP, b"".join)


def held(path):
    """What is kept of each cell, and which files hold it."""
    parts = {cell.regime: b"".join(found) for cell, found in pc.open_run(path).parts("moments")}
    return parts, sorted(p.name for p in (path / "folds").iterdir()), sorted(p.name for p in (path / "blobs").iterdir())


WHOLE = {
    "baseline": b"".join(map(blob, range(8))),
    "cot": b"".join(map(blob, range(8, 16))),
}
FOLDS = ["0000.00000006.moments", "0001.00000014.moments"]
LEFT = [f"{k:08d}.moments" for k in (6, 7, 14, 15)]


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_any_order_of_shards_gives_the_same_files(tmp_path, seed):
    order = list(range(16))
    if seed is not None:
        random.Random(seed).shuffle(order)
    work(tmp_path / "run.zarr", order)
    parts, folds, blobs = held(tmp_path / "run.zarr")
    assert parts == WHOLE and folds == FOLDS
    assert set(LEFT) <= set(blobs)
    if seed is None:
        assert blobs == LEFT
    assert pc.verify(tmp_path / "run.zarr") == []


def test_a_group_waits_for_all_its_shards(tmp_path):
    work(tmp_path / "run.zarr", [1, 2, 3, 4, 5, 6])
    parts, folds, _ = held(tmp_path / "run.zarr")
    assert folds == [] and parts == {"baseline": b"".join(map(blob, range(1, 7)))}
    work(tmp_path / "run.zarr", [0])
    parts, folds, blobs = held(tmp_path / "run.zarr")
    assert folds == FOLDS[:1] and blobs == LEFT[:1] and parts == {"baseline": b"".join(map(blob, range(7)))}


def test_killed_writers_lose_and_double_nothing(tmp_path):
    path, rng = tmp_path / "run.zarr", random.Random(0)
    for _ in range(12):
        children = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                try:
                    work(path, sorted(range(16), key=lambda _: rng.random()), linger=0.002)
                finally:
                    os._exit(0)
            children.append(child)
        time.sleep(rng.random() * 0.12)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if (path / "plan.json").exists():
            run = pc.open_run(path)
            done = {k for k in range(16) if k in run.commits}
            got = {cell.regime: b"".join(found) for cell, found in run.parts("moments")}
            for regime, shards in (("baseline", range(8)), ("cot", range(8, 16))):
                assert got.get(regime, b"") == b"".join(blob(k) for k in shards if k in done)
    work(path)
    assert held(path)[0] == WHOLE and held(path)[1] == FOLDS and pc.verify(path) == []


def test_a_damaged_fold_is_named_and_its_shards_are_done_again(tmp_path):
    path = tmp_path / "run.zarr"
    work(path)
    file = path / "folds" / FOLDS[0]
    data = bytearray(file.read_bytes())
    data[9] ^= 1
    file.write_bytes(data)
    assert [fault.where for fault in pc.verify(path)] == [f"folds/{FOLDS[0]}"]
    with pytest.raises(StoreError, match="is damaged"):
        held(path)
    assert store.repair(path).withdrawn == (0, 1, 2, 3, 4, 5)
    work(path)
    assert held(path)[0] == WHOLE and pc.verify(path) == []


def test_a_shard_taken_out_after_it_was_folded_is_not_counted_twice(tmp_path):
    path = tmp_path / "run.zarr"
    work(path)
    table = path / "tables" / "00000001.safetensors"
    table.write_bytes(table.read_bytes()[:-1] + b"?")
    assert store.repair(path).withdrawn == (1,)
    with pytest.warns(UserWarning, match="baseline of .* is left out: its moments hold a shard that was taken out"):
        assert held(path)[0].keys() == {"cot"}  # not a baseline that counts a shard without a commit
    work(path)
    assert held(path)[0] == WHOLE and pc.verify(path) == []


def test_described_size_is_what_lies_on_the_disk(tmp_path):
    path = tmp_path / "run.zarr"
    work(path)
    kept = [f for name in ("cells", "tables", "ragged", "blobs", "folds") for f in (path / name).rglob("*")]
    assert store.describe(path)["bytes"] == sum(f.stat().st_size for f in kept if f.is_file() and f.name != "zarr.json")


def test_a_missing_part_that_no_fold_holds_is_a_fault(tmp_path):
    path = tmp_path / "run.zarr"
    work(path)
    (path / "blobs" / LEFT[0]).unlink()
    assert [fault.where for fault in pc.verify(path)] == [f"blobs/{LEFT[0]}"]


def test_moments_of_a_run_that_keeps_no_states_stay_small_and_equal_numpy(tiny_folder, tmp_path):
    def config(name, **changes):
        return StudyConfig(
            out=tmp_path / name,
            model=str(tiny_folder),
            benchmarks=("builtin",),
            regimes=("baseline",),
            n=82,
            generate=False,
            shard_size=8,
            **changes,
        )

    extractor = pc.Extractor.from_pretrained(str(tiny_folder))
    kept = run_study(config("kept.zarr"), progress=False, extractor=extractor)
    run = run_study(config("folded.zarr", sites=(), moments=True), progress=False, extractor=extractor)
    files = Path(run.path)
    assert [p.name for p in (files / "folds").iterdir()] == [
        "0000.00000008.moments"
    ]  # two groups of four shards, as the model is 32 wide
    assert len(list((files / "blobs").iterdir())) == 3  # shards 8 to 10
    found = moments.cell_moments(run)["builtin", "baseline"]
    assert found.count == 82
    for layer in range(3):
        rows = kept.resid(layer).astype(np.float64)
        wanted = np.cov(rows.T)
        np.testing.assert_allclose(
            np.asarray(found.covariance(layer)), wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max()
        )
        ratio = np.trace(wanted) ** 2 / np.square(wanted).sum()
        assert run.manifest["moments"]["builtin/baseline"]["participation_ratio"][layer] == pytest.approx(ratio, 1e-5)
    assert pc.verify(run.path) == []
