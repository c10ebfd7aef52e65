"""What a table file and a file of ragged arrays must hold, by the plan, before a number is taken from them.

Guarantees that a file whose bytes match its commit and which holds something else (columns of other types or lengths, offsets that lead
outside, negative shapes) is told by the tensor that is wrong: its commit vouches for its bytes, not for their sense.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .. import records
from ..geometry import ArraySpec
from ..records import Malformed
from ..run_plan import COLUMN_TYPES
from . import tensors

Tensor = Callable[[str], np.ndarray]
"""Reads a tensor of the file by name."""

_KIND = records.choice(*COLUMN_TYPES)


def column_kinds(head: Mapping[str, Any]) -> dict[str, str]:
    """Type of each column that a table file says it has."""
    notes = head.get("__metadata__", {})
    listed = notes.get("columns", "") if isinstance(notes, dict) else None
    if not isinstance(listed, str):
        raise Malformed("its list of columns is no text")
    kinds = {}
    for part in listed.split(",") if listed else []:
        name, _, kind = part.partition(":")
        kinds[records.name(name, "the name of a column")] = _KIND(kind, f"the type of column {records.shown(name)}")
    return kinds


def check_table(head: Mapping[str, Any], tensor: Tensor, arrays: Mapping[str, ArraySpec], states: int) -> None:
    """Refuse (Malformed) a table file that does not hold `states` values of each column and small array."""
    for name, kind in column_kinds(head).items():
        key = f"column.{name}"
        if key not in head:
            continue
        if kind == "string":
            total = _entry(head, key, "uint8", None)[0]
            _entry(head, f"{key}.offsets", "int64", (states + 1,))
            _check_offsets(tensor(f"{key}.offsets"), total, key)
        else:
            _entry(head, key, kind, (states,))
        if f"{key}.valid" in head:
            _entry(head, f"{key}.valid", "bool", (states,))
    for name, spec in arrays.items():
        if spec.small:
            _entry(head, f"array.{name}", spec.dtype, (states, *spec.shape))


def check_ragged(head: Mapping[str, Any], ragged: Mapping[str, str], states: int) -> None:
    """Refuse (Malformed) a file whose ragged arrays have sides of other types or lengths; rows are checked as they are read."""
    for name, kind in ragged.items():
        key = f"ragged.{name}"
        _entry(head, key, kind, None)
        _entry(head, f"{key}.offsets", "int64", (states + 1,))
        _entry(head, f"{key}.crc32c", "uint32", (states,))
        shape = _entry(head, f"{key}.shapes", "int64", None, axes=2)
        if shape[0] != states or shape[1] > 32:
            raise Malformed(f"tensor {key}.shapes has shape {shape}, where {states} rows belong")


def _entry(
    head: Mapping[str, Any], key: str, kind: str, shape: tuple[int, ...] | None, axes: int | None = 1
) -> list[int]:
    """Shape of a tensor that must be there, of this type and shape (None: any of so many axes)."""
    entry = head.get(key)
    if entry is None:
        raise Malformed(f"it has no tensor {records.shown(key)}")
    found: list[int] = entry["shape"]
    if entry["dtype"] != tensors.code_of(kind) or (len(found) != axes if shape is None else tuple(found) != shape):
        wanted = "of that many axes" if shape is None else list(shape)
        raise Malformed(
            f"tensor {records.shown(key)} is {entry['dtype']} {found}, where {tensors.code_of(kind)} {wanted} belongs"
        )
    return found


def _check_offsets(offsets: np.ndarray, total: int, key: str) -> None:
    if offsets[0] != 0 or offsets[-1] != total or bool((np.diff(offsets) < 0).any()):
        raise Malformed(f"the offsets of tensor {records.shown(key)} do not divide its {total} values")
