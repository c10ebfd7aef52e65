"""Pieces that the tables of numbers share.

Guarantees that an interval has the same three columns in every file, that a table always leads with what it is about, and that no
cell of a file acts: what a spreadsheet would take for a formula is a text there, and what a terminal would obey is written out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ...analysis.statistics import Interval
from ...visible import visible


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


_FORMULA = re.compile(r"[=+\-@\t\r＝＋－＠]")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?%?")


def as_csv(frame: pd.DataFrame) -> str:
    """A table as the text of a CSV file.

    Numbers are written as they are. A text that begins as a formula does (= + - @, a tab or a carriage return), and is no plain
    number, gets an apostrophe before it; steering characters are written out as in `visible`. Reading back:
    `frame["column"].str.removeprefix("'")`.
    """
    shown = frame.copy()
    shown.columns = [_inert(name) for name in frame.columns]
    for place, kind in enumerate(frame.dtypes):
        if not pd.api.types.is_numeric_dtype(kind):
            inert: Any = frame.iloc[:, place].map(_inert, na_action="ignore")
            shown.isetitem(place, inert)
    return str(shown.to_csv(index=False))


def _inert(cell: Any) -> Any:
    """A cell that neither a spreadsheet nor a terminal acts on; what is no text stays."""
    if not isinstance(cell, str):
        return cell
    acts = _FORMULA.match(cell) is not None and _NUMBER.fullmatch(cell) is None
    return visible(f"'{cell}" if acts else cell)
