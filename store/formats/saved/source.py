"""A tensor that somebody saved, whatever the format: its type, its shape, and its rows one stretch after another.

Guarantees that a format says what it holds before a row is read, that rows come as the little-endian bits a run stores, and that a type
which a run cannot hold is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ....errors import RequestError
from ...dtypes import ITEM_TYPES


class Source(Protocol):
    """A tensor in one file.

    Attributes
    ----------
    file : str
        For messages, relative to the folder.
    dtype : str
        Name of its type, one of those that a run holds.
    shape : tuple of int
    """

    @property
    def file(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def read(self, first: int, out: np.ndarray) -> None:
        """Fill `out` [rows, ...] with the rows from `first` on, as stored bits."""


@dataclass(frozen=True)
class Saved:
    """What one file holds.

    Attributes
    ----------
    sources : mapping of str to Source
        Tensors by name.
    metadata : mapping of str to str
        What a safetensors file says besides.
    fields : mapping of str to sequence
        Values by row that are no tensors: ids, and whatever else a table has.
    left_out : tuple of str
        What is in the file and cannot become part of a run.
    """

    sources: Mapping[str, Source]
    metadata: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, list[Any]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def type_name(kind: np.dtype[Any], where: str) -> str:
    """Name of a NumPy type among those that a run holds, whichever its byte order.

    Raises
    ------
    RequestError
        A run cannot hold it.
    """
    if kind.name == "bfloat16":
        return "bfloat16"
    for name, stored in ITEM_TYPES.items():
        if name != "bfloat16" and kind.newbyteorder("<") == stored:
            return name
    held = ", ".join(ITEM_TYPES)
    raise RequestError(f"{where} is {kind.name}, which a run cannot hold: save it as one of {held}.")


def bits(values: np.ndarray, name: str) -> np.ndarray:
    """Values as the bits that a run stores."""
    return values.view("<u2") if name == "bfloat16" else values.astype(ITEM_TYPES[name], copy=False)


def as_texts(values: np.ndarray) -> list[str]:
    """Strings of an array of text or of UTF-8 bytes."""
    return [value.decode("utf-8") if isinstance(value, bytes) else str(value) for value in values.tolist()]


IDS = ("id", "ids", "state_id", "state_ids")
"""Names under which an array of texts gives the ids of the rows."""


def named(fields: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Fields with the ids under their own name."""
    given = next((name for name in IDS if name in fields), None)
    return {("id" if name == given else name): values for name, values in fields.items()}
