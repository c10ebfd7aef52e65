"""Bootstrap resamples, and the intervals of means and rank correlations made from them.

Guarantees that every draw is seeded, that rows of one unit are drawn together, and that undefined resamples are counted. It
prevents the usual failure of bootstraps in probing papers: resamples that hold one class are silently dropped, or crash, and
nobody learns how many there were.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats

from ...errors import RequestError
from .results import Interval, undefined_interval
from .values import Column, as_float

_CHUNK = 4_000_000  # weights held at once while resampling


def resample_weights(n: int, resamples: int, seed: int, groups: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """Bootstrap resamples as multiplicities: blocks [r, n] of how often each row was drawn.

    With `groups`, whole groups are drawn, so that rows of one item enter or stay out together.
    """
    if resamples < 1:
        raise RequestError(f"resamples is {resamples}; at least 1 is needed.")
    rng = np.random.default_rng(seed)
    codes = None
    units = n
    if groups is not None:
        names = {g: i for i, g in enumerate(dict.fromkeys(groups))}
        codes, units = np.array([names[g] for g in groups]), len(names)
    block = max(1, min(resamples, _CHUNK // max(n, 1)))
    done = 0
    while done < resamples:
        rows = min(block, resamples - done)
        drawn = rng.integers(0, units, size=(rows, units)) + units * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * units).reshape(rows, units).astype(np.float64)
        yield counts if codes is None else counts[:, codes]
        done += rows


def permuted_rows(groups: Sequence[Any] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random order [n] of rows that trades whole groups for groups of as many rows; single rows are simply permuted.

    Under the hypothesis that labels say nothing, it is the groups (items) that may be exchanged, not their rows.
    """
    members: dict[Any, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    order = np.arange(len(groups))
    for size in sorted({len(rows) for rows in members.values()}):
        block = np.array([rows for rows in members.values() if len(rows) == size])
        order[block] = block[rng.permutation(len(block))]
    return order


def percentile_interval(
    estimate: float, draws: np.ndarray, *, level: float, method: str, n: int, left_out: int = 0
) -> Interval:
    """Percentile interval of bootstrap draws; NaN draws are counted as undefined and left out."""
    defined = draws[np.isfinite(draws)]
    undefined = int(draws.size - defined.size)
    if defined.size == 0:
        return Interval(
            estimate, math.nan, math.nan, undefined, method, level, draws.size, n, left_out, "no resample was defined"
        )
    lower, upper = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    reason = ""
    if undefined > draws.size / 20:
        reason = f"{undefined} of {draws.size} resamples were undefined"
    return Interval(
        float(estimate), float(lower), float(upper), undefined, method, level, draws.size, n, left_out, reason
    )


def bootstrap_mean(values: Column, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    """Mean with its percentile bootstrap interval; missing values are left out and counted."""
    v = as_float(values)
    keep = np.isfinite(v)
    left_out, v = int((~keep).sum()), v[keep]
    method = "percentile bootstrap"
    if v.size == 0:
        return undefined_interval("no values", method=method, level=level, left_out=left_out)
    if v.size == 1:
        return Interval(float(v[0]), math.nan, math.nan, 0, method, level, 0, 1, left_out, "one value has no interval")
    draws = np.concatenate([w @ v / v.size for w in resample_weights(v.size, resamples, seed)])
    return percentile_interval(float(v.mean()), draws, level=level, method=method, n=v.size, left_out=left_out)


def paired_difference(a: Column, b: Column, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    """Mean of a - b over pairs, resampling pairs; pairs with a missing side are left out and counted."""
    left, right = as_float(a), as_float(b)
    if left.shape != right.shape:
        raise RequestError(f"paired_difference: {left.size} values against {right.size}; pairs need one length.")
    out = bootstrap_mean(left - right, resamples, level, seed)
    return replace(out, method="paired percentile bootstrap")


def bootstrap_spearman(x: Column, y: Column, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    """Spearman's rank correlation with its percentile bootstrap interval (average ranks for ties)."""
    a, b = as_float(x), as_float(y)
    if a.shape != b.shape:
        raise RequestError(f"bootstrap_spearman: {a.size} values against {b.size}; pairs need one length.")
    keep = np.isfinite(a) & np.isfinite(b)
    left_out, a, b, method = int((~keep).sum()), a[keep], b[keep], "percentile bootstrap"
    if a.size < 3:
        return undefined_interval("fewer than 3 pairs", method=method, level=level, n=a.size, left_out=left_out)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return undefined_interval("a variable is constant", method=method, level=level, n=a.size, left_out=left_out)
    rng = np.random.default_rng(seed)
    block = max(1, min(resamples, _CHUNK // a.size))
    parts = []
    for start in range(0, resamples, block):
        pick = rng.integers(0, a.size, size=(min(block, resamples - start), a.size))
        parts.append(_rank_correlation(a[pick], b[pick]))
    estimate = float(_rank_correlation(a[None], b[None])[0])
    return percentile_interval(estimate, np.concatenate(parts), level=level, method=method, n=a.size, left_out=left_out)


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    ra = stats.rankdata(a, axis=1) - (a.shape[1] + 1) / 2
    rb = stats.rankdata(b, axis=1) - (b.shape[1] + 1) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((ra * rb).sum(1) / np.sqrt((ra**2).sum(1) * (rb**2).sum(1)))
