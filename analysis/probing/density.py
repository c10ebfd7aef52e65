"""Input adequacy: is a boundary state where the training states lie, and does that tell whether the answer will be
right?

Guarantees an unsupervised score: the density is fitted on training items without their outcomes, and its AUROC is
taken on test items only. Latent states of unusual inputs are expected to lie at low density.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from .. import statistics
from ..statistics import Interval
from ..threads import single_threaded
from . import rowspace, splits
from .rowspace import Layers, Products
from .splits import Split
from .targets import Parts, Target


@dataclass(frozen=True)
class Adequacy:
    """Density scores against a yes/no outcome.

    Attributes
    ----------
    mahalanobis, mixture : Interval
        AUROC on test items of minus the squared Mahalanobis distance, and of the Gaussian mixture's log-density.
    components, clusters : int
        Principal components used, and mixture components chosen by BIC on training items.
    scores : DataFrame
        Columns mahalanobis and mixture for all rows.
    """

    mahalanobis: Interval
    mixture: Interval
    components: int
    clusters: int
    scores: pd.DataFrame = field(repr=False)
    reason: str = ""


def adequacy(
    x: np.ndarray | Layers,
    y: Sequence[Any] | np.ndarray | pd.Series,
    items: Sequence[Any] | np.ndarray | None = None,
    seed: int = 0,
    resamples: int = 1000,
    components: int = 10,
    *,
    split: Split | None = None,
) -> Adequacy:
    """Fit the density on training items (all layers of x concatenated, z-scored there) and score the test items.

    Parameters
    ----------
    x : [n, L, d] or [n, f]
    y : [n] yes/no outcome, used for the AUROC only
    components : int
        Principal components of the training states, brought down to a fifth of their number.
    """
    source = x if isinstance(x, Layers) else Layers.of(x)
    target = Target.of(y, items, source)
    chosen = split if split is not None else splits.split_items(target.items, target.labels, seed=seed)
    request, parts = target.request(chosen)
    if parts.train.size < 5:
        return _undefined(f"{parts.train.size} training rows are too few for a density")
    return from_products(rowspace.summed(source, [request])[0], target, parts, seed, resamples, components)


def from_products(
    p: Products, target: Target, parts: Parts, seed: int = 0, resamples: int = 1000, components: int = 10
) -> Adequacy:
    """`adequacy` from products with the training rows made beforehand."""
    from sklearn.covariance import LedoitWolf
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    if parts.train.size < 5:
        return _undefined(f"{parts.train.size} training rows are too few for a density")
    z = rowspace.coordinates(p)
    if z.shape[1] == 0:
        return _undefined("the training states do not vary")
    used = max(1, min(components, parts.train.size // 5, z.shape[1]))
    z = z[:, ::-1][:, :used]  # largest variance first
    z = z / z[parts.train].std(axis=0)
    train = z[parts.train]
    gaussian = LedoitWolf().fit(train)
    with warnings.catch_warnings(), single_threaded():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fits = [
            GaussianMixture(k, covariance_type="diag", reg_covar=1e-3, random_state=seed, n_init=3).fit(train)
            for k in (1, 2, 3)
            if train.shape[0] >= 10 * k or k == 1
        ]
    best = min(fits, key=lambda model: model.bic(train))
    scores = pd.DataFrame({"mahalanobis": -gaussian.mahalanobis(z), "mixture": best.score_samples(z)})
    y, units = target.labels[parts.test], target.items[parts.test]

    def auroc(name: str) -> Interval:
        return statistics.bootstrap_auroc(y, scores[name].to_numpy()[parts.test], resamples, seed=seed, groups=units)

    both = auroc("mahalanobis"), auroc("mixture")
    return Adequacy(*both, used, int(best.n_components), scores, both[0].reason)


def _undefined(reason: str) -> Adequacy:
    nothing = statistics.undefined_interval(reason, method="percentile bootstrap")
    return Adequacy(nothing, nothing, 0, 0, pd.DataFrame({"mahalanobis": [], "mixture": []}), reason)
