"""Rows of a run's plan, in the order in which a reader gets them.

Guarantees that a name which the plan does not have is refused with those that it has, and that every way of reading goes through the same
rows in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import RequestError
from ..geometry import ArraySpec
from ..plan import Plan
from .snapshot import Snapshot


@dataclass(frozen=True, eq=False)
class Selection:
    """Some committed states.

    Parameters
    ----------
    snapshot : Snapshot
    rows : int64 array [n]
        Plan rows.
    """

    snapshot: Snapshot
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def plan(self) -> Plan:
        """The plan of the whole run."""
        return self.snapshot.run.plan

    def spec(self, name: str) -> ArraySpec:
        """What each state has of an array.

        Raises
        ------
        RequestError
            The run has no such array.
        """
        specs = self.snapshot.run.arrays
        if name not in specs:
            raise RequestError(f"The run has no array {name!r}: it has {listing(specs)}.")
        return specs[name]

    def shards(self) -> np.ndarray:
        """Shard of each row."""
        return np.asarray(np.searchsorted(self.plan.starts, self.rows, side="right") - 1)

    def cells(self) -> np.ndarray:
        """Number of the cell of each row."""
        return np.asarray(np.searchsorted([cell.start for cell in self.plan.cells], self.rows, side="right") - 1)

    def groups(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """(shard, rows within it ascending, their positions in the selection), in plan order."""
        order = np.argsort(self.rows, kind="stable")
        shards = self.shards()[order]
        cuts = np.flatnonzero(np.diff(shards)) + 1
        for positions in np.split(order, cuts) if len(order) else []:
            shard = int(np.searchsorted(self.plan.starts, self.rows[positions[0]], side="right")) - 1
            yield shard, self.rows[positions] - self.plan.starts[shard], positions

    def by_shard(self) -> Iterator[Selection]:
        """The part that lies in each shard, in plan order."""
        for _, _, positions in self.groups():
            yield Selection(self.snapshot, self.rows[np.sort(positions)])

    def named(
        self,
        regime: str | Sequence[str] | None,
        benchmark: str | Sequence[str] | None,
        items: Iterable[str] | None,
    ) -> Selection:
        """The states of these regimes, benchmarks and items; see `Run.select`."""
        if regime is None and benchmark is None and items is None:
            return self
        plan, rows = self.plan, self.rows
        if regime is not None or benchmark is not None:
            regimes = _names(regime, [cell.regime for cell in plan.cells], "regime")
            benchmarks = _names(benchmark, [cell.benchmark for cell in plan.cells], "benchmark")
            kept = np.array([c.regime in regimes and c.benchmark in benchmarks for c in plan.cells])
            rows = rows[kept[self.cells()]]
        if items is not None:
            if not isinstance(items, str | Iterable):
                raise RequestError(f"An item is named by its id, a string, not {items!r}: see run.states['item_id'].")
            wanted = {items} if isinstance(items, str) else set(items)
            unknown = wanted.difference(plan.item_ids)
            if unknown:
                raise RequestError(
                    f"The run has no item {min(map(repr, unknown))} ({len(unknown)} of {len(wanted)} are unknown): "
                    "see run.states['item_id']."
                )
            rows = rows[np.fromiter((plan.item_ids[row] in wanted for row in rows), bool, len(rows))]
        return Selection(self.snapshot, rows)

    def at(self, positions: Any) -> Selection:
        """The states at these positions; see `Run.take`."""
        wanted = np.asarray(positions)
        if wanted.size == 0 and wanted.ndim == 1 and wanted.dtype != bool:
            wanted = wanted.astype(np.int64)
        if wanted.ndim != 1 or wanted.dtype.kind not in "biu":
            raise RequestError(
                f"take needs a list of positions or a mask, not {wanted.dtype} of shape {list(wanted.shape)}."
            )
        try:
            return Selection(self.snapshot, self.rows[wanted])
        except IndexError as error:
            raise RequestError(f"There is no such row among {len(self)} states ({error}).") from None


def listing(names: Iterable[str]) -> str:
    """Names one after the other, as a message shows them."""
    return ", ".join(names) or "none"


def _names(given: str | Sequence[str] | None, of_cells: list[str], what: str) -> set[str]:
    if given is None:
        return set(of_cells)
    if not isinstance(given, str | Iterable):
        raise RequestError(f"A {what} is a name, not {given!r}: the run has {listing(dict.fromkeys(of_cells))}.")
    wanted = {given} if isinstance(given, str) else set(given)
    unknown = sorted(wanted.difference(of_cells), key=str)
    if unknown:
        raise RequestError(f"The run has no {what} {unknown[0]!r}: it has {listing(dict.fromkeys(of_cells))}.")
    return wanted
