"""Contrast-consistent search: a direction on which a statement and its negation get opposite truth values, without
labels.

Guarantees that labels are used for one thing only, the sign of the direction (which the loss cannot know), and only
those of training items; and that statement and negation are normalised apart, so that the direction cannot read off
which of the two words was appended. Follows Burns et al. (2023), "Discovering latent knowledge in language models
without supervision".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ...errors import RequestError
from .. import statistics
from ..statistics import Interval
from ..threads import single_threaded
from . import splits
from .rowspace import Layers
from .splits import Split
from .targets import Target


@dataclass(frozen=True)
class ContrastConsistent:
    """Outcome of contrast-consistent search.

    Attributes
    ----------
    test_auroc : Interval
        Of the averaged truth value on test items.
    test_accuracy : Interval
        At the threshold 0.5 (Wilson).
    loss : float
        Best training loss, consistency + confidence; 0 is perfect.
    flipped : bool
        Whether training labels turned the sign.
    scores : [n] float
        Averaged truth value (p(yes) + 1 - p(no)) / 2 of all rows; NaN for rows left out.
    reason : str
    """

    test_auroc: Interval
    test_accuracy: Interval
    loss: float
    flipped: bool
    components: int
    scores: np.ndarray = field(repr=False)
    reason: str = ""


def search(
    yes: np.ndarray,
    no: np.ndarray,
    y: Sequence[Any] | np.ndarray | pd.Series,
    items: Sequence[Any] | np.ndarray | None = None,
    seed: int = 0,
    restarts: int = 10,
    components: int = 20,
    resamples: int = 1000,
    *,
    split: Split | None = None,
) -> ContrastConsistent:
    """Contrast-consistent search on paired states.

    Parameters
    ----------
    yes, no : [n, f]
        State of each row after the statement, and after its negation.
    y : [n]
        Whether the statement is true; used for the sign on training items, and for the test.
    restarts : int
        Random starts; the one with the least training loss is kept.
    components : int
        Principal components of the training rows, brought down to a quarter of their number: with as many directions as
        rows the loss can be driven to 0 by chance.
    """
    a, b = np.asarray(yes, dtype=np.float64), np.asarray(no, dtype=np.float64)
    if a.ndim != 2 or a.shape != b.shape:
        raise RequestError(f"ccs: states after yes and no must both be [n, f]; got {a.shape} and {b.shape}.")
    source = Layers.of(np.stack([a, b], axis=1))
    target = Target.of(y, items, source)
    if len(target.classes) > 2:
        raise RequestError("ccs takes a yes/no truth value.")
    chosen = split if split is not None else splits.split_items(target.items, target.labels, seed=seed)
    _, parts = target.request(chosen)
    scores = np.full(a.shape[0], np.nan)
    problem = target.problem(parts) or ("fewer than 8 training rows" if parts.train.size < 8 else "")
    if problem:
        nothing = statistics.undefined_interval(problem)
        return ContrastConsistent(nothing, nothing, float("nan"), False, 0, scores, problem)
    first, second = (_normalised(x[target.rows], parts.train) for x in (a, b))
    used = max(1, min(components, parts.train.size // 4))
    basis = np.linalg.svd(np.concatenate([first[parts.train], second[parts.train]]), full_matrices=False)[2][:used]
    first, second = first @ basis.T, second @ basis.T
    weights, loss = _fit(first[parts.train], second[parts.train], restarts, seed)
    value = _truth(first, second, weights)
    labels = target.labels
    flipped = statistics.auroc(labels[parts.train], value[parts.train]) < 0.5
    value = 1 - value if flipped else value
    scores[target.rows] = value
    test = parts.test
    right = int(((value[test] > 0.5) == (labels[test] > 0)).sum())
    return ContrastConsistent(
        statistics.bootstrap_auroc(labels[test], value[test], resamples, seed=seed, groups=target.items[test]),
        statistics.wilson(right, test.size),
        loss,
        bool(flipped),
        used,
        scores,
    )


def _normalised(x: np.ndarray, train: np.ndarray) -> np.ndarray:
    centre = x - x[train].mean(axis=0)
    scale = centre[train].std(axis=0)
    return np.asarray(centre / np.where(scale > 0, scale, 1.0))


def _fit(yes: np.ndarray, no: np.ndarray, restarts: int, seed: int) -> tuple[np.ndarray, float]:
    from scipy.optimize import minimize

    rng = np.random.default_rng(seed)
    spread = float(np.sqrt((yes**2).sum(axis=1).mean())) or 1.0
    best, lowest = np.zeros(yes.shape[1] + 1), np.inf
    with single_threaded():
        for _ in range(restarts):
            start = np.append(rng.standard_normal(yes.shape[1]) / spread, 0.0)
            found = minimize(_loss, start, (yes, no), jac=True, method="L-BFGS-B", options={"maxiter": 500})
            if found.fun < lowest:
                best, lowest = found.x, float(found.fun)
    return best, lowest


def _loss(weights: np.ndarray, yes: np.ndarray, no: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean of (p_yes - (1 - p_no))^2 + min(p_yes, p_no)^2 with its gradient."""
    p, q = _sigmoid(yes @ weights[:-1] + weights[-1]), _sigmoid(no @ weights[:-1] + weights[-1])
    mismatch, least = p + q - 1, np.minimum(p, q)
    dp = (2 * mismatch + np.where(p <= q, 2 * least, 0.0)) * p * (1 - p)
    dq = (2 * mismatch + np.where(q < p, 2 * least, 0.0)) * q * (1 - q)
    n = yes.shape[0]
    gradient = np.append(dp @ yes + dq @ no, dp.sum() + dq.sum()) / n
    return float((mismatch**2 + least**2).mean()), gradient


def _truth(yes: np.ndarray, no: np.ndarray, weights: np.ndarray) -> np.ndarray:
    p, q = _sigmoid(yes @ weights[:-1] + weights[-1]), _sigmoid(no @ weights[:-1] + weights[-1])
    return np.asarray(0.5 * (p + 1 - q))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))
