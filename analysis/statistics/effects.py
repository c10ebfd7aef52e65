"""Effect sizes: how large a difference is, apart from whether it is there.

Guarantees NaN where nothing varies.
"""

from __future__ import annotations

import math

import numpy as np

from .ranking import auroc
from .values import Column, as_float


def cohen_dz(a: Column, b: Column) -> float:
    """Standardised mean of paired differences a - b: mean / sd (n - 1); NaN when the differences do not vary."""
    d = as_float(a) - as_float(b)
    d = d[np.isfinite(d)]
    sd = d.std(ddof=1) if d.size > 1 else 0.0
    return float(d.mean() / sd) if sd > 0 else math.nan


def cohen_h(p1: float, p2: float) -> float:
    """Difference of two proportions on the arcsine scale: 2 asin sqrt(p1) - 2 asin sqrt(p2)."""
    return 2 * math.asin(math.sqrt(p1)) - 2 * math.asin(math.sqrt(p2))


def cliffs_delta(y: np.ndarray, score: np.ndarray) -> float:
    """P(score of class 1 is higher) - P(it is lower) = 2 AUROC - 1."""
    return 2 * auroc(y, score) - 1
