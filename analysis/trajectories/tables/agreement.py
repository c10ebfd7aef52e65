"""Whether two readings of the same chains agree: the two outcome definitions, and runs of the same items.

Guarantees that chains without an answer on either side are not counted as agreeing.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from ..statistics import spearman


def agreement(table: pd.DataFrame) -> dict[str, float]:
    """How often the two outcome definitions agree, as shares: the same answer (of chains that have one under either), the same
    verdict (of chains with a gold answer); and how many chains there are."""
    known = table["correct_last"].notna() & table["correct_own"].notna()
    verdict = (table["correct_last"] == table["correct_own"])[known]
    return {
        "same_answer": _same_answer(table["answer_last"], table["answer_own"]),
        "same_verdict": float(verdict.mean()) if len(verdict) else math.nan,
        "chains": len(table),
    }


def run_agreement(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Agreement between runs of the same items (other seeds, or other segmentations), one row a pair of runs.

    Returns
    -------
    DataFrame
        run, other, n (chains in both), same_flag, kappa (Cohen's, of the flag), same_answer (of chains with an answer in either),
        spearman_violations, spearman_final. Undefined values are NaN.
    """
    names = list(tables)
    rows = []
    for i in range(len(names)):
        for j in range(i + 1, len(names)):
            a, b = tables[names[i]].set_index("chain"), tables[names[j]].set_index("chain")
            shared = [c for c in a.index if c in b.index and not a.at[c, "excluded"] and not b.at[c, "excluded"]]
            a, b = a.loc[shared], b.loc[shared]
            x, y = a["monotone"].astype(bool).to_numpy(), b["monotone"].astype(bool).to_numpy()
            rows.append(
                {
                    "run": names[i], "other": names[j], "n": len(shared),
                    "same_flag": float((x == y).mean()) if len(shared) else math.nan, "kappa": _kappa(x, y),
                    "same_answer": _same_answer(a["answer_last"], b["answer_last"]),
                    "spearman_violations": spearman(a["violations"].astype(float).to_numpy(), b["violations"].astype(float).to_numpy()),
                    "spearman_final": spearman(a["final"].to_numpy(), b["final"].to_numpy()),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def _same_answer(a: pd.Series, b: pd.Series) -> float:
    """Share of rows with equal answers, of those that have one on either side; NaN where none has."""
    pairs = [(p, q) for p, q in zip(a, b, strict=True) if not (pd.isna(p) and pd.isna(q))]
    return float(np.mean([not pd.isna(p) and not pd.isna(q) and p == q for p, q in pairs])) if pairs else math.nan


def _kappa(x: np.ndarray, y: np.ndarray) -> float:
    if not len(x):
        return math.nan
    chance = x.mean() * y.mean() + (1 - x.mean()) * (1 - y.mean())
    return float(((x == y).mean() - chance) / (1 - chance)) if chance < 1 else math.nan
