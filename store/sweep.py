"""Clearing up after writers that died, without ever taking a file from one that may be alive.

A staged file may go in two cases only: its shard has a commit that does not name it, so that its writer can no longer
publish it; or its writer was a process of this machine that no longer exists. Everything else waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .commits import Commit, finish_moves
from .files import Files
from .layout import LEASES, STAGING
from .leases import surely_dead
from .notes import read_notes


@dataclass(frozen=True)
class Swept:
    """What a sweep did: staged files moved to the final names their commit gives, leftovers and leases removed."""

    moved: int
    removed: int
    kept: int


def sweep(files: Files, commits: Mapping[int, Commit]) -> Swept:
    """Complete moves that a kill cut off, and remove leftovers that nobody can need."""
    present = files.list(STAGING)
    moved = removed = kept = 0
    dead = _dead_writers(files) if files.immediate else set()
    wanted: set[str] = set()
    for shard in sorted({int(head) for head in (name.partition(".")[0] for name in present) if head.isdigit()}):
        if shard in commits:
            wanted |= {file.staged.rpartition("/")[2] for file in commits[shard].files.values()}
            moved += finish_moves(files, commits[shard], present.keys())
    for name in present.keys() - wanted:
        head, _, rest = name.partition(".")
        if (head.isdigit() and int(head) in commits) or rest.partition(".")[0] in dead:
            files.remove(f"{STAGING}/{name}")
            removed += 1
        else:
            kept += 1
    for name in files.list(LEASES):
        head = name.partition(".")[0]
        if head.isdigit() and int(head) in commits:
            files.remove(f"{LEASES}/{name}")
            removed += 1
    return Swept(moved, removed, kept)


def _dead_writers(files: Files) -> set[str]:
    writers = read_notes(files)[0].get("writers", {})
    return {name for name, about in writers.items() if surely_dead(about.get("identity", {}))}
