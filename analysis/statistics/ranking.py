"""Area under the ROC curve, its intervals, and differences of two.

Guarantees that ties count half, that one class alone has no AUROC (NaN with the reason), and that two AUROCs are compared in the
same resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import stats

from ...declared import Alternative
from ...errors import RequestError
from .resampling import percentile_interval, resample_weights
from .results import Interval, Test, check_alternative, undefined_interval
from .values import Column, as_float, clean_labels, one_class_reason


def auroc(y: np.ndarray, score: np.ndarray) -> float:
    """Area under the ROC curve, ties counted half (Mann-Whitney); NaN when only one class is there."""
    y, score, _ = clean_labels(y, score)
    return float(_weighted_auroc(y, score, np.ones((1, y.size)))[0])


def bootstrap_auroc(
    y: Column,
    score: Column,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    groups: Sequence[Any] | np.ndarray | None = None,
) -> Interval:
    """AUROC with its percentile bootstrap interval over rows (or over groups of rows).

    Parameters
    ----------
    y : [n] bool or 0/1, missing as NaN
    score : [n] float
        Higher means class 1. Rows with a missing label or score are left out and counted.
    groups : [n], optional
        Unit of resampling (items), when one unit has several rows.

    Returns
    -------
    Interval
        `undefined` counts the resamples that held one class only.

    Examples
    --------
    >>> import numpy as np
    >>> from precollapse.analysis import statistics
    >>> y = np.array([False, False, False, True, True, True] * 10)
    >>> score = np.array([0.1, 0.4, 0.6, 0.3, 0.7, 0.9] * 10)
    >>> interval = statistics.bootstrap_auroc(y, score, resamples=200)
    >>> round(interval.estimate, 3), interval.lower < interval.estimate < interval.upper
    (0.778, True)
    """
    y, score, keep = clean_labels(y, score)
    left_out = int((~keep).sum())
    method = "percentile bootstrap"
    reason = one_class_reason(y)
    if reason:
        return undefined_interval(reason, method=method, level=level, n=y.size, left_out=left_out)
    units = None if groups is None else np.asarray(groups, dtype=object)[keep]
    draws = np.concatenate([_weighted_auroc(y, score, w) for w in resample_weights(y.size, resamples, seed, units)])
    estimate = float(_weighted_auroc(y, score, np.ones((1, y.size)))[0])
    return percentile_interval(estimate, draws, level=level, method=method, n=y.size, left_out=left_out)


def auroc_difference_test(
    y_a: np.ndarray,
    score_a: np.ndarray,
    y_b: np.ndarray,
    score_b: np.ndarray,
    resamples: int = 1000,
    alternative: Alternative = "two-sided",
    level: float = 0.95,
    seed: int = 0,
) -> Test:
    """Paired bootstrap test of AUROC(a) - AUROC(b) over the same items.

    The p value is the share of resamples on the wrong side of 0 (ties half, one added to count and resamples),
    doubled for the two-sided test. The effect is the difference with its percentile interval.
    """
    check_alternative(alternative)
    effect, draws = _auroc_difference(y_a, score_a, y_b, score_b, resamples, level, seed, None)
    method = "paired bootstrap"
    if not effect.defined:
        return Test(math.nan, math.nan, method, alternative, effect, reason=effect.reason)
    draws = draws[np.isfinite(draws)]
    below = (1 + (draws < 0).sum() + 0.5 * (draws == 0).sum()) / (1 + draws.size)
    above = (1 + (draws > 0).sum() + 0.5 * (draws == 0).sum()) / (1 + draws.size)
    p = {"greater": below, "less": above, "two-sided": 2 * min(below, above)}[alternative]
    return Test(effect.estimate, float(min(1.0, p)), method, alternative, effect)


def bootstrap_auroc_difference(
    y: np.ndarray,
    score_a: np.ndarray,
    score_b: np.ndarray,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    groups: Sequence[Any] | np.ndarray | None = None,
    y_b: np.ndarray | None = None,
) -> Interval:
    """AUROC(a) - AUROC(b) on the same rows, both computed in the same resamples (paired).

    `y_b` gives b its own labels (the same items under another regime); otherwise both are scored against `y`.
    """
    return _auroc_difference(y, score_a, y if y_b is None else y_b, score_b, resamples, level, seed, groups)[0]


def _auroc_difference(
    y_a: np.ndarray,
    score_a: np.ndarray,
    y_b: np.ndarray,
    score_b: np.ndarray,
    resamples: int,
    level: float,
    seed: int,
    groups: Sequence[Any] | np.ndarray | None,
) -> tuple[Interval, np.ndarray]:
    labels_a, labels_b, a, b = as_float(y_a), as_float(y_b), as_float(score_a), as_float(score_b)
    if not labels_a.shape == labels_b.shape == a.shape == b.shape:
        raise RequestError("A difference of AUROCs needs labels and scores of one length.")
    keep = np.isfinite(labels_a) & np.isfinite(labels_b) & np.isfinite(a) & np.isfinite(b)
    left_out, method = int((~keep).sum()), "paired percentile bootstrap"
    labels_a, labels_b, a, b = (v[keep] for v in (labels_a, labels_b, a, b))
    reason = one_class_reason(labels_a) or one_class_reason(labels_b)
    if reason:
        return undefined_interval(reason, method=method, level=level, n=a.size, left_out=left_out), np.empty(0)
    units = None if groups is None else np.asarray(groups, dtype=object)[keep]
    draws = np.concatenate(
        [
            _weighted_auroc(labels_a, a, w) - _weighted_auroc(labels_b, b, w)
            for w in resample_weights(a.size, resamples, seed, units)
        ]
    )
    estimate = auroc(labels_a, a) - auroc(labels_b, b)
    return percentile_interval(estimate, draws, level=level, method=method, n=a.size, left_out=left_out), draws


def bootstrap_macro_auroc(
    y: np.ndarray,
    score: np.ndarray,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    groups: Sequence[Any] | np.ndarray | None = None,
) -> Interval:
    """Mean AUROC over classes, one against the rest, with a percentile bootstrap over rows.

    Parameters
    ----------
    y, score : [c, n]
        0/1 labels and scores of each class; c = 1 is the plain AUROC.

    Notes
    -----
    A class without a positive or a negative row is left out of the mean. A resample counts as undefined when no class
    is defined in it.
    """
    labels, scores = np.atleast_2d(as_float(y)), np.atleast_2d(as_float(score))
    if labels.shape[0] == 1:
        return bootstrap_auroc(labels[0], scores[0], resamples, level, seed, groups)
    method, n = "percentile bootstrap, macro over classes", labels.shape[1]
    used = [(y_c, s_c) for y_c, s_c in zip(labels, scores, strict=True) if not one_class_reason(y_c)]
    if not used:
        return undefined_interval("one class only", method=method, level=level, n=n)
    units = None if groups is None else np.asarray(groups, dtype=object)
    draws = np.concatenate(
        [_nanmean([_weighted_auroc(a, b, w) for a, b in used]) for w in resample_weights(n, resamples, seed, units)]
    )
    estimate = float(np.mean([auroc(a, b) for a, b in used]))
    return percentile_interval(estimate, draws, level=level, method=method, n=n)


def bootstrap_stratified_auroc(
    y: np.ndarray,
    score: np.ndarray,
    strata: np.ndarray,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    groups: Sequence[Any] | np.ndarray | None = None,
) -> Interval:
    """AUROC over pairs within one stratum (cross-validation folds, whose scores share no scale), with its bootstrap.

    Strata that hold one class make no pair. Rows are resampled over all strata.
    """
    label, value, keep = clean_labels(y, score)
    left_out = int((~keep).sum())
    where, method = np.asarray(strata)[keep], "percentile bootstrap, pairs within folds"
    parts = [np.flatnonzero(where == s) for s in np.unique(where)]
    parts = [p for p in parts if not one_class_reason(label[p])]
    if not parts:
        return undefined_interval(
            "no fold holds both classes", method=method, level=level, n=label.size, left_out=left_out
        )
    units = None if groups is None else np.asarray(groups, dtype=object)[keep]

    def within(w: np.ndarray) -> np.ndarray:
        wins = pairs = 0.0
        for p in parts:
            weight = (w[:, p] @ label[p]) * (w[:, p] @ (1 - label[p]))
            wins = wins + np.nan_to_num(_weighted_auroc(label[p], value[p], w[:, p])) * weight
            pairs = pairs + weight
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(pairs > 0, wins / pairs, np.nan)

    draws = np.concatenate([within(w) for w in resample_weights(label.size, resamples, seed, units)])
    estimate = float(within(np.ones((1, label.size)))[0])
    return percentile_interval(estimate, draws, level=level, method=method, n=label.size, left_out=left_out)


def _nanmean(values: list[np.ndarray]) -> np.ndarray:
    stack = np.stack(values)
    known = np.isfinite(stack)
    count = known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 0, np.where(known, stack, 0.0).sum(axis=0) / count, np.nan)


def newcombe_auroc(value: float, positives: int, negatives: int, level: float = 0.95) -> Interval:
    """Closed-form interval of an AUROC for small samples (Newcombe 2006, method 5).

    The bounds solve |value - theta| = z * sqrt(V(theta)) with the Hanley-McNeil exponential-model variance at theta and
    pooled sample size. It keeps a width at value 0 or 1, where every bootstrap interval collapses to a point.
    """
    method = "Newcombe (2006) method 5"
    if positives == 0 or negatives == 0 or not math.isfinite(value):
        return undefined_interval("one class only", method=method, level=level, n=positives + negatives)
    z = stats.norm.ppf(0.5 + level / 2)
    half_n = (positives + negatives) / 2 - 1

    def excess(theta: float) -> float:
        spread = 1 + half_n * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return float((value - theta) ** 2 * positives * negatives - z * z * theta * (1 - theta) * spread)

    lower = _root(excess, 0.0, value) if value > 0 else 0.0
    upper = _root(excess, value, 1.0) if value < 1 else 1.0
    return Interval(value, lower, upper, 0, method, level, 0, positives + negatives)


def _root(f: Callable[[float], float], low: float, high: float) -> float:
    """Root within (low, high); f vanishes trivially at 0 and 1, so the ends are stepped over there."""
    from scipy.optimize import brentq

    step = 1e-9
    low, high = max(low, step), min(high, 1 - step)
    if f(low) * f(high) > 0:  # no root inside: the bound is the edge of the scale
        return 0.0 if low == step else 1.0
    return float(brentq(f, low, high, xtol=1e-12))


def _weighted_auroc(y: np.ndarray, score: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """AUROC of each row of `weights` [R, n]; NaN where a class has no weight."""
    if y.size == 0:
        return np.full(weights.shape[0], np.nan)
    order = np.argsort(score, kind="stable")
    ranked, label, w = score[order], y[order], weights[:, order]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
    positive = np.add.reduceat(w * label, starts, axis=1)
    negative = np.add.reduceat(w * (1 - label), starts, axis=1)
    below = np.cumsum(negative, axis=1) - negative
    wins = (positive * (below + 0.5 * negative)).sum(axis=1)
    total = positive.sum(axis=1) * negative.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(total > 0, wins / total, np.nan)
