"""The safetensors container, written in parts and read in place.

Tables, ragged arrays and small arrays of a shard are kept in safetensors files, which many tools open. The writer
streams the buffers that it is given, and the reader hands out views of the bytes, so neither holds a second copy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...errors import StoreError

_CODES = {
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "int32": "I32",
    "int64": "I64",
    "uint32": "U32",
    "uint8": "U8",
    "bool": "BOOL",
}
_KINDS = {code: np.dtype("<u2" if name == "bfloat16" else name).newbyteorder("<") for name, code in _CODES.items()}


_MOST_AXES = 32
_MOST_HEADER = 100_000_000
"""The most bytes of a header, which is that of the safetensors package."""


class UnknownType(StoreError):
    """A tensor of a type that a run cannot hold: another tool's file, or a damaged one."""


Stored = Mapping[str, tuple[str, "np.ndarray | list[np.ndarray]"]]
"""Tensor name to dtype name and stored bits; a list of flat arrays stands for their values end to end."""


def encode(tensors: Stored, notes: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Parts of a safetensors file, in order.

    Parameters
    ----------
    tensors : mapping of str to (dtype name, stored bits)
    notes : mapping of str to str, optional
        Goes into `__metadata__`.
    """
    head: dict[str, Any] = {"__metadata__": dict(notes)} if notes else {}
    buffers = []
    offset = 0
    for name, (kind, value) in tensors.items():
        parts = [np.ascontiguousarray(part) for part in (value if isinstance(value, list) else [value])]
        shape = [sum(part.size for part in parts)] if isinstance(value, list) else list(value.shape)
        size = sum(part.nbytes for part in parts)
        head[name] = {"dtype": _CODES[kind], "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
        buffers += [part for part in parts if part.nbytes]
    yield header(head)
    for part in buffers:
        yield part.reshape(-1).data.cast("B")


def header(head: Mapping[str, Any]) -> bytes:
    """The length-prefixed JSON header of a safetensors file, padded to 8 bytes."""
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def code_of(kind: str) -> str:
    """Safetensors name of a dtype."""
    return _CODES[kind]


def parse_header(text: bytes, size: int, what: str) -> tuple[dict[str, Any], int]:
    """Header and first data byte of a safetensors file of `size` bytes whose first bytes are `text`.

    `text` must hold the whole header; `header_bytes` says how long that is.

    Raises
    ------
    StoreError
        The header is no safetensors header, or names bytes that the file does not have.
    """
    try:
        start = header_bytes(text)
        head = json.loads(text[8:start])
        for name, entry in head.items():
            if name != "__metadata__":
                if entry["dtype"] not in _KINDS:
                    raise UnknownType(f"{what}: tensor {name!r} is {entry['dtype']}, which a run cannot hold.")
                first, last = entry["data_offsets"]
                shape = entry["shape"]
                if (
                    not isinstance(shape, list)
                    or len(shape) > _MOST_AXES
                    or not all(map(_is_size, (*shape, first, last)))
                ):
                    raise ValueError(f"tensor {name} has no shape that an array can have")
                needed = math.prod(shape) * _KINDS[entry["dtype"]].itemsize
                if not 0 <= first <= last <= size - start or last - first != needed:
                    raise ValueError(f"tensor {name} lies outside the file")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{what} is damaged: it is no sound safetensors file ({str(error)[:200]}).") from None
    return head, start


def header_bytes(text: bytes) -> int:
    """Number of bytes before the first data byte."""
    if len(text) < 8:
        raise ValueError(f"only {len(text)} bytes")
    length = int.from_bytes(text[:8], "little")
    if length > _MOST_HEADER:
        raise ValueError(f"a header of {length} bytes, where none has more than {_MOST_HEADER}")
    return 8 + length


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


def view(data: Any, entry: Mapping[str, Any], start: int) -> np.ndarray:
    """The tensor of a header entry as a view of the file's bytes (bfloat16 as uint16 bits)."""
    kind = _KINDS[entry["dtype"]]
    first, last = entry["data_offsets"]
    return np.frombuffer(data, kind, (last - first) // kind.itemsize, start + first).reshape(entry["shape"])


def kind_of(entry: Mapping[str, Any]) -> np.dtype[Any]:
    """NumPy type of the stored bits of a header entry."""
    return _KINDS[entry["dtype"]]
