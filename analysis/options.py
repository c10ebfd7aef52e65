"""Multiple choice: what the distribution over the options says before the first token, against what was then emitted.

Guarantees that option-normalised numbers are given together with the raw probability mass on the options: an entropy
over options that share 2% of the distribution says little, and here the reader sees that. States whose options hold less than 1%
are left out of all but the mass, and a cell that has only such states has no such numbers, with the reason.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..schema import LEAST_OPTION_MASS
from . import information, statistics
from .information import Information
from .statistics import Interval, Test


@dataclass(frozen=True)
class OptionSummary:
    """Options of one cell.

    Attributes
    ----------
    n : int
        States whose options hold at least 1% of the probability; all but the mass is over these.
    too_little_mass : int
        The others.
    entropy_bits, mass, margin : Interval
        Means over states: entropy of the distribution renormalised over the options (bits), probability on all options
        before renormalising, and difference between the two best options' log-probabilities (nats).
    relative_entropy : Interval
        Entropy over its ceiling log2(K).
    agreement : Interval
        Share of states whose argmax option is the emitted answer, among states with an emitted answer (Wilson).
    choice_accuracy, answer_accuracy : Interval
        Accuracy of the argmax option and of the emitted answer over the same states (Wilson; no answer counts as
        wrong).
    knew_not_said, said_not_knew : int
        States whose argmax option was right and the emitted answer was not, and the reverse.
    test : Test
        McNemar test of the two accuracies.
    unanswered : int
        States without an emitted answer.
    information : Information
        Mutual information (bits) of the argmax option and the emitted answer, over states with an answer.
    """

    n: int
    entropy_bits: Interval
    relative_entropy: Interval
    mass: Interval
    margin: Interval
    agreement: Interval
    choice_accuracy: Interval
    answer_accuracy: Interval
    knew_not_said: int
    said_not_knew: int
    unanswered: int
    test: Test
    information: Information
    too_little_mass: int = 0


def summary(states: pd.DataFrame, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> OptionSummary | None:
    """Option diagnostics of one cell's states; None for a free-response cell.

    Reads the columns option_entropy_bits, option_mass, option_margin, option_choice, answer, gold and choices.
    """
    if "option_choice" not in states or "option_mass" not in states:
        return None
    rows = states[states["option_choice"].notna() | (states["option_mass"] < LEAST_OPTION_MASS)]
    if not len(rows):
        return None
    masses = rows["option_mass"]
    rows = rows[(masses >= LEAST_OPTION_MASS) & rows["option_choice"].notna()]
    too_little = len(masses) - len(rows)
    reason = f"not meaningful: the options hold {masses.mean():.2g} of the probability on average, less than {LEAST_OPTION_MASS:g} in all {too_little} states"

    def mean(values: pd.Series) -> Interval:
        if not len(values):
            return statistics.undefined_interval(reason, level=level)
        return statistics.bootstrap_mean(values, resamples, level, seed)

    choice = rows["option_choice"].astype(str)
    gold = rows["gold"].astype(str)
    answered = rows["answer"].notna()
    answer = rows["answer"].astype(object).where(answered, "").astype(str)
    knew, said = (choice == gold).to_numpy(), (answered & (answer == gold)).to_numpy()
    generated = rows["text"].notna() if "text" in rows else answered
    same = int((choice[answered] == answer[answered]).sum())
    missing_text = not generated.any()
    no_output = statistics.undefined_interval("no output was generated" if len(rows) else reason, level=level)
    return OptionSummary(
        n=len(rows),
        entropy_bits=mean(rows["option_entropy_bits"]),
        relative_entropy=mean(rows["option_entropy_bits"] / np.log2(option_count(rows))),
        mass=mean(masses),
        margin=mean(rows["option_margin"]),
        agreement=no_output if missing_text else statistics.wilson(same, int(answered.sum()), level),
        choice_accuracy=statistics.wilson(int(knew.sum()), len(rows), level) if len(rows) else no_output,
        answer_accuracy=no_output if missing_text else statistics.wilson(int(said.sum()), len(rows), level),
        knew_not_said=0 if missing_text else int((knew & ~said).sum()),
        said_not_knew=0 if missing_text else int((said & ~knew).sum()),
        unanswered=int((generated & ~answered).sum()),
        test=statistics.mcnemar(knew, np.full(len(rows), np.nan) if missing_text else said),
        information=information.mutual_information(
            choice, rows["answer"], resamples=min(resamples, 1000), permutations=200, level=level, seed=seed
        ),
        too_little_mass=too_little,
    )


def option_count(states: pd.DataFrame) -> np.ndarray:
    """Number of options K of each state [n], read from the `choices` column (JSON object); NaN where it is missing."""
    counts = []
    for value in states["choices"] if "choices" in states else [None] * len(states):
        known = value is not None and value == value
        counts.append(float(len(json.loads(str(value)))) if known else np.nan)
    return np.array(counts)
