"""Does a probe trained under one regime (or on one benchmark) read the outcome under another?

Guarantees preserved splits: a probe sees A's training items only, its setting is chosen on A's validation items, and
every cell is scored on B's test items, which are test items for A too. It prevents the flattering matrix whose
off-diagonal cells hold items the probe was trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ...errors import RequestError
from .. import statistics
from ..statistics import Interval
from . import rowspace, splits
from .fits import fitted_scores
from .kinds import get_probe
from .rowspace import Layers, Products, Request
from .splits import Split
from .targets import Parts, Target


@dataclass(frozen=True)
class Transfer:
    """Test AUROC of probes trained on one group (rows) and scored on another (columns).

    Attributes
    ----------
    auroc, lower, upper : DataFrame, train x test
        NaN where undefined, with the percentile bootstrap interval over B's test items.
    reason : DataFrame of str
        Why a cell is undefined or what to read with care.
    degradation : DataFrame of Interval
        AUROC(B -> B) - AUROC(A -> B) on the same test items of B, paired bootstrap. Positive: the foreign probe reads
        less.
    n_test : Series
        Test rows of each group.
    """

    auroc: pd.DataFrame
    lower: pd.DataFrame
    upper: pd.DataFrame
    reason: pd.DataFrame
    degradation: pd.DataFrame = field(repr=False)
    n_test: pd.Series = field(repr=False)

    def records(self) -> list[dict[str, Any]]:
        """One flat row per train x test cell, for files."""
        rows = []
        for a in self.auroc.index:
            for b in self.auroc.columns:
                loss: Interval = self.degradation.loc[a, b]
                rows.append(
                    {
                        "train": a,
                        "test": b,
                        "auroc": self.auroc.loc[a, b],
                        "lower": self.lower.loc[a, b],
                        "upper": self.upper.loc[a, b],
                        "degradation": loss.estimate,
                        "degradation_lower": loss.lower,
                        "degradation_upper": loss.upper,
                        "n_test": int(self.n_test[b]),
                        "reason": self.reason.loc[a, b],
                    }
                )
        return rows


def transfer_matrix(
    x_by_regime: Mapping[str, np.ndarray],
    y_by_regime: Mapping[str, Sequence[Any] | np.ndarray],
    items: Sequence[Any] | np.ndarray | Mapping[str, Sequence[Any]],
    seed: int = 0,
    *,
    probe: str = "logistic",
    split: Split | None = None,
    resamples: int = 1000,
    level: float = 0.95,
) -> Transfer:
    """Transfer between regimes (or benchmarks).

    Parameters
    ----------
    x_by_regime : name -> [n, L, d] or [n, f]
    y_by_regime : name -> [n] yes/no outcomes, missing allowed
    items : [n] shared by all names, or name -> [n]
        An item that stands under several names belongs to the same part in all of them.
    seed, probe, split, resamples, level
        As in `probes.recoverability`.

    Examples
    --------
    >>> import numpy as np
    >>> from precollapse.analysis import transfer
    >>> rng = np.random.default_rng(0)
    >>> items = [f"item {i}" for i in range(120)]
    >>> y = np.arange(120) % 2 == 0
    >>> x = rng.normal(size=(120, 4)) + 3 * y[:, None]
    >>> result = transfer.transfer_matrix({"baseline": x, "cot": -x}, {"baseline": y, "cot": y}, items, resamples=50)
    >>> result.auroc.round(1)  # what raises one regime's score lowers the other's
              baseline  cot
    baseline       1.0  0.0
    cot            0.0  1.0
    """
    names = list(x_by_regime)
    if set(names) != set(y_by_regime):
        raise RequestError(f"states are given for {names}, outcomes for {list(y_by_regime)}; give both for each.")
    arrays = [_three_dimensional(x_by_regime[name]) for name in names]
    if len({a.shape[1:] for a in arrays}) != 1:
        raise RequestError("transfer needs states of one shape (layers, features) under every name.")
    stacked_items: list[Any] = []
    for name in names:
        stacked_items += list(items[name] if isinstance(items, Mapping) else items)
    layers = tuple(range(arrays[0].shape[1]))
    source = Layers(layers, lambda k: np.concatenate([a[:, k] for a in arrays]), sum(a.shape[0] for a in arrays))
    groups = np.repeat(np.array(names, dtype=object), [a.shape[0] for a in arrays])
    labels = [v for name in names for v in y_by_regime[name]]
    target = Target.of(labels, stacked_items, source, classes=None)
    kinds = [f"{g}:{v}" for g, v in zip(groups[target.rows], target.labels, strict=True)]
    chosen = split if split is not None else splits.split_items(target.items, kinds, seed=seed)
    parts = parts_by_group(target, groups, chosen)
    usable = [name for name in names if parts[name].train.size]
    norms = get_probe(probe).norms
    requests = [Request(target.rows, target.rows[parts[name].train], norms) for name in usable]
    found = rowspace.summed(source, requests)
    return from_products(
        dict(zip(usable, found, strict=True)), target, parts, probe=probe, seed=seed, resamples=resamples, level=level
    )


def parts_by_group(target: Target, groups: np.ndarray, split: Split) -> dict[str, Parts]:
    """Train, validation and test positions of each group among the target's rows."""
    train, validation, test = split.rows(target.items)
    mine = np.asarray(groups, dtype=object)[target.rows]
    out = {}
    for name in dict.fromkeys(groups):
        out[name] = Parts(*(part[mine[part] == name] for part in (train, validation, test)))
    return out


