"""Throughput of a run on disk, beside a raw file, np.memmap, h5py, zarr with its defaults and safetensors.

One array [2048, 32, 4096] float16 (537 MB) is written and read back by each, in the same process and on the same disk.
Every write ends with fsync. Before a cold read the page cache is dropped (for the whole machine where that is
permitted, else for the files). Rates are medians over --repeats, and ratios are medians of the ratios within a repeat;
the order of the candidates changes from repeat to repeat.

 write    all bytes, shard by shard where the format has shards
 layer    one of 32 layers, all 2048 rows, cold
 gather   256 random rows of one layer, cold
 regime   all layers of one regime (half of the rows), cold
 open     a run of 1,000,000 states with all commits, metadata only

Usage: python perf/store.py [--folder DIR] [--repeats 3] [--states 2048] [--only write,layer,...] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from precollapse import store
from precollapse.store.files.sealed import crc32c

LAYERS, WIDTH, LAYER = 32, 4096, 17
GOALS = (("write", "raw", 0.8), ("layer", "memmap", 0.7), ("gather", "memmap", 1.5), ("regime", "raw", 0.7))


def drop(folder: Path) -> str:
    """Drop the page cache; returns how."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
        return "machine"
    except OSError:
        for file in folder.rglob("*"):
            if file.is_file():
                fd = os.open(file, os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)
        return "files"


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


