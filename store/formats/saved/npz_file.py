"""A NumPy .npz file as saved tensors: one array a member, read in stretches and never unpickled.

Guarantees that an array of Python objects, which only a pickle can hold, is refused, and that a member whose size is not that of its
shape is refused before a row is read. What is compressed is read through, not held.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from ....errors import RequestError
from .source import Saved, as_texts, bits, named, type_name

_MOST_TEXT = 1 << 30
"""Bytes of one array of texts that are read."""


@dataclass(frozen=True)
class Member:
    """An array in a .npz file."""

    path: str
    file: str
    member: str
    kind: np.dtype[Any]
    dtype: str
    shape: tuple[int, ...]
    start: int

    def read(self, first: int, out: np.ndarray) -> None:
        """Fill `out` with rows."""
        row = math.prod(self.shape[1:]) * self.kind.itemsize
        with (
            _damaged(f"{self.path}, array {self.member!r},"),
            zipfile.ZipFile(self.path) as archive,
            archive.open(self.member) as content,
        ):
            content.seek(self.start + first * row)
            wanted = len(out) * row
            raw = content.read(wanted)
            if len(raw) != wanted:
                raise ValueError("it ends before its last row")
        out[...] = bits(np.frombuffer(raw, self.kind), self.dtype).reshape(out.shape)


def read(path: str, file: str) -> Saved:
    """What a .npz file holds; arrays of texts become fields.

    Raises
    ------
    RequestError
        It is damaged, or holds objects, Fortran order of several rows, or a type that a run cannot hold.
    """
    sources: dict[str, Any] = {}
    fields: dict[str, list[Any]] = {}
    with _damaged(path), zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                raise RequestError(
                    f"{path} holds {info.filename!r}, which is no array: give a file that numpy.savez made."
                )
            name, where = info.filename[:-4], f"{path}: array {info.filename[:-4]!r}"
            with archive.open(info) as content:
                shape, fortran, kind, start = _header(content)
            if kind.hasobject:
                raise RequestError(
                    f"{where} holds Python objects, which only a pickle can: save it as numbers or text."
                )
            if info.file_size != start + math.prod(shape) * kind.itemsize:
                raise RequestError(
                    f"{where} has {info.file_size - start:,} bytes, which are not those of {list(shape)} {kind}."
                )
            if kind.kind in "US":
                if len(shape) != 1 or math.prod(shape) * kind.itemsize > _MOST_TEXT:
                    raise RequestError(f"{where} is text of shape {list(shape)}: one text a row can be read.")
                with archive.open(info) as content:
                    content.seek(start)
                    fields[name] = as_texts(np.frombuffer(content.read(), kind))
                continue
            if fortran and len(shape) > 1:
                raise RequestError(f"{where} lies column by column: save numpy.ascontiguousarray of it.")
            sources[name] = Member(path, file, info.filename, kind, type_name(kind, where), tuple(shape), start)
    return Saved(sources, fields=named(fields))


def _header(content: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order and type of a member, and where its values begin."""
    version = np.lib.format.read_magic(content)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(
        version
    )
    if read_header is None:
        raise ValueError(f"an array of version {version}")
    shape, fortran, kind = read_header(content)
    if any(size < 0 for size in shape):
        raise ValueError("a negative size")
    return shape, fortran, kind, content.tell()


@contextmanager
def _damaged(what: str) -> Iterator[None]:
    try:
        yield
    except RequestError:
        raise
    except (
        zipfile.BadZipFile,
        ValueError,
        EOFError,
        zlib.error,
        NotImplementedError,
        RuntimeError,
        OSError,
        KeyError,
        UnicodeError,
    ) as error:
        text = " ".join(str(error).split())[:200]
        raise RequestError(f"{what} is no whole .npz file ({text}).") from None
