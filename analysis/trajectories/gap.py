"""Accuracy of monotone chains against the others, and the bootstrap over problems that its interval takes.

Guarantees that chains of one problem enter or stay out together, and that one- and two-sided tests are both named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ..statistics import (
    Interval,
    difference_of_proportions,
    fisher,
    percentile_interval,
    resample_weights,
    undefined_interval,
    wilson,
)

METHOD = "percentile bootstrap over problems"


@dataclass(frozen=True)
class Gap:
    """Accuracy of monotone chains against the others.

    Attributes
    ----------
    correct_monotone, n_monotone, correct_other, n_other : int
    accuracy_monotone, accuracy_other : Interval
        Wilson intervals.
    points : Interval
        Difference in percentage points.
    odds_ratio : Interval
        Sample odds ratio with Woolf's interval.
    p_two_sided, p_greater : float
        Fisher's exact test; "greater" is the one-sided test that monotone chains are more often right.
    coverage : float
        Share of chains that are monotone.
    """

    correct_monotone: int
    n_monotone: int
    correct_other: int
    n_other: int
    accuracy_monotone: Interval
    accuracy_other: Interval
    points: Interval
    odds_ratio: Interval
    p_two_sided: float
    p_greater: float
    coverage: float


def gap_from_counts(
    correct_monotone: int, n_monotone: int, correct_other: int, n_other: int, level: float = 0.95
) -> Gap:
    """The accuracy gap of four counts, with Newcombe's interval on the difference.

    Raises
    ------
    RequestError
        When the counts do not fit.
    """
    a, b = wilson(correct_monotone, n_monotone, level), wilson(correct_other, n_other, level)
    difference = difference_of_proportions(correct_monotone, n_monotone, correct_other, n_other, level)
    table = [[correct_monotone, n_monotone - correct_monotone], [correct_other, n_other - correct_other]]
    two, one = fisher(table, "two-sided", level), fisher(table, "greater", level)
    total = n_monotone + n_other
    assert two.effect is not None
    empty = n_monotone == 0 or n_other == 0
    return Gap(
        correct_monotone, n_monotone, correct_other, n_other, a, b, _in_points(difference), two.effect,
        math.nan if empty else two.p_value, math.nan if empty else one.p_value, n_monotone / total if total else math.nan,
    )  # fmt: skip


def _in_points(i: Interval) -> Interval:
    return replace(i, estimate=100 * i.estimate, lower=100 * i.lower, upper=100 * i.upper)


def bootstrap_problems(
    statistic: Callable[[np.ndarray], float],
    problems: Sequence[Any] | np.ndarray,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap of any statistic, whole problems at a time.

    Parameters
    ----------
    statistic : callable
        Takes row numbers (with repeats) and returns a float, NaN where undefined.
    problems : [n]
        The problem of each row.
    """
    n = len(problems)
    if n == 0:
        return undefined_interval("no rows", method=METHOD, level=level)
    rows = np.arange(n)
    estimate = statistic(rows)
    if not math.isfinite(estimate):
        return undefined_interval("the statistic is undefined on these chains", method=METHOD, level=level, n=n)
    draws = [
        statistic(np.repeat(rows, counts.astype(np.int64)))
        for block in resample_weights(n, resamples, seed, np.asarray(problems, dtype=object))
        for counts in block
    ]
    return percentile_interval(estimate, np.array(draws), level=level, method=METHOD, n=n)


def accuracy_gap(
    correct: np.ndarray,
    monotone: np.ndarray,
    problems: np.ndarray,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Gap:
    """`gap_from_counts` of chains, with the difference's interval resampled by problem.

    Parameters
    ----------
    correct, monotone : bool [n]
    problems : [n]
    """
    plain = gap_from_counts(
        int((correct & monotone).sum()),
        int(monotone.sum()),
        int((correct & ~monotone).sum()),
        int((~monotone).sum()),
        level,
    )

    def difference(rows: np.ndarray) -> float:
        y, flag = correct[rows], monotone[rows]
        return 100 * (y[flag].mean() - y[~flag].mean()) if 0 < flag.sum() < len(flag) else math.nan

    interval = bootstrap_problems(difference, problems, resamples, level, seed)
    return replace(plain, points=interval)


def violation_buckets(correct: np.ndarray, violations: np.ndarray, level: float = 0.95) -> pd.DataFrame:
    """Accuracy by violation count 0, 1, 2 and 3 or more, with Wilson intervals: bucket, n, correct, accuracy, lower, upper."""
    rows = []
    for name, inside in (
        ("0", violations == 0),
        ("1", violations == 1),
        ("2", violations == 2),
        (">=3", violations >= 3),
    ):
        i = wilson(int(correct[inside].sum()), int(inside.sum()), level)
        rows.append({"bucket": name, "n": int(inside.sum()), "correct": int(correct[inside].sum()), **_accuracy(i)})
    return pd.DataFrame(rows)


def _accuracy(i: Interval) -> dict[str, float]:
    return {"accuracy": i.estimate, "lower": i.lower, "upper": i.upper}
