"""Directions: along what an outcome differs in a run's states.

Guarantees that a direction sees training items only, so that its effect can be measured on the others, and that differences
between prompting regimes or benchmarks are not taken for the outcome's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import RequestError
from .probing import linear, splits
from .probing.linear import LinearProbe
from .probing.targets import yes_or_no

METHODS = ("mean-difference", "probe")


@dataclass(frozen=True, eq=False)
class Direction:
    """A direction in the states of one site and layer, as long as the two classes' means are apart.

    Attributes
    ----------
    vector : float64 [d]
        Points from the negative class to the positive one.
    site : str
    layer : int
    method : {"mean-difference", "probe"}
    target : str
        What the classes are, in words.
    provenance : dict
        The run, the model, the classes' counts, the split and the settings.
    train_items, validation_items : tuple of (str, str)
        Items (benchmark, item_id) that the direction has seen; all others are held out.
    """

    vector: np.ndarray
    site: str
    layer: int
    method: str
    target: str
    provenance: dict[str, Any]
    train_items: tuple[tuple[str, str], ...]
    validation_items: tuple[tuple[str, str], ...]


def learn_direction(
    run: Any,
    layer: int,
    target: str = "correct",
    *,
    method: str = "mean-difference",
    site: str = "resid_post",
    positive: Any = None,
    negative: Any = None,
    benchmark: str | Sequence[str] | None = None,
    regime: str | Sequence[str] | None = None,
    split: Any = None,
    seed: int = 0,
) -> Direction:
    """Learn a direction from a run's states and a column of outcomes, as arrays.

    `precollapse.hooks.steering_vector`, which makes a vector that steers of the result, describes the parameters, what is compared with
    several regimes or benchmarks, and the errors.

    Returns
    -------
    Direction
        Both methods' vectors [d] have the length of the mean difference, so that one scale means one displacement.
    """
    if method not in METHODS:
        raise RequestError(f"steering method {method!r} is unknown; choose from {', '.join(METHODS)}")
    data = TrainingStates.read(run, layer, target, site, positive, negative, benchmark, regime, split=split, seed=seed)
    difference = data.difference()
    length = float(np.linalg.norm(difference))
    if not length > 0:
        raise RequestError(
            f"the two classes of {data.words} have the same mean at layer {data.layer}; there is no direction"
        )
    vector, fitted = difference, {}
    if method == "probe":
        probe = data.probe()
        vector = probe.weight / np.linalg.norm(probe.weight) * length
        fitted = {
            "C": probe.C,
            "C_note": probe.note,
            "train_auroc": probe.train_auroc,
            "validation_auroc": probe.validation_auroc,
            "cosine_with_mean_difference": float(vector @ difference / length**2),
        }
    return Direction(
        vector,
        site,
        data.layer,
        method,
        data.words,
        provenance={**data.provenance(run), **fitted, "seed": seed if split is None else getattr(split, "seed", None)},
        train_items=data.items_of(0),
        validation_items=data.items_of(1),
    )


@dataclass(frozen=True, eq=False)
class TrainingStates:
    """States with a usable outcome, by part of the split.

    Attributes
    ----------
    x : float64 [n, d]
    y : bool [n]
    part : int [n]
        0 training, 1 validation, 2 held out.
    cell : int [n]
        Number of each state's (benchmark, regime).
    items : list of (str, str)
    layer : int
    words : str
        What the classes are.
    """

    x: np.ndarray
    y: np.ndarray
    part: np.ndarray
    cell: np.ndarray
    items: list[tuple[str, str]]
    layer: int
    words: str

    @classmethod
    def read(
        cls,
        run: Any,
        layer: int,
        target: str,
        site: str,
        positive: Any,
        negative: Any,
        benchmark: Any,
        regime: Any,
        *,
        split: Any,
        seed: int,
    ) -> TrainingStates:
        """Read a run's states of one layer with the classes of a column; see `learn_direction`."""
        chosen = run.select(regime=regime, benchmark=benchmark)
        states = chosen.states
        if target not in states.columns:
            raise RequestError(f"the run has no column {target!r}; it has {', '.join(map(str, states.columns))}")
        layers = chosen.sites.get(site)
        if layers is None:
            raise RequestError(f"the run holds no layers of site {site!r}; it has {', '.join(chosen.sites) or 'none'}")
        number = layers[layer] if -len(layers) <= layer < 0 else layer
        items = item_names(states)
        x = np.asarray(chosen.resid(number, site=site), np.float64).reshape(len(states), -1)
        known = states[target].notna().to_numpy(bool) & np.isfinite(x).all(1)
        part = _parts(items, states[target], known, split, seed)
        cells = {c: i for i, c in enumerate(dict.fromkeys(zip(states["benchmark"], states["regime"], strict=True)))}
        cell = np.array([cells[c] for c in zip(states["benchmark"], states["regime"], strict=True)], dtype=int)
        y, words = _classes(states[target], target, positive, negative, known & (part == 0), cell)
        usable = known & ~np.isnan(y)
        rows = np.flatnonzero(usable)
        made = cls(x[rows], y[rows] > 0, part[rows], cell[rows], [items[i] for i in rows], int(number), words)
        train = made.y[made.part == 0]
        if not 0 < train.sum() < train.size:
            raise RequestError(
                f"the {train.size} training states hold one class of {words} only ({int(train.sum())} positive); "
                "choose another target, other states, or a run with more items"
            )
        return made

    def difference(self) -> np.ndarray:
        """Positive mean minus negative mean [d] over the training states, compared within cells."""
        total, weights = np.zeros(self.x.shape[1]), 0.0
        for c in np.unique(self.cell):
            here = (self.cell == c) & (self.part == 0)
            ups, downs = self.x[here & self.y], self.x[here & ~self.y]
            if len(ups) and len(downs):
                weight = len(ups) * len(downs) / (len(ups) + len(downs))
                total += weight * (ups.mean(0) - downs.mean(0))
                weights += weight
        if not weights:
            raise RequestError(
                f"no benchmark and regime has both classes of {self.words} among its training states; choose other states"
            )
        return total / weights

    def probe(self) -> LinearProbe:
        """Logistic probe on the training states, centred by cell and scaled; C by validation AUROC (see `linear.fit`)."""
        return linear.fit(self.x, self.y, self.part, self.cell)

    def items_of(self, part: int) -> tuple[tuple[str, str], ...]:
        """Distinct items of a part, in order."""
        return tuple(dict.fromkeys(item for item, p in zip(self.items, self.part, strict=True) if p == part))

    def provenance(self, run: Any) -> dict[str, Any]:
        """Where the states come from and how many there are."""
        capture = run.manifest.get("capture", {})
        train = self.part == 0
        return {
            "run": os.path.basename(str(run.path).rstrip("/")),
            "config_hash": run.config_hash,
            **{
                k: capture.get(k) for k in ("model", "model_revision", "tokenizer_hash", "dtype", "n_layers", "d_model")
            },
            "n_train": int(train.sum()),
            "n_positive": int(self.y[train].sum()),
            "n_validation": int((self.part == 1).sum()),
            "cells": int(np.unique(self.cell[train]).size),
            "median_state_norm": float(np.median(np.linalg.norm(self.x[train], axis=1))),
        }


