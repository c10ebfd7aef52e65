"""Proportions and their differences, with closed-form intervals.

Guarantees an interval that keeps a width at 0 and at 1, and that counts which do not fit raise.
"""

from __future__ import annotations

import math

from scipy import stats

from ...errors import RequestError
from .results import Interval, undefined_interval


def wilson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Wilson score interval of a proportion.

    Raises
    ------
    RequestError
        When `successes` does not lie in 0..n.

    Examples
    --------
    >>> from precollapse.analysis import statistics
    >>> interval = statistics.wilson(8, 10)
    >>> [round(float(v), 3) for v in (interval.estimate, interval.lower, interval.upper)]
    [0.8, 0.49, 0.943]
    """
    if n == 0:
        return undefined_interval("no rows", method="Wilson", level=level)
    if not 0 <= successes <= n:
        raise RequestError(f"wilson: {successes} successes of {n} trials; give 0 <= successes <= n.")
    from statsmodels.stats.proportion import proportion_confint

    lower, upper = proportion_confint(successes, n, alpha=1 - level, method="wilson")
    # exactly 0 and 1 at the ends, whatever the last digit of the closed form
    lower, upper = 0.0 if successes == 0 else float(lower), 1.0 if successes == n else float(upper)
    return Interval(successes / n, lower, upper, 0, "Wilson", level, 0, n)


def difference_of_proportions(s1: int, n1: int, s2: int, n2: int, level: float = 0.95) -> Interval:
    """Difference p1 - p2 of two independent proportions with Newcombe's (1998, method 10) interval."""
    if n1 == 0 or n2 == 0:
        return undefined_interval("one group is empty", method="Newcombe", level=level)
    for successes, n in ((s1, n1), (s2, n2)):
        if not 0 <= successes <= n:
            raise RequestError(f"newcombe: {successes} successes of {n} trials; give 0 <= successes <= n.")
    from statsmodels.stats.proportion import confint_proportions_2indep

    lower, upper = confint_proportions_2indep(s1, n1, s2, n2, method="newcomb", compare="diff", alpha=1 - level)
    return Interval(s1 / n1 - s2 / n2, float(lower), float(upper), 0, "Newcombe", level, 0, n1 + n2)


def paired_proportions(both: int, only_a: int, only_b: int, neither: int, level: float = 0.95) -> Interval:
    """p_a - p_b of paired proportions: adjusted Wald interval of Bonett and Price (2012)."""
    n = both + only_a + only_b + neither
    z = stats.norm.ppf(0.5 + level / 2)
    p12, p21 = (only_a + 1) / (n + 2), (only_b + 1) / (n + 2)
    half = z * math.sqrt((p12 + p21 - (p12 - p21) ** 2) / (n + 2))
    centre = p12 - p21
    lower, upper = max(-1.0, centre - half), min(1.0, centre + half)
    return Interval((only_a - only_b) / n, lower, upper, 0, "Bonett-Price", level, 0, n)


def counts_from_percent(n: int, percent: float, decimals: int = 1) -> list[int]:
    """All counts k of n whose percentage, rounded to `decimals`, is the printed one.

    Used to recompute published tables from what they print: one solution means that the count is certain. Both
    roundings of an exact half are accepted.
    """
    half = 0.5 * 10.0**-decimals
    low = math.ceil(n * (percent - half) / 100 - 1e-9)
    high = math.floor(n * (percent + half) / 100 + 1e-9)
    return [k for k in range(max(0, low), min(n, high) + 1)]
