"""A safetensors file as saved tensors: read at the places that its header names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....errors import RequestError, StoreError
from ...dtypes import ITEM_TYPES
from ...files.local import LocalFiles
from .. import tensors
from .source import Saved

_NAMES = {tensors.code_of(name): name for name in ITEM_TYPES}


@dataclass(frozen=True)
class InPlace:
    """A tensor whose values lie one after another in a file, from a byte on."""

    files: LocalFiles
    file: str
    offset: int
    dtype: str
    shape: tuple[int, ...]

    def read(self, first: int, out: np.ndarray) -> None:
        """Fill `out` with rows."""
        if out.size:
            row = int(np.prod(self.shape[1:], dtype=np.int64)) * ITEM_TYPES[self.dtype].itemsize
            self.files.read_into(self.file, self.offset + first * row, [out])


def read(files: LocalFiles, name: str) -> Saved:
    """What a safetensors file holds.

    Raises
    ------
    RequestError
        It is damaged, or holds a type that a run cannot.
    """
    size = files.size(name) or 0
    try:
        prefix = bytearray(8)
        files.read_into(name, 0, [prefix])
        text = bytearray(min(tensors.header_bytes(bytes(prefix)), size))
        files.read_into(name, 0, [text])
        head, start = tensors.parse_header(bytes(text), size, f"{files.path}/{name}")
        metadata = head.pop("__metadata__", {})
    except tensors.UnknownType as error:
        raise RequestError(str(error)) from None
    except (StoreError, ValueError, TypeError) as error:
        raise RequestError(f"{files.path}/{name} is no whole safetensors file ({error}).") from None
    sources = {}
    for key, entry in head.items():
        if entry["dtype"] not in _NAMES:
            raise RequestError(f"{files.path}/{name}: tensor {key!r} is {entry['dtype']}, which a run cannot hold.")
        first = start + entry["data_offsets"][0]
        sources[key] = InPlace(files, name, first, _NAMES[entry["dtype"]], tuple(entry["shape"]))
    return Saved(sources, metadata)
