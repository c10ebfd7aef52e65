"""Checking a run against its own records, byte by byte, and mending what can be mended.

`verify` reads everything and changes nothing. `repair` completes what a kill cut off, sweeps leftovers, and takes
damaged shards out of the run, so that the next resume does them again; their files are kept aside, never deleted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import RequestError, StoreError
from .commits import Commit, names_states, read_commits
from .files import Files, attempt, open_files, readable, refused, unreadable
from .folds import fold_name, folded, read_fold
from .layout import (
    BLOBS,
    COMMITS,
    DAMAGED,
    FAILED,
    LEASES,
    NOTES,
    RAGGED,
    ROOT,
    STAGING,
    TABLES,
    Geometry,
    blob_name,
    commit_name,
    ragged_name,
    shard_of,
    table_name,
)
from .leases import REPAIR, Leases, surely_dead
from .notes import read_notes
from .opening import folders, read_plan, skeleton, skeleton_faults
from .plan import RunPlan
from .sealed import crc32c, unseal
from .sweep import sweep

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


@dataclass(frozen=True)
class Repair:
    """What `repair` did.

    Parameters
    ----------
    moved : int
        Staged files of committed shards that were given their final names.
    removed : int
        Leftovers of dead writers that were removed.
    rewritten : tuple of str
        Metadata files written anew from the plan.
    withdrawn : tuple of int
        Damaged shards taken out of the run; a resume does them again.
    kept : int
        Unfinished files left alone, because their writers may be alive.
    aside : tuple of str
        Files of no shard (strays, torn leases, damaged folds) that were moved to `_damaged/`.
    """

    moved: int
    removed: int
    rewritten: tuple[str, ...]
    withdrawn: tuple[int, ...]
    kept: int
    aside: tuple[str, ...] = ()


def verify(path: str | os.PathLike[str]) -> list[Fault]:
    """All faults of a run, empty when it is sound. Reads every committed byte; memory stays below 64 MiB.

    A move that a kill cut off is no fault: the data are whole under their staged names, and are read there.

    Raises
    ------
    RequestError
        There is no run at `path`, half of one, or one of a newer format.
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
        faults += _shard_faults(files, run, commit)
    faults += [Fault(f"{NOTES}/{name}", what) for name, what in read_notes(files)[1].items()]
    if (commits or broken) and not files.list(NOTES):
        faults.append(Fault(NOTES, "it is missing or empty, so how the run came about is not known: restore it."))
    for name in sorted(files.list(FAILED)):
        try:
            unseal(files.read(f"{FAILED}/{name}"), "The note of a failed cell")
        except FileNotFoundError:
            pass  # the cell was finished meanwhile
        except StoreError as error:
            faults.append(Fault(f"{FAILED}/{name}", str(error)))
    faults += [Fault(name, str(error)) for name, error in _fold_faults(files).items()]
    faults += _strays(files, run, set(broken))
    return faults


def _fold_faults(files: Files) -> dict[str, StoreError]:
    """What is wrong with each damaged fold, by file name."""
    found = {}
    for (cell, name), upto in folded(files).items():
        try:
            read_fold(files, cell, upto, name)
        except FileNotFoundError:
            pass  # a larger one was made meanwhile, of what was checked when it was merged
        except StoreError as error:
            found[fold_name(cell, upto, name)] = error
    return found


def _in_a_fold(files: Files, run: RunPlan, commit: Commit, file: str) -> bool:
    """Whether a file of a shard is a blob that has been folded; looked up now, as a writer may be folding."""
    cell = run.plan.cell_of(commit.shard).index
    marks = folded(files)
    return any(
        file == blob_name(name, commit.shard) and commit.shard < marks.get((cell, name), 0) for name in commit.blobs
    )


def _shard_faults(files: Files, run: RunPlan, commit: Commit) -> Iterator[Fault]:
    """What is wrong with the files of a committed shard; blobs that a fold holds may be gone."""
    zarr_shards = _zarr_shards(run, commit.shard)
    wanted = {*zarr_shards, table_name(commit.shard), *(blob_name(name, commit.shard) for name in commit.blobs)}
    wanted |= {ragged_name(commit.shard)} if run.ragged else set()
    ids = [run.plan.ids[row] for row in run.plan.shard_rows(commit.shard)]
    if not names_states(files.read(commit_name(commit.shard)), ids):
        yield Fault(commit_name(commit.shard), "it names other states than the plan does.", commit.shard)
    for name in sorted(wanted ^ commit.files.keys()):
        yield Fault(commit_name(commit.shard), f"it does not fit the plan: {name}.", commit.shard)
    for name, record in commit.files.items():
        for place in (name, record.staged, name):
            try:
                yield from _file_faults(files, run, commit, name, place, zarr_shards.get(name))
                break
            except FileNotFoundError:
                continue  # it may be given its final name at this moment
            except PermissionError as error:
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
    return []


def _zarr_shards(run: RunPlan, shard: int) -> dict[str, Geometry]:
    """Byte layout of each Zarr shard file of a shard, by name."""
    cell = run.plan.cell_of(shard)
    found = {}
    for (index, name), geometry in run.geometry.items():
        if index == cell.index:
            found[f"{cell.folder}/{name}/{geometry.chunk_key(shard - cell.first_shard)}"] = geometry
    return found


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


