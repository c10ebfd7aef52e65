"""A GGUF file's own account of itself, checked against its size and its tensors before anything is made of it.

Guarantees that a file that is empty, cut, garbage, or claims sizes that its tensors do not have is refused by its name, and that no
count in it makes a loop or a table larger than the file.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import RequestError
from .refusals import printable, refused

_AGAIN = "get the whole file again from where it came"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_DEEPEST, _MOST_DIMENSIONS, _LONGEST_NAME = 4, 8, 1 << 16


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says of its model.

    Attributes
    ----------
    settings : dict
        Single values of its metadata; of lists, their lengths.
    shapes : dict of str to tuple of int
        Its tensors, dimensions as they stand in the file (the fastest first).
    """

    settings: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]


def check_gguf(path: Path) -> GgufHeader:
    """Read the header of a GGUF file and hold it against the file.

    Raises
    ------
    RequestError
        Naming the file.
    """
    if path.stat().st_size == 0:
        raise RequestError(f"{path} is empty, so it is no GGUF model; {_AGAIN}")
    with refused(
        lambda reason: f"{path} is cut or damaged: its header does not end within the file ({reason}); {_AGAIN}"
    ):
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            header = _read(content, path)
    _check_sizes(header, path)
    return header


class _Cursor:
    """Reads numbers and strings one after the other; none may reach behind the end of the file."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content, self.at = content, 0

    def number(self, code: str) -> Any:
        """One number of a struct format."""
        (value,) = struct.unpack_from(f"<{code}", self.content, self.at)
        self.at += struct.calcsize(f"<{code}")
        return value

    def skip(self, size: int) -> None:
        """Go on by `size` bytes."""
        if size < 0 or self.at + size > len(self.content):
            raise ValueError("it claims more than the file holds")
        self.at += size

    def text(self) -> str:
        """A string; of a long one the first part."""
        size = self.number("Q")
        start = self.at
        self.skip(size)
        return bytes(self.content[start : start + min(size, _LONGEST_NAME)]).decode(errors="replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        """A value of the metadata; of a list, its length."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY or depth == _DEEPEST:
            raise ValueError(f"a value of the unknown kind {kind}")
        inner, length = self.number("I"), self.number("Q")
        if inner in _SCALARS:
            self.skip(length * struct.calcsize(f"<{_SCALARS[inner]}"))
        else:
            if length > len(self.content):
                raise ValueError("it claims more than the file holds")
            for _ in range(length):
                if inner == _STRING:
                    self.skip(self.number("Q"))
                else:
                    self.value(inner, depth + 1)
        return length


def _read(content: mmap.mmap, path: Path) -> GgufHeader:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    cursor = _Cursor(content)
    if bytes(content[:4]) != b"GGUF":
        raise RequestError(f"{path} is no GGUF file (it begins with {printable(bytes(content[:4]), 40)}); {_AGAIN}")
    cursor.at = 4
    version, tensors, values = cursor.number("I"), cursor.number("Q"), cursor.number("Q")
    if version not in (2, 3):
        raise RequestError(f"{path} is GGUF version {version}, and versions 2 and 3 are read; convert the model again")
    settings: dict[str, Any] = {}
    for _ in range(min(values, len(content))):
        key = cursor.text()
        settings[key] = cursor.value(cursor.number("I"))
    places: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(min(tensors, len(content))):
        name, dimensions = cursor.text(), cursor.number("I")
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"tensor {printable(name, 60)} has {dimensions} dimensions")
        shape = tuple(cursor.number("Q") for _ in range(dimensions))
        places[name] = shape, cursor.number("I"), cursor.number("Q")
    alignment = settings.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"an alignment of {alignment}")
    start = -(-cursor.at // alignment) * alignment
    for name, (shape, kind, offset) in places.items():
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        end = start + offset + math.prod(shape) // block * size
        if end > len(content):
            raise RequestError(
                f"{path} is cut: tensor {printable(name, 80)} would end at byte {end:,}, and the file has {len(content):,}; {_AGAIN}"
            )
    if not places:
        raise RequestError(f"{path} holds no tensors, so it is no model; {_AGAIN}")
    return GgufHeader(settings, {name: shape for name, (shape, _, _) in places.items()})


def _check_sizes(header: GgufHeader, path: Path) -> None:
    """Refuse sizes that the file's own tensors do not have, which a model would be built with."""
    kind = header.settings.get("general.architecture")
    if not isinstance(kind, str) or not kind:
        raise RequestError(f"{path} does not say which model it is (general.architecture); {_AGAIN}")
    largest = max((size for shape in header.shapes.values() for size in shape), default=0)
    limits = {"block_count": len(header.shapes), "embedding_length": largest, "feed_forward_length": largest}
    limits |= {"vocab_size": largest, "attention.head_count": largest, "attention.head_count_kv": largest}
    limits |= {"expert_count": largest, "attention.key_length": largest, "attention.value_length": largest}
    limits |= {"context_length": 1 << 31}
    for key, most in limits.items():
        size = header.settings.get(f"{kind}.{key}")
        if isinstance(size, int | float) and not 0 <= size <= most:
            raise RequestError(
                f"{path} says {printable(kind, 40)}.{key} = {size:,}, and its tensors allow at most {most:,}; {_AGAIN}"
            )
