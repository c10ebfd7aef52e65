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

from ...errors import RequestError
from ..threads import in_threads, single_threaded


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
        Squared length of each standardised row; empty unless they were asked for.
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


class SetProducts:
    """Products of candidate sets of layers, added up while the layers are read one after the other.

    Parameters
    ----------
    sets : sequence of tuple of int
        Layers of each candidate.
    """

    def __init__(self, sets: Sequence[tuple[int, ...]]) -> None:
        self.sets = tuple(sets)
        self._totals: list[Products | None] = [None] * len(self.sets)

    def add(self, layer: int, products: Products) -> None:
        """Add one layer's products to every set that holds the layer."""
        for i, chosen in enumerate(self.sets):
            if layer in chosen:
                total = self._totals[i]
                self._totals[i] = products if total is None else total + products

    @property
    def totals(self) -> list[Products]:
        """Of every set that has had a layer."""
        return [total for total in self._totals if total is not None]


@dataclass(frozen=True)
class Request:
    """Which rows are wanted against which training rows (row numbers of the source).

    `norms` asks for squared lengths too, which only distances need.
    """

    rows: np.ndarray
    train: np.ndarray
    norms: bool = False


@dataclass(frozen=True)
class Block:
    """One layer's rows [n, d] in float64, with their mean over all finite rows taken away beforehand.

    The common shift changes no standardised value; it only keeps digits when a feature's mean is large against its
    spread.

    Attributes
    ----------
    x : [n, d] float64
    noise : [d] float64
        Spread below which a feature counts as constant: the rounding of its values.
    """

    x: np.ndarray
    noise: np.ndarray

    @classmethod
    def of(cls, states: np.ndarray, finite: np.ndarray | None = None) -> Block:
        """Block from a layer's states [n, d] of any float dtype."""
        x = np.array(states, dtype=np.float64)
        used = x if finite is None or finite.all() else x[finite]
        shift = used.mean(axis=0) if used.size else np.zeros(x.shape[1])
        largest = np.abs(used).max(axis=0) if used.size else np.zeros(x.shape[1])
        x -= shift
        wide = np.asarray(states).dtype == np.float64
        return cls(x, largest * (1e-14 if wide else 1e-7))


def products(block: Block, request: Request) -> Products:
    """Products of one layer for one request; see `many`."""
    return many(block, [request])[0]


def many(block: Block, requests: Sequence[Request]) -> list[Products]:
    """Products of one layer for several requests.

    Parameters
    ----------
    block : Block
        Finite at the rows asked for.
    requests : sequence of Request

    Notes
    -----
    Features are centred and scaled with mean and population standard deviation of the training rows; a feature that
    does not vary there is only centred (as scikit-learn's StandardScaler does). Means and variances of all requests
    come from two matrix products, and centring is applied to the inner products: with weights w = 1 / variance and
    mean m, sum of (x - m)(t - m) w = sum of x t w - sum of x m w - sum of t m w + sum of m m w. The block is centred
    beforehand, so nothing large cancels.
    """
    if not requests:
        return []
    n = block.x.shape[0]
    member = np.zeros((len(requests), n))
    for k, request in enumerate(requests):
        member[k, request.train] = 1.0 / max(request.train.size, 1)
    used = np.flatnonzero(member.any(axis=0))  # rows that are not finite never enter
    rows = _rows(block.x, used)
    mean = member[:, used] @ rows
    deviation = np.sqrt(np.clip(member[:, used] @ (rows * rows) - mean * mean, 0.0, None))
    weight = np.where(deviation <= block.noise, 1.0, deviation) ** -2
    shift = mean * weight

    def one(k: int) -> Products:
        request = requests[k]
        scaled = np.take(block.x, request.train, axis=0)
        scaled *= weight[k]  # one side carries both scalings: the other rows stay as they are read
        wanted = _rows(block.x, request.rows)
        constant = float(mean[k] @ shift[k])
        against = wanted @ shift[k]
        own = scaled @ mean[k]
        kernel = wanted @ scaled.T
        kernel -= against[:, None]
        kernel -= own - constant
        norms = np.empty(0)
        if request.norms:
            norms = np.einsum("ij,ij,j->i", wanted, wanted, weight[k]) - 2 * against + constant
        position = np.full(n, -1)
        position[request.rows] = np.arange(request.rows.size)
        found = position[request.train]
        if found.size and found.min() >= 0:
            inner = kernel[found]
        else:
            inner = np.take(block.x, request.train, axis=0) @ scaled.T - own[:, None] - (own - constant)
        return Products(kernel, norms, request.rows, found, inner)

    return in_threads(one, len(requests))


def _rows(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """x[rows], without a copy when the rows follow each other."""
    if rows.size and rows[-1] - rows[0] + 1 == rows.size and (np.diff(rows) == 1).all():
        return x[rows[0] : rows[-1] + 1]
    return np.asarray(x[rows])


def by_layer(source: Layers, requests: Sequence[Request]) -> Iterator[tuple[int, list[Products]]]:
    """Each layer once, with the products of every request (all of finite rows)."""
    for layer in source.layers:
        states = source.read(layer)
        block = Block.of(states, np.isfinite(states).all(axis=1))
        yield layer, many(block, requests)


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

    Directions are in ascending order of training variance; those without any are dropped, since no l2-regularised
    linear model uses them.
    """
    values, vectors = basis(p)
    return np.asarray(p.kernel @ (vectors / np.sqrt(values)))


def train_coordinates(p: Products) -> np.ndarray:
    """Training rows [m, k] in the basis of `coordinates`."""
    values, vectors = basis(p)
    return np.asarray(vectors * np.sqrt(values))


def basis(p: Products) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues [k] and eigenvectors [m, k] of the training rows' inner products, those without variance dropped."""
    with single_threaded():
        values, vectors = np.linalg.eigh((p.inner + p.inner.T) / 2)
    keep = values > max(values.max(initial=0.0), 0.0) * p.inner.shape[0] * np.finfo(float).eps
    return values[keep], vectors[:, keep]