def from_products(
    products: Mapping[str, Products],
    target: Target,
    parts: Mapping[str, Parts],
    *,
    probe: str = "logistic",
    seed: int = 0,
    resamples: int = 1000,
    level: float = 0.95,
) -> Transfer:
    """Transfer from products of all rows with each group's training rows."""
    names = list(parts)
    if len(target.classes) > 2:
        raise RequestError("transfer takes yes/no outcomes.")
    scores: dict[str, np.ndarray] = {}
    why: dict[str, str] = {}
    for name in names:
        labels = target.labels[parts[name].train]
        if labels.size == 0 or labels.min() == labels.max():
            why[name] = f"one class in the training items of {name} ({int(labels.sum())} of {labels.size} positive)"
            continue
        scores[name], why[name] = fitted_scores(products[name], target, parts[name], probe, seed)
    frames = {key: pd.DataFrame(np.nan, names, names) for key in ("auroc", "lower", "upper")}
    reason = pd.DataFrame("", names, names, dtype=object)
    loss: Any = pd.DataFrame(None, names, names, dtype=object)  # of intervals, which pandas knows no type of
    for a in names:
        for b in names:
            test = parts[b].test
            y = target.labels[test]
            if a not in scores:
                cell = statistics.undefined_interval(why[a], level=level)
                loss.loc[a, b] = cell
            else:
                units = target.items[test]
                cell = statistics.bootstrap_auroc(y, scores[a][test], resamples, level, seed, units)
                if not cell.defined:
                    cell = statistics.undefined_interval(f"test items of {b}: {cell.reason}", level=level)
                if b in scores:
                    loss.loc[a, b] = statistics.bootstrap_auroc_difference(
                        y, scores[b][test], scores[a][test], resamples, level, seed, units
                    )
                else:
                    loss.loc[a, b] = statistics.undefined_interval(why[b], level=level)
            for key, value in (("auroc", cell.estimate), ("lower", cell.lower), ("upper", cell.upper)):
                frames[key].loc[a, b] = value
            note = why[a] if a in scores else ""
            reason.loc[a, b] = "; ".join(dict.fromkeys(part for part in (note, cell.reason) if part))
    n_test = pd.Series({name: parts[name].test.size for name in names})
    return Transfer(frames["auroc"], frames["lower"], frames["upper"], reason, loss, n_test)


def _three_dimensional(x: np.ndarray) -> np.ndarray:
    array = np.asarray(x)
    if array.ndim == 2:
        array = array[:, None, :]
    if array.ndim != 3:
        raise RequestError(f"states must be [n, L, d] or [n, f]; got shape {array.shape}.")
    return array
