"""Scores of a detector: rates at a frozen threshold, their product, and what is left of them beyond an effect that is there anyway.

Guarantees that a threshold is chosen on validation rows and only applied elsewhere, that intervals resample whole questions,
and that a score whose class is missing is NaN with the reason. It prevents the usual flattery of detection papers: a threshold
picked on the test part, and intervals over rows that share a question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from ..errors import RequestError
from .statistics import Interval, bootstrap_auroc, percentile_interval, resample_weights, undefined_interval

THRESHOLDS = np.arange(1, 100) / 100
"""The 99 thresholds 0.01 to 0.99 that a validation part chooses from."""


@dataclass(frozen=True)
class Rates:
    """How a detector does at one threshold; NaN where a class is missing.

    Attributes
    ----------
    tpr, tnr : float
        Shares of positives called positive, and of negatives called negative.
    gmean2 : float
        Their product, the square of their geometric mean; 0.25 for a coin, 0 for a constant answer.
    called : float
        Share of all rows that are called positive.
    """

    tpr: float
    tnr: float
    gmean2: float
    called: float


def rates(y: np.ndarray, called: np.ndarray) -> Rates:
    """Rates of a detector's calls.

    Parameters
    ----------
    y : [n] 0/1
    called : [n] bool

    Returns
    -------
    Rates

    Examples
    --------
    >>> import numpy as np
    >>> rates(np.array([1, 1, 0, 0]), np.array([True, False, False, False])).gmean2
    0.5
    """
    positive, fired = np.asarray(y, dtype=bool), np.asarray(called, dtype=bool)
    if positive.shape != fired.shape or positive.ndim != 1:
        raise RequestError(f"labels {positive.shape} and calls {fired.shape} must be equally long and flat")
    tpr = float(fired[positive].mean()) if positive.any() else math.nan
    tnr = float((~fired[~positive]).mean()) if (~positive).any() else math.nan
    return Rates(tpr, tnr, tpr * tnr, float(fired.mean()) if fired.size else math.nan)


def choose_threshold(y: np.ndarray, score: np.ndarray) -> float:
    """The threshold of `THRESHOLDS` with the largest g-mean² where a row counts as positive at `score >= threshold`.

    Of several that are as good, the one in their middle. NaN when the rows hold one class.

    Parameters
    ----------
    y : [n] 0/1
    score : [n] in [0, 1]

    Raises
    ------
    RequestError
        A score lies outside [0, 1].

    Examples
    --------
    >>> import numpy as np
    >>> choose_threshold(np.array([0, 0, 1, 1]), np.array([0.1, 0.3, 0.7, 0.9]))
    0.5
    """
    score = np.asarray(score, dtype=np.float64)
    if not ((score >= 0) & (score <= 1)).all():
        raise RequestError("scores must lie in [0, 1], where thresholds are looked for; pass probabilities")
    products = np.array([rates(y, score >= threshold).gmean2 for threshold in THRESHOLDS])
    if not np.isfinite(products).any():
        return math.nan
    best = np.flatnonzero(products >= np.nanmax(products) - 1e-12)
    return float(THRESHOLDS[best[(len(best) - 1) // 2]])


def adjusted_tpr(tpr: float, fpr: float, explained: float) -> float:
    r"""Share of the rows made by an intervention that a detector finds, when only some positives were made by it.

    Of the positives a share :math:`s` is explained by the intervention; the others would have been there without it and are
    called like negatives, so that :math:`TPR = s\,TPR^* + (1 - s)\,FPR` is solved for :math:`TPR^*` and kept within [0, 1]. This
    is the correction for a class that holds rows of the other one (Rogan and Gladen 1978; Natarajan et al. 2013).

    Parameters
    ----------
    tpr, fpr : float
    explained : float
        In (0, 1]; of matching rollouts, (p1 - p0) / p1 with their rates with and without the intervention.

    Examples
    --------
    >>> round(adjusted_tpr(0.7, 0.2, 0.8), 3)
    0.825
    """
    if not 0 < explained <= 1:
        return math.nan
    return float(np.clip((tpr - (1 - explained) * fpr) / explained, 0.0, 1.0))


@dataclass(frozen=True)
class Detection:
    """A detector on one part, at a threshold that was chosen elsewhere.

    Attributes
    ----------
    gmean2, auroc, tpr, tnr : Interval
        Over questions.
    adjusted : Interval or None
        g-mean² with the adjusted TPR; None for a task without an intervention.
    called : float
        Share of the rows that are called positive.
    threshold : float
    rows, questions, positives : int
    """

    gmean2: Interval
    auroc: Interval
    tpr: Interval
    tnr: Interval
    adjusted: Interval | None
    called: float
    threshold: float
    rows: int
    questions: int
    positives: int


def detection(
    y: np.ndarray,
    score: np.ndarray,
    threshold: float | np.ndarray,
    questions: Sequence[Any] | np.ndarray,
    explained: np.ndarray | None = None,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Detection:
    """Scores of a detector with intervals over questions.

    Parameters
    ----------
    y : [n] 0/1
    score : [n]
    threshold : float or [n]
        Chosen on other rows; a row is called positive at `score >= threshold`.
    questions : [n]
        Rows of one question are drawn together.
    explained : [n], optional
        For positives, the share of their kind that the intervention explains; NaN elsewhere.
    resamples, level, seed
        Of the bootstrap.

    Returns
    -------
    Detection
    """
    positive = np.asarray(y, dtype=np.float64)
    score = np.asarray(score, dtype=np.float64)
    names = np.asarray(questions, dtype=object)
    called = (score >= threshold).astype(np.float64)
    share = None if explained is None else np.nan_to_num(np.asarray(explained, dtype=np.float64))

    def tpr(w: np.ndarray) -> np.ndarray:
        return _share(w, positive * called, positive)

    def tnr(w: np.ndarray) -> np.ndarray:
        return _share(w, (1 - positive) * (1 - called), 1 - positive)

    def adjusted(w: np.ndarray) -> np.ndarray:
        assert share is not None
        s = _share(w, positive * share, positive)
        with np.errstate(invalid="ignore", divide="ignore"):
            true = np.clip((tpr(w) - (1 - s) * (1 - tnr(w))) / s, 0.0, 1.0)
        return np.asarray(np.where(s > 0, true, np.nan) * tnr(w))

    def interval(statistic: Callable[[np.ndarray], np.ndarray]) -> Interval:
        return _over_questions(statistic, names, resamples, level, seed)

    one_class = undefined_interval("one class only", level=level, n=positive.size)
    both = 0 < positive.sum() < positive.size and bool(np.isfinite(threshold).all())
    return Detection(
        gmean2=interval(lambda w: tpr(w) * tnr(w)) if both else one_class,
        auroc=bootstrap_auroc(positive, score, resamples, level, seed, names),
        tpr=interval(tpr) if both else one_class,
        tnr=interval(tnr) if both else one_class,
        adjusted=None if share is None else interval(adjusted) if both else one_class,
        called=float(called.mean()) if called.size else math.nan,
        threshold=float(np.mean(threshold)),
        rows=positive.size,
        questions=len(set(names.tolist())),
        positives=int(positive.sum()),
    )


def gmean2_difference(
    y: np.ndarray,
    called_a: np.ndarray,
    called_b: np.ndarray,
    questions: Sequence[Any] | np.ndarray,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """g-mean²(a) - g-mean²(b) of two detectors' calls on the same rows, both in the same resamples of questions."""
    positive = np.asarray(y, dtype=np.float64)

    def product(w: np.ndarray, called: np.ndarray) -> np.ndarray:
        fired = np.asarray(called, dtype=np.float64)
        return np.asarray(_share(w, positive * fired, positive) * _share(w, (1 - positive) * (1 - fired), 1 - positive))

    names = np.asarray(questions, dtype=object)
    return _over_questions(lambda w: product(w, called_a) - product(w, called_b), names, resamples, level, seed)


