"""Curves over chains: mean entropy along the chain, and what each score gains when only some chains are accepted.

Guarantees that a curve says how many chains it rests on, that a standard error of one chain is missing and not 0, and that
chains on which a score is undefined are left out of that score's curve alone.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from .. import selective
from .statistics import SCORES, signed_scores, usable


def mean_trajectory(table: pd.DataFrame, outcome: str, points: int = 11) -> pd.DataFrame:
    """Mean entropy along the chain, right against wrong answers, over the relative position in the chain.

    Each chain is read at `points` evenly spaced positions by linear interpolation between its own points.

    Parameters
    ----------
    table : DataFrame
        Chains with `entropies` (nats per prefix, NaN where missing), `excluded` and the outcome's column.
    outcome : str
        Column of the outcome; chains without one are left out.
    points : int

    Returns
    -------
    DataFrame
        right (bool), position (0 to 1), mean (nats), standard_error (over chains; NaN for one chain), n chains.
    """
    grid = np.linspace(0, 1, points)
    kept = table[table[outcome].notna() & ~table["excluded"].astype(bool)]
    frames = []
    for right in (True, False):
        chains = []
        for entropies in kept[kept[outcome].astype(bool) == right]["entropies"]:
            values = np.array([v for v in entropies if not math.isnan(v)])
            chains.append(np.interp(grid, np.linspace(0, 1, len(values)), values))
        if not chains:
            continue
        stacked = np.stack(chains)
        n = len(chains)
        error = stacked.std(axis=0, ddof=1) / math.sqrt(n) if n > 1 else np.full(points, math.nan)
        frames.append(
            pd.DataFrame(
                {"right": right, "position": grid, "mean": stacked.mean(axis=0), "standard_error": error, "n": n}
            )
        )
    columns = ["right", "position", "mean", "standard_error", "n"]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)


def risk_coverage_curves(table: pd.DataFrame, outcome: str, seed: int = 0) -> pd.DataFrame:
    """Risk and gain in accuracy against the share accepted, for every score, and for an oracle that knows who is right.

    Returns
    -------
    DataFrame
        score (or "oracle"), accepted (chains), coverage, risk (share wrong among the accepted), gain (points of accuracy over
        accepting every chain on which the score is defined), n.
    """
    kept = usable(table, outcome)
    right, scores = kept[outcome].to_numpy(), signed_scores(kept)
    frames = []
    for name in SCORES:
        there = np.isfinite(scores[name])
        curve = selective.risk_coverage(right[there], scores[name][there], seed=seed)
        gain = 100 * ((1 - curve.risk) - right[there].mean())
        frames.append(_curve(name, curve.coverage, curve.risk, gain))
    accepted = np.arange(1, len(right) + 1)
    best = np.cumsum(1 - np.sort(right.astype(float))[::-1]) / accepted
    frames.append(_curve("oracle", accepted / len(right), best, 100 * ((1 - best) - right.mean())))
    return pd.concat(frames, ignore_index=True)


def _curve(score: str, coverage: np.ndarray, risk: np.ndarray, gain: np.ndarray) -> pd.DataFrame:
    n = len(coverage)
    return pd.DataFrame(
        {"score": score, "accepted": np.arange(1, n + 1), "coverage": coverage, "risk": risk, "gain": gain, "n": n}
    )
