"""Kill writers of a run at random instants, resume, and compare with a run that was never interrupted.

Each round starts 1 to 4 writer processes on a new run and sends each a SIGKILL at a random instant. Then
 1. a reader opens what is left: every committed row must be the right one, and `verify` must find nothing;
 2. one or two new writers resume and finish;
 3. every data file must equal, byte for byte, that of the uninterrupted run; each state must be there once; commits
    that existed after the kill must be unchanged; nothing may be left in the staging and lease folders.

Each shard also commits its moments, which are merged into one part a cell as the run grows; those of every cell must be the
moments of its rows (1e-10) and, bit for bit, those of the uninterrupted run, however far its parts were merged before a kill.

Usage: python perf/kill.py [--rounds 500] [--seed 0] [--folder DIR] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from precollapse import store
from precollapse.errors import RequestError
from precollapse.kernels import Moments
from precollapse.studies.study.moments import BLOB, cell_moments, fold

LAYERS, WIDTH = 6, 64
WIDTH_OF_A_FOLD = 15
"""States that are merged at a time, as if the residual stream were so wide: three shards."""
SIZES = {("arith", "baseline"): 50, ("arith", "cot"): 50, ("logic", "baseline"): 17}
STATES = [
    {"id": f"{b}/{i}/{r}", "benchmark": b, "regime": r, "item_id": f"{b}-{i}"}
    for (b, r), n in SIZES.items()
    for i in range(n)
]
PLAN = store.Plan.build(STATES, 5)
SETTINGS = {
    "plan": PLAN,
    "config": {"model": "none", "seed": 0},
    "arrays": {
        "resid_post": store.ArraySpec((LAYERS, WIDTH), "float32", tuple(range(LAYERS))),
        "resid_mid": store.ArraySpec((LAYERS, 2 * WIDTH), "bfloat16", tuple(range(LAYERS))),
        "top_ids": store.ArraySpec((10,), "int64"),
    },
    "columns": {"entropy_bits": "float64", "text": "string", "correct": "bool"},
    "ragged": {"token_ids": "int32"},
}


def contents(index: int) -> dict:
    """What a shard holds: a function of its number alone."""
    rng = np.random.default_rng(index)
    count = len(PLAN.shard(index))
    return {
        "arrays": {
            "resid_post": rng.standard_normal((count, LAYERS, WIDTH)).astype(np.float32),
            "resid_mid": rng.integers(0, 1 << 16, (count, LAYERS, 2 * WIDTH)).astype(np.uint16),
            "top_ids": rng.integers(0, 50_000, (count, 10)),
        },
        "table": {
            "entropy_bits": rng.random(count),
            "text": [f"answer {n}" if n % 3 else None for n in range(count)],
            "correct": rng.random(count) < 0.5,
        },
        "ragged": {"token_ids": [np.arange(n + index, dtype=np.int32) for n in range(count)]},
    }


def with_moments(made: dict) -> dict:
    """The same with the moments of its residuals."""
    moments = Moments(LAYERS, WIDTH).update(torch.from_numpy(made["arrays"]["resid_post"]))
    return {**made, "blobs": {BLOB: moments.to_bytes()}}


def moments_that_differ(path: Path, whole: dict) -> int:
    """Cells whose merged moments are not those of their rows, or not bit for bit those of the uninterrupted run."""
    run = store.open_run(path)
    merged = cell_moments(run)
    wrong_bits = sum(moments.to_bytes() != whole[cell].to_bytes() for cell, moments in merged.items())
    wrong = len(run.plan.cells) - len(merged) + wrong_bits
    for (benchmark, regime), moments in merged.items():
        rows = run.array("resid_post", benchmark=benchmark, regime=regime).astype(np.float64)
        for layer in range(LAYERS):
            expected = np.cov(rows[:, layer].T, bias=True)
            found = moments.covariance(layer).numpy()
            scale = np.abs(expected).max()
            same = min(np.abs(found - expected * f).max() for f in (1.0, len(rows) / (len(rows) - 1)))
            wrong += int(moments.count != len(rows) or same > 1e-10 * scale)
    return wrong


def work(path: Path) -> None:
    """Write whatever is left of the run."""
    with store.open_writer(path, **SETTINGS) as writer:
        for index in writer.claimed(poll_seconds=0.01):
            writer.write(index, **with_moments(contents(index)))
            fold(writer, index, WIDTH_OF_A_FOLD)


def start(path: Path) -> int:
    """A writer process; returns its id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work(path)
            status = 0
        finally:
            os._exit(status)
    return pid


