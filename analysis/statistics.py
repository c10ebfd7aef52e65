"""Intervals and tests, each saying its method, level, resamples and how many resamples were undefined.

Guarantees that a quantity which the data do not define (one class, no rows) comes back as NaN with the reason, never
as 0 or 0.5, and that every random choice is seeded. It prevents the usual failure of bootstraps in probing papers:
resamples that hold one class are silently dropped, or crash, and nobody learns how many there were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy import stats

from ..errors import RequestError

Alternative = Literal["two-sided", "greater", "less"]
_CHUNK = 4_000_000  # weights held at once while resampling


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval.

    Attributes
    ----------
    estimate, lower, upper : float
        NaN where the data do not define them; `reason` then says why.
    undefined : int
        Resamples in which the statistic was undefined (left out of the percentiles).
    method : str
        How the interval was made, for example ``"percentile bootstrap"``.
    level : float
        Confidence level.
    resamples : int
        Resamples drawn; 0 for closed forms.
    n : int
        Rows that entered.
    left_out : int
        Rows left out because a value was missing.
    reason : str
        Why something is undefined or must be read with care; empty otherwise.
    """

    estimate: float
    lower: float
    upper: float
    undefined: int = 0
    method: str = ""
    level: float = 0.95
    resamples: int = 0
    n: int = 0
    left_out: int = 0
    reason: str = ""

    @property
    def defined(self) -> bool:
        """True when the estimate is a number."""
        return math.isfinite(self.estimate)

    def excludes(self, value: float) -> bool:
        """True when both bounds are numbers and `value` lies outside them."""
        return self.lower > value or self.upper < value

    def __str__(self) -> str:
        if not self.defined:
            return f"undefined ({self.reason})" if self.reason else "undefined"
        return f"{self.estimate:.3f} [{self.lower:.3f}, {self.upper:.3f}]"


@dataclass(frozen=True)
class Test:
    """Outcome of a test of one hypothesis.

    Attributes
    ----------
    statistic, p_value : float
        NaN where undefined; `reason` then says why.
    method, alternative : str
    effect : Interval or None
        The effect size that belongs to the test (odds ratio, difference).
    counts : tuple of int
        The counts the test was computed from (row by row for 2x2 tables).
    """

    __test__ = False  # not a pytest class

    statistic: float
    p_value: float
    method: str
    alternative: str = "two-sided"
    effect: Interval | None = None
    counts: tuple[int, ...] = ()
    reason: str = ""

    @property
    def odds_ratio(self) -> float:
        """Sample odds ratio of a 2x2 test (its effect's estimate)."""
        return self.effect.estimate if self.effect is not None else math.nan


@dataclass(frozen=True)
class Holm:
    """Holm-adjusted p values of a declared family, in the order given.

    A member without a p value (NaN) stays in the family's size (it counts as p = 1) and comes back as NaN.
    """

    adjusted: np.ndarray
    rejected: np.ndarray
    alpha: float
    undefined: int


def undefined_interval(
    reason: str, *, method: str = "", level: float = 0.95, n: int = 0, left_out: int = 0
) -> Interval:
    """An interval that the data do not define, with why."""
    nan = math.nan
    return Interval(nan, nan, nan, 0, method, level, 0, n, left_out, reason)


# -- proportions -----------------------------------------------------------------------------------------------------


def wilson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Wilson score interval of a proportion.

    Raises
    ------
    RequestError
        When `successes` does not lie in 0..n.
    """
    if n == 0:
        return undefined_interval("no rows", method="Wilson", level=level)
    if not 0 <= successes <= n:
        raise RequestError(f"wilson: {successes} successes of {n} trials; give 0 <= successes <= n.")
    z = stats.norm.ppf(0.5 + level / 2)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    lower = 0.0 if successes == 0 else max(0.0, centre - half)
    upper = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(p, lower, upper, 0, "Wilson", level, 0, n)


def difference_of_proportions(s1: int, n1: int, s2: int, n2: int, level: float = 0.95) -> Interval:
    """Difference p1 - p2 of two independent proportions with Newcombe's (1998, method 10) interval."""
    if n1 == 0 or n2 == 0:
        return undefined_interval("one group is empty", method="Newcombe", level=level)
    one, two = wilson(s1, n1, level), wilson(s2, n2, level)
    d = one.estimate - two.estimate
    lower = d - math.hypot(one.estimate - one.lower, two.upper - two.estimate)
    upper = d + math.hypot(one.upper - one.estimate, two.estimate - two.lower)
    return Interval(d, lower, upper, 0, "Newcombe", level, 0, n1 + n2)


