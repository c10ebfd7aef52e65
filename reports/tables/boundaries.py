"""Before thinking and before answering: entropy and options of the same states at both boundaries of a model that thinks first.

Guarantees that both means are over the same states, those whose thinking ended, and that options which hold less than 1% of the
probability at a boundary are given by their mass alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ...analysis.cells import RunAnalysis
from ...schema import LEAST_OPTION_MASS, THINKING_ENDED, THINKING_TOKENS

COLUMNS = (
    ("benchmark", "benchmark", 0),
    ("regime", "regime", 0),
    ("boundary", "boundary", 0),
    ("n", "n", 0),
    ("never ended", "never_ended", 0),
    ("thinking tokens", "thinking_tokens", 0),
    ("H bits", "entropy_bits", 2),
    ("option mass", "option_mass", 3),
    ("meaningful n", "meaningful", 0),
    ("option H", "option_entropy_bits", 2),
    ("best option right", "choice_accuracy", 2),
)
CAPTION = (
    "The same states before the thinking and before the answer; those whose thinking never ended are counted and left out. Option H "
    "and the best option are over the states whose options hold at least 1% of the probability there (meaningful n)."
)
_BOUNDARIES = (("thinking", ""), ("answer", "answer_"))


def boundaries_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """Two rows per cell of a run with both boundaries; empty without."""
    rows = []
    for cell in (c for a in analyses for c in a.cells):
        states = cell.states
        if "answer_entropy_bits" not in states or states["answer_entropy_bits"].isna().all():
            continue
        both = states[states["answer_entropy_bits"].notna()]
        for name, prefix in _BOUNDARIES:
            row: dict[str, Any] = {"model": cell.model, "benchmark": cell.benchmark, "regime": cell.regime}
            row |= {
                "boundary": name,
                "n": len(both),
                "never_ended": int((~states[THINKING_ENDED].dropna().astype(bool)).sum()),
            }
            row |= {"thinking_tokens": float(both[THINKING_TOKENS].mean())}
            row |= {"entropy_bits": float(both[f"{prefix}entropy_bits"].mean())}
            rows.append(row | _options(both, prefix))
    return pd.DataFrame(rows)


def _options(states: pd.DataFrame, prefix: str) -> dict[str, float]:
    """Mass of the options, and what is read from them where it is enough."""
    masses = states[f"{prefix}option_mass"].astype(float)
    good = states[(masses >= LEAST_OPTION_MASS) & states[f"{prefix}option_choice"].notna()]
    right = (good[f"{prefix}option_choice"].astype(str) == good["gold"].astype(str)).mean() if len(good) else math.nan
    return {
        "option_mass": float(masses.mean()),
        "meaningful": len(good),
        "option_entropy_bits": float(good[f"{prefix}option_entropy_bits"].astype(float).mean()),
        "choice_accuracy": float(right),
    }
