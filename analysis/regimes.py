"""What a regime does to the entropy of the next-token distribution, and what that entropy predicts.

Guarantees that a change is labelled only when its paired interval excludes 0, and that the plainest predictors (tokens,
compliance) stand beside the entropy. It prevents labels read off a difference of two means that noise explains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from . import statistics
from .statistics import Interval

FALLING, RISING, UNCLEAR = "CF", "EC", "unclear"
FEWEST_PAIRS = (
    6  # five pairs of one sign have a two-sided sign-test p of 2 / 2**5 = 0.0625: no label at 5% could be right
)


@dataclass(frozen=True)
class EntropyChange:
    """Paired change of H (bits) of a regime against the baseline on the same items.

    Attributes
    ----------
    change : Interval
        Mean of H(regime) - H(baseline) over items that have both.
    label : str
        "CF" (falls) or "EC" (rises) when the interval excludes 0 and there are at least `FEWEST_PAIRS` pairs, "unclear"
        otherwise, "" without an interval.
    effect : float
        Mean over standard deviation of the paired changes (Cohen's dz).
    """

    change: Interval
    label: str
    effect: float


def entropy_change(
    regime: pd.Series,
    baseline: pd.Series,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> EntropyChange:
    """Paired change of entropy.

    Parameters
    ----------
    regime, baseline : Series indexed by item
        H in bits. Items that one side lacks are left out and counted in `change.left_out`.
    """
    a, b = regime.align(baseline, join="outer")
    interval = statistics.paired_difference(a, b, resamples, level, seed)
    return EntropyChange(interval, label(interval), statistics.cohen_dz(a, b))


def label(change: Interval) -> str:
    """CF, EC or unclear from an interval of ΔH; empty when it is undefined. Under `FEWEST_PAIRS` pairs always unclear."""
    if not (np.isfinite(change.lower) and np.isfinite(change.upper)):
        return ""
    if change.excludes(0.0) and not 0 < change.n < FEWEST_PAIRS:
        return FALLING if change.estimate < 0 else RISING
    return UNCLEAR


# Predictors of a correct answer by column, each with the sign under which a higher score is meant to say "correct".
PREDICTORS = {
    "entropy_bits": -1.0,
    "option_entropy_bits": -1.0,
    "option_margin": 1.0,
    "option_mass": 1.0,
    "output_tokens": -1.0,
    "prompt_tokens": -1.0,
    "compliant": 1.0,
}


def predictive_power(
    states: pd.DataFrame, outcome: pd.Series, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> pd.DataFrame:
    """How well H and the plain baselines predict a yes/no outcome [n], state by state.

    The direction is fixed in advance (`PREDICTORS`: lower entropy, fewer tokens and a compliant output mean correct),
    so an AUROC below 0.5 says that the direction was wrong; nothing is flipped after the fact.

    Returns
    -------
    DataFrame
        One row per predictor that the states hold: `auroc`, `spearman` (Interval each) and `sign`.
    """
    rows = []
    for column, sign in PREDICTORS.items():
        if column not in states or states[column].isna().all():
            continue
        score = sign * states[column].astype("float64")
        rows.append(
            {
                "predictor": column,
                "sign": int(sign),
                "auroc": statistics.bootstrap_auroc(outcome, score, resamples, level, seed),
                "spearman": statistics.bootstrap_spearman(score, outcome, resamples, level, seed),
            }
        )
    return pd.DataFrame(rows, columns=["predictor", "sign", "auroc", "spearman"])
