"""Intervals and tests, each saying its method, level, resamples and how many resamples were undefined.

Guarantees that a quantity which the data do not define (one class, no rows) comes back as NaN with the reason, never
as 0 or 0.5, and that every random choice is seeded. What scipy and statsmodels compute, they compute.
"""

from __future__ import annotations

from ...declared import Alternative
from .effects import cliffs_delta, cohen_dz, cohen_h
from .proportions import counts_from_percent, difference_of_proportions, wilson
from .ranking import (
    auroc,
    auroc_difference_test,
    bootstrap_auroc,
    bootstrap_auroc_difference,
    bootstrap_macro_auroc,
    bootstrap_stratified_auroc,
    newcombe_auroc,
)
from .resampling import (
    bootstrap_mean,
    bootstrap_spearman,
    paired_difference,
    percentile_interval,
    permuted_rows,
    resample_weights,
)
from .results import Holm, Interval, Test, undefined_interval
from .significance import fisher, holm, mcnemar, permutation_p, sign_flip
from .values import as_float, missing

__all__ = [
    "Alternative",
    "Holm",
    "Interval",
    "Test",
    "as_float",
    "auroc",
    "auroc_difference_test",
    "bootstrap_auroc",
    "bootstrap_auroc_difference",
    "bootstrap_macro_auroc",
    "bootstrap_mean",
    "bootstrap_spearman",
    "bootstrap_stratified_auroc",
    "cliffs_delta",
    "cohen_dz",
    "cohen_h",
    "counts_from_percent",
    "difference_of_proportions",
    "fisher",
    "holm",
    "mcnemar",
    "missing",
    "newcombe_auroc",
    "paired_difference",
    "percentile_interval",
    "permutation_p",
    "permuted_rows",
    "resample_weights",
    "sign_flip",
    "undefined_interval",
    "wilson",
]
