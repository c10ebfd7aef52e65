"""How far predicted probabilities agree with outcomes.

Guarantees that bins without a state are left out rather than shown as perfectly calibrated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from .. import statistics


@dataclass(frozen=True)
class Calibration:
    """Brier score and reliability curve.

    Attributes
    ----------
    brier : float
        Mean squared difference of probability and outcome; NaN without rows.
    baseline : float
        Brier score of always predicting the base rate of these rows.
    expected_error : float
        Mean absolute gap between a bin's mean probability and its share of positives, weighted by rows.
    curve : DataFrame
        One row per bin that holds a row: n, predicted (mean), observed (share), lower, upper (Wilson).
    """

    brier: float
    baseline: float
    expected_error: float
    curve: pd.DataFrame
    n: int


def calibration(y: np.ndarray, probability: np.ndarray, bins: int = 10, level: float = 0.95) -> Calibration:
    """Calibration of probabilities [n] against outcomes [n] in equally wide bins; missing rows are left out."""
    outcome, p = statistics.as_float(y), statistics.as_float(probability)
    keep = np.isfinite(outcome) & np.isfinite(p)
    outcome, p = outcome[keep], p[keep]
    columns = ["n", "predicted", "observed", "lower", "upper"]
    if outcome.size == 0:
        return Calibration(math.nan, math.nan, math.nan, pd.DataFrame(columns=columns), 0)
    which = np.minimum((p * bins).astype(int), bins - 1)
    rows = []
    for b in np.unique(which):
        inside = which == b
        share = statistics.wilson(int(outcome[inside].sum()), int(inside.sum()), level)
        rows.append((int(inside.sum()), float(p[inside].mean()), share.estimate, share.lower, share.upper))
    curve = pd.DataFrame(rows, columns=columns)
    gap = float((curve["n"] * (curve["predicted"] - curve["observed"]).abs()).sum() / outcome.size)
    base = outcome.mean()
    return Calibration(float(((p - outcome) ** 2).mean()), float(base * (1 - base)), gap, curve, int(outcome.size))
