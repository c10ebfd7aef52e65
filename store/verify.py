"""Checking a run against its own records, byte by byte. `verify` reads everything and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import StoreError
from . import records
from .files.errors import Irregular, readable, unreadable
from .files.place import open_files
from .files.protocol import Files
from .files.sealed import crc32c
from .formats import contents_check, tensors
from .geometry import Geometry
from .layout import (
    BLOBS,
    COMMITS,
    NOTES,
    RAGGED,
    ROOT,
    TABLES,
    blob_name,
    commit_name,
    fold_name,
    ragged_name,
    shard_of,
    table_name,
)
from .log.commits import Commit, names_states, read_commits
from .log.failures import read_failures
from .log.folds import folded, read_fold, stray_folds
from .log.notes import read_notes
from .opening import read_plan, skeleton_faults
from .run_plan import RunPlan

_BLOCK = 16 << 20


@dataclass(frozen=True)
class Fault:
    """Something in a run that is not as its records say.

    Parameters
    ----------
    where : str
        File within the run.
    what : str
        One sentence.
    shard : int or None
        Shard whose data are affected.
    """

    where: str
    what: str
    shard: int | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def verify(path: str | os.PathLike[str]) -> list[Fault]:
    """All faults of a run, empty when it is sound. Reads every committed byte; memory stays below 64 MiB.

    A move that a kill cut off is no fault: the data are whole under their staged names, and are read there.

    Raises
    ------
    RequestError
        There is no run at `path`, half of one, or one of a newer format.

    Examples
    --------
    >>> import precollapse as pc
    >>> pc.verify("run.zarr")  # every byte is as it was written
    []
    """
    files = open_files(path)
    try:
        run = read_plan(files)
    except StoreError as error:
        return [Fault("plan.json", str(error))]
    with readable(files.path):
        return _faults(files, run)


def _faults(files: Files, run: RunPlan) -> list[Fault]:
    faults = []
    missing, other = skeleton_faults(files, run)
    commits, broken = read_commits(files, run)
    faults += [Fault(name, "it disagrees with plan.json.") for name in other]
    if commits or broken:
        faults += [Fault(name, "it is missing.") for name in missing]
    faults += [Fault(commit_name(shard), what, shard) for shard, what in broken.items()]
    for commit in commits.values():
        faults += shard_faults(files, run, commit)
    faults += [Fault(f"{NOTES}/{name}", what) for name, what in read_notes(files)[1].items()]
    if (commits or broken) and not files.list(NOTES):
        faults.append(Fault(NOTES, "it is missing or empty, so how the run came about is not known: restore it."))
    faults += [Fault(name, what) for name, what in read_failures(files, run.plan)[1].items()]
    faults += [Fault(name, str(error)) for name, error in fold_faults(files, run).items()]
    faults += [Fault(name, "it is no fold of this plan.") for name in stray_folds(files, run.plan)]
    faults += strays(files, run, set(broken))
    return faults


def fold_faults(files: Files, run: RunPlan) -> dict[str, StoreError]:
    """What is wrong with each damaged fold, by file name."""
    faults = {}
    for (cell, name), upto in folded(files, run.plan).items():
        try:
            read_fold(files, run, cell, upto, name)
        except FileNotFoundError:
            pass  # a larger one was made meanwhile, of what was checked when it was merged
        except StoreError as error:
            faults[fold_name(cell, upto, name)] = error
        except (PermissionError, Irregular) as error:
            faults[fold_name(cell, upto, name)] = unreadable(fold_name(cell, upto, name), error)
    return faults


def _in_a_fold(files: Files, run: RunPlan, commit: Commit, file: str) -> bool:
    """Whether a file of a shard is a blob that has been folded; looked up now, as a writer may be folding."""
    cell = run.plan.cell_of(commit.shard).index
    marks = folded(files, run.plan)
    return any(
        file == blob_name(name, commit.shard) and commit.shard < marks.get((cell, name), 0) for name in commit.blobs
    )


def shard_faults(files: Files, run: RunPlan, commit: Commit) -> Iterator[Fault]:
    """What is wrong with the files of a committed shard; blobs that a fold holds may be gone."""
    layouts = run.shard_files(commit.shard, commit.blobs)
    ids = [run.plan.ids[row] for row in run.plan.shard_rows(commit.shard)]
    if not names_states(files.read(commit_name(commit.shard)), ids):
        yield Fault(commit_name(commit.shard), "it names other states than the plan does.", commit.shard)
    for name, record in commit.files.items():
        for place in (name, record.staged, name):
            try:
                yield from _file_faults(files, run, commit, name, place, layouts[name])
                break
            except FileNotFoundError:
                continue  # it may be given its final name at this moment
            except (PermissionError, Irregular) as error:
                yield Fault(name, str(unreadable(name, error)), commit.shard)
                break
        else:
            if not _in_a_fold(files, run, commit, name):
                yield Fault(name, "it is missing.", commit.shard)


def _file_faults(
    files: Files, run: RunPlan, commit: Commit, name: str, place: str, geometry: Geometry | None
) -> list[Fault]:
    """What is wrong with one file of a shard, which lies at `place`; FileNotFoundError where it does not (any more)."""
    record, size = commit.files[name], files.size(place)
    if size is None:
        raise FileNotFoundError(place)
    if size != record.size:
        return [Fault(name, f"it has {size} bytes, its commit says {record.size}.", commit.shard)]
    if geometry is not None:
        return list(_chunk_faults(files, run, place, name, commit, geometry))
    if f"{_checksum(files, place, size):08x}" != record.crc32c:
        return [Fault(name, "its bytes do not match the checksum in its commit.", commit.shard)]
    if name in (table_name(commit.shard), ragged_name(commit.shard)):
        try:
            _check_contents(files, run, commit.shard, name, place, size)
        except StoreError as error:
            return [Fault(name, str(error), commit.shard)]
    return []


def _check_contents(files: Files, run: RunPlan, shard: int, name: str, place: str, size: int) -> None:
    """Refuse a table or ragged file that holds something else than the plan says, though its bytes are those of its commit."""
    states, what = len(run.plan.shard_rows(shard)), f"{files.path}/{name}"
    prefix = bytearray(min(size, 8))
    files.read_into(place, 0, [prefix])
    try:
        text = bytearray(min(tensors.header_bytes(bytes(prefix)), size))
    except ValueError as error:
        raise StoreError(f"{what} is no sound safetensors file ({error}).") from None
    files.read_into(place, 0, [text])
    head, start = tensors.parse_header(bytes(text), size, what)

    def tensor(name: str) -> np.ndarray:
        values = np.empty(head[name]["shape"], tensors.kind_of(head[name]))
        files.read_into(place, start + head[name]["data_offsets"][0], [values])
        return values

    def check(head: dict[str, Any], _: str) -> None:
        if name == ragged_name(shard):
            contents_check.check_ragged(head, run.ragged, states)
        else:
            contents_check.check_table(head, tensor, run.arrays, states)

    records.sound(check, head, what)


def _checksum(files: Files, name: str, size: int) -> int:
    checksum = 0
    for first in range(0, size, _BLOCK):
        block = np.empty(min(_BLOCK, size - first), np.uint8)
        files.read_into(name, first, [block])
        checksum = crc32c(block, checksum)
    return checksum


def _chunk_faults(
    files: Files, run: RunPlan, place: str, name: str, commit: Commit, geometry: Geometry
) -> Iterator[Fault]:
    """Each inner chunk and its stored checksum against the commit, and the shard index against the layout."""
    states = len(run.plan.shard_rows(commit.shard))
    stated = commit.files[name].chunks or ""
    count = geometry.used_groups(states) * geometry.spec.n_layers
    index = bytearray(geometry.index_bytes)
    if commit.files[name].size != geometry.file_bytes(states) or len(stated) != 8 * count:
        yield Fault(name, "its size in the commit is not that of the plan.", commit.shard)
        return
    files.read_into(place, geometry.file_bytes(states) - len(index), [index])
    if bytes(index) != geometry.index(states):
        yield Fault(name, "its shard index is damaged.", commit.shard)
    bad = []
    for number in range(count):
        chunk, stored = np.empty(geometry.chunk_bytes, np.uint8), bytearray(4)
        files.read_into(place, number * (geometry.chunk_bytes + 4), [chunk, stored])
        checksum = crc32c(chunk)
        if f"{checksum:08x}" != stated[8 * number : 8 * number + 8] or checksum != int.from_bytes(stored, "little"):
            bad.append(number)
    if bad:
        listed = ", ".join(map(str, bad[:8])) + (" ..." if len(bad) > 8 else "")
        yield Fault(name, f"chunk {listed} of {count} does not match its checksum in the commit.", commit.shard)


def strays(files: Files, run: RunPlan, broken: set[int]) -> Iterator[Fault]:
    """Data files under final names that no commit vouches for, and commits of shards that the plan does not have."""
    prefixes = [TABLES, RAGGED, BLOBS]
    prefixes += [f"{run.plan.cells[index].folder}/{name}" for index, name in run.geometry]
    present = [f"{prefix}/{name}" for prefix in prefixes for name in files.list(prefix) if name != ROOT]
    # Files get their final names after their commit, so the commits are read after the files were listed.
    vouched = {name for commit in read_commits(files, run)[0].values() for name in commit.files}
    for name in sorted(set(present) - vouched) if not broken else ():
        yield Fault(name, "no commit names it, so no reader uses it.")
    for name in sorted(files.list(COMMITS)):
        shard = shard_of(name)
        if shard is None or shard >= run.plan.n_shards:
            yield Fault(f"{COMMITS}/{name}", "it is no commit of this plan.")
