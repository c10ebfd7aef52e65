"""Every state of a study as a row that a page can sort, filter and open.

Guarantees that what the states lack is null, and never a made-up value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..analysis.cells import RunAnalysis
from .plain import plain

COLUMNS = (
    ("model", "model"),
    ("benchmark", "benchmark"),
    ("regime", "regime"),
    ("item_id", "item"),
    ("question", "question"),
    ("correct", "correct"),
    ("compliant", "compliant"),
    ("answer", "answer"),
    ("gold", "gold"),
    ("entropy_bits", "H (bits)"),
    ("option_choice", "best option"),
    ("option_mass", "option mass"),
    ("option_margin", "margin"),
    ("option_entropy_bits", "option H"),
    ("output_tokens", "output tokens"),
    ("prompt_tokens", "prompt tokens"),
    ("truncated", "truncated"),
    ("choices", "choices"),
    ("prompt", "prompt"),
    ("text", "output"),
)
SHOWN = (
    "benchmark",
    "regime",
    "item_id",
    "correct",
    "answer",
    "gold",
    "entropy_bits",
    "option_choice",
    "option_mass",
    "output_tokens",
    "question",
)
FILTERS = ("benchmark", "regime", "correct", "compliant", "truncated")


def item_data(analyses: Sequence[RunAnalysis]) -> dict[str, Any]:
    """Every state for the page's table."""
    rows = []
    for cell in (c for a in analyses for c in a.cells if len(c.states)):
        states = cell.states.assign(model=cell.model)
        columns = [_values(states, name) for name, _ in COLUMNS]
        rows += [list(values) for values in zip(*columns, strict=True)]
    several = len(analyses) > 1
    return {
        "columns": [{"name": n, "label": label} for n, label in COLUMNS],
        "rows": rows,
        "shown": [*(["model"] if several else []), *SHOWN],
        "filters": [*(["model"] if several else []), *FILTERS],
    }


def _values(states: pd.DataFrame, name: str) -> list[Any]:
    return [plain(v) for v in states[name].astype(object)] if name in states else [None] * len(states)
