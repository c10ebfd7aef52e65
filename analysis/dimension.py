"""How many directions the boundary states of a cell spend their variance on.

Guarantees that a participation ratio is never shown without its ceiling n - 1 and its unbiased companion (the plug-in
ratio of n states cannot exceed n - 1 and is badly biased when d is much larger than n), and that one duplicated state
neither zeroes nor crashes a nearest-neighbour estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..errors import RequestError
from .threads import single_threaded

SUBSAMPLES = (25, 50, 100, 150, 200)


@dataclass(frozen=True)
class Dimensionality:
    """Effective dimensionality of states [n, L, d].

    Attributes
    ----------
    per_layer, unbiased : [L] float64
        Participation ratio per layer, plug-in and from unbiased traces (NaN where undefined).
    weights : [L] float64
        Share of each layer in the total variance, tr C_l / sum of tr C_l.
    aggregate, aggregate_unbiased : float
        Variance-weighted mean of each.
    ninety : [L] int
        Smallest number of principal components that hold 90% of the variance; 0 where it is not known.
    ceiling : int
        n - 1, the largest rank that n centred states can have; no plug-in ratio can be above it.
    n : int
    left_out : int
        States left out because they hold a value that is not finite.
    reason : str
    layers : tuple of int
        Layer numbers of the L values, where they are known.
    """

    per_layer: np.ndarray
    unbiased: np.ndarray
    weights: np.ndarray
    aggregate: float
    aggregate_unbiased: float
    ninety: np.ndarray
    ceiling: int
    n: int
    left_out: int = 0
    reason: str = ""
    layers: tuple[int, ...] = ()


def participation_ratio(x: np.ndarray, unbiased: bool = False) -> float:
    """Participation ratio tr(C)^2 / tr(C^2) of the sample covariance C (centred, 1/(n - 1)).

    Parameters
    ----------
    x : [n, d]
        Rows with a value that is not finite are left out.
    unbiased : bool
        Replace (tr C)^2 and tr(C^2) by their unbiased estimates of (tr Sigma)^2 and tr(Sigma^2), for any distribution
        with fourth moments (Himeno and Yamada 2014, "Estimations for some functions of covariance matrix in high
        dimension under non-normality"). The ratio itself is then nearly unbiased, and NaN when the denominator is not
        positive (too few states to tell). Needs n >= 4.

    Returns
    -------
    float
        Between 1 and min(n - 1, d) for the plug-in form; NaN when it is undefined (fewer than 2 states, no variance).

    Examples
    --------
    >>> import numpy as np
    >>> from precollapse.analysis import dimension
    >>> x = np.random.default_rng(0).normal(size=(500, 2)) @ np.eye(2, 10)  # two directions of equal variance among ten
    >>> round(dimension.participation_ratio(x), 1)
    2.0
    """
    gram = centred_gram(_finite_rows(_two_dimensional(x))[0])
    return ratio_from_gram(gram, unbiased)


def effective_dimensionality(x: np.ndarray) -> Dimensionality:
    """Participation ratio per layer and weighted by variance over layers.

    Parameters
    ----------
    x : [n, L, d]

    Examples
    --------
    >>> import numpy as np
    >>> from precollapse.analysis import dimension
    >>> x = np.random.default_rng(0).normal(size=(400, 3, 8))  # 400 states of 3 layers
    >>> x[:, 0, 1:] = 0  # the first layer varies along one axis only
    >>> result = dimension.effective_dimensionality(x)
    >>> result.per_layer.round(1)
    array([1. , 7.8, 7.8])
    >>> float(result.weights.sum())
    1.0
    """
    states = np.asarray(x)
    if states.ndim != 3:
        raise RequestError(f"effective_dimensionality needs states [n, L, d]; got shape {states.shape}.")
    finite = np.isfinite(states).all(axis=(1, 2))
    layers = [spread(centred_gram(states[finite, layer])) for layer in range(states.shape[1])]
    return combine(layers, left_out=int((~finite).sum()))


@dataclass(frozen=True)
class LayerSpread:
    """What one layer's Gram matrix says: both participation ratios, total variance, components for 90% of it, and n."""

    ratio: float
    unbiased: float
    trace: float
    ninety: int
    n: int


def spread(gram: np.ndarray) -> LayerSpread:
    """Spread of one layer from its centred Gram matrix (see `centred_gram`)."""
    trace = float(np.trace(gram)) / max(gram.shape[0] - 1, 1)
    return LayerSpread(
        ratio_from_gram(gram), ratio_from_gram(gram, unbiased=True), trace, _components_for(gram, 0.9), gram.shape[0]
    )


def combine(layers: Sequence[LayerSpread], left_out: int = 0) -> Dimensionality:
    """Effective dimensionality over layers, each weighted by its share of the variance."""
    n = layers[0].n if layers else 0
    if n < 2:
        nan = np.full(len(layers), np.nan)
        none = np.zeros(len(layers), int)
        reason = "fewer than 2 states" if layers else "no states of the residual stream were captured"
        return Dimensionality(nan, nan, nan, math.nan, math.nan, none, max(n - 1, 0), n, left_out, reason)
    traces = np.array([s.trace for s in layers])
    plug_in = np.array([s.ratio for s in layers])
    corrected = np.array([s.unbiased for s in layers])
    total = traces.sum()
    weights = traces / total if total > 0 else np.full(len(layers), np.nan)
    return Dimensionality(
        plug_in,
        corrected,
        weights,
        _weighted(plug_in, weights),
        _weighted(corrected, weights),
        np.array([s.ninety for s in layers]),
        n - 1,
        n,
        left_out,
        "" if total > 0 else "the states do not vary",
    )


def centred(gram: np.ndarray) -> np.ndarray:
    """Gram matrix of the same rows after taking their mean away; zero where what is left is rounding of the products."""
    mean = gram.mean(axis=0)
    left = np.asarray(gram - mean[:, None] - mean[None, :] + mean.mean())
    rounding = max(8, len(gram)) * np.finfo(np.float64).eps * np.abs(gram).max(initial=0)
    return left if np.abs(left).max(initial=0) > rounding else np.zeros_like(left)


def centred_gram(x: np.ndarray) -> np.ndarray:
    """Inner products [n, n] float64 of the rows of x [n, d] after taking their mean away."""
    rows = np.asarray(x, dtype=np.float64)
    if rows.shape[0] == 0:
        return np.zeros((0, 0))
    left = rows - rows.mean(axis=0)
    left[:, rows.max(axis=0) == rows.min(axis=0)] = 0.0  # the mean of equal values is not exactly theirs
    return np.asarray(left @ left.T)


def ratio_from_gram(gram: np.ndarray, unbiased: bool = False) -> float:
    """Participation ratio from a centred Gram matrix; see `participation_ratio`."""
    n = gram.shape[0]
    if n < 2:
        return math.nan
    trace, square, fourth = float(np.trace(gram)), float((gram**2).sum()), float((np.diag(gram) ** 2).sum())
    if square <= 0 or trace <= 0:
        return math.nan
    if not unbiased:
        return trace**2 / square
    if n < 4:
        return math.nan
    # with S = G / (n - 1): tr S = trace / (n - 1), tr S^2 = square / (n - 1)^2, Q = fourth / (n - 1)
    t1, t2, q = (trace / (n - 1)) ** 2, square / (n - 1) ** 2, fourth / (n - 1)
    top = 2 * t2 + (n * n - 3 * n + 1) * t1 - n * q
    bottom = (n - 1) * (n - 2) * t2 + t1 - n * q
    # the denominator is an estimate of a positive number; below its own rounding it says nothing
    return float(top / bottom) if bottom > 1e-12 * n * n * t2 and top > 0 else math.nan


def _components_for(gram: np.ndarray, share: float) -> int:
    with single_threaded():
        values = np.clip(np.linalg.eigvalsh(gram)[::-1], 0, None)
    total = values.sum()
    return int(np.searchsorted(np.cumsum(values) / total, share - 1e-12) + 1) if total > 0 else 0


def _weighted(values: np.ndarray, weights: np.ndarray) -> float:
    used = np.isfinite(values) & (weights > 0)
    return float((values[used] * weights[used]).sum() / weights[used].sum()) if used.any() else math.nan


# -- stability under subsampling -------------------------------------------------------------------------------------


def subsampling(
    grams_by_regime: Mapping[str, Sequence[np.ndarray]],
    sizes: Sequence[int] = SUBSAMPLES,
    repeats: int = 20,
    seed: int = 0,
) -> pd.DataFrame:
    """Aggregate dimensionality of random subsets of N' items, the same subsets for every regime.

    Parameters
    ----------
    grams_by_regime : regime -> one Gram matrix [n, n] per layer
        Rows of all regimes are the same items in the same order.
    sizes : N' to draw without replacement; sizes above n are reported as missing
    repeats : draws per size
    seed : int

    Returns
    -------
    DataFrame
        One row per (regime, size): mean, sd, mean_unbiased, sd_unbiased, difference (mean over draws of regime minus
        the first regime on the same subset), sd_difference, repeats, n, reason.
    """
    regimes = list(grams_by_regime)
    n = {g.shape[0] for grams in grams_by_regime.values() for g in grams}
    if len(n) > 1:
        raise RequestError("subsampling pairs regimes by item: every Gram matrix must cover the same items.")
    total = n.pop() if n else 0
    rng = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for size in sizes:
        if size > total:
            rows += [_subsample_row(r, size, None, None, None, total) for r in regimes]
            continue
        picks = [rng.choice(total, size, replace=False) for _ in range(repeats if size < total else 1)]
        plug_in = {r: np.empty(len(picks)) for r in regimes}
        corrected = {r: np.empty(len(picks)) for r in regimes}
        for regime, grams in grams_by_regime.items():
            for k, pick in enumerate(picks):
                found = from_subset(grams, pick)
                plug_in[regime][k], corrected[regime][k] = found
        first = plug_in[regimes[0]]
        rows += [_subsample_row(r, size, plug_in[r], corrected[r], plug_in[r] - first, total) for r in regimes]
    return pd.DataFrame(rows)


def from_subset(grams: Sequence[np.ndarray], pick: np.ndarray) -> tuple[float, float]:
    """Aggregate participation ratio (plug-in, unbiased) of the subset `pick` of the rows behind these Gram matrices."""
    ratios, corrected, traces = [], [], []
    for gram in grams:
        part = centred(gram[np.ix_(pick, pick)])
        ratios.append(ratio_from_gram(part))
        corrected.append(ratio_from_gram(part, unbiased=True))
        traces.append(np.trace(part))
    weights = np.array(traces) / max(sum(traces), 1e-300)
    return _weighted(np.array(ratios), weights), _weighted(np.array(corrected), weights)


def _subsample_row(
    regime: str,
    size: int,
    plug_in: np.ndarray | None,
    corrected: np.ndarray | None,
    difference: np.ndarray | None,
    n: int,
) -> dict[str, object]:
    def mean_sd(values: np.ndarray | None) -> tuple[float, float]:
        if values is None or not np.isfinite(values).any():
            return math.nan, math.nan
        good = values[np.isfinite(values)]
        return float(good.mean()), float(good.std(ddof=1)) if good.size > 1 else math.nan

    row: dict[str, object] = {"regime": regime, "size": size, "n": n}
    for name, values in (("", plug_in), ("_unbiased", corrected), ("_difference", difference)):
        row["mean" + name], row["sd" + name] = mean_sd(values)
    row["repeats"] = 0 if plug_in is None else plug_in.size
    row["reason"] = f"only {n} items" if plug_in is None else ("all items, one draw" if size == n else "")
    return row


# -- nearest-neighbour estimates -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IntrinsicDimension:
    """A nearest-neighbour estimate: value, states used, duplicates merged, rows left out, and why it is undefined."""

    value: float
    n: int
    duplicates: int
    left_out: int
    reason: str = ""


def two_nn(x: np.ndarray, discard: float = 0.1) -> float:
    """Intrinsic dimension by the ratio of second to first neighbour distance; see `two_nn_detail`.

    Examples
    --------
    >>> import numpy as np
    >>> from precollapse.analysis import dimension
    >>> plane = np.random.default_rng(0).uniform(size=(1000, 2)) @ np.eye(2, 10)
    >>> round(dimension.two_nn(plane))
    2
    """
    return two_nn_detail(x, discard).value


def levina_bickel(x: np.ndarray, k: int = 10) -> float:
    """Intrinsic dimension by maximum likelihood over k neighbours; see `levina_bickel_detail`.

    Examples
    --------
    >>> import numpy as np
    >>> from precollapse.analysis import dimension
    >>> plane = np.random.default_rng(0).uniform(size=(1000, 2)) @ np.eye(2, 10)
    >>> round(dimension.levina_bickel(plane, k=10))
    2
    """
    return levina_bickel_detail(x, k).value


def two_nn_detail(x: np.ndarray, discard: float = 0.1) -> IntrinsicDimension:
    """TwoNN (Facco et al. 2017): slope through the origin of -log(1 - F(mu)) on log mu.

    Exact duplicates are merged first and counted (a duplicate makes the first distance 0 and the ratio infinite).

    Parameters
    ----------
    x : [n, d]
    discard : float
        Share of the largest ratios left out of the fit, as in the paper.
    """
    return Neighbours.of(x, 2).two_nn(discard)


def levina_bickel_detail(x: np.ndarray, k: int = 10) -> IntrinsicDimension:
    """Levina and Bickel (2004) with the harmonic combination of MacKay and Ghahramani (2005).

    The estimate is 1 / mean over states of (1/(k-1)) * sum over j < k of log(T_k / T_j), T_j being the distance to the
    j-th neighbour. Exact duplicates are merged first and counted.

    Parameters
    ----------
    x : [n, d]
    k : int
        Neighbours, at least 2; brought down to n - 1 where there are fewer.
    """
    if k < 2:
        raise RequestError(f"levina_bickel: k is {k}; at least 2 neighbours are needed.")
    return Neighbours.of(x, k).levina_bickel(k)


@dataclass(frozen=True)
class Neighbours:
    """Distances [n, k] of distinct states to their nearest others, ascending, with what was merged or left out."""

    distance: np.ndarray
    duplicates: int
    left_out: int

    @classmethod
    def of(cls, x: np.ndarray, k: int) -> Neighbours:
        """Neighbours of states [n, d]; k is brought down to the number of other distinct states."""
        rows, left_out = _finite_rows(_two_dimensional(x))
        first = {row.tobytes(): i for i, row in reversed(list(enumerate(rows + 0.0)))}
        distinct = rows[sorted(first.values())]
        used = min(k, distinct.shape[0] - 1)
        distance = _neighbour_distances(distinct, used) if used > 0 else np.empty((distinct.shape[0], 0))
        return cls(distance, rows.shape[0] - distinct.shape[0], left_out)

    def two_nn(self, discard: float = 0.1) -> IntrinsicDimension:
        """See `two_nn_detail`."""
        n = self.distance.shape[0]
        if n < 4:
            return self._result(math.nan, "fewer than 4 distinct states")
        mu = np.sort(self.distance[:, 1] / self.distance[:, 0])
        keep = max(2, min(int(n * (1 - discard)), n - 1))  # F = 1 at the last ratio has no logarithm
        log_mu = np.log(mu[:keep])
        empirical = -np.log1p(-np.arange(1, keep + 1) / n)
        norm = float(log_mu @ log_mu)
        if norm == 0:
            return self._result(math.nan, "all neighbour distances are equal")
        return self._result(float(log_mu @ empirical / norm))

    def levina_bickel(self, k: int = 10) -> IntrinsicDimension:
        """See `levina_bickel_detail`."""
        n = self.distance.shape[0]
        if n < 3:
            return self._result(math.nan, "fewer than 3 distinct states")
        used = min(k, self.distance.shape[1])
        distance = self.distance[:, :used]
        mean = float(np.log(distance[:, -1:] / distance[:, :-1]).mean())
        if mean == 0:
            return self._result(math.nan, "all neighbour distances are equal")
        return self._result(1.0 / mean, "" if used == k else f"k brought down to {used}")

    def _result(self, value: float, reason: str = "") -> IntrinsicDimension:
        return IntrinsicDimension(value, self.distance.shape[0], self.duplicates, self.left_out, reason)


def _neighbour_distances(x: np.ndarray, k: int) -> np.ndarray:
    """Distances [n, k] to the k nearest other rows, ascending.

    Candidates come from inner products; their distances are then taken from exact differences, so that rows which
    nearly coincide keep their digits.
    """
    n = x.shape[0]
    candidates = min(n - 1, k + 8)
    centre = x - x.mean(axis=0)
    squares = np.einsum("ij,ij->i", centre, centre)
    out = np.empty((n, k))
    for start in range(0, n, 1024):
        part = slice(start, min(start + 1024, n))
        rough = squares[part, None] + squares[None] - 2 * centre[part] @ centre.T
        rough[np.arange(part.stop - start), np.arange(start, part.stop)] = np.inf
        near = np.argpartition(rough, candidates - 1, axis=1)[:, :candidates]
        for i, found in enumerate(near):
            difference = x[found] - x[start + i]
            exact = np.sqrt(np.einsum("ij,ij->i", difference, difference))
            out[start + i] = np.sort(exact)[:k]
    return out


def _two_dimensional(x: np.ndarray) -> np.ndarray:
    rows = np.asarray(x, dtype=np.float64)
    if rows.ndim != 2:
        raise RequestError(f"states must be [n, d]; got shape {rows.shape}.")
    return rows


def _finite_rows(x: np.ndarray) -> tuple[np.ndarray, int]:
    good = np.isfinite(x).all(axis=1)
    return x[good], int((~good).sum())
