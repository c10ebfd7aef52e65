"""Arrays whose length differs between states, one state at a time.

Guarantees that a row's bytes match the checksum that was kept of it, and that nothing but that row is read.
"""

from __future__ import annotations

import math

import numpy as np

from ...checks import is_whole
from ...errors import RequestError
from ..formats import tables
from ..layout import ragged_name
from .selection import Selection, listing


def ragged_row(selection: Selection, name: str, i: int) -> np.ndarray:
    """The array `name` of the state at position `i`, in its own shape."""
    shard, local, shape = _place(selection, name, i)
    file, key, snapshot = ragged_name(shard), f"ragged.{name}", selection.snapshot
    first, last = snapshot.part(shard, file, f"{key}.offsets", local, local + 2).tolist()
    checksum = int(snapshot.part(shard, file, f"{key}.crc32c", local, local + 1, "uint32")[0])
    kind = snapshot.run.ragged[name]
    total = snapshot.entry(shard, file, key, 1)[0]["shape"][0]
    if not 0 <= first <= last <= total or min(shape, default=0) < 0 or math.prod(shape) != last - first:
        raise snapshot.damaged(file)
    bits = snapshot.part(shard, file, key, first, last, kind)
    return tables.ragged_row(bits, shape, checksum, kind, f"{snapshot.files.path}/{file}, state {local},")


def ragged_shape(selection: Selection, name: str, i: int) -> tuple[int, ...]:
    """Shape of the array `name` of the state at position `i`, without reading it."""
    return _place(selection, name, i)[2]


def _place(selection: Selection, name: str, i: int) -> tuple[int, int, tuple[int, ...]]:
    """Shard, row within it, and shape of a state's ragged array."""
    snapshot = selection.snapshot
    kinds = snapshot.run.ragged
    if name not in kinds:
        raise RequestError(f"The run has no ragged array {name!r}: it has {listing(kinds)}.")
    if not is_whole(i, -len(selection), len(selection) - 1):
        raise RequestError(f"There is no state {i!r}: the selection has {len(selection)}, counted from 0.")
    row = int(selection.rows[i])
    shard = int(np.searchsorted(selection.plan.starts, row, side="right")) - 1
    local = row - selection.plan.bounds(shard)[0]
    file, key = ragged_name(shard), f"ragged.{name}.shapes"
    axes = snapshot.entry(shard, file, key, 2)[0]["shape"][1]
    shape = snapshot.part(shard, file, key, local * axes, (local + 1) * axes)
    return shard, local, tuple(shape.tolist())
