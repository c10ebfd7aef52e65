"""A Parquet file as saved tensors (needs pyarrow): list columns whose rows are equally long are tensors, the others fields.

Guarantees that rows of unlike length, missing rows and missing values in a list are refused by column, and that one row group is held at
a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....errors import RequestError
from ....schema import SHARD
from .source import Saved, named, type_name


@dataclass
class Column:
    """A list column of a Parquet file; the row group that was read last is kept."""

    path: str
    file: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    starts: tuple[int, ...]
    _group: int = field(default=-1, repr=False)
    _values: Any = field(default=None, repr=False)

    def read(self, first: int, out: np.ndarray) -> None:
        """Fill `out` with rows."""
        done = 0
        while done < len(out):
            row = first + done
            group = next(g for g in range(len(self.starts) - 1) if self.starts[g] <= row < self.starts[g + 1])
            if group != self._group:
                with _opened(self.path) as file:
                    column = file.read_row_group(group, columns=[self.name]).column(0)
                    self._values = _tensor(column, self.shape[1:], f"{self.path}: column {self.name!r}")
                self._group = group
            inside = row - self.starts[group]
            count = min(len(out) - done, self.starts[group + 1] - row)
            out[done : done + count] = self._values[inside : inside + count]
            done += count


def read(path: str, file: str) -> Saved:
    """What a Parquet file holds.

    Raises
    ------
    RequestError
        pyarrow is not installed, the file is damaged, or a list column is no tensor.
    """
    sources: dict[str, Any] = {}
    fields: dict[str, list[Any]] = {}
    left_out = []
    with _opened(path) as opened:
        import pyarrow.types as types

        metadata = opened.metadata
        starts = [0]
        for group in range(metadata.num_row_groups):
            starts.append(starts[-1] + metadata.row_group(group).num_rows)
        for column in opened.schema_arrow:
            inner, fixed = _inner(column.type)
            if inner is None:
                fields[column.name] = opened.read(columns=[column.name]).column(0).to_pylist()
                continue
            where = f"{path}: column {column.name!r}"
            if not (types.is_floating(inner) or types.is_integer(inner)):
                left_out.append(column.name)
                continue
            sizes = tuple(size for size in fixed if size is not None)
            shape = sizes if len(sizes) == len(fixed) else _first_shape(opened, column.name, len(fixed))
            if shape is None:
                left_out.append(column.name)
                continue
            kind = type_name(np.dtype(inner.to_pandas_dtype()), where)
            sources[column.name] = Column(path, file, column.name, kind, (starts[-1], *shape), tuple(starts))
    return Saved(sources, fields=named(fields), left_out=tuple(left_out))


STATES_FILE = "states.parquet"
"""The file of an exported run that has the table of its states; the others have an array each, by id."""


def side_by_side(saved: Any, files: Any) -> Saved:
    """The files of an exported run as one: the table of states, and each other file's columns under the file's name.

    Raises
    ------
    RequestError
        A file has other ids than the table, or another order of them.
    """
    states = saved.read(files, STATES_FILE)
    ids = states.fields.get("id")
    if ids is None or states.sources:
        raise RequestError(
            f"{saved.root / STATES_FILE} is no table of states with an id each: rename it, or export anew."
        )
    sources: dict[str, Any] = {}
    left_out: list[str] = []
    for name in saved.names:
        if name == STATES_FILE:
            continue
        part = saved.read(files, name)
        if part.fields.get("id") != ids:
            raise RequestError(f"{saved.root}: {name} has other ids than {STATES_FILE}, or in another order.")
        array = name.removesuffix(".parquet")
        if part.left_out:
            left_out.append(array)
            continue
        sources |= {array if key == "value" else f"{array}.{key}": source for key, source in part.sources.items()}
    fields = {name: values for name, values in states.fields.items() if name != SHARD}
    return Saved(sources, fields=fields, left_out=tuple(left_out))


def _inner(kind: Any) -> tuple[Any, tuple[int | None, ...]]:
    """Type of the numbers in a list column and the sizes that its type fixes; None where it is no list."""
    import pyarrow.types as types

    sizes: list[int | None] = []
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        sizes.append(kind.list_size if types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    return (kind, tuple(sizes)) if sizes else (None, ())


def _first_shape(opened: Any, name: str, axes: int) -> tuple[int, ...] | None:
    """Shape of the first row of a column of lists, which all others must have; None where rows differ in length."""
    shape: tuple[int, ...] | None = None
    for batch in opened.iter_batches(batch_size=1024, columns=[name]):
        for row in batch.column(0).to_pylist():
            sizes, part = [], row
            for _ in range(axes):
                if not isinstance(part, list):
                    return None
                sizes.append(len(part))
                part = part[0] if part else None
            if shape is not None and tuple(sizes) != shape:
                return None
            shape = tuple(sizes)
    return shape


def _tensor(column: Any, shape: tuple[int, ...], where: str) -> np.ndarray:
    """The rows of a list column as an array [rows, *shape]."""
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    parts = []
    for chunk in chunks:
        values, rows = chunk, len(chunk)
        for _ in shape:
            if values.null_count:
                raise RequestError(f"{where} has missing rows: fill or remove them.")
            values = values.flatten()
        if values.null_count:
            raise RequestError(f"{where} has missing values: fill them (NaN is a value).")
        if len(values) != rows * math.prod(shape):
            raise RequestError(f"{where} has rows of unlike length: give each {list(shape)} numbers.")
        parts.append(values.to_numpy(zero_copy_only=False).reshape(rows, *shape))
    return np.concatenate(parts) if parts else np.empty((0, *shape))


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise RequestError(f"{path} needs the package pyarrow to be read: install precollapse[export].") from None
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except RequestError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, UnicodeError) as error:
        text = " ".join(str(error).split())[:200]
        raise RequestError(f"{path} is no whole Parquet file ({text}).") from None
