"""Rows of the arrays of a run, read chunk by chunk into place.

Guarantees that every chunk is checked against its commit before a number of it is handed out (only where a few rows are picked out of
a large chunk is the rest neither read nor checked), and that the memory in use is that of the result and one chunk for each thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...checks import is_whole
from ...errors import RequestError
from ...layers import layer_text
from ..dtypes import returned_type, stored_type, to_returned
from ..files.protocol import Handle
from ..files.sealed import crc32c
from ..geometry import ArraySpec, Geometry
from .selection import Selection
from .snapshot import Snapshot

_FEW_LAYERS = 4
_SPARSE = 4
"""Rows are read one by one, and then unchecked, when fewer than one in this many rows of a chunk is wanted."""


def layer_axis(layer: Any, spec: ArraySpec, site: str) -> int:
    """Position of a model layer on the layer axis of an array.

    Parameters
    ----------
    layer : int
        Model layer number; a negative one counts back from the last captured layer.
    spec : ArraySpec
    site : str
        Name of the array.

    Raises
    ------
    RequestError
        It is no whole number, or the array does not have it.
    """
    layers = spec.layers or ()
    if not is_whole(layer):
        raise RequestError(f"A layer is a whole number, not {layer!r}: {site!r} has {layer_text(layers)}.")
    number = int(layer)
    if number < 0 and -number <= len(layers):
        return len(layers) + number
    if number not in layers:
        raise RequestError(f"{site!r} has no layer {number}: it has {layer_text(layers)}.")
    return layers.index(number)


def read_array(selection: Selection, name: str, layers: list[int] | None) -> np.ndarray:
    """Rows of an array; `layers` are positions on its layer axis, None for all of it."""
    spec = selection.spec(name)
    wanted = list(range(spec.n_layers)) if layers is None else layers
    width = int(np.prod(spec.inner_shape, dtype=np.int64))
    # Layer by layer, as on the disk: chunks are read to where they stay, and each layer is contiguous.
    out = np.empty((len(wanted), len(selection), width), returned_type(spec.dtype)).transpose(1, 0, 2)
    if spec.small:
        groups = list(selection.groups())
        tensors_of = selection.snapshot.tables([shard for shard, _, _ in groups])
        for (_, local, positions), (table, _) in zip(groups, tensors_of, strict=True):
            values = table[f"array.{name}"]
            flat = values.reshape(len(values), spec.n_layers, width)
            out[positions] = to_returned(flat[local][:, wanted], spec.dtype)
    else:
        _read_jobs(
            selection.snapshot, [_job(selection, name, spec, group) for group in selection.groups()], wanted, out
        )
    shape = spec.shape if layers is None else (len(wanted), *spec.inner_shape)
    return out.reshape(len(selection), *shape)


def _job(selection: Selection, name: str, spec: ArraySpec, group: tuple[int, np.ndarray, np.ndarray]) -> _Job:
    shard, local, positions = group
    cell = selection.plan.cell_of(shard)
    geometry = selection.snapshot.run.geometry[cell.index, name]
    file = f"{cell.folder}/{name}/{geometry.chunk_key(shard - cell.first_shard)}"
    parts = []
    numbers, states = local // geometry.chunk_rows, len(selection.plan.shard_rows(shard))
    for number in np.unique(numbers).tolist():
        inside = numbers == number
        parts.append((number, local[inside] - number * geometry.chunk_rows, positions[inside]))
    return _Job(
        shard=shard,
        file=file,
        geometry=geometry,
        parts=parts,
        sparse=len(local) * _SPARSE
        < sum(min(geometry.chunk_rows, states - k * geometry.chunk_rows) for k, _, _ in parts),
        checksums=selection.snapshot.checksums(shard, file),
    )


def _read_jobs(snapshot: Snapshot, jobs: list[_Job], layers: list[int], out: np.ndarray) -> None:
    """Few layers: tell the disk of all reads, then do them. Many: whole files, several at a time."""
    files, read = snapshot.files, partial(_read_job, snapshot, layers=layers, out=out)
    if files.immediate and len(layers) <= _FEW_LAYERS:
        for first in range(0, len(jobs), 64):
            some = jobs[first : first + 64]
            with contextlib.ExitStack() as stack:
                handles = []
                for job in some:
                    handle = snapshot.located(job.shard, job.file, files.open)
                    stack.callback(handle.close)
                    handles.append(handle)
                    for offset, size in job.ranges(layers):
                        handle.expect(offset, size)
                for job, handle in zip(some, handles, strict=True):
                    _fill_job(snapshot, job, handle, layers, out)
    elif len(jobs) == 1:
        read(jobs[0])
    elif jobs:
        with io_pool() as pool:
            for _ in pool.map(read, jobs):
                pass


def _read_job(snapshot: Snapshot, job: _Job, layers: list[int], out: np.ndarray) -> None:
    handle = snapshot.located(job.shard, job.file, snapshot.files.open)
    with contextlib.closing(handle):
        _fill_job(snapshot, job, handle, layers, out)


def _fill_job(snapshot: Snapshot, job: _Job, handle: Handle, layers: list[int], out: np.ndarray) -> None:
    """Fill `out[positions]` with the layers of one shard, front to back through one handle."""
    for number, rows, targets in job.parts:
        source, target = _span(rows), _span(targets)
        for slot, layer in enumerate(layers):
            if job.sparse:
                _fill_rows(handle, job.geometry, number, layer, rows, out, targets, slot)
            else:
                _fill_chunk(snapshot, handle, job, number, layer, source, out, target, slot)


def _fill_chunk(
    snapshot: Snapshot,
    handle: Handle,
    job: _Job,
    number: int,
    layer: int,
    rows: slice | np.ndarray,
    out: np.ndarray,
    targets: slice | np.ndarray,
    slot: int,
) -> None:
    """Read a chunk, check it against the commit, and put its `rows` to `out[targets, slot]`."""
    geometry, spec = job.geometry, job.geometry.spec
    straight = (
        isinstance(rows, slice)
        and isinstance(targets, slice)
        and rows == slice(0, geometry.chunk_rows)
        and spec.dtype != "bfloat16"
    )
    data = out[targets, slot].reshape(-1).view(np.uint8) if straight else _scratch(geometry.chunk_bytes)
    handle.read_into(geometry.chunk_offset(number, layer), [data])
    index = number * spec.n_layers + layer
    if f"{crc32c(data):08x}" != job.checksums[8 * index : 8 * index + 8]:
        raise snapshot.damaged(job.file)
    if not straight:
        bits = data.view(stored_type(spec.dtype)).reshape(geometry.chunk_rows, -1)
        out[targets, slot] = to_returned(bits[rows], spec.dtype)


@dataclass(frozen=True)
class _Job:
    """What is wanted of one shard of one array: for each row group its number, the rows in it, and where they go."""

    shard: int
    file: str
    geometry: Geometry
    parts: list[tuple[int, np.ndarray, np.ndarray]]
    sparse: bool
    checksums: str

    def ranges(self, layers: list[int]) -> Iterator[tuple[int, int]]:
        """(byte, size) of each read."""
        for number, rows, _ in self.parts:
            for layer in layers:
                start, size = self.geometry.chunk_offset(number, layer), self.geometry.spec.inner_bytes
                if self.sparse:
                    yield from ((start + first * size, (last - first) * size) for first, last in _stretches(rows))
                else:
                    yield start, self.geometry.chunk_bytes


_LOCAL = threading.local()


def _scratch(size: int) -> np.ndarray:
    """A buffer of this thread, used anew for every chunk: fresh memory costs more than reading into it."""
    buffer: np.ndarray | None = getattr(_LOCAL, "buffer", None)
    if buffer is None or len(buffer) < size:
        buffer = _LOCAL.buffer = np.empty(size, np.uint8)
    return buffer[:size]


def _span(rows: np.ndarray) -> slice | np.ndarray:
    """The rows as a slice where they follow one another."""
    return slice(int(rows[0]), int(rows[-1]) + 1) if bool((np.diff(rows) == 1).all()) else rows


def _stretches(rows: np.ndarray) -> Iterator[tuple[int, int]]:
    """[first, last) of each stretch of ascending rows that follow one another."""
    cuts = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
    for first, last in zip(cuts[:-1], cuts[1:], strict=True):
        yield int(rows[first]), int(rows[last - 1]) + 1


def _fill_rows(
    handle: Handle,
    geometry: Geometry,
    number: int,
    layer: int,
    rows: np.ndarray,
    out: np.ndarray,
    targets: np.ndarray,
    slot: int,
) -> None:
    """Read single rows of a chunk to `out[targets, slot]`, without reading the rest."""
    spec = geometry.spec
    start = geometry.chunk_offset(number, layer)
    kind = stored_type(spec.dtype)
    bits = np.empty((len(rows), spec.inner_bytes // kind.itemsize), kind)
    done = 0
    for first, last in _stretches(rows):
        handle.read_into(start + first * spec.inner_bytes, [bits[done : done + last - first]])
        done += last - first
    out[targets, slot] = to_returned(bits, spec.dtype)


def io_pool() -> ThreadPoolExecutor:
    """Threads that read: with two, the disk works while a checksum is computed."""
    return ThreadPoolExecutor(max_workers=2, thread_name_prefix="precollapse-read")
