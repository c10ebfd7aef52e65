"""Clearing up after writers that died, without ever taking a file from one that may be alive.

A staged file of a shard may go in two cases only: its shard has a commit that does not name it, so that its writer can
no longer publish it; or its writer was a process of this machine that no longer exists. Everything else waits.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import StoreError
from ..files.errors import Irregular
from ..files.protocol import Files
from ..layout import LEASES, STAGING, lease_of, staged_shard
from ..run_plan import RunPlan
from .commits import finish_moves, read_commits
from .leases import REPAIR, read_lease, surely_dead
from .notes import read_notes


@dataclass(frozen=True)
class Swept:
    """What a sweep did: staged files moved to the final names their commit gives, leftovers and leases removed."""

    moved: int
    removed: int
    kept: int


def sweep(files: Files, run: RunPlan) -> Swept:
    """Complete moves that a kill cut off, and remove leftovers that nobody can need."""
    present, leases = files.list(STAGING), files.list(LEASES)
    held = {name: place[0] for name in leases if (place := lease_of(name))}
    shards = {shard for name in present if (shard := staged_shard(name)) is not None} | set(held.values())
    writers = read_notes(files)[0].get("writers") or {} if present else {}
    identities = {name: about.get("identity") for name, about in writers.items()}
    dead = {name for name, who in identities.items() if files.immediate and who and surely_dead(who)}
    # Only now: a writer that was found dead can no longer commit, so its files that no commit names are leftovers.
    commits, broken = read_commits(files, run, shards) if shards else ({}, {})
    wanted = {file.staged.rpartition("/")[2] for commit in commits.values() for file in commit.files.values()}
    moved = sum(finish_moves(files, commit, present) for commit in commits.values())
    removed = kept = 0
    for name in sorted(present - wanted):
        kind, _, rest = name.partition(".")
        owner = rest.partition(".")[0]
        if kind == "record":  # a record that vanishes before it is published is written again
            useless = owner in dead or owner not in writers
        else:
            shard = staged_shard(name)
            useless = shard not in broken and (owner in dead or shard in commits)
        if useless:
            files.remove(f"{STAGING}/{name}")
            removed += 1
        else:
            kept += 1
    for name, shard in held.items():
        if shard in commits and not _of_a_repair(files, name):
            files.remove(f"{LEASES}/{name}")
            removed += 1
    return Swept(moved, removed, kept)


def _of_a_repair(files: Files, lease: str) -> bool:
    """Whether a lease is held by a repair that may be at work: it takes shards that have a commit."""
    try:
        record = read_lease(files, f"{LEASES}/{lease}")
    except (FileNotFoundError, Irregular, StoreError):
        return False
    return str(record["writer"]).startswith(REPAIR) and not surely_dead(record["who"])
