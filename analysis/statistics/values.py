"""Columns as plain numbers, whatever stood for a missing value.

Guarantees that None, pandas NA and NaN are one thing, and that labels are 0 or 1 before anything is computed from them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ...errors import RequestError

Column = np.ndarray | pd.Series
"""Numbers of one kind, [n]; pandas may mark missing ones its own way."""


def as_float(values: Any) -> np.ndarray:
    """[n] float64 with every kind of missing value (None, pandas NA, NaN) as NaN."""
    if hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy(dtype="float64", na_value=np.nan))
    array = np.asarray(values)
    if array.dtype == object:
        return np.array([np.nan if missing(v) else float(v) for v in array], dtype=np.float64)
    return array.astype(np.float64)


def missing(value: Any) -> bool:
    """True for None, NaN and pandas NA."""
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def clean_labels(y: Any, score: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    label, value = as_float(y), as_float(score)
    if label.ndim != 1 or label.shape != value.shape:
        raise RequestError(f"labels have shape {label.shape}, scores {value.shape}; both must be lists of one length.")
    keep = np.isfinite(label) & ~np.isnan(value)
    label = label[keep]
    if not np.isin(label, (0.0, 1.0)).all():
        raise RequestError(f"labels must be 0/1 or bool; found {sorted(set(label.tolist()))[:5]}.")
    return label, value[keep], keep


def one_class_reason(y: np.ndarray) -> str:
    if y.size == 0:
        return "no rows"
    positives = int(y.sum())
    if positives in (0, y.size):
        return f"one class only ({positives} of {y.size} positive)"
    return ""
