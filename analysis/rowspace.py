"""Inner products of standardised states: all that a linear probe needs of features that outnumber the items.

Guarantees that means and scales come from training rows only. With n states of f features, f much larger than n,
every l2-regularised linear model, ridge, mean difference and Euclidean neighbour depends on the states through the n
x m inner products with the m training rows alone. Those are summed layer by layer, so that 32 layers of 4096 features
never stand side by side in memory, and one pass over the layers serves every split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import RequestError


@dataclass(frozen=True)
class Layers:
    """States of n rows, read one layer at a time.

    Attributes
    ----------
    layers : layer numbers
    read : layer number -> [n, d], any float dtype
    n : rows
    """

    layers: tuple[int, ...]
    read: Callable[[int], np.ndarray] = field(repr=False)
    n: int

    @classmethod
    def of(cls, x: np.ndarray) -> Layers:
        """Layers of an array [n, L, d], or one layer of an array [n, f]."""
        states = np.asarray(x)
        if states.ndim == 2:
            states = states[:, None, :]
        if states.ndim != 3 or 0 in states.shape[1:]:
            raise RequestError(
                f"states must be [n, L, d] or [n, f] with at least one feature; got shape {np.shape(x)}."
            )
        return cls(tuple(range(states.shape[1])), lambda layer: states[:, layer], states.shape[0])

    def finite(self) -> np.ndarray:
        """[n] bool: rows without a NaN or infinity in any layer."""
        good = np.ones(self.n, dtype=bool)
        for layer in self.layers:
            good &= np.isfinite(self.read(layer)).all(axis=1)
        return good


@dataclass(frozen=True)
class Products:
    """Inner products of standardised rows with the standardised training rows.

    Attributes
    ----------
    kernel : [r, m] float64
    norms : [r] float64
        Squared length of each standardised row.
    rows : [r] int
        Row numbers of the source.
    train : [m] int
        Positions of the training rows within `rows`; -1 where a training row is not among them.
    inner : [m, m] float64
        Inner products of the training rows with each other.
    """

    kernel: np.ndarray
    norms: np.ndarray
    rows: np.ndarray
    train: np.ndarray
    inner: np.ndarray

    def __add__(self, other: Products) -> Products:
        """Products over both sets of features (concatenation of features is a sum of products)."""
        return Products(
            self.kernel + other.kernel, self.norms + other.norms, self.rows, self.train, self.inner + other.inner
        )


@dataclass(frozen=True)
class Request:
    """Which rows are wanted against which training rows (row numbers of the source)."""

    rows: np.ndarray
    train: np.ndarray


def products(x: np.ndarray, request: Request) -> Products:
    """Products of one layer.

    Parameters
    ----------
    x : [n, d]
        Finite at the rows asked for.
    request : Request

    Notes
    -----
    Features are centred and scaled with mean and population standard deviation of the training rows; a feature that
    does not vary there is only centred (as scikit-learn's StandardScaler does).
    """
    train = np.asarray(x[request.train], dtype=np.float64)
    mean = train.mean(axis=0)
    train = train - mean
    deviation = np.sqrt((train**2).mean(axis=0))
    # a spread below the rounding of the mean is none
    constant = deviation <= 1e-7 * np.abs(mean) if x.dtype != np.float64 else deviation <= 1e-14 * np.abs(mean)
    scale = np.where(constant | (deviation == 0), 1.0, deviation)
    train /= scale
    same = request.rows.size == request.train.size and np.array_equal(request.rows, request.train)
    rows = train if same else (np.asarray(x[request.rows], dtype=np.float64) - mean) / scale
    where = {row: i for i, row in enumerate(request.rows.tolist())}
    position = np.array([where.get(row, -1) for row in request.train.tolist()], dtype=int)
    kernel = rows @ train.T
    inside = position.size > 0 and position.min() >= 0
    inner = kernel[position] if inside else train @ train.T
    return Products(kernel, np.einsum("ij,ij->i", rows, rows), request.rows, position, inner)


def by_layer(source: Layers, requests: Sequence[Request]) -> Iterator[tuple[int, list[Products]]]:
    """Each layer once, with the products of every request."""
    for layer in source.layers:
        x = source.read(layer)
        yield layer, [products(x, request) for request in requests]


def summed(source: Layers, requests: Sequence[Request]) -> list[Products]:
    """Products over the concatenation of all layers of the source, one per request."""
    total: list[Products] | None = None
    for _, found in by_layer(source, requests):
        total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
    if total is None:
        raise RequestError("no layer was chosen; give at least one.")
    return total


def coordinates(p: Products) -> np.ndarray:
    """Rows in an orthonormal basis of the training rows' span: [r, k] with k the rank, so that Z Z_train^T = kernel.

    Directions without training variance are dropped; no l2-regularised linear model uses them.
    """
    values, vectors = np.linalg.eigh(p.inner)
    keep = values > values.max(initial=0.0) * p.inner.shape[0] * np.finfo(float).eps
    return p.kernel @ (vectors[:, keep] / np.sqrt(values[keep]))


def train_coordinates(p: Products, z: np.ndarray) -> np.ndarray:
    """Training rows [m, k] in the coordinates of `coordinates`."""
    if p.train.min() >= 0:
        return z[p.train]
    values, vectors = np.linalg.eigh(p.inner)
    keep = values > values.max(initial=0.0) * p.inner.shape[0] * np.finfo(float).eps
    return vectors[:, keep] * np.sqrt(values[keep])
