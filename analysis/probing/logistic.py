"""l2-regularised logistic regression for many label vectors on one design, by Newton's method.

Guarantees the minimiser of scikit-learn's objective, 1/2 w'w + C * sum of log(1 + exp(-s(w'z + b))) with the
intercept b unpenalised, to a gradient that rounding allows. It prevents probes that stop at an iteration limit, where
the score then depends on the solver: with d much larger than n, lbfgs at its defaults often does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import RequestError
from ..threads import single_threaded

_MAX_STEPS = 100
_BLOCK = 24_000_000  # float64 values of Hessians held at once


def fit_path(z: np.ndarray, labels: np.ndarray, grid: Sequence[float]) -> np.ndarray:
    """Coefficients for every C of an ascending grid and every label vector.

    Parameters
    ----------
    z : [m, k] float64
        Training rows (see `rowspace.coordinates` when features outnumber rows).
    labels : [p, m] of 0/1
        Each must hold both classes.
    grid : C values, ascending; each fit starts from the one before.

    Returns
    -------
    [len(grid), p, k + 1] float64; the intercept stands last.
    """
    y = np.asarray(labels, dtype=np.float64)
    positives = y.sum(axis=1)
    if ((positives == 0) | (positives == y.shape[1])).any():
        raise RequestError("logistic: a label vector holds one class only; nothing can be fitted to it.")
    if list(grid) != sorted(grid) or grid[0] <= 0:
        raise RequestError(f"logistic: C must be positive and ascending; got {list(grid)}.")
    design = np.hstack([np.asarray(z, dtype=np.float64), np.ones((z.shape[0], 1))])
    size = design.shape[1]
    out = np.empty((len(grid), y.shape[0], size))
    block = max(1, _BLOCK // (size * size))
    for start in range(0, y.shape[0], block):
        part = slice(start, start + block)
        weights = np.zeros((y[part].shape[0], size))
        share = y[part].mean(axis=1)
        weights[:, -1] = np.log(share / (1 - share))
        with single_threaded():
            for i, c in enumerate(grid):
                weights = _newton(design, y[part], weights, c)
                out[i, part] = weights
    return out


def _newton(design: np.ndarray, y: np.ndarray, start: np.ndarray, c: float) -> np.ndarray:
    """Damped Newton from `start` [p, k] for all label vectors at once; converged ones leave the batch."""
    weights = start.copy()
    penalty = np.full(design.shape[1], 1.0)
    penalty[-1] = 0.0
    active = np.arange(y.shape[0])
    for _ in range(_MAX_STEPS):
        w, target = weights[active], y[active]
        eta = w @ design.T
        probability = _sigmoid(eta)
        gradient = c * (probability - target) @ design + w * penalty
        curvature = c * probability * (1 - probability)
        hessian = np.matmul(design.T[None] * curvature[:, None, :], design)
        diagonal = np.arange(design.shape[1])
        hessian[:, diagonal, diagonal] += penalty
        hessian[:, -1, -1] += 1e-12 * c  # all rows saturated: keep the intercept's row regular
        step = np.linalg.solve(hessian, -gradient[..., None])[..., 0]
        slope = (gradient * step).sum(axis=1)
        value = _objective(eta, target, w, penalty, c)
        going = -slope > 1e-10 * (1.0 + np.abs(value))
        if not going.any():
            return weights
        active, w, step, slope, value = active[going], w[going], step[going], slope[going], value[going]
        weights[active] = _line_search(design, y[active], w, step, slope, value, penalty, c)
    return weights


def _line_search(
    design: np.ndarray,
    y: np.ndarray,
    w: np.ndarray,
    step: np.ndarray,
    slope: np.ndarray,
    value: np.ndarray,
    penalty: np.ndarray,
    c: float,
) -> np.ndarray:
    """Halve each row's step until the objective falls enough (Armijo)."""
    length = np.ones(w.shape[0])
    for _ in range(40):
        trial = w + length[:, None] * step
        new = _objective(trial @ design.T, y, trial, penalty, c)
        short = new > value + 1e-4 * length * slope + 1e-13 * np.abs(value)
        if not short.any():
            break
        length[short] /= 2
    return np.asarray(w + length[:, None] * step)


def _objective(eta: np.ndarray, y: np.ndarray, w: np.ndarray, penalty: np.ndarray, c: float) -> np.ndarray:
    loss = np.logaddexp(0.0, eta) - y * eta
    return np.asarray(c * loss.sum(axis=1) + 0.5 * (w * w * penalty).sum(axis=1))


def _sigmoid(eta: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * eta))
