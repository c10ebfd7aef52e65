"""Probes by name: what each fits, over which grid of settings, and how a setting is chosen.

Guarantees that every probe sees the training rows' inner products alone, and that the setting used when validation cannot
choose is fixed beforehand: the middle of its grid by meaning, not by result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...errors import RequestError
from . import logistic, rowspace
from .rowspace import Products

C_GRID = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)

FALLBACK_C = 1.0

_Path = Callable[[Products, np.ndarray, int], np.ndarray]


@dataclass(frozen=True)
class Probe:
    """A probe by name: its grid, the value used when validation cannot choose, and its fit.

    `fit(products, labels [p, m], seed)` returns scores [len(grid), p, r] of all rows. `norms`: it needs row lengths.
    """

    name: str
    grid: tuple[float, ...]
    fallback: float
    fit: _Path = field(repr=False)
    probabilistic: bool = False
    norms: bool = False


def _logistic(p: Products, labels: np.ndarray, seed: int) -> np.ndarray:
    z = rowspace.coordinates(p)
    weights = logistic.fit_path(rowspace.train_coordinates(p), labels, C_GRID)
    return np.asarray(weights[..., :-1] @ z.T + weights[..., -1:])


RIDGE_GRID = (1e6, 1e5, 1e4, 1e3, 1e2, 1e1, 1.0)


def _ridge(p: Products, labels: np.ndarray, seed: int) -> np.ndarray:
    return _least_squares(p, labels, RIDGE_GRID)


def _linear(p: Products, labels: np.ndarray, seed: int) -> np.ndarray:
    return _least_squares(p, labels, (0.0,))


def _least_squares(p: Products, labels: np.ndarray, grid: Sequence[float]) -> np.ndarray:
    """Ridge on +-1 labels with an unpenalised intercept; alpha 0 is the least-squares solution of least norm."""
    values, vectors = rowspace.basis(p)
    signed = 2.0 * labels - 1.0
    offset = signed.mean(axis=1, keepdims=True)
    projected = (signed - offset) @ vectors
    return np.stack([projected / (values + alpha) @ vectors.T @ p.kernel.T + offset for alpha in grid])


def _mean_difference(p: Products, labels: np.ndarray, seed: int) -> np.ndarray:
    direction = labels / labels.sum(1, keepdims=True) - (1 - labels) / (1 - labels).sum(1, keepdims=True)
    return np.asarray((direction @ p.kernel.T)[None])


KNN_GRID = (31.0, 15.0, 9.0, 5.0, 3.0, 1.0)


def _neighbours(p: Products, labels: np.ndarray, seed: int) -> np.ndarray:
    """Share of class 1 among the k nearest other training rows (k brought down to their number)."""
    distance = p.norms[:, None] + np.diag(p.inner)[None] - 2 * p.kernel
    for column, row in enumerate(p.train):
        if row >= 0:
            distance[row, column] = np.inf
    order = np.argsort(distance, axis=1, kind="stable")
    available = max(1, p.inner.shape[0] - 1)
    return np.stack([labels[:, order[:, : int(min(k, available))]].mean(axis=2) for k in KNN_GRID])


MLP_GRID = (10.0, 1.0, 0.1, 0.001)


def _perceptron(p: Products, labels: np.ndarray, seed: int) -> np.ndarray:
    """One hidden layer of 32 units on the coordinates of the training rows' span, l2 penalty by validation."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    z = rowspace.coordinates(p)
    train = rowspace.train_coordinates(p)
    spread = max(float(np.sqrt((train**2).sum(1).mean())), 1e-300) / math.sqrt(max(train.shape[1], 1))
    out = np.empty((len(MLP_GRID), labels.shape[0], z.shape[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 200 steps are the early stop
        for i, alpha in enumerate(MLP_GRID):
            for j, y in enumerate(labels):
                model = MLPClassifier((32,), alpha=alpha, solver="lbfgs", max_iter=200, random_state=seed)
                probability = model.fit(train / spread, y).predict_proba(z / spread)[:, 1]
                out[i, j] = probability
    return out


PROBES: Mapping[str, Probe] = {
    p.name: p
    for p in (
        Probe("logistic", C_GRID, FALLBACK_C, _logistic, probabilistic=True),
        Probe("ridge", RIDGE_GRID, 1e3, _ridge),
        Probe("linear", (0.0,), 0.0, _linear),
        Probe("mean-difference", (0.0,), 0.0, _mean_difference),
        Probe("knn", KNN_GRID, 5.0, _neighbours, norms=True),
        Probe("mlp", MLP_GRID, 1.0, _perceptron),
    )
}


def get_probe(name: str) -> Probe:
    """The probe of this name.

    Raises
    ------
    RequestError
        For an unknown name.
    """
    if name not in PROBES:
        raise RequestError(f"There is no probe {name!r}; choose one of {', '.join(PROBES)}.")
    return PROBES[name]


def best_setting(marks: np.ndarray) -> np.ndarray | None:
    """Number of the best setting in each column of marks [settings, ...], the first (most regularised) of equals.

    None when a mark is undefined: the choice would then be among those that happen to be defined.
    """
    return np.argmax(np.round(marks, 12), axis=0) if np.isfinite(marks).all() else None
