"""Can an outcome be read from the boundary state by a simple probe, and would it survive a referee?

Guarantees that a single call splits by item, fits, chooses and scores as `fits` says. The probes' names are here in one place:
`kinds` has what is fitted, `targets` what is predicted, `repeats` what many splits say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from . import rowspace, splits
from .fits import BOOTSTRAP_ROWS, Recoverability, evaluate, fitted_scores, undefined
from .kinds import C_GRID, FALLBACK_C, PROBES, Probe, get_probe
from .repeats import Nested, Repeated, collect, curve_row, layer_curve, nested, repeated
from .rowspace import Layers, SetProducts
from .splits import Split
from .targets import Parts, Target, coded, layer_sets

__all__ = [
    "BOOTSTRAP_ROWS",
    "C_GRID",
    "FALLBACK_C",
    "PROBES",
    "Nested",
    "Parts",
    "Probe",
    "Recoverability",
    "Repeated",
    "Target",
    "coded",
    "collect",
    "curve_row",
    "evaluate",
    "fitted_scores",
    "get_probe",
    "layer_curve",
    "layer_sets",
    "nested",
    "recoverability",
    "repeated",
]


def recoverability(
    x: np.ndarray | Layers,
    y: Sequence[Any] | np.ndarray | pd.Series,
    items: Sequence[Any] | np.ndarray | None = None,
    layers: Sequence[int] | Sequence[Sequence[int]] | None = None,
    seed: int = 0,
    resamples: int = 1000,
    shuffles: int = 20,
    *,
    probe: str = "logistic",
    split: Split | None = None,
    level: float = 0.95,
) -> Recoverability:
    """Fit a probe on training items, choose on validation items, score the test items once.

    Parameters
    ----------
    x : [n, L, d] or [n, f], or `Layers` to read from a run
    y : [n]
        bool or 0/1; or labels of more than two classes (one-against-rest, macro AUROC). Missing labels are left out.
    items : [n], optional
        Item of each row; rows of one item stay in one part and are resampled together. Default: every row an item.
    layers : optional
        Layers to concatenate, fixed in advance (default all); or several such sets, of which validation chooses one.
    seed : int
        Seeds split, shuffles, bootstrap and the probe's own randomness.
    resamples, shuffles : int
        shuffles = 0 leaves the control out.
    probe : str
        One of `PROBES`.
    split : Split, optional
        A split made elsewhere (shared by regimes); default 60/20/20 by item, balanced by label.

    Raises
    ------
    RequestError
        Unknown probe or layer, or lengths that differ. Data that do not define a result raise nothing: see `reason`.

    Examples
    --------
    >>> import numpy as np
    >>> from precollapse.analysis import probes
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(200) % 2 == 0
    >>> x = rng.normal(size=(200, 2, 4))  # 200 states of 2 layers
    >>> x[y, 1, 0] += 3  # the second layer tells the classes apart
    >>> result = probes.recoverability(x, y, layers=[[0], [1]], resamples=100, shuffles=5)
    >>> result.layers, result.test_auroc > 0.9
    ((1,), True)
    """
    source = x if isinstance(x, Layers) else Layers.of(x)
    sets = layer_sets(source, layers)
    used = tuple(dict.fromkeys(layer for chosen in sets for layer in chosen))
    source = Layers(used, source.read, source.n)
    target = Target.of(y, items, source)
    chosen_split = split if split is not None else splits.split_items(target.items, target.labels, seed=seed)
    request, parts = target.request(chosen_split, get_probe(probe).norms)
    problem = target.problem(parts)
    if problem:
        return undefined(problem, target, parts, sets, probe, level)
    sums = SetProducts(sets)
    for layer, (products,) in rowspace.by_layer(source, [request]):
        sums.add(layer, products)
    return evaluate(
        sums.totals, sets, target, parts, probe=probe, seed=seed, resamples=resamples, shuffles=shuffles, level=level
    )