def kill_at(pids: dict[int, float]) -> int:
    """SIGKILL each process at its instant (seconds from now); returns how many were still running."""
    begun, killed = time.perf_counter(), 0
    for pid, instant in sorted(pids.items(), key=lambda entry: entry[1]):
        time.sleep(max(0.0, instant - (time.perf_counter() - begun)))
        os.kill(pid, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    return killed


def data_files(path: Path) -> dict[str, bytes]:
    """Every file that holds data or describes it, by name."""
    kept = ("cells", "tables", "ragged", "plan.json", "zarr.json")
    return {
        str(file.relative_to(path)): file.read_bytes()
        for top in kept
        for file in ([path / top] if (path / top).is_file() else sorted((path / top).rglob("*")))
        if file.is_file()
    }


def check_committed(path: Path) -> tuple[int, int, dict[str, bytes]]:
    """After a kill: number of committed rows, of wrong ones among them, and the commit records."""
    try:
        run = store.open_run(path)
    except RequestError:  # killed before the plan was there
        return 0, 0, {}
    wrong = len(store.verify(path))
    for shard, values in run.iter_shards("resid_post"):
        wrong += int((values != contents(shard.index)["arrays"]["resid_post"]).any(axis=(1, 2)).sum())
    states = run.states
    wrong += int(states["id"].duplicated().sum()) + len(set(states["id"]) - {s["id"] for s in STATES})
    return len(run), wrong, {file.name: file.read_bytes() for file in (path / "_commits").iterdir()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default=None, help="where to write (default: a temporary folder)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    base = Path(tempfile.mkdtemp(dir=options.folder))
    begun = time.perf_counter()
    work(base / "whole.zarr")
    span = time.perf_counter() - begun
    whole, moments = data_files(base / "whole.zarr"), cell_moments(store.open_run(base / "whole.zarr"))
    total = {"rounds": 0, "writers": 0, "killed": 0, "unfinished_files": 0, "staged_but_committed": 0}
    bad = {
        "lost": 0,
        "duplicated": 0,
        "invented": 0,
        "files_that_differ": 0,
        "commits_changed": 0,
        "left_over": 0,
        "moments_that_differ": 0,
    }
    seconds = []
    for number in range(options.rounds):
        begun = time.perf_counter()
        path = base / f"round-{number}.zarr"
        writers = rng.randint(1, 4)
        pids = {start(path): rng.uniform(0, span) / writers**0.5 for _ in range(writers)}
        total["writers"] += writers
        total["killed"] += kill_at(pids)
        staged = {file.name for file in (path / "_staging").glob("*")}
        rows, wrong, commits = check_committed(path)
        named = "".join(record.decode() for record in commits.values())
        total["staged_but_committed"] += sum(name in named for name in staged)
        total["unfinished_files"] += sum(name not in named for name in staged)
        bad["invented"] += wrong
        others = [start(path) for _ in range(rng.randint(0, 1))]
        work(path)
        for pid in others:
            os.waitpid(pid, 0)
        ids = list(store.open_run(path).states["id"])
        bad["lost"] += len({s["id"] for s in STATES} - set(ids))
        bad["duplicated"] += len(ids) - len(set(ids))
        found = data_files(path)
        bad["files_that_differ"] += sum(found.get(name) != whole.get(name) for name in found.keys() | whole.keys())
        bad["commits_changed"] += sum((path / "_commits" / name).read_bytes() != was for name, was in commits.items())
        bad["left_over"] += sum(1 for folder in ("_staging", "_leases") for _ in (path / folder).iterdir())
        bad["moments_that_differ"] += moments_that_differ(path, moments)
        total["rounds"] += 1
        seconds.append(time.perf_counter() - begun)
        if not options.json:
            print(
                f"round {number}: {writers} writers, {rows} rows after the kill, {seconds[-1]:.2f} s", file=sys.stderr
            )
        shutil.rmtree(path)
    shutil.rmtree(base)
    result = {**total, **bad, "seconds_per_round": round(statistics.median(seconds), 3) if seconds else None}
    print(json.dumps(result) if options.json else "\n".join(f"{key}: {value}" for key, value in result.items()))
    return 1 if any(bad.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
