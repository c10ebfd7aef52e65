"""What the gap would be under other choices: the epsilon of the flag, and how many transitions it looks at.

Guarantees that epsilons which let the same steps pass are seen to be one rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from .gap import gap_from_counts
from .shapes import attainable_steps, early_exit, shape

EPSILONS = (0.0, 0.01, 0.05, 0.10)

_MOST_ANSWERS = 20  # the lattice of attainable steps grows like the square of the partitions of m


def epsilon_table(
    entropies: Sequence[Sequence[float | None]],
    correct: Sequence[bool],
    epsilons: Sequence[float] = EPSILONS,
    answers: int | None = None,
) -> pd.DataFrame:
    """The gap under each epsilon: epsilon, n, monotone, coverage, gap_points, odds_ratio, p_two_sided, p_greater, allowed_steps.

    `allowed_steps` counts the upward steps that `answers` sampled answers can make and this epsilon lets pass (missing when
    entropies are not sampled, or more than 20 were): epsilons with the same count are the same rule.
    """
    y = np.asarray(correct, dtype=bool)
    steps = None if answers is None or answers > _MOST_ANSWERS else attainable_steps(answers)
    rows = []
    for epsilon in epsilons:
        shapes = [shape(h, epsilon) for h in entropies]
        row = _gap_row(np.array([s.monotone is True for s in shapes]), np.array([s.reason is None for s in shapes]), y)
        allowed = None if steps is None else int((steps <= epsilon + 1e-12).sum())
        rows.append({"epsilon": epsilon, **row, "allowed_steps": allowed})
    return pd.DataFrame(rows)


def early_exit_table(
    entropies: Sequence[Sequence[float | None]], correct: Sequence[bool], epsilon: float = 0.01, longest: int = 8
) -> pd.DataFrame:
    """The gap of a flag that looks at the first k transitions only: k and the columns of `epsilon_table`; chains with fewer
    than k transitions are left out."""
    y = np.asarray(correct, dtype=bool)
    flags = [early_exit(h, epsilon) for h in entropies]
    rows = []
    for k in range(1, min(longest, max(map(len, flags), default=0)) + 1):
        there = np.array([len(f) >= k for f in flags])
        rows.append({"transitions": k, **_gap_row(np.array([len(f) >= k and f[k - 1] for f in flags]), there, y)})
    return pd.DataFrame(rows)


def _gap_row(flag: np.ndarray, there: np.ndarray, y: np.ndarray) -> dict[str, float]:
    flag, y = flag[there], y[there]
    g = gap_from_counts(int((y & flag).sum()), int(flag.sum()), int((y & ~flag).sum()), int((~flag).sum()))
    return {
        "n": int(there.sum()), "monotone": g.n_monotone, "coverage": g.coverage, "gap_points": g.points.estimate,
        "odds_ratio": g.odds_ratio.estimate, "p_two_sided": g.p_two_sided, "p_greater": g.p_greater,
    }  # fmt: skip
