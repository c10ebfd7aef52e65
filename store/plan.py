"""Which state belongs to which shard, fixed before any work starts.

The plan is the only place where work is divided. A shard's numbers depend on the plan alone, so workers need nothing
from each other, and what is left to do is always the plan minus the commits. `plan.json` also holds the settings that
decide the numbers; a run is continued under equal settings only.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import RequestError, StoreError
from .dtypes import is_text, stored_type
from .layout import FORMAT, ArraySpec, Geometry, cell_folder, check_name
from .sealed import canonical, seal, seal_digest, unseal

COLUMN_TYPES = ("float64", "int64", "bool", "string")
KEYS = ("id", "benchmark", "regime", "item_id")


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
            A key is missing or not text, there are no states, or `shard_size` is below 1.
        """
        if shard_size < 1:
            raise RequestError(f"shard_size is {shard_size}: a shard holds at least one state.")
        seen: set[str] = set()
        duplicates: list[str] = []
        members: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
        for number, state in enumerate(states):
            for key in KEYS:
                value = state.get(key)
                if not isinstance(value, str) or not is_text(value):
                    raise RequestError(f"State {number} has {key}={value!r}: a string of whole characters is needed.")
            name = state["id"]
            if name in seen:
                duplicates.append(name)
                continue
            seen.add(name)
            ids, items = members.setdefault((state["benchmark"], state["regime"]), ([], []))
            ids.append(name)
            items.append(state["item_id"])
        if not seen:
            raise RequestError("There are no states to plan for: give at least one item and one regime.")
        sizes = [(benchmark, regime, len(ids)) for (benchmark, regime), (ids, _) in members.items()]
        return cls(
            ids=[name for ids, _ in members.values() for name in ids],
            item_ids=[name for _, items in members.values() for name in items],
            cells=_cells((b, r, n, -(-n // -(-n // shard_size))) for b, r, n in sizes),
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
            {"id": self.ids[i], "benchmark": cell.benchmark, "regime": cell.regime, "item_id": self.item_ids[i]}
            for i in range(start, stop)
        ]
        return Shard(index, cell.benchmark, cell.regime, states, start, stop)


def _cells(sizes: Iterable[tuple[str, str, int, int]]) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    start = shard = 0
    for benchmark, regime, states, rows in sizes:
        cell = Cell(len(cells), benchmark, regime, start, start + states, rows, shard)
        cells.append(cell)
        start, shard = cell.stop, cell.shards.stop
    return tuple(cells)


@dataclass(frozen=True)
class RunPlan:
    """All that `plan.json` holds: the plan, what each state has, and the settings.

    Parameters
    ----------
    plan : Plan
    arrays : dict of str to ArraySpec
    columns, ragged : dict of str to str
        Type of each table column and of each ragged array.
    config, config_defaults : dict
        Settings that decide the numbers, and the values at which a setting counts as not given.
    format : int
        Version of the format on disk: that of the package for a new run, that of its `plan.json` for one that is there.
    """

    plan: Plan
    arrays: dict[str, ArraySpec]
    columns: dict[str, str]
    ragged: dict[str, str]
    config: dict[str, Any]
    config_defaults: dict[str, Any]
    format: int

    @classmethod
    def of(
        cls,
        plan: Plan,
        arrays: Mapping[str, ArraySpec],
        columns: Mapping[str, str],
        ragged: Mapping[str, str],
        config: Mapping[str, Any],
        config_defaults: Mapping[str, Any],
    ) -> RunPlan:
        """Check the names and types, and bring the settings to the form they have in JSON."""
        taken: set[str] = set(KEYS) | {"shard"}
        for what, names in (("Array", arrays), ("Column", columns), ("Ragged array", ragged)):
            for name in names:
                if check_name(name, what) in taken:
                    raise RequestError(f"{what} {name!r} is taken: each name stands for one thing in a run.")
                taken.add(name)
        _check_sides(taken, {f"{name}_layer" for name, spec in arrays.items() if spec.layers is not None})
        for name, kind in columns.items():
            if kind not in COLUMN_TYPES:
                raise RequestError(f"Column {name!r} has type {kind!r}: choose one of {', '.join(COLUMN_TYPES)}.")
        for kind in ragged.values():
            stored_type(kind)
        return cls(
            plan,
            dict(arrays),
            dict(columns),
            dict(ragged),
            json_form(config, "config"),
            json_form(config_defaults, "config_defaults"),
            FORMAT,
        )

    @cached_property
    def geometry(self) -> dict[tuple[int, str], Geometry]:
        """Byte layout by (cell number, array name), for the arrays that are Zarr arrays."""
        return {
            (cell.index, name): Geometry.of(spec, cell.rows)
            for cell in self.plan.cells
            for name, spec in self.arrays.items()
            if not spec.small
        }

    @cached_property
    def config_hash(self) -> str:
        """SHA-256 of the settings that differ from their defaults."""
        return config_hash(self.config, self.config_defaults)

    @cached_property
    def record(self) -> bytes:
        """The bytes of `plan.json`."""
        plan = self.plan
        return seal(
            {
                "format": self.format,
                "shard_size": plan.shard_size,
                "cells": [
                    {"benchmark": c.benchmark, "regime": c.regime, "states": c.states, "rows": c.rows}
                    for c in plan.cells
                ],
                "ids": list(plan.ids),
                "item_ids": list(plan.item_ids),
                "duplicates": list(plan.duplicates),
                "arrays": {name: spec.to_json() for name, spec in self.arrays.items()},
                "columns": self.columns,
                "ragged": self.ragged,
                "config": self.config,
                "config_defaults": self.config_defaults,
                "config_hash": self.config_hash,
            }
        )

    @cached_property
    def digest(self) -> str:
        """Checksum that `plan.json` states about itself; every commit repeats it."""
        return seal_digest(self.record)

    @classmethod
    def read(cls, record: bytes, path: str) -> RunPlan:
        """The plan in the bytes of `plan.json`.

        Raises
        ------
        RequestError
            The run was written in a newer format.
        StoreError
            The bytes do not match their checksum.
        """
        try:
            body = unseal(record, f"The plan of {path} (plan.json)")
        except StoreError:
            check_format(_stated_format(record), path)
            raise
        check_format(body["format"], path)
        cells = _cells((c["benchmark"], c["regime"], c["states"], c["rows"]) for c in body["cells"])
        plan = Plan(body["ids"], body["item_ids"], cells, body["shard_size"], tuple(body["duplicates"]))
        if not cells or len(plan.ids) != cells[-1].stop or len(plan.item_ids) != cells[-1].stop:
            raise StoreError(f"The plan of {path} (plan.json) is damaged: its cells do not add up to its states.")
        arrays = {name: ArraySpec.from_json(spec) for name, spec in body["arrays"].items()}
        found = cls(
            plan, arrays, body["columns"], body["ragged"], body["config"], body["config_defaults"], body["format"]
        )
        found.__dict__["digest"] = seal_digest(record)  # the cached property, without building the record anew
        return found


_SIDES = (".valid", ".offsets", ".shapes", ".crc32c", ".layers")


def _check_sides(names: set[str], axes: set[str]) -> None:
    """Refuse a name that is also that of something kept beside another one: the two would overwrite each other."""
    for name in sorted(names):
        for side in _SIDES:
            if name.endswith(side) and name.removesuffix(side) in names:
                raise RequestError(f"{name!r} is taken: it is kept beside {name.removesuffix(side)!r}. Rename one.")
        if name in axes:
            raise RequestError(
                f"{name!r} is taken: it names the layers of {name.removesuffix('_layer')!r}. Rename one."
            )


def check_format(version: int | None, path: str) -> None:
    """Refuse a run of a newer format."""
    if version is not None and version > FORMAT:
        raise RequestError(
            f"{path} is a run of format {version}, this version reads up to {FORMAT}: update precollapse."
        )


def _stated_format(record: bytes) -> int | None:
    """Format number in a record that a later version may have written in another way, None where there is none."""
    try:
        body = json.loads(record)
        return int(body.get("body", body)["format"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def json_form(config: Mapping[str, Any], what: str) -> dict[str, Any]:
    """`config` as JSON gives it back (tuples become lists)."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        try:
            found[str(key)] = json.loads(canonical(value))
        except (TypeError, ValueError) as error:
            raise RequestError(f"{what}[{key!r}] cannot be written as JSON ({error}).") from None
    return found


def config_hash(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """SHA-256 over the settings that differ from their defaults, whatever their order."""
    given = {key: value for key, value in config.items() if key not in defaults or defaults[key] != value}
    return hashlib.sha256(canonical(given)).hexdigest()