def _strays(files: Files, run: RunPlan, broken: set[int]) -> Iterator[Fault]:
    """Data files under final names that no commit vouches for, and commits of shards that the plan does not have."""
    prefixes = [TABLES, RAGGED, BLOBS]
    prefixes += [f"{run.plan.cells[index].folder}/{name}" for index, name in run.geometry]
    found = [f"{prefix}/{name}" for prefix in prefixes for name in files.list(prefix) if name != ROOT]
    # Files get their final names after their commit, so the commits are read after the files were listed.
    vouched = {name for commit in read_commits(files, run)[0].values() for name in commit.files}
    for name in sorted(set(found) - vouched) if not broken else ():
        yield Fault(name, "no commit names it, so no reader uses it.")
    for name in sorted(files.list(COMMITS)):
        shard = shard_of(name)
        if shard is None or shard >= run.plan.n_shards:
            yield Fault(f"{COMMITS}/{name}", "it is no commit of this plan.")


def repair(path: str | os.PathLike[str]) -> Repair:
    """Mend a run that no one is writing.

    Files that a kill left under staged names get their final ones; leftovers go; metadata are written anew from the
    plan; a shard with any fault is taken out of the run, its commit and files kept under `_damaged/`.

    Raises
    ------
    RequestError
        There is no run at `path`, a writer may be alive, or writing is not permitted.
    StoreError
        `plan.json` is damaged, so that nothing can be told about the rest; restore it from a copy.
    """
    owner = f"{REPAIR}{attempt()}"
    files = open_files(path, owner)
    run = read_plan(files)
    with refused(files.path):
        if any(files.list(folder) for folder in (TABLES, RAGGED, BLOBS)) and not files.list(COMMITS):
            raise RequestError(f"{files.path} is a half-deleted run: it has tables but no commits. Restore {COMMITS}.")
        aside = _refuse_live_writers(files)
        missing, other = skeleton_faults(files, run)
        files.make(folders(run))
        for name in [*missing, *other]:
            files.replace(name, skeleton(run)[name])
        commits, broken = read_commits(files, run)
        for name in _fold_faults(files):  # its parts are gone, so the shards that it held are done again
            _keep(files, attempt(), name)
            aside.append(name)
        bad = {commit.shard for commit in commits.values() if any(_shard_faults(files, run, commit))}
        leases = Leases(files, owner, 60.0)
        try:
            for shard in sorted(bad | broken.keys()):
                if not leases.claim(shard):  # so that no writer does it again while its files are moved
                    raise RequestError(
                        f"{files.path} may be in use: {leases.holder(shard) or 'someone'} holds shard {shard}. Stop "
                        f"it, or remove its file in {LEASES} if it is gone, and repair again."
                    )
            for shard in sorted(bad | broken.keys()):
                _set_aside(files, shard, commits.pop(shard, None))
        finally:
            leases.close()
        for fault in _strays(files, run, set()):
            _keep(files, attempt(), fault.where)
            aside.append(fault.where)
        swept = sweep(files, run)
    withdrawn = tuple(sorted(bad | broken.keys()))
    return Repair(swept.moved, swept.removed, (*missing, *other), withdrawn, swept.kept, tuple(aside))


def _refuse_live_writers(files: Files) -> list[str]:
    """Raise where a lease is that of a writer that may be alive; the torn leases, moved aside."""
    torn = []
    for name in sorted(files.list(LEASES)):
        try:
            who = unseal(files.read(f"{LEASES}/{name}"), name)["who"]
        except FileNotFoundError:
            continue
        except StoreError:  # a lease appears whole or not at all: torn ones are left by machines that went down
            _keep(files, attempt(), f"{LEASES}/{name}")
            torn.append(f"{LEASES}/{name}")
            continue
        if not surely_dead(who):
            raise RequestError(
                f"{files.path} may be in use by process {who.get('pid')} on {who.get('host')}, which holds shard "
                f"{int(name.partition('.')[0])}: stop it, or remove {LEASES}/{name} if it is gone, and repair again."
            )
    return torn


def _set_aside(files: Files, shard: int, commit: Commit | None) -> None:
    """Take a shard out of the run: first its commit, so that no reader can see it half gone.

    A damaged commit does not say which staged files are its own: all of the shard are kept.
    """
    mark = attempt()
    _keep(files, mark, commit_name(shard))
    for name in () if commit else sorted(files.list(STAGING)):
        if name.partition(".")[0] == f"{shard:08d}":
            _keep(files, mark, f"{STAGING}/{name}")
    for name, record in commit.files.items() if commit else ():
        for place in (name, record.staged):
            _keep(files, mark, place)


def _keep(files: Files, mark: str, name: str) -> None:
    """Move a file out of the run, to a name in `_damaged/` that no other repair has."""
    files.make([DAMAGED])
    files.move(name, f"{DAMAGED}/{mark}.{name.replace('/', '.')}")
