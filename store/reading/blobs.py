"""Blobs of the shards of a run, and of its cells where they were folded.

Guarantees that each committed shard counts once, also while a writer is folding, and that a cell whose fold holds a shard that was taken out
of the run is left out and said so.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from ...errors import StoreError
from ..files.errors import readable
from ..layout import blob_name, commit_name
from ..log import folds
from ..plan import Cell, Shard
from .selection import Selection
from .snapshot import Snapshot


def _marks(snapshot: Snapshot, name: str) -> dict[tuple[int, str], int]:
    """First shard after the largest fold of each cell."""
    with readable(snapshot.files.path):
        return folds.folded(snapshot.files, snapshot.run.plan, name)


def shard_blobs(selection: Selection, name: str) -> Iterator[tuple[Shard, bytes]]:
    """The blob `name` of each shard with a state in the selection that is in no fold; see `Run.blobs`."""
    snapshot, plan = selection.snapshot, selection.plan
    upto = _marks(snapshot, name)
    for shard, _, _ in selection.groups():
        key = (plan.cell_of(shard).index, name)
        if shard < upto.get(key, 0) or name not in snapshot.commits[shard].blobs:
            continue
        try:
            data = snapshot.whole(shard, blob_name(name, shard))
        except StoreError:
            upto = _marks(snapshot, name)
            if shard < upto.get(key, 0):  # a writer has folded it meanwhile
                continue
            raise
        yield plan.shard(shard), data


def cell_blobs(snapshot: Snapshot, name: str) -> Iterator[tuple[Cell, list[bytes]]]:
    """What was kept under `name` of each cell of the whole run; see `Run.parts`."""
    for cell in snapshot.run.plan.cells:
        shards = [k for k in cell.shards if k in snapshot.commits and name in snapshot.commits[k].blobs]
        for left in range(9, -1, -1):
            upto = _marks(snapshot, name).get((cell.index, name), cell.first_shard)
            try:
                parts = (
                    [folds.read_fold(snapshot.files, snapshot.run, cell.index, upto, name)]
                    if upto > cell.first_shard
                    else []
                )
                parts += [snapshot.whole(k, blob_name(name, k)) for k in shards if k >= upto]
                break
            except (FileNotFoundError, StoreError):
                if not left or _marks(snapshot, name).get((cell.index, name), cell.first_shard) == upto:
                    raise
        lost = [k for k in range(cell.first_shard, upto) if k not in snapshot.commits]
        if any(snapshot.files.size(commit_name(k)) is None for k in lost):
            warnings.warn(
                f"{cell.benchmark}/{cell.regime} of {snapshot.files.path} is left out: its {name} hold a shard that was "
                "taken out of the run. Continue the run to have it done again.",
                stacklevel=2,
            )
        elif parts:
            yield cell, parts
