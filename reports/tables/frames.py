"""Pieces that the tables of numbers share.

Guarantees that an interval has the same three columns in every file, and that a table always leads with what it is about.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from ...analysis.statistics import Interval


def interval_columns(name: str, value: Interval | None) -> dict[str, float]:
    """Three columns of an interval: its estimate under `name`, and its bounds; NaN where it is missing."""
    nan = math.nan
    if value is None:
        return {name: nan, f"{name}_lower": nan, f"{name}_upper": nan}
    return {name: value.estimate, f"{name}_lower": value.lower, f"{name}_upper": value.upper}


def joined(frames: Sequence[pd.DataFrame], first: Sequence[str]) -> pd.DataFrame:
    """Frames below one another, the columns `first` in front; an empty frame where there is none."""
    if not frames:
        return pd.DataFrame()
    table = pd.concat(frames, ignore_index=True)
    return table[[*first, *(c for c in table.columns if c not in first)]]
