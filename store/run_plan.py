"""All that `plan.json` holds: the plan, what each state has, and the settings that decide the numbers.

Guarantees that a run is continued under equal settings only (by their hash), that every name in it stands for one thing, and that a plan
which a later version wrote, or whose bytes do not match their checksum, is not read as another one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import RequestError, StoreError
from ..schema import PLAN_KEYS, SHARD
from . import records
from .dtypes import ITEM_TYPES, stored_type
from .files.sealed import canonical, check_depth, seal, seal_digest, unseal
from .geometry import ArraySpec, Geometry
from .layout import FORMAT, blob_name, check_name, ragged_name, table_name
from .plan import PLAN_FIELDS, Plan, plan_of

COLUMN_TYPES = ("float64", "int64", "bool", "string")


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
        _check_contents(plan, arrays, columns, ragged)
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

    def shard_files(self, shard: int, blobs: Sequence[str]) -> dict[str, Geometry | None]:
        """Final names of the files of a shard that has these blobs, with the byte layout of those that are Zarr shards."""
        cell = self.plan.cell_of(shard)
        names: dict[str, Geometry | None] = {}
        for name, spec in self.arrays.items():
            if not spec.small:
                geometry = self.geometry[cell.index, name]
                names[f"{cell.folder}/{name}/{geometry.chunk_key(shard - cell.first_shard)}"] = geometry
        names[table_name(shard)] = None
        if self.ragged:
            names[ragged_name(shard)] = None
        names.update({blob_name(name, shard): None for name in blobs})
        return names

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
        what = f"The plan of {path} (plan.json)"
        check_format(records.sound(_FORMAT, body, what)["format"], path)
        run = records.sound(cls._of_record, body, what)
        run.__dict__["digest"] = seal_digest(record)  # the cached property, without building the record anew
        return run

    @classmethod
    def _of_record(cls, body: Any, where: str) -> RunPlan:
        """The same from the JSON of a record; Malformed where it says no such thing."""
        checked = _FIELDS(body, where)
        plan = plan_of(checked)
        try:
            _check_contents(plan, checked["arrays"], checked["columns"], checked["ragged"])
        except RequestError as error:
            raise records.Malformed(f"it has contents that no run has ({error})") from None
        contents = (checked[key] for key in ("arrays", "columns", "ragged", "config", "config_defaults", "format"))
        return cls(plan, *contents)


_FORMAT = records.fields({"format": records.whole(1)})
_FIELDS = records.fields(
    {
        "format": records.whole(1),
        **PLAN_FIELDS,
        "arrays": records.mapping(records.name, ArraySpec.from_json),
        "columns": records.mapping(records.name, records.choice(*COLUMN_TYPES)),
        "ragged": records.mapping(records.name, records.choice(*ITEM_TYPES)),
        "config": records.json_object,
        "config_defaults": records.json_object,
    }
)
_MOST_NODES = 1_000_000
"""The most Zarr arrays of a run: their metadata are held in memory and compared at each opening."""


def _check_contents(
    plan: Plan, arrays: Mapping[str, ArraySpec], columns: Mapping[str, str], ragged: Mapping[str, str]
) -> None:
    """Refuse names that are no names or stand for two things, unknown types, and more arrays than can be."""
    taken: set[str] = {*PLAN_KEYS, SHARD}
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
    nodes = len(plan.cells) * sum(not spec.small for spec in arrays.values())
    if nodes > _MOST_NODES:
        raise RequestError(
            f"{len(plan.cells)} cells with {len(arrays)} arrays each are more than a run takes ({_MOST_NODES} in all): "
            "make several runs."
        )


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
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def json_form(config: Mapping[str, Any], what: str) -> dict[str, Any]:
    """`config` as JSON gives it back (tuples become lists)."""
    plain: dict[str, Any] = {}
    for key, value in config.items():
        try:
            plain[str(key)] = json.loads(canonical(value))
            check_depth(plain)
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"{what}[{key!r}] cannot be written as JSON ({error}).") from None
    return plain


def config_hash(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """SHA-256 over the settings that differ from their defaults, whatever their order."""
    given = {key: value for key, value in config.items() if key not in defaults or defaults[key] != value}
    return hashlib.sha256(canonical(given)).hexdigest()
