"""How far a run is, and which of its cells could not be finished.

Guarantees that both follow from the commits alone: a cell that failed and was finished later is not reported as failed.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from ..files.errors import readable
from ..log.failures import read_failures
from .snapshot import Snapshot


@dataclass(frozen=True)
class CellProgress:
    """How far one benchmark under one regime is. `seconds` is the sum over its shards, None where none was timed."""

    benchmark: str
    regime: str
    states: int
    states_total: int
    shards: int
    shards_total: int
    seconds: float | None
    failed: str | None


@dataclass(frozen=True)
class Progress:
    """How far a run is: committed shards and states, in all and per cell."""

    shards: int
    shards_total: int
    states: int
    states_total: int
    cells: tuple[CellProgress, ...]

    @property
    def complete(self) -> bool:
        """Whether every shard is committed."""
        return self.shards == self.shards_total


def failed_cells(snapshot: Snapshot) -> dict[tuple[str, str], str]:
    """Reason by (benchmark, regime) for cells that could not be finished."""
    files, plan = snapshot.files, snapshot.run.plan
    with readable(files.path):
        reasons, faults = read_failures(files, plan)
    for fault in faults.values():
        warnings.warn(fault, stacklevel=3)
    return {
        (cell.benchmark, cell.regime): reasons[cell.index]
        for cell in plan.cells
        if cell.index in reasons and any(shard not in snapshot.commits for shard in cell.shards)
    }


def progress(snapshot: Snapshot, failed: dict[tuple[str, str], str]) -> Progress:
    """How far the whole run is; `failed` are its failed cells."""
    commits, plan = snapshot.commits, snapshot.run.plan
    done = np.fromiter(commits, np.int64, len(commits))
    sizes = np.diff(plan.starts)
    cells = []
    for cell in plan.cells:
        inside = done[(done >= cell.shards.start) & (done < cell.shards.stop)]
        times = [commits[int(k)].seconds for k in inside]
        timed = [t for t in times if t is not None]
        cells.append(
            CellProgress(
                cell.benchmark,
                cell.regime,
                int(sizes[inside].sum()),
                cell.states,
                len(inside),
                len(cell.shards),
                sum(timed) if timed else None,
                failed.get((cell.benchmark, cell.regime)),
            )
        )
    return Progress(len(done), plan.n_shards, int(sizes[done].sum()), plan.n_states, tuple(cells))
