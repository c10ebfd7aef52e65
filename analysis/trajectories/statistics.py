"""Whether the shape of an entropy trajectory says anything about the answer: every statistic, under one declared protocol.

Guarantees that excluded chains are counted and never filled in, that resampling is by problem (chains of one problem enter or
stay out together), that one- and two-sided tests are both named, and that a statistic which the data do not define is missing
with its reason.

A table has one row a chain: `problem`, `monotone`, `violations`, `max_violation`, `coherence`, `final`, `confidence`,
`length`, `excluded` and one or more outcome columns of booleans (`correct` by default).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ...declared import ESTIMATES, PVALUES, SCORES
from ...errors import RequestError
from ..statistics import Interval, holm, wilson
from .association import correlations, logistic, partial_spearman, spearman
from .filters import Triage, aurocs, selective_prediction, signed_scores, triage
from .gap import Gap, accuracy_gap, bootstrap_problems, gap_from_counts, violation_buckets
from .sensitivity import EPSILONS, early_exit_table, epsilon_table

__all__ = [
    "EPSILONS",
    "ESTIMATES",
    "PVALUES",
    "SCORES",
    "Gap",
    "TrajectoryStatistics",
    "Triage",
    "accuracy_gap",
    "bootstrap_problems",
    "early_exit_table",
    "epsilon_table",
    "family",
    "gap_from_counts",
    "partial_spearman",
    "signed_scores",
    "spearman",
    "trajectory_statistics",
    "triage",
    "usable",
    "violation_buckets",
]

COVERAGE = 0.737


@dataclass(frozen=True)
class TrajectoryStatistics:
    """All statistics of one table under one outcome.

    Attributes
    ----------
    outcome : str
    n, excluded, problems : int
        Chains that entered, chains left out (fewer than two points), distinct problems.
    accuracy : Interval
    gap : Gap
    correlations : DataFrame
        Spearman correlations with the outcome, and those with length held fixed: measure, n, rho, p, lower, upper, undefined, reason.
    buckets : DataFrame
        By violation count (0, 1, 2, 3 or more): n, correct, accuracy, lower, upper.
    logistic : DataFrame
        Standardised regression of the outcome on flag, length and final entropy: term, coefficient, lower, upper, odds_ratio, p, reason.
    auroc : DataFrame
        score, auroc, lower, upper, undefined, reason.
    selective : DataFrame
        score, aurc, lower, upper, aurc_truncated, accuracy_at_coverage, with the rows `oracle` and `random`.
    triage : tuple of Triage
    settings : dict
    """

    outcome: str
    n: int
    excluded: int
    problems: int
    accuracy: Interval
    gap: Gap
    correlations: pd.DataFrame
    buckets: pd.DataFrame
    logistic: pd.DataFrame
    auroc: pd.DataFrame
    selective: pd.DataFrame
    triage: tuple[Triage, ...]
    settings: Mapping[str, Any]

    def pvalues(self) -> dict[str, float]:
        """Named p values (`PVALUES`), from which a preregistered family is drawn; NaN where undefined."""
        found: dict[str, Any] = dict.fromkeys(PVALUES, math.nan)
        found |= {"fisher_greater": self.gap.p_greater, "fisher_two_sided": self.gap.p_two_sided}
        found |= {f"spearman_{r.measure}": r.p for r in self.correlations.itertuples()}
        found |= {f"logistic_{r.term}": r.p for r in self.logistic.itertuples()}
        return found

    def estimates(self) -> dict[str, float]:
        """Named estimates (`ESTIMATES`), against which preregistered criteria are held; NaN where undefined."""
        g = self.gap
        found: dict[str, Any] = dict.fromkeys(ESTIMATES, math.nan)
        found |= {
            "gap_points": g.points.estimate, "gap_points_lower": g.points.lower, "odds_ratio": g.odds_ratio.estimate,
            "coverage": g.coverage, "accuracy_monotone": g.accuracy_monotone.estimate,
            "accuracy_other": g.accuracy_other.estimate, "accuracy": self.accuracy.estimate,
        }  # fmt: skip
        found |= {f"spearman_{r.measure}": r.rho for r in self.correlations.itertuples()}
        found |= {f"auroc_{r.score}": r.auroc for r in self.auroc.itertuples()}
        found |= {f"aurc_{r.score}": r.aurc for r in self.selective.itertuples()}
        found |= {f"aurc_truncated_{r.score}": r.aurc_truncated for r in self.selective.itertuples()}
        return found


def usable(table: pd.DataFrame, outcome: str = "correct") -> pd.DataFrame:
    """The chains that enter: not excluded, with a known outcome; columns as plain floats and booleans.

    Raises
    ------
    RequestError
        When a column is missing.
    """
    needed = [
        "problem",
        "monotone",
        "violations",
        "max_violation",
        "coherence",
        "final",
        "confidence",
        "length",
        outcome,
    ]
    missing = [c for c in (*needed, "excluded") if c not in table.columns]
    if missing:
        raise RequestError(f"the table of chains lacks {', '.join(missing)}; make it with shape_table or chain_table")
    kept = table[~table["excluded"].astype(bool) & table[outcome].notna()][needed].reset_index(drop=True)
    numbers = ["violations", "max_violation", "coherence", "final", "confidence", "length"]
    kept[numbers] = kept[numbers].astype("float64")
    kept[["monotone", outcome]] = kept[["monotone", outcome]].astype(bool)
    return kept


def trajectory_statistics(
    table: pd.DataFrame,
    outcome: str = "correct",
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    coverage: float = COVERAGE,
    triage_coverages: Sequence[float] = (0.5, COVERAGE, 0.9),
) -> TrajectoryStatistics:
    """Every statistic of a table of chains.

    Parameters
    ----------
    table : DataFrame
        See the module's text.
    outcome : str
        Column of booleans.
    resamples, level, seed
        Of every bootstrap interval.
    coverage : float
        Where AURC is truncated and selective accuracy is read.
    triage_coverages : sequence of float
        Coverages of the learned filter.

    Raises
    ------
    RequestError
        When a column is missing or no chain is left.
    """
    kept = usable(table, outcome)
    if kept.empty:
        raise RequestError(f"no chain of {len(table)} has two points and a known outcome; nothing can be compared")
    y, problems = kept[outcome].to_numpy(), kept["problem"].to_numpy()
    how: dict[str, Any] = {"resamples": resamples, "level": level, "seed": seed}
    return TrajectoryStatistics(
        outcome=outcome,
        n=len(kept),
        excluded=int(len(table) - len(kept)),
        problems=int(kept["problem"].nunique()),
        accuracy=wilson(int(y.sum()), len(y), level),
        gap=accuracy_gap(y, kept["monotone"].to_numpy(), problems, **how),
        correlations=correlations(kept, y, problems, **how),
        buckets=violation_buckets(y, kept["violations"].to_numpy(), level),
        logistic=logistic(kept, y, problems, level),
        auroc=aurocs(kept, y, problems, **how),
        selective=selective_prediction(kept, y, problems, coverage, **how),
        triage=tuple(triage(kept, y, c, **how) for c in triage_coverages),
        settings={**how, "coverage": coverage, "resampled_by": "problem"},
    )


def family(pvalues: Mapping[str, float], names: Sequence[str], alpha: float = 0.05) -> pd.DataFrame:
    """Holm's adjustment over a declared family: name, p, p_holm, rejected.

    Raises
    ------
    RequestError
        When a name is not among the p values.
    """
    unknown = [n for n in names if n not in pvalues]
    if unknown:
        raise RequestError(f"no p value is called {', '.join(unknown)}; there are {', '.join(sorted(pvalues))}")
    p = np.array([pvalues[n] for n in names], dtype=np.float64)
    adjusted = holm(p, alpha)
    return pd.DataFrame({"name": list(names), "p": p, "p_holm": adjusted.adjusted, "rejected": adjusted.rejected})
