"""Byte layout of the arrays of a run, a function of the plan alone.

Every array of a cell (one benchmark under one regime) is a Zarr v3 array whose shards are the shards of the plan. A
shard file is a row of inner chunks, each holding some rows of one layer, followed by Zarr's shard index. All offsets
follow from the shape, so one layer is one contiguous read, and a shard is written once, whole, front to back.

    chunk (row group 0, layer 0), crc32c | chunk (0, 1), crc32c | ... | index: (offset, bytes) per chunk, crc32c
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import RequestError
from . import records
from .dtypes import ITEM_TYPES, fill_value, stored_type, to_stored
from .files.sealed import crc32c

MIB = 1 << 20
CHUNK_BYTES = (MIB // 2, 2 * MIB)
SHARD_BYTES = (16 * MIB, 64 * MIB)
SMALL_ROW_BYTES = 1024
"""Arrays whose rows are smaller than this are kept in the shard's table file, not as Zarr arrays of tiny chunks."""


MOST_AXES = 16
MOST_ROW_BYTES = 1 << 34
"""The most axes and bytes of one state's array: what a plan says beyond them is no state of a model, and is not allocated."""

_SIZE = records.whole(1)
_SPEC = records.fields(
    {
        "shape": records.listing(_SIZE, most=MOST_AXES),
        "dtype": records.choice(*ITEM_TYPES),
        "layers": records.optional(records.listing(records.whole(-(1 << 31), 1 << 31))),
    }
)


@dataclass(frozen=True)
class ArraySpec:
    """What one state holds of one array.

    Parameters
    ----------
    shape : tuple of int
        Shape per state, `(L, d)` for a site, `(k,)` for top-k ids, `()` for a number.
    dtype : str
        "float16", "bfloat16", "float32", "float64", "int32" or "int64".
    layers : tuple of int or None
        Model layer numbers along the first axis of `shape`; None where there is no layer axis.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        stored_type(self.dtype)
        if any(n < 1 for n in self.shape):
            raise RequestError(f"An array of shape {self.shape} per state has no elements: give positive sizes.")
        if self.layers is not None:
            layers = tuple(int(n) for n in self.layers)
            object.__setattr__(self, "layers", layers)
            if not self.shape or len(layers) != self.shape[0] or len(set(layers)) != len(layers):
                raise RequestError(f"layers {layers} must name each entry of the first axis of {self.shape} once.")
        if len(self.shape) > MOST_AXES or self.row_bytes > MOST_ROW_BYTES:
            raise RequestError(
                f"An array with {len(self.shape)} axes and {self.row_bytes} bytes per state is more than a run takes "
                f"({MOST_AXES} axes, {MOST_ROW_BYTES} bytes): capture fewer sites or layers."
            )

    @property
    def n_layers(self) -> int:
        """Length of the layer axis, 1 where there is none."""
        return 1 if self.layers is None else self.shape[0]

    @property
    def inner_shape(self) -> tuple[int, ...]:
        """Shape of one layer of one state."""
        return self.shape if self.layers is None else self.shape[1:]

    @property
    def inner_bytes(self) -> int:
        """Bytes of one layer of one state."""
        return math.prod(self.inner_shape) * stored_type(self.dtype).itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one state."""
        return self.n_layers * self.inner_bytes

    @property
    def small(self) -> bool:
        """Whether the array lives in the table files (see SMALL_ROW_BYTES)."""
        return self.row_bytes < SMALL_ROW_BYTES

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "layers": None if self.layers is None else list(self.layers),
        }

    @classmethod
    def from_json(cls, value: Any, where: str) -> ArraySpec:
        """The same from the JSON of a record; Malformed where it says no such thing."""
        spec = _SPEC(value, where)
        layers = spec["layers"]
        try:
            return cls(tuple(spec["shape"]), spec["dtype"], None if layers is None else tuple(layers))
        except RequestError as error:
            raise records.Malformed(f"{where} says: {error}") from None


def shard_size_for(arrays: Mapping[str, ArraySpec]) -> int:
    """States per shard that suit `arrays`: inner chunks of 0.5-2 MiB and shards of 16-64 MiB of the largest array.

    The two ranges rarely exclude each other; where they do (few layers), the shard is filled to its lower bound and the
    layout cuts it into row groups. Never more than 4096 states, so that a kill never costs much.
    """
    if not arrays:
        return 256
    largest = max(arrays.values(), key=lambda spec: spec.row_bytes)
    least = max(math.ceil(SHARD_BYTES[0] / largest.row_bytes), math.ceil(CHUNK_BYTES[0] / largest.inner_bytes))
    most = SHARD_BYTES[1] // largest.row_bytes
    size = min(2 * least, math.isqrt(max(least, 1) * max(most, 1)), 4096) if most > least else most
    return max(1, size - size % 16 if size >= 32 else size)