def item_names(states: Any) -> list[tuple[str, str]]:
    """Each state's item as (benchmark, item_id): ids are unique within a benchmark only."""
    return [(str(b), str(i)) for b, i in zip(states["benchmark"], states["item_id"], strict=True)]


def _classes(
    column: Any, target: str, positive: Any, negative: Any, train: np.ndarray, cell: np.ndarray
) -> tuple[np.ndarray, str]:
    """1 and 0 for the two classes, NaN for states of neither; and the classes in words.

    Numbers are cut within each cell: one cut over regimes whose numbers differ would make the regime the class.
    """
    values = list(column)
    known = column.notna().to_numpy(bool)
    present = list(dict.fromkeys(v for v, k in zip(values, known, strict=True) if k))
    out = np.full(len(values), np.nan)
    if not present:
        raise RequestError(f"no state has a value of {target!r}; the run may have been made without generating")
    if positive is not None or negative is not None:
        positive, negative = (_named(value, present) for value in (positive, negative))
        for value in (positive, negative):
            if value is not None and value not in present:
                shown = ", ".join(map(str, present[:12]))
                raise RequestError(f"no state has {target} = {value!r}; its values are {shown}")
        if positive is None or positive == negative:
            raise RequestError(f"positive is {positive!r} and negative {negative!r}; give two different classes")
        for i in np.flatnonzero(known):
            if values[i] == positive:
                out[i] = 1.0
            elif negative is None or values[i] == negative:
                out[i] = 0.0
        return out, f"{target} = {positive} against " + ("all else" if negative is None else str(negative))
    if yes_or_no(present):
        out[known] = [float(v) for v, k in zip(values, known, strict=True) if k]
        return out, target
    if all(isinstance(v, int | float | np.number) for v in present):
        numbers = np.array([float(v) if k else np.nan for v, k in zip(values, known, strict=True)])
        cuts = []
        for number in np.unique(cell):
            here, trained = known & (cell == number), train & (cell == number)
            if trained.any():
                cuts.append(float(np.median(numbers[trained])))
                out[here] = numbers[here] > cuts[-1]
        where = f"of {cuts[0]:.6g}" if len(cuts) == 1 else f"within each of {len(cuts)} benchmarks and regimes"
        return out, f"{target} above its training median {where}"
    raise RequestError(f"{target!r} holds names ({', '.join(map(str, present[:12]))}); say which is positive")


def _named(asked: Any, present: list[Any]) -> Any:
    """The value that was asked for by its text, as from a command line; else what was asked for."""
    found = [v for v in present if str(v) == asked]
    return found[0] if asked not in present and len(found) == 1 else asked


def balancing_labels(column: Any) -> list[Any]:
    """What a split over a column's items is balanced by: its values, or for decimal numbers which half they are in."""
    if column.dtype.kind != "f":
        return list(column)
    return list(column > column.median())


def _parts(items: list[tuple[str, str]], column: Any, known: np.ndarray, split: Any, seed: int) -> np.ndarray:
    """Part of each state by its item."""
    if split is not None:
        single = len({benchmark for benchmark, _ in items}) <= 1
        found = [split.part.get(item, split.part.get(item[1]) if single else None) for item in items]
        if None in found:
            missing = items[found.index(None)]
            raise RequestError(f"item {missing[1]!r} of {missing[0]} is not in the split; make it over all items")
        return np.array(found, dtype=int)
    labels: dict[tuple[str, str], list[str]] = {}
    for item, value, k in zip(items, balancing_labels(column), known, strict=True):
        labels.setdefault(item, []).append(str(value) if k else "")
    part = splits.deal_tenths(labels, seed)
    return np.array([part[item] for item in items], dtype=int)
