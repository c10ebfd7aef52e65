"""The tables of a study as people read them: which columns, under which names, with which caption.

Guarantees that every table says how its numbers were made.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ...analysis import hypotheses
from ...analysis.cells import RunAnalysis
from . import boundaries as both
from .cells import BEFORE, OUTCOMES, shown_cells
from .shown import Shown, shown_frame

_CELL = (("benchmark", "benchmark", 0), ("regime", "regime", 0))
_OUTCOME_CAPTION = (
    "Accuracy with its Wilson interval. AUROC of a linear probe on held-out items with its 95% interval; a note "
    "names small test parts."
)
_ROBUSTNESS = (
    *_CELL,
    ("test n", "n_test", 0),
    ("positive", "test_positives", 0),
    ("train", "train_auroc", 2),
    ("test", "test_auroc", 2),
    ("gap", "gap", 2),
    ("shuffled", "shuffle_auroc", 2),
    ("p", "shuffle_p", 3),
    ("splits mean", "splits_mean", 2),
    ("sd", "splits_sd", 2),
    ("probe − H", "probe_minus_entropy", 2),
    ("density", "mixture_auroc", 2),
    ("Brier", "brier", 3),
    ("base rate", "brier_base_rate", 3),
)
_ROBUSTNESS_CAPTION = (
    "AUROC on training and test items, percentile bootstrap. Shuffled: mean over refits on permuted training "
    "labels, with the permutation p value. Splits: repeated 60/20/20 splits. Probe − H: paired difference to the "
    "AUROC of −H on the same test items. Density: log-density of a Gaussian mixture fitted without outcomes."
)
_PREDICTORS = (
    *_CELL,
    ("predictor", "predictor", 0),
    ("sign", "sign", 0),
    ("n", "n", 0),
    ("AUROC", "auroc", 2),
    ("Spearman", "spearman", 2),
)
_PREDICTOR_CAPTION = "Single columns against correctness, over all states; the sign was fixed in advance."
_OPTIONS = (
    *_CELL,
    ("n", "n", 0),
    ("mass < 1%", "too_little_mass", 0),
    ("option H", "option_entropy_bits", 2),
    ("of log2 K", "option_relative_entropy", 2),
    ("mass", "option_mass", 3),
    ("margin", "option_margin", 2),
    ("agreement", "agreement", 2),
    ("best option right", "choice_accuracy", 2),
    ("answer right", "answer_accuracy", 2),
    ("knew, not said", "knew_not_said", 0),
    ("said, not known", "said_not_knew", 0),
    ("no answer", "unanswered", 0),
    ("right letters", "gold", 0),
    ("letters said", "said", 0),
    ("McNemar p", "mcnemar_p", 3),
    ("shared bits", "information_bits", 2),
    ("p", "information_p", 3),
)
_OPTION_CAPTION = (
    "Option H: entropy renormalised over the options; mass: probability of all options before renormalising; margin: "
    "log-odds of the best option over the second (nats). Best option: argmax before the first token. Shared bits: "
    "its mutual information with the emitted answer (Miller-Madow), permutation p. Letters: how often each is right, and is "
    "said; a model that says one letter whatever the question has the share of that letter as its accuracy. States whose options hold "
    "less than 1% of the probability are counted (mass < 1%) and left out of all but the mass: what is read there is not meaningful."
)
_TRANSFER = (
    ("over", "over", 0),
    ("within", "within", 0),
    ("train", "train", 0),
    ("test", "test", 0),
    ("test n", "n_test", 0),
    ("AUROC", "auroc", 2),
    ("loss to own probe", "degradation", 2),
)
_TRANSFER_CAPTION = "Trained on one regime's (or benchmark's) training items, scored on another's test items."
_AFTER = (
    *_CELL,
    ("after", "place", 0),
    ("reached", "reached", 0),
    ("test n", "n_test", 0),
    ("AUROC before", "before", 2),
    ("AUROC after", "after", 2),
    ("difference", "difference", 2),
    ("bits before", "bits_before", 2),
    ("p before", "bits_before_p", 3),
    ("bits after", "bits_after", 2),
    ("p after", "bits_after_p", 3),
)
_AFTER_CAPTION = (
    "The same probe on the state before the first token and on the state after that many output tokens (or at the "
    "anchor), on the same split; difference with its paired bootstrap interval. Reached: states whose output got there; "
    "the others are left out of both. Bits: mutual information (Miller-Madow) of the answer given with the one that a "
    "probe reads from the state, over test items, with its permutation p."
)
_BEFORE_CAPTION = (
    "H: mean ± sd. ΔH: regime minus baseline on the same items. d_eff: plug-in, with its ceiling n − 1; the unbiased "
    "estimate has none, and is noisy where n is small."
)

TESTS = "Tests"
"""Title of the table of declared hypotheses."""


def study_tables(
    analyses: Sequence[RunAnalysis],
    robustness: pd.DataFrame,
    predictors: pd.DataFrame,
    options: pd.DataFrame,
    transfer: pd.DataFrame,
    after: pd.DataFrame,
    boundaries: pd.DataFrame,
    tests: pd.DataFrame,
) -> tuple[Shown, ...]:
    """The tables of a report in the order shown; those without a row are left out, but for the first four."""
    shown = [
        shown_cells(analyses, BEFORE, "Before the first token", _BEFORE_CAPTION),
        shown_cells(analyses, OUTCOMES, "Outcomes and recoverability", _OUTCOME_CAPTION),
        shown_frame(robustness, _ROBUSTNESS, "Robustness of the probe", _ROBUSTNESS_CAPTION),
        shown_frame(predictors, _PREDICTORS, "What else predicts a correct answer", _PREDICTOR_CAPTION),
    ]
    for frame, columns, title, caption in (
        (options, _OPTIONS, "Options: known, said", _OPTION_CAPTION),
        (
            transfer.rename(columns={"lower": "auroc_lower", "upper": "auroc_upper"}),
            _TRANSFER,
            "Transfer",
            _TRANSFER_CAPTION,
        ),
        (after, _AFTER, "Before and after the first tokens", _AFTER_CAPTION),
        (boundaries, both.COLUMNS, "Before thinking, before answering", both.CAPTION),
        (tests, hypotheses.COLUMNS, TESTS, hypotheses.CAPTION),
    ):
        if len(frame):
            shown.append(shown_frame(frame, columns, title, caption))
    return tuple(shown)