def counts_from_percent(n: int, percent: float, decimals: int = 1) -> list[int]:
    """All counts k of n whose percentage, rounded to `decimals`, is the printed one.

    Used to recompute published tables from what they print: one solution means that the count is certain. Both
    roundings of an exact half are accepted.
    """
    half = 0.5 * 10.0**-decimals
    low = math.ceil(n * (percent - half) / 100 - 1e-9)
    high = math.floor(n * (percent + half) / 100 + 1e-9)
    return [k for k in range(max(0, low), min(n, high) + 1)]


# -- AUROC -----------------------------------------------------------------------------------------------------------


def auroc(y: np.ndarray, score: np.ndarray) -> float:
    """Area under the ROC curve, ties counted half (Mann-Whitney); NaN when only one class is there."""
    y, score, _ = _clean_labels(y, score)
    return float(_weighted_auroc(y, score, np.ones((1, y.size)))[0])


def bootstrap_auroc(
    y: np.ndarray,
    score: np.ndarray,
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
    """
    y, score, keep = _clean_labels(y, score)
    left_out = int((~keep).sum())
    method = "percentile bootstrap"
    reason = _one_class_reason(y)
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
    _check_alternative(alternative)
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
    reason = _one_class_reason(labels_a) or _one_class_reason(labels_b)
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
    used = [(y_c, s_c) for y_c, s_c in zip(labels, scores, strict=True) if not _one_class_reason(y_c)]
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
    label, value, keep = _clean_labels(y, score)
    left_out = int((~keep).sum())
    where, method = np.asarray(strata)[keep], "percentile bootstrap, pairs within folds"
    parts = [np.flatnonzero(where == s) for s in np.unique(where)]
    parts = [p for p in parts if not _one_class_reason(label[p])]
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
        return (value - theta) ** 2 * positives * negatives - z * z * theta * (1 - theta) * spread

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


# -- bootstrap -------------------------------------------------------------------------------------------------------


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


def bootstrap_mean(values: np.ndarray, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
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


def paired_difference(
    a: np.ndarray, b: np.ndarray, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Mean of a - b over pairs, resampling pairs; pairs with a missing side are left out and counted."""
    left, right = as_float(a), as_float(b)
    if left.shape != right.shape:
        raise RequestError(f"paired_difference: {left.size} values against {right.size}; pairs need one length.")
    out = bootstrap_mean(left - right, resamples, level, seed)
    return _replace(out, method="paired percentile bootstrap")


def bootstrap_spearman(
    x: np.ndarray, y: np.ndarray, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval:
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
        return (ra * rb).sum(1) / np.sqrt((ra**2).sum(1) * (rb**2).sum(1))


# -- tests -----------------------------------------------------------------------------------------------------------


def fisher(table: Any, alternative: Alternative = "two-sided", level: float = 0.95) -> Test:
    """Fisher's exact test of a 2x2 table with its sample odds ratio.

    Parameters
    ----------
    table : 2x2 of non-negative int
        ``[[successes of group 1, failures of group 1], [successes of group 2, failures of group 2]]``.
    alternative : "two-sided", "greater" (odds ratio above 1) or "less"

    Returns
    -------
    Test
        `effect` is the sample odds ratio ad/bc with Woolf's logit interval; undefined where a cell is empty.
    """
    t = np.asarray(table)
    if t.shape != (2, 2) or (t < 0).any() or not np.equal(t, np.round(t)).all():
        raise RequestError(f"fisher: a 2x2 table of counts is needed; got {t.tolist()}.")
    t = t.astype(int)
    _check_alternative(alternative)
    result = stats.fisher_exact(t, alternative=alternative)
    (a, b), (c, d) = t.tolist()
    counts = (a, b, c, d)
    if min(counts) > 0:
        odds = a * d / (b * c)
        half = stats.norm.ppf(0.5 + level / 2) * math.sqrt(sum(1 / v for v in counts))
        effect = Interval(odds, odds * math.exp(-half), odds * math.exp(half), 0, "Woolf logit", level, 0, sum(counts))
    else:
        odds = float(result.statistic)
        effect = Interval(
            odds, math.nan, math.nan, 0, "Woolf logit", level, 0, sum(counts), reason="an empty cell has no interval"
        )
    reason = "" if t.sum(0).all() and t.sum(1).all() else "a row or column of the table is empty"
    return Test(odds, float(result.pvalue), "Fisher exact", alternative, effect, counts, reason)


def mcnemar(a: np.ndarray, b: np.ndarray, alternative: Alternative = "two-sided") -> Test:
    """Exact McNemar test of two paired yes/no outcomes.

    Parameters
    ----------
    a, b : [n] bool, missing as NaN
        Outcomes of the same items under two conditions; pairs with a missing side are left out.
    alternative : "two-sided", "greater" (a succeeds more often) or "less"

    Returns
    -------
    Test
        counts = (both, only a, only b, neither); the effect is the paired difference a - b of proportions. Without a
        discordant pair p is 1.
    """
    _check_alternative(alternative)
    left, right = as_float(a), as_float(b)
    if left.shape != right.shape:
        raise RequestError(f"mcnemar: {left.size} outcomes against {right.size}; pairs need one length.")
    keep = np.isfinite(left) & np.isfinite(right)
    x, y = left[keep] > 0, right[keep] > 0
    if x.size == 0:
        return Test(math.nan, math.nan, "exact McNemar", alternative, reason="no complete pair")
    only_a, only_b = int((x & ~y).sum()), int((~x & y).sum())
    both, neither = int((x & y).sum()), int((~x & ~y).sum())
    discordant = only_a + only_b
    p = 1.0 if discordant == 0 else float(stats.binomtest(only_a, discordant, 0.5, alternative=alternative).pvalue)
    effect = _paired_proportion_difference(both, only_a, only_b, neither)
    return Test(float(min(only_a, only_b)), p, "exact McNemar", alternative, effect, (both, only_a, only_b, neither))


def _paired_proportion_difference(both: int, only_a: int, only_b: int, neither: int, level: float = 0.95) -> Interval:
    """p_a - p_b of paired proportions: adjusted Wald interval of Bonett and Price (2012)."""
    n = both + only_a + only_b + neither
    z = stats.norm.ppf(0.5 + level / 2)
    p12, p21 = (only_a + 1) / (n + 2), (only_b + 1) / (n + 2)
    half = z * math.sqrt((p12 + p21 - (p12 - p21) ** 2) / (n + 2))
    centre = p12 - p21
    lower, upper = max(-1.0, centre - half), min(1.0, centre + half)
    return Interval((only_a - only_b) / n, lower, upper, 0, "Bonett-Price", level, 0, n)


def holm(pvalues: Sequence[float] | np.ndarray, alpha: float = 0.05) -> Holm:
    """Holm's step-down adjustment of a family of p values."""
    p = np.asarray(pvalues, dtype=np.float64)
    if p.ndim != 1 or ((p < 0) | (p > 1)).any():
        raise RequestError("holm: a one-dimensional list of p values within 0..1 is needed.")
    missing = np.isnan(p)
    filled = np.where(missing, 1.0, p)
    order = np.argsort(filled, kind="stable")
    scaled = np.minimum(1.0, filled[order] * (p.size - np.arange(p.size)))
    adjusted = np.empty(p.size)
    adjusted[order] = np.maximum.accumulate(scaled) if p.size else scaled
    adjusted[missing] = np.nan
    return Holm(adjusted, np.nan_to_num(adjusted, nan=1.0) <= alpha, alpha, int(missing.sum()))


def sign_flip(
    a: np.ndarray, b: np.ndarray, alternative: Alternative = "two-sided", permutations: int = 10_000, seed: int = 0
) -> Test:
    """Permutation test of a zero mean of paired differences a - b, by flipping the sign of each pair's difference.

    All 2^n flips are used when they are no more than `permutations`; otherwise that many random ones, with the
    observed one added. The effect is the mean difference with its paired bootstrap interval.
    """
    _check_alternative(alternative)
    effect = paired_difference(a, b, seed=seed)
    d = as_float(a) - as_float(b)
    d = d[np.isfinite(d)]
    method = "sign-flip permutation"
    if d.size < 2:
        return Test(math.nan, math.nan, method, alternative, effect, reason="fewer than 2 complete pairs")
    exact = 2**d.size <= permutations
    if exact:
        signs = 1.0 - 2.0 * ((np.arange(2**d.size)[:, None] >> np.arange(d.size)) & 1)
    else:
        signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=(permutations, d.size))
    null, observed, slack = signs @ d / d.size, float(d.mean()), 1e-12 * float(np.abs(d).max())
    above, below = (null >= observed - slack).sum(), (null <= observed + slack).sum()
    two = (np.abs(null) >= abs(observed) - slack).sum()
    count = {"greater": above, "less": below, "two-sided": two}[alternative]
    p = count / null.size if exact else (1 + count) / (1 + null.size)
    return Test(observed, float(p), f"exact {method}" if exact else method, alternative, effect)


def permutation_p(observed: float, null: np.ndarray, alternative: Literal["greater", "less"] = "greater") -> float:
    """Permutation p value (1 + count as extreme) / (1 + permutations), never 0 (Phipson and Smyth 2010)."""
    values = np.asarray(null, dtype=np.float64)
    values = values[np.isfinite(values)]
    if values.size == 0 or not math.isfinite(observed):
        return math.nan
    extreme = (values >= observed - 1e-12) if alternative == "greater" else (values <= observed + 1e-12)
    return float((1 + extreme.sum()) / (1 + values.size))


# -- effect sizes ----------------------------------------------------------------------------------------------------


def cohen_dz(a: np.ndarray, b: np.ndarray) -> float:
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


# -- shared checks ---------------------------------------------------------------------------------------------------


def as_float(values: Any) -> np.ndarray:
    """[n] float64 with every kind of missing value (None, pandas NA, NaN) as NaN."""
    if hasattr(values, "to_numpy"):
        return values.to_numpy(dtype="float64", na_value=np.nan)
    array = np.asarray(values)
    if array.dtype == object:
        return np.array([np.nan if missing(v) else float(v) for v in array], dtype=np.float64)
    return array.astype(np.float64)


def missing(value: Any) -> bool:
    """True for None, NaN and pandas NA."""
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def _clean_labels(y: Any, score: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    label, value = as_float(y), as_float(score)
    if label.ndim != 1 or label.shape != value.shape:
        raise RequestError(f"labels have shape {label.shape}, scores {value.shape}; both must be lists of one length.")
    keep = np.isfinite(label) & ~np.isnan(value)
    label = label[keep]
    if not np.isin(label, (0.0, 1.0)).all():
        raise RequestError(f"labels must be 0/1 or bool; found {sorted(set(label.tolist()))[:5]}.")
    return label, value[keep], keep


def _one_class_reason(y: np.ndarray) -> str:
    if y.size == 0:
        return "no rows"
    positives = int(y.sum())
    if positives in (0, y.size):
        return f"one class only ({positives} of {y.size} positive)"
    return ""


def _check_alternative(alternative: str) -> None:
    if alternative not in ("two-sided", "greater", "less"):
        raise RequestError(f"alternative is {alternative!r}; choose two-sided, greater or less.")


def _replace(interval: Interval, **changes: Any) -> Interval:
    return replace(interval, **changes)