def sync(path: Path) -> None:
    for file in [path, *path.rglob("*")] if path.is_dir() else [path]:
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def peak_memory() -> int:
    """Highest resident memory since the last call of `reset_peak`, bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


# Candidates: write(x, path), layer(path), gather(path, rows), regime(path) -> arrays


class Raw:
    """Bytes of the array in one file: the disk's own rate."""

    def write(self, x: np.ndarray, path: Path) -> None:
        data = memoryview(x).cast("B")
        with open(path, "wb", buffering=0) as file:
            for first in range(0, len(data), 16 << 20):
                file.write(data[first : first + (16 << 20)])
            os.fsync(file.fileno())

    def regime(self, path: Path, n: int) -> np.ndarray:
        out = np.empty((n // 2, LAYERS, WIDTH), np.float16)
        view = memoryview(out).cast("B")
        with open(path, "rb", buffering=0) as file:
            done = 0
            while done < len(view):
                done += file.readinto(view[done : done + (16 << 20)])
        return out


class Ours:
    """A run of two regimes."""

    def _settings(self, n: int) -> dict[str, Any]:
        states = [
            {"id": f"{r}/{i}", "benchmark": "b", "regime": r, "item_id": str(i)}
            for r in ("one", "two")
            for i in range(n // 2)
        ]
        arrays = {"resid_post": store.ArraySpec((LAYERS, WIDTH), "float16", tuple(range(LAYERS)))}
        return {"plan": store.Plan.build(states, store.shard_size_for(arrays)), "config": {}, "arrays": arrays}

    def write(self, x: np.ndarray, path: Path) -> None:
        with store.open_writer(path, **self._settings(len(x))) as writer:
            for index in writer.claimed():
                shard = writer.shard(index)
                writer.write(index, arrays={"resid_post": x[shard.start : shard.stop]})

    def layer(self, path: Path, n: int) -> np.ndarray:
        return store.open_run(path).resid(LAYER)

    def gather(self, path: Path, n: int, rows: np.ndarray) -> np.ndarray:
        return store.open_run(path).take(rows).resid(LAYER)

    def regime(self, path: Path, n: int) -> np.ndarray:
        return store.open_run(path).array("resid_post", regime="one")


class Memmap:
    """np.memmap laid out [L, n, d], the best layout for reading a layer."""

    def write(self, x: np.ndarray, path: Path) -> None:
        target = np.memmap(path, np.float16, "w+", shape=(LAYERS, len(x), WIDTH))
        for first in range(0, len(x), 128):
            target[:, first : first + 128] = x[first : first + 128].transpose(1, 0, 2)
        target.flush()
        sync(path)

    def layer(self, path: Path, n: int) -> np.ndarray:
        return np.array(np.memmap(path, np.float16, "r", shape=(LAYERS, n, WIDTH))[LAYER])

    def gather(self, path: Path, n: int, rows: np.ndarray) -> np.ndarray:
        return np.memmap(path, np.float16, "r", shape=(LAYERS, n, WIDTH))[LAYER, rows]

    def regime(self, path: Path, n: int) -> np.ndarray:
        source = np.memmap(path, np.float16, "r", shape=(LAYERS, n, WIDTH))
        return np.ascontiguousarray(source[:, : n // 2].transpose(1, 0, 2))


class Hdf5:
    """h5py with chunks of 64 rows of one layer."""

    def write(self, x: np.ndarray, path: Path) -> None:
        import h5py

        with h5py.File(path, "w") as file:
            target = file.create_dataset("x", x.shape, x.dtype, chunks=(64, 1, WIDTH))
            for first in range(0, len(x), 64):
                target[first : first + 64] = x[first : first + 64]
        sync(path)

    def layer(self, path: Path, n: int) -> np.ndarray:
        import h5py

        with h5py.File(path) as file:
            return file["x"][:, LAYER]

    def gather(self, path: Path, n: int, rows: np.ndarray) -> np.ndarray:
        import h5py

        order = np.argsort(rows)
        with h5py.File(path) as file:
            found = file["x"][rows[order], LAYER]
        return found[np.argsort(order)]

    def regime(self, path: Path, n: int) -> np.ndarray:
        import h5py

        with h5py.File(path) as file:
            return file["x"][: n // 2]


class ZarrDefaults:
    """zarr.create_array as it comes, written in batches of 64 rows."""

    def write(self, x: np.ndarray, path: Path) -> None:
        import zarr

        target = zarr.create_array(path, shape=x.shape, dtype=x.dtype)
        for first in range(0, len(x), 64):
            target[first : first + 64] = x[first : first + 64]
        sync(path)

    def layer(self, path: Path, n: int) -> np.ndarray:
        import zarr

        return zarr.open_array(path, mode="r")[:, LAYER]

    def gather(self, path: Path, n: int, rows: np.ndarray) -> np.ndarray:
        import zarr

        return zarr.open_array(path, mode="r").oindex[rows, LAYER]

    def regime(self, path: Path, n: int) -> np.ndarray:
        import zarr

        return zarr.open_array(path, mode="r")[: n // 2]


class Safetensors:
    """One safetensors file [n, L, d], read through its slices."""

    def write(self, x: np.ndarray, path: Path) -> None:
        from safetensors.numpy import save_file

        save_file({"x": x}, path)
        sync(path)

    def layer(self, path: Path, n: int) -> np.ndarray:
        from safetensors import safe_open

        with safe_open(path, "np") as file:
            return file.get_slice("x")[:, LAYER]

    def regime(self, path: Path, n: int) -> np.ndarray:
        from safetensors import safe_open

        with safe_open(path, "np") as file:
            return file.get_slice("x")[: n // 2]


CANDIDATES = {
    "raw": Raw(),
    "precollapse": Ours(),
    "memmap": Memmap(),
    "h5py": Hdf5(),
    "zarr": ZarrDefaults(),
    "safetensors": Safetensors(),
}


def measure(base: Path, n: int, repeats: int, only: set[str]) -> dict[str, dict[str, list[float]]]:
    """Seconds of each repeat by kind and candidate."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 0x7BFF, (n, LAYERS, WIDTH), dtype=np.uint16).view(np.float16)
    rows = rng.choice(n, 256, replace=False)
    times: dict[str, dict[str, list[float]]] = {"write": {}, "layer": {}, "gather": {}, "regime": {}}
    wanted = {"layer": x[:, LAYER], "gather": x[rows, LAYER], "regime": x[: n // 2]}
    for repeat in range(repeats):
        names = list(CANDIDATES)
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            candidate = CANDIDATES[name]
            path = base / name
            os.sync()
            try:
                seconds, _ = timed(lambda c=candidate, p=path: c.write(x, p))
            except ImportError as error:
                print(f"{name}: skipped ({error})", file=sys.stderr)
                continue
            times["write"].setdefault(name, []).append(seconds)
            for kind in ("layer", "gather", "regime"):
                read = getattr(candidate, kind, None)
                if read is None or kind not in only:
                    continue
                drop(base)
                extra = (rows,) if kind == "gather" else ()
                seconds, found = timed(lambda r=read, p=path, e=extra: r(p, n, *e))
                if name != "raw" and not np.array_equal(found.view(np.uint16), wanted[kind].view(np.uint16)):
                    raise SystemExit(f"{name} {kind}: wrong values")
                times[kind].setdefault(name, []).append(seconds)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        print(f"repeat {repeat + 1} of {repeats}: load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return times


def memory(base: Path, n: int) -> dict[str, float]:
    """Peak memory beyond input and output, in shards."""
    ours = Ours()
    x = np.ones((n, LAYERS, WIDTH), np.float16)
    rows = ours._settings(n)["plan"].cells[0].rows
    shard = rows * LAYERS * WIDTH * 2
    found = {}
    reset_peak()
    before = resident()
    ours.write(x, base / "memory")
    found["write"] = (peak_memory() - before) / shard
    del x
    for kind, size in (("layer", n * WIDTH * 2), ("regime", n // 2 * LAYERS * WIDTH * 2)):
        reset_peak()
        before = resident()
        getattr(ours, kind)(base / "memory", n)
        found[kind] = (peak_memory() - before - size) / shard
    reset_peak()
    before = resident()
    for _ in store.open_run(base / "memory").iter_shards("resid_post"):
        pass
    found["iter_shards"] = (peak_memory() - before) / shard
    shutil.rmtree(base / "memory")
    return found


def opening(base: Path, repeats: int) -> dict[str, float]:
    """Seconds to open a run of 1,000,000 states whose commits were all made (their data files were not)."""
    from precollapse.store.layout import commit_name
    from precollapse.store.log.commits import Commit, FileRecord

    n = 1_000_000
    states = (
        {"id": f"gsm8k/{i % 250_000}/{r}", "benchmark": "gsm8k", "regime": r, "item_id": f"gsm8k-{i % 250_000}"}
        for r in ("baseline", "cot", "babble", "own")
        for i in range(n // 4)
    )
    arrays = {"resid_post": store.ArraySpec((LAYERS, WIDTH), "float16", tuple(range(LAYERS)))}
    path = base / "million"
    plan = store.Plan.build(states, store.shard_size_for(arrays))
    with store.open_writer(path, plan=plan, config={}, arrays=arrays):
        pass
    run = store.open_run(path)
    digest = run._snapshot.run.digest
    for k in range(plan.n_shards):
        start, stop = plan.bounds(k)
        cell = plan.cell_of(k)
        geometry = run._snapshot.run.geometry[cell.index, "resid_post"]
        checksums = "0" * (8 * geometry.used_groups(stop - start) * geometry.spec.n_layers)
        files = {
            f"{cell.folder}/resid_post/{geometry.chunk_key(k - cell.first_shard)}": FileRecord(
                f"_staging/{k:08d}.0", geometry.file_bytes(stop - start), chunks=checksums
            ),
            f"tables/{k:08d}.safetensors": FileRecord(f"_staging/{k:08d}.1", 30_000, crc32c="00000000"),
        }
        commit = Commit(k, digest, f"{k:012d}", "0" * 12, files, 1.0, 0.0)
        (path / commit_name(k)).write_bytes(commit.record(list(plan.ids[start:stop]), run._snapshot.run.format))
    found = {}
    for kind in ("warm", "cold"):
        times, busy = [], []
        for _ in range(repeats):
            if kind == "cold":
                drop(base)
            before = time.process_time()
            seconds, run = timed(lambda: store.open_run(path))
            busy.append(time.process_time() - before)
            times.append(seconds)
            assert len(run) == n and run.progress.complete
        found[kind], found[f"{kind}_processor"] = statistics.median(times), statistics.median(busy)
    found["shards"] = plan.n_shards
    shutil.rmtree(path)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=None, help="where to write (default: a temporary folder)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--states", type=int, default=2048)
    parser.add_argument("--only", default="write,layer,gather,regime,memory,open")
    parser.add_argument("--candidates", default=None, help="comma-separated (default: all)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    only = set(options.only.split(","))
    if options.candidates:
        for name in set(CANDIDATES) - set(options.candidates.split(",")):
            del CANDIDATES[name]
    base = Path(tempfile.mkdtemp(dir=options.folder))
    n = options.states
    result: dict[str, Any] = {"page_cache_dropped_for": drop(base), "states": n}
    try:
        if only & {"write", "layer", "gather", "regime"}:
            seconds = measure(base, n, options.repeats, only)
            sizes = {"write": n * LAYERS * WIDTH * 2, "layer": n * WIDTH * 2, "regime": n // 2 * LAYERS * WIDTH * 2}
            for kind, by in seconds.items():
                medians = {name: statistics.median(times) for name, times in by.items()}
                if kind == "gather":
                    result["gather_ms"] = {name: round(1e3 * s, 1) for name, s in medians.items()}
                else:
                    result[f"{kind}_MB_per_s"] = {name: round(sizes[kind] / s / 1e6) for name, s in medians.items()}
            for kind, other, goal in GOALS:
                if {"precollapse", other} <= seconds[kind].keys():
                    pairs = zip(seconds[kind][other], seconds[kind]["precollapse"], strict=True)
                    rate = statistics.median(theirs / ours for theirs, ours in pairs)
                    if kind == "gather":
                        result[f"gather_time_over_memmap (goal at most {goal})"] = round(1 / rate, 2)
                    else:
                        result[f"{kind}_over_{other} (goal {goal})"] = round(rate, 2)
            data = np.ones(1 << 20, np.uint8)
            seconds_crc, _ = timed(lambda: [crc32c(data) for _ in range(512)])
            result["crc32c_GB_per_s"] = round(512 * len(data) / seconds_crc / 1e9, 1)
        if "memory" in only:
            result["extra_memory_in_shards (goal 2)"] = {k: round(v, 2) for k, v in memory(base, min(n, 1024)).items()}
        if "open" in only:
            result["open_1M_states_s (goal 2)"] = {k: round(v, 2) for k, v in opening(base, options.repeats).items()}
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(json.dumps(result) if options.json else "\n".join(f"{key}: {value}" for key, value in result.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
