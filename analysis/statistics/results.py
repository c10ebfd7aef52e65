"""What an interval, a test and an adjusted family are, with everything needed to read them.

Guarantees that a quantity which the data do not define is NaN with the reason, never 0 or 0.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...declared import ALTERNATIVES
from ...errors import RequestError


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


def check_alternative(alternative: str) -> None:
    if alternative not in ALTERNATIVES:
        raise RequestError(f"alternative is {alternative!r}; choose two-sided, greater or less.")