@dataclass(frozen=True)
class Prediction:
    """A number predicted on one part.

    Attributes
    ----------
    r2 : Interval
        1 - MSE / variance, over questions.
    rank : Interval
        Spearman's correlation, over questions.
    recalibrated_r2 : Interval
        R² of a line fitted to the rows of some labelled questions, on the rows of the others.
    rows, questions : int
    labelled : int
        Questions that the line was fitted to.
    """

    r2: Interval
    rank: Interval
    recalibrated_r2: Interval
    rows: int
    questions: int
    labelled: int


def prediction(
    target: np.ndarray,
    predicted: np.ndarray,
    questions: Sequence[Any] | np.ndarray,
    labelled: int = 10,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Prediction:
    """How well a number is predicted, as it stands, by rank, and after a line fitted to a few labelled questions.

    Parameters
    ----------
    target, predicted : [n]
    questions : [n]
    labelled : int
        Questions of which the labels are used for the line, drawn with the seed; at most half of them.
    resamples, level, seed
        Of the bootstrap.

    Returns
    -------
    Prediction
    """
    y = np.asarray(target, dtype=np.float64)
    guess = np.asarray(predicted, dtype=np.float64)
    names = np.asarray(questions, dtype=object)
    order = sorted(set(names.tolist()))
    picked = np.random.default_rng(seed).permutation(len(order))[: min(labelled, len(order) // 2)]
    known = np.isin(names, [order[i] for i in picked])
    recalibrated = undefined_interval("fewer than two questions", level=level)
    if known.any() and (~known).any() and np.ptp(guess[known]) > 0:
        slope, offset = np.polyfit(guess[known], y[known], 1)
        recalibrated = _r2(y[~known], slope * guess[~known] + offset, names[~known], resamples, level, seed)
    return Prediction(
        r2=_r2(y, guess, names, resamples, level, seed),
        rank=_rank(y, guess, names, resamples, level, seed),
        recalibrated_r2=recalibrated,
        rows=y.size,
        questions=len(order),
        labelled=len(picked),
    )


def _r2(y: np.ndarray, guess: np.ndarray, names: np.ndarray, resamples: int, level: float, seed: int) -> Interval:
    def statistic(w: np.ndarray) -> np.ndarray:
        total = w.sum(1)
        mean = w @ y / total
        variance = (w * (y - mean[:, None]) ** 2).sum(1) / total
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(variance > 0, 1 - (w @ (y - guess) ** 2 / total) / variance, np.nan)

    return _over_questions(statistic, names, resamples, level, seed)


def _rank(y: np.ndarray, guess: np.ndarray, names: np.ndarray, resamples: int, level: float, seed: int) -> Interval:
    if y.size < 3 or np.ptp(y) == 0 or np.ptp(guess) == 0:
        return undefined_interval("a variable is constant", level=level, n=y.size)
    a, b = rankdata(y), rankdata(guess)

    def statistic(w: np.ndarray) -> np.ndarray:
        total = w.sum(1)
        da, db = (r - (w @ r / total)[:, None] for r in (a, b))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray((w * da * db).sum(1) / np.sqrt((w * da**2).sum(1) * (w * db**2).sum(1)))

    return _over_questions(statistic, names, resamples, level, seed)


def _over_questions(
    statistic: Callable[[np.ndarray], np.ndarray], names: np.ndarray, resamples: int, level: float, seed: int
) -> Interval:
    """A statistic of row weights [r, n] with its percentile bootstrap over questions."""
    method = "percentile bootstrap over questions"
    n = len(names)
    if n == 0:
        return undefined_interval("no rows", method=method, level=level)
    estimate = float(statistic(np.ones((1, n)))[0])
    draws = np.concatenate([statistic(w) for w in resample_weights(n, resamples, seed, names)])
    return percentile_interval(estimate, draws, level=level, method=method, n=n)


def _share(weights: np.ndarray, part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Weighted share of `whole` that is in `part`, for each row of weights."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((weights @ part) / (weights @ whole))
