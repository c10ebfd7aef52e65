"""Mutual information of two labels of the same items, for instance the answer a probe reads and the answer that was
said.

Guarantees that the upward bias of small samples is shown: the plug-in value comes with its Miller-Madow correction,
with a permutation p value, and with the value that shuffled labels reach.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..errors import RequestError
from . import statistics
from .statistics import Interval


@dataclass(frozen=True)
class Information:
    """Mutual information in bits.

    Attributes
    ----------
    plug_in : float
        Of the empirical joint distribution; biased upwards.
    corrected : float
        Miller-Madow: plug-in + (K_a + K_b - K_ab - 1) / (2 n ln 2), K counting the cells that occur; may be below 0.
    interval : Interval
        The corrected value with its percentile bootstrap interval over items.
    shuffled : float
        Mean plug-in value over permutations of one label.
    p_value : float
        Permutation p value of the plug-in value.
    agreement : Interval
        Share of items with equal labels (Wilson).
    n, left_out : int
    """

    plug_in: float
    corrected: float
    interval: Interval
    shuffled: float
    p_value: float
    agreement: Interval
    n: int
    left_out: int
    reason: str = ""


def mutual_information(
    a: Sequence[Any] | np.ndarray | pd.Series,
    b: Sequence[Any] | np.ndarray | pd.Series,
    resamples: int = 1000,
    permutations: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Information:
    """Mutual information of two labels [n]; items with a missing label are left out and counted."""
    left, right = list(a), list(b)
    if len(left) != len(right):
        raise RequestError(f"mutual_information: {len(left)} labels against {len(right)}; give one length.")
    kept = [(x, y) for x, y in zip(left, right, strict=True) if not statistics.missing(x) and not statistics.missing(y)]
    left_out, n, method = len(left) - len(kept), len(kept), "percentile bootstrap"
    if n < 2:
        why = "fewer than 2 items with both labels"
        nothing = statistics.undefined_interval(why, method=method, level=level, n=n, left_out=left_out)
        return Information(math.nan, math.nan, nothing, math.nan, math.nan, nothing, n, left_out, why)
    x, y = _codes([pair[0] for pair in kept]), _codes([pair[1] for pair in kept])
    plug_in, correction = (float(v[0]) for v in _information(x, y, np.ones((1, n))))
    draws = np.concatenate([sum(_information(x, y, w)) for w in statistics.resample_weights(n, resamples, seed)])
    corrected = plug_in + correction
    interval = statistics.percentile_interval(corrected, draws, level=level, method=method, n=n, left_out=left_out)
    rng = np.random.default_rng(seed)
    null = np.array([_information(x, rng.permutation(y), np.ones((1, n)))[0][0] for _ in range(permutations)])
    same = sum(str(first) == str(second) for first, second in kept)
    return Information(
        plug_in,
        corrected,
        interval,
        float(null.mean()) if null.size else math.nan,
        statistics.permutation_p(plug_in, null),
        statistics.wilson(same, n, level),
        n,
        left_out,
    )


def _codes(values: list[Any]) -> np.ndarray:
    number = {v: i for i, v in enumerate(dict.fromkeys(values))}
    return np.array([number[v] for v in values])


def _information(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Plug-in information and Miller-Madow correction in bits, for each row of weights [r, n]."""
    n = weights.sum(axis=1)
    joint = x * (y.max() + 1) + y
    parts = []
    for codes in (x, y, joint):
        one_hot = np.eye(codes.max() + 1)[codes]
        count = weights @ one_hot
        p = count / n[:, None]
        entropy = -(p * np.log2(np.where(p > 0, p, 1.0))).sum(axis=1)
        parts.append((entropy, (count > 0).sum(axis=1)))
    (hx, kx), (hy, ky), (hxy, kxy) = parts
    return hx + hy - hxy, (kx + ky - kxy - 1) / (2 * n * math.log(2))
