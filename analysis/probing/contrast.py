"""The same probe on two states of the same items: before the first token against after it, or one site against another.

Guarantees one split for both and a paired interval of the difference on the same test items, so that "more can be read
after the answer" is a statement about the states and not about two different draws of items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ...errors import RequestError
from .. import statistics
from ..statistics import Interval
from . import probes, splits
from .probes import Recoverability, Target
from .rowspace import Layers
from .splits import Split


@dataclass(frozen=True)
class Contrast:
    """Probe results before and after, and AUROC(after) - AUROC(before) on the same test items (paired bootstrap)."""

    before: Recoverability
    after: Recoverability
    difference: Interval


def before_after(
    before: np.ndarray | Layers,
    after: np.ndarray | Layers,
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
) -> Contrast:
    """Fit the same probe on both states of the same rows.

    Parameters
    ----------
    before, after : [n, L, d] or [n, f]
        States of the same rows in the same order, for instance at the boundary and after the first generated tokens.
        A row that is not finite in either is left out of both.
    y, items, layers, seed, resamples, shuffles, probe, split, level
        As in `probes.recoverability`. With more than two classes the difference is undefined.
    """
    first, second = (s if isinstance(s, Layers) else Layers.of(s) for s in (before, after))
    if first.n != second.n:
        raise RequestError(f"{first.n} states before, {second.n} after: give the same rows in the same order.")
    both = first.finite() & second.finite()
    labels = [value if good else None for value, good in zip(list(y), both, strict=True)]
    target = Target.of(labels, items, first, both)
    chosen = split if split is not None else splits.split_items(target.items, target.labels, seed=seed)
    units = np.arange(first.n) if items is None else items
    one, two = (
        probes.recoverability(
            source, labels, units, layers, seed, resamples, shuffles, probe=probe, split=chosen, level=level
        )
        for source in (first, second)
    )
    return Contrast(one, two, difference(two, one, resamples, level, seed))


def difference(
    a: Recoverability, b: Recoverability, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval:
    """AUROC(a) - AUROC(b) over the test items that both scored, paired bootstrap (one row per item)."""
    for result in (a, b):
        if not result.defined:
            return statistics.undefined_interval(result.reason, method="paired percentile bootstrap", level=level)
    if np.ndim(a.test_scores) > 1 or np.ndim(b.test_scores) > 1:
        return statistics.undefined_interval("more than two classes", method="paired percentile bootstrap", level=level)
    pairs = matched(a, b)
    if not pairs.size:
        return statistics.undefined_interval("the test parts share no item", level=level)
    i, j = pairs.T
    return statistics.bootstrap_auroc_difference(
        a.test_labels[i],
        a.test_scores[i],
        b.test_scores[j],
        resamples,
        level,
        seed,
        groups=a.test_items[i],
        y_b=b.test_labels[j],
    )


def matched(a: Recoverability, b: Recoverability) -> np.ndarray:
    """Positions [k, 2] of the test rows of a and b that belong to one item (its first row in each)."""
    places: dict[Any, int] = {}
    for position, item in enumerate(b.test_items):
        places.setdefault(item, position)
    seen: set[Any] = set()
    pairs = []
    for position, item in enumerate(a.test_items):
        if item in places and item not in seen:
            pairs.append((position, places[item]))
        seen.add(item)
    return np.array(pairs, dtype=int).reshape(-1, 2)
