"""How much of a task's positive class its intervention explains, from the rates that the release states or that follow from it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from .rows import TaskRow
from .sets import TASKS

ROLLOUTS = 50
"""Rollouts with the intervention, and as many without it, that the published rules of tasks 4 and 5 make of each prompt."""


def explained(task: int, rows: Sequence[TaskRow]) -> np.ndarray | None:
    """Share of each positive row's kind that its intervention explains, (p1 - p0) / p1 [n]; NaN for negatives and where unknown.

    Task 5 states both rates. Task 4 states their difference, and keeps of a positive prompt just those of its 50 rollouts that
    match, so that their number is p1.

    Returns
    -------
    array or None
        None for a task without an intervention.
    """
    if not TASKS[task].effect:
        return None
    kept = Counter(_prompt(row) for row in rows if row.label)
    return np.array([_share(row, kept) for row in rows], dtype=np.float64)


def _share(row: TaskRow, kept: Counter[tuple[str, str, str]]) -> float:
    if not row.label:
        return math.nan
    if "intv_rate" in row.about:
        p1, p0 = row.about.get("intv_rate"), row.about.get("ctrl_rate")
        return (p1 - p0) / p1 if p1 and p0 is not None else math.nan
    change = row.about.get("switch_rate")
    if change is None:
        return math.nan
    p1 = kept[_prompt(row)] / ROLLOUTS
    return float(change / p1) if 0 < change <= p1 <= 1 else math.nan


def _prompt(row: TaskRow) -> tuple[str, str, str]:
    return row.split, row.group, str(row.about.get("variant") or row.about.get("direction") or "")
