"""The files of one shard, made of what its writer was given.

Guarantees that every name, shape, type and number of rows is that of the plan before a byte is written, and that no more than one chunk is
copied at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import RequestError
from .dtypes import to_stored
from .files.sealed import crc32c
from .formats import tables, tensors
from .layout import blob_name, check_name, ragged_name, table_name
from .plan import Shard
from .run_plan import RunPlan


def shard_contents(
    run: RunPlan,
    columns: Mapping[str, str],
    shard: Shard,
    arrays: Mapping[str, Any],
    table: Mapping[str, Sequence[Any] | None],
    ragged: Mapping[str, Sequence[Any]],
    blobs: Mapping[str, bytes],
) -> list[tuple[str, Iterable[Any], list[int] | None]]:
    """Final name, parts, and list for the chunk checksums (Zarr shards) of each file of the shard; all checked."""
    count = len(shard)
    for what, given, wanted in (
        ("array", arrays, run.arrays),
        ("column", table, columns),
        ("ragged array", ragged, run.ragged),
    ):
        _check_names(what, given.keys(), wanted.keys(), shard.index)
    cell = run.plan.cell_of(shard.index)
    contents: list[tuple[str, Iterable[Any], list[int] | None]] = []
    small: dict[str, Any] = {}
    for name, kind in columns.items():
        small.update(tables.encode_column(name, kind, table[name], count))
    for name, spec in run.arrays.items():
        x = np.asarray(arrays[name])
        if x.shape != (count, *spec.shape):
            raise RequestError(
                f"Array {name!r} of shard {shard.index} has shape {x.shape}, the plan says {(count, *spec.shape)}."
            )
        bits = to_stored(x, spec.dtype, f"Array {name!r}") if spec.dtype != "bfloat16" or spec.small else x
        if spec.small:
            small[f"array.{name}"] = (spec.dtype, bits)
        else:
            if spec.dtype == "bfloat16":
                to_stored(x[:0], spec.dtype, f"Array {name!r}")
            checksums: list[int] = []
            geometry = run.geometry[cell.index, name]
            key = geometry.chunk_key(shard.index - cell.first_shard)
            parts = geometry.encode(bits, f"Array {name!r}", checksums)
            contents.append((f"{cell.folder}/{name}/{key}", parts, checksums))
    long: dict[str, Any] = {}
    for name, kind in run.ragged.items():
        long.update(tables.encode_ragged(name, kind, ragged[name], count))
    notes = {"columns": ",".join(f"{name}:{kind}" for name, kind in columns.items())}
    contents.append((table_name(shard.index), tensors.encode(small, notes), None))
    if long:
        contents.append((ragged_name(shard.index), tensors.encode(long), None))
    for name, data in blobs.items():
        if not isinstance(data, bytes | bytearray | memoryview):
            raise RequestError(f"Blob {name!r} is {type(data).__name__}: bytes are needed.")
        contents.append((blob_name(check_name(name, "Blob"), shard.index), [bytes(data)], None))
    return contents


class Tally:
    """CRC-32C of the parts that pass through."""

    def __init__(self) -> None:
        self.crc32c = 0

    def over(self, parts: Iterable[Any]) -> Iterator[Any]:
        for part in parts:
            self.crc32c = crc32c(np.frombuffer(part, np.uint8), self.crc32c)
            yield part


def _check_names(what: str, given: Iterable[str], wanted: Iterable[str], shard: int) -> None:
    missing, unknown = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
    if missing or unknown:
        parts = [f"lacks {', '.join(missing)}"] if missing else []
        parts += [f"has {', '.join(unknown)}, which the plan does not know"] if unknown else []
        raise RequestError(f"Shard {shard} {' and '.join(parts)}: give each {what} of the plan, and no other.")
