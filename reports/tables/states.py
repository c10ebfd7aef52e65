"""Tables of the states themselves: options, single predictors, dimensionality by layer and by number of items.

Guarantees that files hold plain numbers under stable column names, and that a row without a number says why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ...analysis.cells import RunAnalysis
from .frames import interval_columns, joined


def options_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """Multiple-choice cells: option entropy, mass, margin, and the argmax option against the emitted answer."""
    rows = []
    for cell in (c for a in analyses for c in a.cells if c.options is not None):
        o = cell.options
        assert o is not None
        row: dict[str, Any] = {"model": cell.model, "benchmark": cell.benchmark, "regime": cell.regime, "n": o.n}
        row["too_little_mass"] = o.too_little_mass
        for name in ("entropy_bits", "relative_entropy", "mass", "margin"):
            row |= interval_columns(f"option_{name}", getattr(o, name))
        row |= interval_columns("agreement", o.agreement)
        row |= interval_columns("choice_accuracy", o.choice_accuracy) | interval_columns(
            "answer_accuracy", o.answer_accuracy
        )
        row |= {"knew_not_said": o.knew_not_said, "said_not_knew": o.said_not_knew, "unanswered": o.unanswered}
        row |= {"mcnemar_p": o.test.p_value}
        row |= interval_columns("information_bits", o.information.interval) | {"information_p": o.information.p_value}
        row |= {"gold": _counts(cell.states, "gold"), "said": _counts(cell.states, "answer")}
        row["reason"] = o.entropy_bits.reason or o.agreement.reason or o.test.reason or o.information.reason
        rows.append(row)
    return pd.DataFrame(rows)


def _counts(states: pd.DataFrame, column: str) -> str:
    """How often each option occurs in a column, as text: a model that always says one letter is seen here."""
    if column not in states:
        return ""
    counts = states[column].dropna().astype(str).value_counts().sort_index()
    return " ".join(f"{label}:{count}" for label, count in counts.items())


def predictors_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """What H and the plain baselines predict, over all states of a cell (nothing is fitted)."""
    rows = []
    for cell in (c for a in analyses for c in a.cells):
        for _, found in cell.predictors.iterrows():
            row: dict[str, Any] = {"model": cell.model, "benchmark": cell.benchmark, "regime": cell.regime}
            row |= {"predictor": found["predictor"], "sign": found["sign"], "n": found["auroc"].n}
            for name in ("auroc", "spearman"):
                row |= interval_columns(name, found[name]) | {f"{name}_undefined": found[name].undefined}
            row["reason"] = found["auroc"].reason or found["spearman"].reason
            rows.append(row)
    return pd.DataFrame(rows)


_NO_NEIGHBOURS = {
    "two_nn": math.nan,
    "levina_bickel": math.nan,
    "duplicates": math.nan,
    "reason": "no states were kept",
}


def dimension_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """Participation ratios, weight, 90% count, ceiling and neighbour estimates per cell and layer."""
    rows = []
    for analysis in analyses:
        for cell in analysis.cells:
            d = cell.dimension
            if d is None:
                continue
            for i, layer in enumerate(d.layers):
                near = cell.neighbours.iloc[i] if i < len(cell.neighbours) else _NO_NEIGHBOURS
                row: dict[str, Any] = {"model": cell.model, "benchmark": cell.benchmark, "regime": cell.regime}
                row |= {"layer": layer, "n": d.n, "ceiling": d.ceiling, "participation_ratio": d.per_layer[i]}
                row |= {"participation_ratio_unbiased": d.unbiased[i], "weight": d.weights[i]}
                row |= {"components_90": d.ninety[i] or math.nan, "two_nn": near["two_nn"]}
                row |= {"levina_bickel": near["levina_bickel"], "duplicates": near["duplicates"]}
                row["reason"] = d.reason or near["reason"]
                rows.append(row)
    return pd.DataFrame(rows)


def subsampling_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """Aggregate dimensionality of random subsets of N' items, paired over regimes."""
    frames = [
        b.subsampling.assign(model=b.model, benchmark=b.name)
        for a in analyses
        for b in a.benchmarks
        if len(b.subsampling)
    ]
    return joined(frames, ["model", "benchmark"])
