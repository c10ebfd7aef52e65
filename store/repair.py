"""Mending what can be mended of a run.

`repair` completes what a kill cut off, sweeps leftovers, and takes damaged shards out of the run, so that the next resume does them
again; their files are kept aside, never deleted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..errors import RequestError, StoreError
from .files.errors import Irregular, refused
from .files.place import open_files
from .files.protocol import Files, attempt
from .layout import (
    BLOBS,
    COMMITS,
    DAMAGED,
    LEASES,
    NOTES,
    RAGGED,
    STAGING,
    TABLES,
    commit_name,
    lease_of,
    staged_shard,
)
from .log.commits import Commit, read_commits
from .log.failures import read_failures
from .log.folds import stray_folds
from .log.leases import REPAIR, Leases, read_lease, surely_dead
from .log.notes import read_notes
from .log.sweep import sweep
from .opening import folders, read_plan, skeleton, skeleton_faults
from .verify import fold_faults, shard_faults, strays


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
        for name in other:  # it may be something that cannot be replaced, as a folder
            _keep(files, attempt(), name)
        for name in [*missing, *other]:
            files.replace(name, skeleton(run)[name])
        commits, broken = read_commits(files, run)
        for name in fold_faults(files, run):  # its parts are gone, so the shards that it held are done again
            _keep(files, attempt(), name)
            aside.append(name)
        bad = {commit.shard for commit in commits.values() if any(shard_faults(files, run, commit))}
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
        odd = [
            *read_failures(files, run.plan)[1],
            *stray_folds(files, run.plan),
            *(f"{NOTES}/{name}" for name in read_notes(files)[1]),
        ]
        for name in [*odd, *(fault.where for fault in strays(files, run, set()))]:
            _keep(files, attempt(), name)
            aside.append(name)
        swept = sweep(files, run)
    withdrawn = tuple(sorted(bad | broken.keys()))
    return Repair(swept.moved, swept.removed, (*missing, *other), withdrawn, swept.kept, tuple(aside))


def _refuse_live_writers(files: Files) -> list[str]:
    """Raise where a lease is that of a writer that may be alive; the torn leases, moved aside."""
    torn = []
    for name in sorted(files.list(LEASES)):
        try:
            who = read_lease(files, f"{LEASES}/{name}")["who"]
            held = lease_of(name)
        except FileNotFoundError:
            continue
        except (
            Irregular,
            StoreError,
        ):  # a lease appears whole or not at all: torn ones are left by machines that went down
            _keep(files, attempt(), f"{LEASES}/{name}")
            torn.append(f"{LEASES}/{name}")
            continue
        if not surely_dead(who):
            raise RequestError(
                f"{files.path} may be in use by process {who['pid']} on {who['host']}, which holds "
                f"{f'shard {held[0]}' if held else 'a lease'}: stop it, or remove {LEASES}/{name} if it is gone, and repair again."
            )
    return torn


def _set_aside(files: Files, shard: int, commit: Commit | None) -> None:
    """Take a shard out of the run: first its commit, so that no reader can see it half gone.

    A damaged commit does not say which staged files are its own: all of the shard are kept.
    """
    mark = attempt()
    _keep(files, mark, commit_name(shard))
    for name in () if commit else sorted(files.list(STAGING)):
        if staged_shard(name) == shard:
            _keep(files, mark, f"{STAGING}/{name}")
    for name, record in commit.files.items() if commit else ():
        for place in (name, record.staged):
            _keep(files, mark, place)


def _keep(files: Files, mark: str, name: str) -> None:
    """Move a file out of the run, to a name in `_damaged/` that no other repair has."""
    files.make([DAMAGED])
    files.move(name, f"{DAMAGED}/{mark}.{name.replace('/', '.')}")
