"""Which state belongs to which shard, fixed before any work starts.

The plan is the only place where work is divided. A shard's numbers depend on the plan alone, so workers need nothing
from each other, and what is left to do is always the plan minus the commits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import RequestError
from ..schema import BENCHMARK, ID, ITEM_ID, PLAN_KEYS, REGIME, item_key
from . import records
from .dtypes import is_text
from .layout import cell_folder


@dataclass(frozen=True)
class Cell:
    """The states of one benchmark under one regime: plan rows `start` to `stop`, shards `first_shard` onwards.

    `rows` is the number of states per shard; the last shard may hold fewer.
    """

    index: int
    benchmark: str
    regime: str
    start: int
    stop: int
    rows: int
    first_shard: int

    @property
    def states(self) -> int:
        return self.stop - self.start

    @property
    def shards(self) -> range:
        return range(self.first_shard, self.first_shard + -(-self.states // self.rows))

    @property
    def folder(self) -> str:
        return cell_folder(self.index, self.benchmark, self.regime)


@dataclass(frozen=True)
class Shard:
    """One unit of work: plan rows `start` to `stop`, all of one benchmark and regime.

    `states` lists a dict with `id`, `benchmark`, `regime` and `item_id` per row.
    """

    index: int
    benchmark: str
    regime: str
    states: list[dict[str, str]]
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Plan:
    """States in plan order, their cells and shards.

    Parameters
    ----------
    ids, item_ids : sequence of str
        One per state.
    cells : tuple of Cell
    shard_size : int
        The most states per shard that was asked for.
    duplicates : tuple of str
        Ids that were given more than once; the first of each was kept.
    """

    ids: Sequence[str]
    item_ids: Sequence[str]
    cells: tuple[Cell, ...]
    shard_size: int
    duplicates: tuple[str, ...] = ()

    @classmethod
    def build(cls, states: Iterable[Mapping[str, Any]], shard_size: int) -> Plan:
        """Divide `states` into shards.

        States of one (benchmark, regime) form a cell, in the order in which they come; cells stand in order of first
        appearance. A cell is cut into the fewest shards of at most `shard_size` states, of one size but for the last,
        so that no shard is padded to a size it does not have.

        Raises
        ------
        RequestError
            A key is missing or not text, one id is given to two items, there are no states, or `shard_size` is below 1.
        """
        if shard_size < 1:
            raise RequestError(f"shard_size is {shard_size}: a shard holds at least one state.")
        seen: dict[str, tuple[str, str, str]] = {}
        counted: set[str] = set()
        duplicates: list[str] = []
        members: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
        for number, state in enumerate(states):
            for key in PLAN_KEYS:
                value = state.get(key)
                if not isinstance(value, str) or not is_text(value):
                    raise RequestError(f"State {number} has {key}={value!r}: a string of whole characters is needed.")
            name = state[ID]
            item = item_key(state)
            if seen.setdefault(name, item) != item:
                raise RequestError(
                    f"The id {name!r} is given to two states: item {seen[name][2]!r} of {seen[name][0]}/{seen[name][1]} and item "
                    f"{item[2]!r} of {item[0]}/{item[1]}. Give each state an id of its own."
                )
            if name in counted:
                duplicates.append(name)
                continue
            counted.add(name)
            ids, items = members.setdefault((state[BENCHMARK], state[REGIME]), ([], []))
            ids.append(name)
            items.append(state[ITEM_ID])
        if not seen:
            raise RequestError("There are no states to plan for: give at least one item and one regime.")
        sizes = [(benchmark, regime, len(ids)) for (benchmark, regime), (ids, _) in members.items()]
        return cls(
            ids=[name for ids, _ in members.values() for name in ids],
            item_ids=[name for _, items in members.values() for name in items],
            cells=cells_of((b, r, n, -(-n // -(-n // shard_size))) for b, r, n in sizes),
            shard_size=shard_size,
            duplicates=tuple(dict.fromkeys(duplicates)),
        )

    @property
    def n_states(self) -> int:
        return len(self.ids)

    @cached_property
    def n_shards(self) -> int:
        return self.cells[-1].shards.stop

    @cached_property
    def starts(self) -> np.ndarray:
        """First plan row of each shard, and the number of states at the end: int64 [n_shards + 1]."""
        starts = [np.arange(cell.start, cell.stop, cell.rows, dtype=np.int64) for cell in self.cells]
        return np.concatenate([*starts, np.array([self.n_states], dtype=np.int64)])

    @cached_property
    def _first_shards(self) -> list[int]:
        return [cell.first_shard for cell in self.cells]

    def cell_of(self, shard: int) -> Cell:
        """The cell that a shard belongs to."""
        if not 0 <= shard < self.n_shards:
            raise RequestError(f"There is no shard {shard}: the plan has shards 0 to {self.n_shards - 1}.")
        return self.cells[bisect_right(self._first_shards, shard) - 1]

    def cell(self, benchmark: str, regime: str) -> Cell:
        """The cell of a benchmark and regime."""
        for cell in self.cells:
            if (cell.benchmark, cell.regime) == (benchmark, regime):
                return cell
        known = ", ".join(f"{cell.benchmark}/{cell.regime}" for cell in self.cells)
        raise RequestError(f"The plan has no cell {benchmark}/{regime}: it has {known}.")

    @cached_property
    def _bounds(self) -> list[int]:
        return list(map(int, self.starts))

    def bounds(self, shard: int) -> tuple[int, int]:
        """Plan rows [start, stop) of a shard."""
        self.cell_of(shard)
        return self._bounds[shard], self._bounds[shard + 1]

    def shard_rows(self, shard: int) -> range:
        """Plan rows of a shard."""
        return range(*self.bounds(shard))

    def shard(self, index: int) -> Shard:
        """The shard with its states."""
        cell = self.cell_of(index)
        start, stop = self.bounds(index)
        states = [
            {ID: self.ids[i], BENCHMARK: cell.benchmark, REGIME: cell.regime, ITEM_ID: self.item_ids[i]}
            for i in range(start, stop)
        ]
        return Shard(index, cell.benchmark, cell.regime, states, start, stop)


_CELL = records.fields(
    {"benchmark": records.text(), "regime": records.text(), "states": records.whole(1), "rows": records.whole(1)}
)
PLAN_FIELDS = {
    "shard_size": records.whole(1),
    "cells": records.listing(_CELL, least=1),
    "ids": records.texts,
    "item_ids": records.texts,
    "duplicates": records.texts,
}
"""What `plan.json` says of states and shards."""


def plan_of(body: Mapping[str, Any]) -> Plan:
    """The plan in a record whose fields are those of PLAN_FIELDS; Malformed where they contradict each other."""
    cells, ids, item_ids = body["cells"], body["ids"], body["item_ids"]
    if not len(ids) == len(item_ids) == sum(cell["states"] for cell in cells):
        raise records.Malformed("its cells do not add up to its states")
    if len(set(ids)) < len(ids):
        raise records.Malformed("it names one state twice")
    if len({(cell["benchmark"], cell["regime"]) for cell in cells}) < len(cells):
        raise records.Malformed("it has one benchmark and regime in two cells")
    for number, cell in enumerate(cells):
        if cell["rows"] > cell["states"]:
            raise records.Malformed(
                f"cell {number} has shards of {cell['rows']} states, and {cell['states']} states in all"
            )
    sizes = ((cell["benchmark"], cell["regime"], cell["states"], cell["rows"]) for cell in cells)
    return Plan(ids, item_ids, cells_of(sizes), body["shard_size"], tuple(body["duplicates"]))


def cells_of(sizes: Iterable[tuple[str, str, int, int]]) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    start = shard = 0
    for benchmark, regime, states, rows in sizes:
        cell = Cell(len(cells), benchmark, regime, start, start + states, rows, shard)
        cells.append(cell)
        start, shard = cell.stop, cell.shards.stop
    return tuple(cells)
