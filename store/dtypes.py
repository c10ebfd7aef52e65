"""The element types that a run can hold, and bfloat16, which NumPy lacks.

bfloat16 values are kept as the 16 bits they are. They are handed out as float32, which holds each of them exactly, so
no reader needs a further package; `ml_dtypes` arrays and raw uint16 bits are accepted when writing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import RequestError

ITEM_TYPES: dict[str, np.dtype[Any]] = {
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
}
"""Type name (as in Zarr metadata) to the NumPy type of its stored bits."""


def stored_type(name: str) -> np.dtype[Any]:
    """NumPy type of the stored bits of `name`."""
    try:
        return ITEM_TYPES[name]
    except KeyError:
        raise RequestError(f"Unknown dtype {name!r}: a run holds {', '.join(ITEM_TYPES)}.") from None


def is_text(value: str) -> bool:
    """Whether a string can be written: half of a surrogate pair is no character (a text cut inside an emoji)."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def returned_type(name: str) -> np.dtype[Any]:
    """NumPy type in which values of `name` are handed out (bfloat16: float32)."""
    return np.dtype("<f4") if name == "bfloat16" else stored_type(name)


def fill_value(name: str) -> Any:
    """What Zarr's own tools show for rows that were never written: NaN, or the smallest integer."""
    kind = ITEM_TYPES[name]
    return "NaN" if name == "bfloat16" or kind.kind == "f" else int(np.iinfo(kind).min)


def float32_to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Bits (uint16) of the bfloat16 values nearest to float32 `x`, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, dtype="<f4").view("<u4")
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    nan = np.isnan(x)
    if nan.any():
        rounded = np.where(nan, (bits >> 16) | 0x0040, rounded)
    halves: np.ndarray = rounded.astype("<u2")
    return halves


def bfloat16_to_float32(bits: np.ndarray) -> np.ndarray:
    """The float32 values equal to the bfloat16 values whose bits (uint16) are given."""
    wide = bits.astype("<u4")
    wide <<= 16
    return wide.view("<f4")


def to_stored(x: Any, name: str, what: str) -> np.ndarray:
    """`x` as an array of stored bits of type `name`, without any conversion that could change a value unasked.

    bfloat16 takes `ml_dtypes.bfloat16`, raw bits (uint16) or float32 (rounded to nearest even). Every other type must
    match exactly.

    Raises
    ------
    RequestError
        The type of `x` is another one; `what` names the array.
    """
    array = np.asarray(x)
    kind = stored_type(name)
    if name == "bfloat16":
        if array.dtype == kind:
            return array
        if array.dtype.name == "bfloat16":
            return array.view("<u2")
        if array.dtype == np.dtype("<f4"):
            return float32_to_bfloat16(array)
    elif array.dtype == kind:
        return array
    raise RequestError(f"{what} holds {array.dtype}, but the plan says {name}: convert it before writing.")


def to_returned(bits: np.ndarray, name: str) -> np.ndarray:
    """Stored bits as the values that a reader gets."""
    return bfloat16_to_float32(bits) if name == "bfloat16" else bits
