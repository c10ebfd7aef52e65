"""What a probe predicts: labels as numbers, the rows that have one, and the parts of a split among them.

Guarantees that a row without a label or with a value that is not finite is left out and counted, and that a target which no
probe could be fitted to says why. It prevents missing labels that quietly become a class of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import RequestError
from .. import statistics
from .rowspace import Layers, Request
from .splits import Split


@dataclass(frozen=True)
class Target:
    """Labels and items of the usable rows of a source.

    Attributes
    ----------
    rows : [r] int
        Row numbers of the source with a label and finite states.
    labels : [r]
        0/1 float for two classes, class numbers otherwise.
    classes : tuple
        Names of the classes; (False, True) for a yes/no target.
    items : [r]
    left_out : int
    """

    rows: np.ndarray
    labels: np.ndarray
    classes: tuple[Any, ...]
    items: np.ndarray
    left_out: int

    @classmethod
    def of(
        cls,
        y: Any,
        items: Any,
        source: Layers,
        finite: np.ndarray | None = None,
        classes: tuple[Any, ...] | None = None,
    ) -> Target:
        """Check lengths, code the labels, leave out rows without a label or with a value that is not finite."""
        values = list(y)
        names = np.arange(len(values)) if items is None else _objects(items)
        if len(values) != source.n or names.size != source.n:
            raise RequestError(
                f"{source.n} states, {len(values)} labels and {names.size} items: the lengths must agree."
            )
        good = source.finite() if finite is None else finite
        known = np.array([not statistics.missing(v) for v in values], dtype=bool)
        rows = np.flatnonzero(good & known)
        present = [values[i] for i in rows]
        coded, found = _code(present, classes)
        return cls(rows, coded, found, names[rows], int(source.n - rows.size))

    def subset(self, keep: np.ndarray) -> Target:
        """The target on some of its rows ([r] bool)."""
        return Target(self.rows[keep], self.labels[keep], self.classes, self.items[keep], self.left_out)

    def request(self, split: Split, norms: bool = False) -> tuple[Request, Parts]:
        """The products that this target needs under a split, and where its parts stand among them."""
        train, validation, test = split.rows(self.items)
        return Request(self.rows, self.rows[train], norms), Parts(train, validation, test)

    def problem(self, parts: Parts) -> str:
        """Why no probe can be fitted and scored on these parts; empty when one can."""
        if self.rows.size == 0:
            return "no usable rows"
        if len(self.classes) > 2:
            train = set(self.labels[parts.train].tolist())
            test = set(self.labels[parts.test].tolist())
            return (
                "" if len(train) > 1 and len(train & test) > 1 else "fewer than two classes in the train or test part"
            )
        for name, part in (("train", parts.train), ("test", parts.test)):
            labels = self.labels[part]
            if labels.size == 0:
                return f"no {name} rows"
            if labels.min() == labels.max():
                return f"one class in the {name} part ({int(labels.sum())} of {labels.size} positive)"
        return ""

    def one_against_rest(self) -> np.ndarray:
        """[c, r] of 0/1: the labels themselves for two classes, one row per class otherwise."""
        if len(self.classes) <= 2:
            return self.labels[None]
        return np.stack([(self.labels == c).astype(float) for c in range(len(self.classes))])


@dataclass(frozen=True)
class Parts:
    """Positions of the train, validation and test rows among a target's rows."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def yes_or_no(values: Sequence[Any]) -> bool:
    """Whether every value is a bool, or the number 0 or 1."""
    return all(
        isinstance(v, bool | np.bool_) or (isinstance(v, int | float | np.number) and v in (0, 1)) for v in values
    )


def _objects(values: Any) -> np.ndarray:
    out = np.empty(len(values), dtype=object)  # tuples stay items of their own
    out[:] = list(values)
    return out


def _code(values: list[Any], classes: tuple[Any, ...] | None) -> tuple[np.ndarray, tuple[Any, ...]]:
    if classes is None and yes_or_no(values):
        return np.array([float(v) for v in values]), (False, True)
    names = classes if classes is not None else tuple(sorted(set(values), key=str))
    number = {name: i for i, name in enumerate(names)}
    if len(names) <= 2 and classes is None:
        return np.array([float(number[v]) for v in values]), names
    return np.array([float(number[v]) for v in values]), names


def coded(values: Any, classes: Sequence[Any]) -> np.ndarray:
    """Labels as the numbers of their classes ([n] float64); NaN where one is missing or of no such class."""
    number = {name: float(i) for i, name in enumerate(classes)}
    return np.array([math.nan if statistics.missing(v) else number.get(v, math.nan) for v in values], dtype=np.float64)


def layer_sets(source: Layers, layers: Any) -> list[tuple[int, ...]]:
    """Candidate sets of layers: all (None), one set of numbers, or several sets; negative numbers count back."""
    if layers is None:
        return [source.layers]
    chosen = list(layers)
    if not chosen:
        raise RequestError("no layer was chosen; give at least one.")
    sets = [tuple(c) for c in chosen] if not isinstance(chosen[0], int | np.integer) else [tuple(chosen)]
    out = []
    for one in sets:
        numbers = [source.layers[v] if -len(source.layers) <= v < 0 else int(v) for v in one]
        unknown = [v for v in numbers if v not in source.layers]
        if unknown or not numbers:
            raise RequestError(f"layers {unknown or '()'} are not among {source.layers[0]}..{source.layers[-1]}.")
        out.append(tuple(dict.fromkeys(numbers)))
    return out
