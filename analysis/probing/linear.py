"""A logistic probe with weights in the states' own coordinates, from one layer's states.

Guarantees that scale, cell means and weights see training states only, and that C is chosen on validation states by the grid and
the rule of every other probe (`kinds`). It is fitted by scikit-learn and apart from `fits` because its weights are a direction to
steer along: `fits` knows the states by their inner products alone and does not centre them by cell, and because its solver need not end
in the last digits of vectors that were saved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .kinds import C_GRID, FALLBACK_C, best_setting

FEW_VALIDATION = 5
"""With fewer validation states of the rarer class the choice of C is said to rest on few."""


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """A logistic probe in the states' own coordinates: logit = state . weight + bias.

    Attributes
    ----------
    weight : float64 [d]
    bias : float
    C : float
    note : str
        Why C was not chosen on validation items, or on how few of the rarer class; empty otherwise.
    train_auroc, validation_auroc : float
        NaN where a part holds one class only.
    """

    weight: np.ndarray
    bias: float
    C: float
    note: str
    train_auroc: float
    validation_auroc: float

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Logits [n] of states [n, d]."""
        return np.asarray(np.asarray(states, np.float64) @ self.weight + self.bias)


def fit(states: np.ndarray, y: np.ndarray, part: np.ndarray, cell: np.ndarray) -> LinearProbe:
    """Logistic probe on the training states, centred by cell and scaled; C by validation AUROC.

    Parameters
    ----------
    states : float64 [n, d]
    y : bool [n]
    part : int [n]
        0 training, 1 validation; both classes must be among the training states.
    cell : int [n]
        States are centred within their cell.

    Notes
    -----
    Weights lie in the span of the training states whatever the penalty, so the fit is made in coordinates of that
    span: exact, and small where features outnumber states.
    """
    from sklearn.linear_model import LogisticRegression

    train, validation = part == 0, part == 1
    x = states.copy()
    means = {c: x[train & (cell == c)].mean(0) for c in np.unique(cell[train])}
    for c in np.unique(cell):
        x[cell == c] -= means.get(c, x[train].mean(0))
    scale = x[train].std(0)
    scale = np.where(scale <= 1e-7 * np.abs(states[train]).max(0), 1.0, scale)
    z = x / scale
    _, lengths, span = np.linalg.svd(z[train], full_matrices=False)
    span = span[lengths > lengths.max() * max(z[train].shape) * np.finfo(float).eps]
    reduced = z @ span.T
    models = []
    for c in C_GRID:
        model = LogisticRegression(C=c, solver="newton-cholesky", tol=1e-8, max_iter=1000)
        models.append(model.fit(reduced[train], y[train]))
    marks = np.array([_auroc(y[validation], m.decision_function(reduced)[validation]) for m in models])
    choice = best_setting(marks)
    best = C_GRID.index(FALLBACK_C) if choice is None else int(choice)
    model = models[best]
    rarer = min(int(y[validation].sum()), int((~y[validation]).sum()))
    few = f"only {rarer} validation states of the rarer class" if rarer < FEW_VALIDATION else ""
    weight = (model.coef_[0] @ span) / scale
    centre = np.mean([means[c] for c in cell[train]], axis=0)
    return LinearProbe(
        weight,
        float(model.intercept_[0] - centre @ weight),
        C_GRID[best],
        few if choice is not None else f"validation items hold one class or none: C fixed at {FALLBACK_C:g}",
        _auroc(y[train], model.decision_function(reduced)[train]),
        float(marks[best]),
    )


def _auroc(y: np.ndarray, score: np.ndarray) -> float:
    """scikit-learn's, in whose last digit vectors were saved; NaN for one class."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(y, score)) if 0 < y.sum() < y.size else math.nan
