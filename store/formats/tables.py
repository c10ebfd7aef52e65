"""Per-state columns and arrays of varying length, as tensors.

A column is its values, plus a mask where a value is missing; a missing value is never a value of the type. Text is
UTF-8 bytes plus offsets. A ragged array is the values of all states end to end, plus offsets, shapes and one checksum
per state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import RequestError, StoreError
from ..dtypes import is_text, to_returned, to_stored
from ..files.sealed import crc32c

Tensors = dict[str, tuple[str, "np.ndarray | list[np.ndarray]"]]

_PYTHON = {"float64": (float, int), "int64": (int,), "bool": (bool,), "string": (str,)}
_NUMPY = {
    "float64": (np.floating, np.integer),
    "int64": (np.integer,),
    "bool": (np.bool_,),
    "string": (np.str_,),
}


def encode_column(name: str, kind: str, values: Sequence[Any] | None, count: int) -> Tensors:
    """Tensors of one column; `values` None means that all of them are missing.

    Raises
    ------
    RequestError
        Another number of values than `count`, or a value that is not of type `kind`.
    """
    listed: list[Any] = [None] * count if values is None else _listed(values)
    if len(listed) != count:
        raise RequestError(f"Column {name!r} has {len(listed)} values for {count} states.")
    valid = np.array([not _missing(value, kind) for value in listed], dtype=bool)
    for row, value in enumerate(listed):
        if valid[row] and not _fits(value, kind):
            raise RequestError(f"Column {name!r} is {kind}, but row {row} is {value!r} ({type(value).__name__}).")
        if valid[row] and kind == "string" and not is_text(value):
            raise RequestError(f"Column {name!r}, row {row}, holds half of a surrogate pair, which is no character.")
    key = f"column.{name}"
    tensors: Tensors = {}
    if kind == "string":
        texts = [str(v).encode() if ok else b"" for v, ok in zip(listed, valid, strict=True)]
        offsets = np.zeros(count + 1, dtype=np.int64)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        tensors[f"{key}.offsets"] = ("int64", offsets)
        tensors[key] = ("uint8", np.frombuffer(b"".join(texts), dtype=np.uint8))
    else:
        filler = {"float64": np.nan, "int64": 0, "bool": False}[kind]
        try:
            array = np.array([v if ok else filler for v, ok in zip(listed, valid, strict=True)], dtype=kind)
        except OverflowError:
            raise RequestError(f"Column {name!r} is int64, but holds a number that needs more than 64 bits.") from None
        tensors[key] = (kind, array)
    if not valid.all():
        tensors[f"{key}.valid"] = ("bool", valid)
    return tensors


def _listed(values: Sequence[Any]) -> list[Any]:
    if isinstance(values, str | bytes):
        raise RequestError("A column needs a sequence of values, not one text.")
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _missing(value: Any, kind: str) -> bool:
    """None, pandas' NA and NaT; NaN too where it cannot be a value of the column."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return kind != "float64" and isinstance(value, float | np.floating) and bool(np.isnan(value))


def _fits(value: Any, kind: str) -> bool:
    if isinstance(value, bool | np.bool_) and kind != "bool":
        return False
    return isinstance(value, _PYTHON[kind]) or isinstance(value, _NUMPY[kind])


def decode_column(tensors: Mapping[str, np.ndarray], name: str, kind: str, count: int) -> tuple[Any, np.ndarray]:
    """Values of a column (a list of str, or an array) and its mask of values that are there, both of length `count`.

    A column that the table lacks is missing throughout.
    """
    key = f"column.{name}"
    if key not in tensors:
        filler: Any = [""] * count if kind == "string" else np.zeros(count, dtype=kind)
        return filler, np.zeros(count, dtype=bool)
    valid = tensors.get(f"{key}.valid")
    mask = np.ones(count, dtype=bool) if valid is None else valid
    if kind != "string":
        return tensors[key], mask
    data = tensors[key].tobytes()
    ends = tensors[f"{key}.offsets"].tolist()
    return [data[a:b].decode("utf-8", "replace") for a, b in zip(ends[:-1], ends[1:], strict=True)], mask


def series(kind: str, parts: Sequence[tuple[Any, np.ndarray]]) -> Any:
    """One pandas array out of the parts of a column: float64 with NaN, or Int64, boolean or string with NA."""
    import pandas as pd

    valid = np.concatenate([mask for _, mask in parts]) if parts else np.zeros(0, dtype=bool)
    if kind == "string":
        texts = np.array([text for values, _ in parts for text in values], dtype=object)
        texts[~valid] = None
        return pd.array(texts, dtype="string")
    values = np.concatenate([values for values, _ in parts]) if parts else np.zeros(0, dtype=kind)
    if kind == "float64":
        return np.where(valid, values, np.nan)
    return pd.arrays.IntegerArray(values, ~valid) if kind == "int64" else pd.arrays.BooleanArray(values, ~valid)


def encode_ragged(name: str, kind: str, arrays: Sequence[Any], count: int) -> Tensors:
    """Tensors of one ragged array.

    Raises
    ------
    RequestError
        Another number of arrays than `count`, another dtype, or a differing number of axes.
    """
    if len(arrays) != count:
        raise RequestError(f"Ragged array {name!r} has {len(arrays)} entries for {count} states.")
    bits = [to_stored(x, kind, f"Ragged array {name!r}, row {row},") for row, x in enumerate(arrays)]
    if len({x.ndim for x in bits}) != 1:
        raise RequestError(
            f"Ragged array {name!r} mixes {sorted({x.ndim for x in bits})} axes: use one number of axes."
        )
    flat = [np.ascontiguousarray(x).reshape(-1) for x in bits]
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum([x.size for x in flat], out=offsets[1:])
    key = f"ragged.{name}"
    return {
        f"{key}.offsets": ("int64", offsets),
        f"{key}.shapes": ("int64", np.array([x.shape for x in bits], dtype=np.int64).reshape(count, bits[0].ndim)),
        f"{key}.crc32c": ("uint32", np.array([crc32c(x) for x in flat], dtype=np.uint32)),
        key: (kind, flat),
    }


def ragged_row(bits: np.ndarray, shape: Sequence[int], checksum: int, kind: str, what: str) -> np.ndarray:
    """One state's ragged array from its stored bits.

    Raises
    ------
    StoreError
        The bits do not match their checksum.
    """
    if crc32c(np.ascontiguousarray(bits)) != checksum:
        raise StoreError(f"{what} is damaged: its bytes do not match their checksum.")
    return to_returned(bits.reshape(tuple(shape)), kind)
