"""Exact and permutation tests, and the adjustment of a family of them.

Guarantees that the direction of a test is named, that a permutation p value is never 0, and that a family keeps the size it was
declared with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from scipy import stats

from ...declared import Alternative
from ...errors import RequestError
from .proportions import paired_proportions
from .resampling import paired_difference
from .results import Holm, Interval, Test, check_alternative
from .values import as_float


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

    Examples
    --------
    >>> from precollapse.analysis import statistics
    >>> test = statistics.fisher([[8, 2], [1, 5]], "greater")
    >>> round(test.effect.estimate, 1), round(test.p_value, 4)
    (20.0, 0.0245)
    """
    t = np.asarray(table)
    if t.shape != (2, 2) or (t < 0).any() or not np.equal(t, np.round(t)).all():
        raise RequestError(f"fisher: a 2x2 table of counts is needed; got {t.tolist()}.")
    t = t.astype(int)
    check_alternative(alternative)
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

    Examples
    --------
    >>> import numpy as np
    >>> from precollapse.analysis import statistics
    >>> cot = np.array([True] * 30 + [False] * 10)
    >>> baseline = np.array([True] * 20 + [False] * 20)  # ten items are right under cot alone
    >>> test = statistics.mcnemar(cot, baseline)
    >>> test.counts, round(test.p_value, 4)
    ((20, 10, 0, 10), 0.002)
    """
    check_alternative(alternative)
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
    effect = paired_proportions(both, only_a, only_b, neither)
    return Test(float(min(only_a, only_b)), p, "exact McNemar", alternative, effect, (both, only_a, only_b, neither))


def holm(pvalues: Sequence[float] | np.ndarray, alpha: float = 0.05) -> Holm:
    """Holm's step-down adjustment of a family of p values.

    Examples
    --------
    >>> from precollapse.analysis import statistics
    >>> [round(float(p), 3) for p in statistics.holm([0.01, 0.04, 0.03]).adjusted]
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(pvalues, dtype=np.float64)
    if p.ndim != 1 or ((p < 0) | (p > 1)).any():
        raise RequestError("holm: a one-dimensional list of p values within 0..1 is needed.")
    missing = np.isnan(p)
    filled = np.where(missing, 1.0, p)
    if p.size == 0:
        return Holm(p, np.zeros(0, dtype=bool), alpha, 0)
    from statsmodels.stats.multitest import multipletests

    adjusted = np.asarray(multipletests(filled, alpha, method="holm")[1])
    adjusted[missing] = np.nan
    return Holm(adjusted, np.nan_to_num(adjusted, nan=1.0) <= alpha, alpha, int(missing.sum()))


def sign_flip(
    a: np.ndarray, b: np.ndarray, alternative: Alternative = "two-sided", permutations: int = 10_000, seed: int = 0
) -> Test:
    """Permutation test of a zero mean of paired differences a - b, by flipping the sign of each pair's difference.

    All 2^n flips are used when they are no more than `permutations`; otherwise that many random ones, with the
    observed one added. The effect is the mean difference with its paired bootstrap interval.
    """
    check_alternative(alternative)
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
