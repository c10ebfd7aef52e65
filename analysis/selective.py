"""Selective prediction: how few errors remain when the least confident answers are withheld.

Guarantees that ties in a confidence are broken by seeded uniform draws that every compared score shares, so that two
scores are never separated by the luck of a sort. A score with few distinct values (a flag, a violation count) is mostly
ties; sorted as it stands, it would inherit the order of the rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..errors import RequestError


@dataclass(frozen=True)
class RiskCoverage:
    """Risk-coverage curve: `risk[i]` is the error rate among the i + 1 most confident, `coverage[i]` = (i + 1) / n.

    `risk` is averaged over the tie-breaking draws. Accuracy at a coverage is 1 - risk.
    """

    coverage: np.ndarray
    risk: np.ndarray
    draws: int
    seed: int


def checked(correct: np.ndarray, confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes as float64 0/1 and confidences as float64, both [n]; raises RequestError unless they fit and are finite."""
    y = np.asarray(correct, dtype=np.float64)
    c = np.asarray(confidence, dtype=np.float64)
    if y.ndim != 1 or y.shape != c.shape or len(y) == 0:
        raise RequestError(f"correct and confidence must be equally long and not empty, got {y.shape} and {c.shape}")
    if not np.isin(y, (0.0, 1.0)).all():
        raise RequestError("correct must hold 0 and 1 (or booleans) only")
    if np.isnan(c).any():
        raise RequestError(f"confidence holds {int(np.isnan(c).sum())} missing values; leave those chains out first")
    return y, c


def accepted_count(coverage: float, n: int) -> int:
    """How many of n are accepted at a coverage: exactly round(coverage * n), halves upwards.

    Raises
    ------
    RequestError
        When the coverage is not in (0, 1] or accepts nobody.
    """
    if not 0 < coverage <= 1:
        raise RequestError(f"coverage must be above 0 and at most 1, got {coverage}")
    k = math.floor(coverage * n + 0.5 + 1e-9)
    if k == 0:
        raise RequestError(f"a coverage of {coverage} accepts none of {n}; use a larger coverage")
    return k


def tie_breaks(n: int, draws: int, seed: int) -> np.ndarray:
    """Uniform tie-breakers [draws, n]; the same (n, draws, seed) gives the same ones, whatever score they are used on."""
    if draws < 1:
        raise RequestError(f"draws must be 1 or more, got {draws}")
    return np.random.default_rng(seed).random((draws, n))


def acceptance_order(confidence: np.ndarray, ties: np.ndarray) -> np.ndarray:
    """Indices from most to least confident, int64 [draws, n], with ties ordered by each draw's uniforms."""
    confidence = np.broadcast_to(confidence, ties.shape)
    return np.lexsort((ties, -confidence), axis=-1)


def risk_coverage(correct: np.ndarray, confidence: np.ndarray, draws: int = 50, seed: int = 0) -> RiskCoverage:
    """Risk-coverage curve with seeded ties.

    Parameters
    ----------
    correct : array of bool, [n]
    confidence : array of float, [n]
        Higher is accepted earlier.
    draws, seed : int
        Tie-breaking draws that are averaged, and their seed.
    """
    y, c = checked(correct, confidence)
    n = len(y)
    order = acceptance_order(c, tie_breaks(n, draws, seed))
    accepted = np.arange(1, n + 1)
    risk = (np.cumsum(1.0 - y[order], axis=1) / accepted).mean(axis=0)
    return RiskCoverage(accepted / n, risk, draws, seed)


def expected_risk(correct: np.ndarray, confidence: np.ndarray) -> np.ndarray:
    """Exact expectation of the selective risk over uniform tie-breaking, float64 [n].

    Within a block of g tied confidences holding e errors, the j-th accepted adds j * e / g errors on average: the limit
    of `risk_coverage` as draws grow.
    """
    y, c = checked(correct, confidence)
    order = np.argsort(-c, kind="stable")
    errors, ranked = (1.0 - y)[order], c[order]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
    sizes = np.diff(np.r_[starts, len(y)])
    rate = np.repeat(np.add.reduceat(errors, starts) / sizes, sizes)
    return np.cumsum(rate) / np.arange(1, len(y) + 1)


def area(risk: np.ndarray, max_coverage: float = 1.0) -> float:
    """Mean of a risk curve [n] over its first round(max_coverage * n) points."""
    return float(np.mean(risk[: accepted_count(max_coverage, len(risk))]))


def aurc(
    correct: np.ndarray, confidence: np.ndarray, max_coverage: float = 1.0, draws: int = 50, seed: int = 0
) -> float:
    """Area under the risk-coverage curve: the mean selective risk over coverages 1/n, 2/n, ..., max_coverage.

    Parameters
    ----------
    correct : array of bool, [n]
    confidence : array of float, [n]
        Higher is accepted earlier.
    max_coverage : float, default 1.0
        Truncation: only the first round(max_coverage * n) coverages enter the mean.
    draws, seed : int
        Ties are broken by seeded uniforms and the result averaged over the draws. Equal n, draws and seed give equal
        tie-breakers, so scores are compared on shared draws.

    Returns
    -------
    float
        In [0, 1]; lower is better. See `oracle_aurc` for the best that an error rate allows.

    References
    ----------
    Geifman, Uziel and El-Yaniv, Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers, ICLR 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from precollapse.analysis import selective
    >>> correct = np.array([True, True, True, False])
    >>> round(selective.aurc(correct, confidence=np.array([0.9, 0.8, 0.7, 0.1])), 4)  # the one error is answered last
    0.0625
    """
    return area(risk_coverage(correct, confidence, draws, seed).risk, max_coverage)


def oracle_aurc(correct: np.ndarray, max_coverage: float = 1.0) -> float:
    """AURC of a score that ranks every correct answer before every wrong one; tends to `oracle_limit` as n grows."""
    y = np.sort(np.asarray(correct, dtype=np.float64))[::-1]
    return area(np.cumsum(1.0 - y) / np.arange(1, len(y) + 1), max_coverage)


def oracle_limit(risk: float) -> float:
    """r + (1 - r) ln(1 - r): the oracle's AURC at error rate r for n to infinity."""
    if not 0 <= risk <= 1:
        raise RequestError(f"an error rate lies between 0 and 1, got {risk}")
    return 1.0 if risk == 1 else risk + (1 - risk) * math.log1p(-risk)


def selective_accuracy(
    correct: np.ndarray, confidence: np.ndarray, coverage: float, draws: int = 50, seed: int = 0
) -> float:
    """Accuracy among the round(coverage * n) most confident, averaged over seeded tie-breaking draws."""
    curve = risk_coverage(correct, confidence, draws, seed)
    return float(1.0 - curve.risk[accepted_count(coverage, len(curve.risk)) - 1])
