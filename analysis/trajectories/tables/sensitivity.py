"""How far a trajectory result hangs on a choice: the number of continuations, the anchor's wording, the segmentation rule.

Guarantees that every alternative is read from the same chains of the same run, so that nothing but the choice differs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ....store import Run
from ..statistics import accuracy_gap, spearman, usable
from .chains import forced_table, sampled_table


def answers_sensitivity(
    run: Run, counts: Sequence[int] = (5, 10, 20), epsilon: float = 0.01, tie: str = "first", seed: int = 0
) -> pd.DataFrame:
    """The gap with the first m continuations of every prefix, for each m that was sampled: m, n, coverage, gap_points, lower,
    upper, odds_ratio, p_greater, flag_agreement and entropy_spearman (against the largest m)."""
    m_max = int(run.config.get("m", 5))
    usable_counts = sorted({m for m in (*counts, m_max) if m <= m_max})
    tables = {m: sampled_table(run, epsilon, tie, m) for m in usable_counts}
    whole = tables[m_max]
    rows = []
    for m, table in tables.items():
        row: dict[str, Any] = {"m": m}
        kept = usable(table, "correct_last")
        if len(kept):
            g = accuracy_gap(
                kept["correct_last"].to_numpy(), kept["monotone"].to_numpy(), kept["problem"].to_numpy(), seed=seed
            )
            row |= {
                "n": len(kept), "coverage": g.coverage, "gap_points": g.points.estimate, "lower": g.points.lower,
                "upper": g.points.upper, "odds_ratio": g.odds_ratio.estimate, "p_greater": g.p_greater,
            }  # fmt: skip
        both = table["monotone"].notna() & whole["monotone"].notna()
        row["flag_agreement"] = float((table["monotone"] == whole["monotone"])[both].mean()) if both.any() else math.nan
        mine, theirs = np.concatenate([*table["entropies"]]), np.concatenate([*whole["entropies"]])
        there = np.isfinite(mine) & np.isfinite(theirs)
        row["entropy_spearman"] = spearman(mine[there], theirs[there])
        rows.append(row)
    return pd.DataFrame(rows)


def rule_sensitivity(run: Run, epsilon: float = 0.01, seed: int = 0) -> pd.DataFrame:
    """The forced gap under each rule whose boundaries were in the pass: rule, points, n, coverage, gap_points, lower, upper,
    odds_ratio, p_greater."""
    rows = []
    for rule in json.loads(run.states["forced_by_rule"].iloc[0]):
        table = forced_table(run, epsilon, rule=rule)
        kept = usable(table, "correct_last")
        row: dict[str, Any] = {"rule": rule, "points": float(table["points"].mean()), "n": len(kept)}
        if len(kept):
            g = accuracy_gap(
                kept["correct_last"].to_numpy(), kept["monotone"].to_numpy(), kept["problem"].to_numpy(), seed=seed
            )
            row |= {
                "coverage": g.coverage, "gap_points": g.points.estimate, "lower": g.points.lower, "upper": g.points.upper,
                "odds_ratio": g.odds_ratio.estimate, "p_greater": g.p_greater,
            }  # fmt: skip
        rows.append(row)
    return pd.DataFrame(rows)


def anchor_sensitivity(run: Run) -> tuple[pd.DataFrame, float]:
    """How much the anchor's wording matters: Spearman's correlation of forced entropies between wordings, over all boundaries.

    Returns
    -------
    DataFrame
        anchor, other, spearman, n; one row a pair. Empty with a single anchor.
    float
        Mean over the pairs; NaN without pairs.
    """
    names = json.loads(run.states["forced_anchors"].iloc[0])
    values = np.concatenate([run.ragged("forced_entropies", i) for i in range(len(run))], axis=1)
    rows = []
    for i in range(len(names)):
        for j in range(i + 1, len(names)):
            there = np.isfinite(values[i]) & np.isfinite(values[j])
            rows.append(
                {
                    "anchor": names[i],
                    "other": names[j],
                    "spearman": spearman(values[i][there], values[j][there]),
                    "n": int(there.sum()),
                }
            )
    pairs = pd.DataFrame(rows, columns=["anchor", "other", "spearman", "n"])
    return pairs, float(pairs["spearman"].mean()) if len(pairs) else math.nan
