"""Numbers as texts: fixed decimals, intervals, p values, shares, and missing values with their reasons.

Guarantees that a value which is not defined is never printed as a number, that a positive number which would round to 0 says
so, and that every report writes the same thing the same way.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from ...analysis.statistics import Interval

MISSING = "—"
UNDEFINED = "undefined"
"""In a sentence, where a sign would not read."""


class Notes:
    """Numbers the reasons of missing values as they come up."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def missing(self, reason: str) -> str:
        """Text of a missing value that points to its reason."""
        number = self._seen.setdefault(reason or "not computed", len(self._seen) + 1)
        return f"{MISSING} ({number})"

    def mark(self, text: str, reason: str) -> str:
        """A value that is there, with a pointer to what to read with care; unchanged without a reason."""
        return text if not reason else f"{text} ({self._seen.setdefault(reason, len(self._seen) + 1)})"

    def lines(self) -> tuple[str, ...]:
        """The notes, numbered."""
        return tuple(f"({number}) {reason}" for reason, number in self._seen.items())


def number(value: float, digits: int = 2) -> str:
    """A number with fixed decimals, "<0.001" for a positive one that would round to 0, the sign for a missing one."""
    if 0 < value < 0.5 * 10.0**-digits:
        return f"<{10.0**-digits:.{digits}f}"
    return f"{value:.{digits}f}" if math.isfinite(value) else MISSING


def between(value: Interval, digits: int = 2, scale: float = 1.0, signed: bool = False) -> str:
    """An estimate with its bounds; "undefined" for an estimate that is not a number."""
    if not math.isfinite(value.estimate):
        return UNDEFINED
    sign = "+" if signed else ""
    text = f"{value.estimate * scale:{sign}.{digits}f}"
    if not (math.isfinite(value.lower) and math.isfinite(value.upper)):
        return text
    return f"{text} [{value.lower * scale:.{digits}f}, {value.upper * scale:.{digits}f}]"


def p_value(value: float) -> str:
    """A p value in a sentence."""
    return f"{value:.3g}" if math.isfinite(value) else UNDEFINED


def percent(share: float) -> str:
    """A share in a sentence."""
    return f"{100 * share:.1f} %" if math.isfinite(share) else UNDEFINED


def value(content: Any) -> str:
    """A value of a table of mixed quantities: four significant digits, yes or no, the sign for a missing one."""
    if content is None or content is pd.NA or (isinstance(content, float) and math.isnan(content)):
        return MISSING
    if isinstance(content, bool | np.bool_):
        return "yes" if content else "no"
    if isinstance(content, float | np.floating):
        plain = float(content)
        if math.isinf(plain):
            return "infinite"
        if plain == round(plain) and abs(plain) < 1e6:
            return f"{plain:.0f}"
        return f"{plain:.3g}" if abs(plain) < 0.001 else f"{plain:.4g}"
    return str(content)


def care(value: Interval, undefined: int = 0) -> str:
    """What to know of a bootstrap interval before believing it; empty where nothing speaks against it."""
    why = []
    if value.lower == value.upper:
        why.append("every resample gave this value, so the interval has no width")
    elif math.isfinite(value.lower) and not value.lower <= value.estimate <= value.upper:
        why.append("the estimate lies outside its percentile interval")
    if undefined:
        why.append(f"{undefined} resamples were undefined")
    return f"{'; '.join(why)}: too few cases of one kind" if why else ""