@dataclass(frozen=True)
class Geometry:
    """Byte layout of one array in one cell.

    Parameters
    ----------
    spec : ArraySpec
    rows : int
        States per shard (R); the last shard of the cell may hold fewer.
    chunk_rows : int
        States per inner chunk; divides `rows`.
    """

    spec: ArraySpec
    rows: int
    chunk_rows: int

    @classmethod
    def of(cls, spec: ArraySpec, rows: int) -> Geometry:
        """Largest inner chunk of at most 2 MiB whose row count divides `rows` (the shard itself where that fits)."""
        limit = max(1, CHUNK_BYTES[1] // spec.inner_bytes)
        return cls(spec, rows, max(n for n in range(1, min(rows, limit) + 1) if rows % n == 0))

    @property
    def chunk_bytes(self) -> int:
        """Bytes of an inner chunk without its checksum."""
        return self.chunk_rows * self.spec.inner_bytes

    @property
    def groups(self) -> int:
        """Row groups of a full shard."""
        return self.rows // self.chunk_rows

    def used_groups(self, states: int) -> int:
        """Row groups that a shard of `states` states fills, wholly or partly; the others are absent from its file."""
        return -(-states // self.chunk_rows)

    def chunk_offset(self, group: int, layer: int) -> int:
        """Byte at which the chunk of row group `group` and layer axis entry `layer` starts."""
        return (group * self.spec.n_layers + layer) * (self.chunk_bytes + 4)

    @property
    def index_bytes(self) -> int:
        return 16 * self.groups * self.spec.n_layers + 4

    def file_bytes(self, states: int) -> int:
        """Size of the shard file of `states` states."""
        return self.chunk_offset(self.used_groups(states), 0) + self.index_bytes

    def index(self, states: int) -> bytes:
        """Zarr's shard index, with its checksum: offset and size of each chunk, all bits set for an absent one."""
        entries = np.full((self.groups * self.spec.n_layers, 2), 0xFFFFFFFFFFFFFFFF, dtype="<u8")
        used = self.used_groups(states) * self.spec.n_layers
        entries[:used, 0] = np.arange(used, dtype="<u8") * np.uint64(self.chunk_bytes + 4)
        entries[:used, 1] = self.chunk_bytes + 4
        data = entries.tobytes()
        return data + crc32c(data).to_bytes(4, "little")

    def encode(self, x: Any, what: str, checksums: list[int]) -> Iterator[Any]:
        """Parts of the shard file of `x` [r, *spec.shape], in order; appends each chunk's crc32c to `checksums`.

        One chunk at a time is copied, so the extra memory is one chunk.
        """
        spec = self.spec
        bits = to_stored(x, spec.dtype, what).reshape(len(x), spec.n_layers, -1)
        states = len(bits)
        chunk = np.zeros((self.chunk_rows, bits.shape[2]), dtype=stored_type(spec.dtype))
        for group in range(self.used_groups(states)):
            first = group * self.chunk_rows
            count = min(self.chunk_rows, states - first)
            chunk[count:] = 0
            for layer in range(spec.n_layers):
                chunk[:count] = bits[first : first + count, layer]
                checksum = crc32c(chunk)
                checksums.append(checksum)
                yield chunk.data.cast("B")
                yield checksum.to_bytes(4, "little")
        yield self.index(states)

    def metadata(self, states: int, attributes: Mapping[str, Any]) -> bytes:
        """`zarr.json` of the array holding `states` states."""
        spec = self.spec
        little = {"name": "bytes", "configuration": {"endian": "little"}}
        inner = spec.shape if spec.layers is None else (1, *spec.shape[1:])
        names = ["state"] + (["layer"] if spec.layers is not None else [])
        names += [f"axis_{i}" for i in range(len(spec.inner_shape))]
        return json_bytes(
            {
                "zarr_format": 3,
                "node_type": "array",
                "shape": [states, *spec.shape],
                "data_type": spec.dtype,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [self.rows, *spec.shape]}},
                "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
                "fill_value": fill_value(spec.dtype),
                "codecs": [
                    {
                        "name": "sharding_indexed",
                        "configuration": {
                            "chunk_shape": [self.chunk_rows, *inner],
                            "codecs": [little, {"name": "crc32c"}],
                            "index_codecs": [little, {"name": "crc32c"}],
                            "index_location": "end",
                        },
                    }
                ],
                "attributes": dict(attributes),
                "dimension_names": names,
                "storage_transformers": [],
            }
        )

    def chunk_key(self, shard_in_cell: int) -> str:
        """File name of a shard within the folder of the array."""
        return ".".join(["c", str(shard_in_cell), *["0"] * len(self.spec.shape)])


def json_bytes(value: Any) -> bytes:
    """`value` as indented JSON."""
    return (json.dumps(value, indent=2) + "\n").encode()


def group_metadata(attributes: Mapping[str, Any]) -> bytes:
    """`zarr.json` of a group."""
    return json_bytes({"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)})
