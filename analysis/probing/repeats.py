"""A probe over many splits: repeated splits, nested cross-validation, and layer by layer.

Guarantees that every split is by item and goes through the path of a single one, and that a split which left one class in a part
is counted as undefined. It prevents a spread over the lucky splits only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ...errors import RequestError
from .. import statistics
from ..statistics import Interval
from . import rowspace, splits
from .fits import Recoverability, evaluate
from .kinds import get_probe
from .rowspace import Layers, Products, Request
from .splits import Split
from .targets import Target, layer_sets


@dataclass(frozen=True)
class Repeated:
    """Test AUROC over repeated splits.

    Attributes
    ----------
    auroc, train_auroc, C : [splits] float
        NaN for a split that left one class in a part.
    mean, sd, lower, upper : float
        Over the defined splits: mean, standard deviation, and the 2.5% and 97.5% points. Splits share items, so this
        is a spread over splits, not a confidence interval.
    undefined : int
    """

    auroc: np.ndarray
    train_auroc: np.ndarray
    C: np.ndarray
    mean: float
    sd: float
    lower: float
    upper: float
    undefined: int


def collect(results: Sequence[Recoverability]) -> Repeated:
    """Spread over the results of several splits."""
    values = np.array([r.test_auroc for r in results])
    known = values[np.isfinite(values)]
    nan = math.nan
    return Repeated(
        values,
        np.array([r.train_auroc for r in results]),
        np.array([r.C for r in results]),
        float(known.mean()) if known.size else nan,
        float(known.std(ddof=1)) if known.size > 1 else nan,
        float(np.quantile(known, 0.025)) if known.size else nan,
        float(np.quantile(known, 0.975)) if known.size else nan,
        int(values.size - known.size),
    )


def repeated(
    x: np.ndarray | Layers,
    y: Sequence[Any] | np.ndarray | pd.Series,
    items: Sequence[Any] | np.ndarray | None = None,
    layers: Sequence[int] | None = None,
    seed: int = 0,
    n_splits: int = 20,
    *,
    probe: str = "logistic",
) -> Repeated:
    """`recoverability` over `n_splits` random 60/20/20 splits (seeds seed, seed + 1, ...), without controls."""
    source = x if isinstance(x, Layers) else Layers.of(x)
    (chosen,) = layer_sets(source, layers)
    source = Layers(chosen, source.read, source.n)
    target = Target.of(y, items, source)
    norms = get_probe(probe).norms
    plans = [
        target.request(splits.split_items(target.items, target.labels, seed=seed + k), norms) for k in range(n_splits)
    ]
    useful = [plan for plan in plans if not target.problem(plan[1])]
    sums = iter(rowspace.summed(source, [request for request, _ in useful]) if useful else [])
    results = []
    for _, parts in plans:
        defined = not target.problem(parts)
        candidates = [next(sums)] if defined else []
        results.append(evaluate(candidates, [chosen], target, parts, probe=probe, seed=seed, resamples=1, shuffles=0))
    return collect(results)


@dataclass(frozen=True)
class Nested:
    """Nested cross-validation: every item is scored once by a probe that never saw it.

    Attributes
    ----------
    auroc : float
        Mean over outer folds (scores of different folds are not on one scale, so they are not pooled).
    folds : [folds] float
        NaN where a fold's test part holds one class.
    C : [folds] float
    pairs : Interval
        AUROC counting only pairs of items within one fold, with a bootstrap over items.
    reason : str
    """

    auroc: float
    folds: np.ndarray
    C: np.ndarray
    pairs: Interval
    scores: np.ndarray = field(repr=False)
    reason: str = ""


def nested(
    x: np.ndarray | Layers,
    y: Sequence[Any] | np.ndarray | pd.Series,
    items: Sequence[Any] | np.ndarray | None = None,
    layers: Sequence[int] | None = None,
    seed: int = 0,
    folds: int = 5,
    inner: int = 4,
    resamples: int = 1000,
    *,
    probe: str = "logistic",
) -> Nested:
    """Outer folds by item; within each, the setting with the best mean AUROC over inner folds, refitted on all its
    items.

    Yes/no targets only. With too few items for the folds, or one class in too many of them, the result says so.
    """
    source = x if isinstance(x, Layers) else Layers.of(x)
    (chosen,) = layer_sets(source, layers)
    source = Layers(chosen, source.read, source.n)
    target = Target.of(y, items, source)
    if len(target.classes) > 2:
        raise RequestError("nested cross-validation takes a yes/no target.")
    kind = get_probe(probe)
    rows, labels = target.rows, target.labels
    nothing = np.full(folds, np.nan)
    distinct = len(dict.fromkeys(target.items))
    rarer = int(min(labels.sum(), labels.size - labels.sum())) if labels.size else 0
    if distinct < folds * 2 or rarer < 2:
        why = f"{distinct} items with {rarer} of the rarer class are too few for {folds} folds"
        return Nested(math.nan, nothing, nothing, statistics.undefined_interval(why), np.full(rows.size, np.nan), why)
    outer = splits.fold_items(target.items, folds, labels, seed)
    requests: list[Request] = []
    plans: list[tuple[int, np.ndarray, np.ndarray]] = []  # outer fold, train positions, held-out positions
    for f in range(folds):
        train = np.flatnonzero(outer != f)
        plans.append((f, train, np.flatnonzero(outer == f)))
        within = splits.fold_items(target.items[train], inner, labels[train], seed + 1 + f)
        plans += [(f, train[within != g], train[within == g]) for g in range(inner)]
    plans = [plan for plan in plans if 0 < labels[plan[1]].sum() < plan[1].size]
    requests = [Request(rows, rows[train], kind.norms) for _, train, _ in plans]
    found = rowspace.summed(source, requests)
    scored = [kind.fit(p, labels[train][None], seed)[:, 0] for p, (_, train, _) in zip(found, plans, strict=True)]
    scores, setting = np.full(rows.size, np.nan), np.full(folds, np.nan)
    for f in range(folds):
        mine = [(s, plan) for s, plan in zip(scored, plans, strict=True) if plan[0] == f]
        full = [m for m in mine if m[1][2].size and outer[m[1][2][0]] == f]
        if not full:
            continue
        marks = np.array(
            [
                [statistics.auroc(labels[held], s[held]) for s in path]
                for path, (_, _, held) in mine
                if outer[held[0]] != f
            ]
        ).reshape(-1, len(kind.grid))
        usable = marks[np.isfinite(marks).all(axis=1)]
        best = int(np.argmax(np.round(usable.mean(axis=0), 12))) if usable.size else kind.grid.index(kind.fallback)
        path, (_, _, held) = full[0]
        scores[held], setting[f] = path[best, held], kind.grid[best]
    per_fold = np.array([statistics.auroc(labels[outer == f], scores[outer == f]) for f in range(folds)])
    known = per_fold[np.isfinite(per_fold)]
    undefined = int(folds - known.size)
    pairs = statistics.bootstrap_stratified_auroc(labels, scores, outer, resamples, seed=seed, groups=target.items)
    return Nested(
        float(known.mean()) if known.size else math.nan,
        per_fold,
        setting,
        pairs,
        scores,
        f"{undefined} of {folds} folds hold one class" if undefined else "",
    )


def layer_curve(
    x: np.ndarray | Layers,
    y: Sequence[Any] | np.ndarray | pd.Series,
    items: Sequence[Any] | np.ndarray | None = None,
    seed: int = 0,
    resamples: int = 1000,
    *,
    probe: str = "logistic",
    split: Split | None = None,
) -> pd.DataFrame:
    """One probe per layer on one split: layer, auroc, lower, upper, train_auroc, C, reason.

    A curve to look at: its best layer, read off the test part, is an optimistic choice.
    """
    source = x if isinstance(x, Layers) else Layers.of(x)
    target = Target.of(y, items, source)
    chosen = split if split is not None else splits.split_items(target.items, target.labels, seed=seed)
    request, parts = target.request(chosen, get_probe(probe).norms)
    steps: Iterator[tuple[int, list[Products]]]
    if target.problem(parts):
        steps = ((layer, []) for layer in source.layers)
    else:
        steps = rowspace.by_layer(source, [request])
    rows = []
    for layer, found in steps:
        r = evaluate(found, [(layer,)], target, parts, probe=probe, seed=seed, resamples=resamples, shuffles=0)
        rows.append(curve_row(layer, r))
    return pd.DataFrame(rows)


def curve_row(layer: int, r: Recoverability) -> dict[str, Any]:
    """A row of `layer_curve`."""
    return {
        "layer": layer,
        "auroc": r.test_auroc,
        "lower": r.interval.lower,
        "upper": r.interval.upper,
        "train_auroc": r.train_auroc,
        "C": r.C,
        "reason": r.reason,
    }
