"""All that `plan.json` holds: the plan, what each state has, and the settings that decide the numbers.

Guarantees that a run is continued under equal settings only (by their hash), that every name in it stands for one thing, and that a plan
which a later version wrote, or whose bytes do not match their checksum, is not read as another one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import RequestError, StoreError
from ..schema import PLAN_KEYS, SHARD
from .dtypes import stored_type
from .files.sealed import canonical, seal, seal_digest, unseal
from .geometry import ArraySpec, Geometry
from .layout import FORMAT, check_name
from .plan import Plan, cells_of

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
        cells = cells_of((c["benchmark"], c["regime"], c["states"], c["rows"]) for c in body["cells"])
        plan = Plan(body["ids"], body["item_ids"], cells, body["shard_size"], tuple(body["duplicates"]))
        if not cells or len(plan.ids) != cells[-1].stop or len(plan.item_ids) != cells[-1].stop:
            raise StoreError(f"The plan of {path} (plan.json) is damaged: its cells do not add up to its states.")
        arrays = {name: ArraySpec.from_json(spec) for name, spec in body["arrays"].items()}
        run = cls(
            plan, arrays, body["columns"], body["ragged"], body["config"], body["config_defaults"], body["format"]
        )
        run.__dict__["digest"] = seal_digest(record)  # the cached property, without building the record anew
        return run


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
    plain: dict[str, Any] = {}
    for key, value in config.items():
        try:
            plain[str(key)] = json.loads(canonical(value))
        except (TypeError, ValueError) as error:
            raise RequestError(f"{what}[{key!r}] cannot be written as JSON ({error}).") from None
    return plain


def config_hash(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """SHA-256 over the settings that differ from their defaults, whatever their order."""
    given = {key: value for key, value in config.items() if key not in defaults or defaults[key] != value}
    return hashlib.sha256(canonical(given)).hexdigest()
