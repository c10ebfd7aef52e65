"""bfloat16 as a data type of zarr-python, under the name that TensorStore uses.

zarr-python has none of its own: call `register()` before `zarr.open` meets an array of this type. The entry point
`zarr.data_type` of this package names the type too, but zarr-python 3.1 lists such entry points and loads none. Values are `ml_dtypes.bfloat16`; without ml_dtypes the type is known but an
array of it cannot be opened with zarr-python (this package's own reader needs neither).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import zarr.dtype
from zarr.core.dtype.common import HasItemSize
from zarr.dtype import DataTypeValidationError, ZDType

try:
    import ml_dtypes

    _NATIVE: np.dtype[Any] | None = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    _NATIVE = None

_WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


@dataclass(frozen=True, kw_only=True)
class BFloat16(ZDType[Any, Any], HasItemSize):
    """Zarr v3 data type "bfloat16": the upper 16 bits of a float32."""

    dtype_cls: ClassVar[Any] = type(_NATIVE)
    _zarr_v3_name: ClassVar[str] = "bfloat16"

    @classmethod
    def from_native_dtype(cls, dtype: Any) -> Self:
        if _NATIVE is not None and dtype == _NATIVE:
            return cls()
        raise DataTypeValidationError(f"{dtype} is not bfloat16.")

    def to_native_dtype(self) -> Any:
        if _NATIVE is None:
            raise ImportError("Opening bfloat16 arrays with zarr needs the package ml_dtypes: pip install ml_dtypes.")
        return _NATIVE

    @property
    def item_size(self) -> int:
        return 2

    @classmethod
    def _from_json_v2(cls, data: Any) -> Self:
        raise DataTypeValidationError("Zarr v2 has no bfloat16.")

    @classmethod
    def _from_json_v3(cls, data: Any) -> Self:
        if data == cls._zarr_v3_name:
            return cls()
        raise DataTypeValidationError(f"{data!r} is not 'bfloat16'.")

    def to_json(self, zarr_format: int) -> Any:
        if zarr_format != 3:
            raise ValueError("Zarr v2 has no bfloat16.")
        return self._zarr_v3_name

    def _check_scalar(self, data: object) -> bool:
        return isinstance(data, int | float | np.number) or type(data) is self.to_native_dtype().type

    def cast_scalar(self, data: object) -> Any:
        if self._check_scalar(data):
            return self.to_native_dtype().type(data)
        raise TypeError(f"{data!r} is no number that bfloat16 could hold.")

    def default_scalar(self) -> Any:
        return self.cast_scalar(0)

    def from_json_scalar(self, data: Any, *, zarr_format: int) -> Any:
        return self.cast_scalar(_WORDS.get(data, data) if isinstance(data, str) else data)

    def to_json_scalar(self, data: object, *, zarr_format: int) -> Any:
        value = float(self.cast_scalar(data))
        if np.isnan(value):
            return "NaN"
        return value if np.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def register() -> None:
    """Make the type known to zarr-python."""
    zarr.dtype.data_type_registry.register(BFloat16._zarr_v3_name, BFloat16)
