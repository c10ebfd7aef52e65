"""Splits by item, shared by every regime.

Guarantees that no item stands on both sides of a split whatever its regimes, and that the same items are the test
part for every regime and benchmark compared. It prevents the leak of transfer studies that train on an item under one
prompt and test on the same item under another.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from ...errors import RequestError
from ..statistics import missing

Name = TypeVar("Name", bound=Hashable)

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """Items of the three parts of one split.

    Attributes
    ----------
    part : dict item -> 0 (train), 1 (validation) or 2 (test)
    seed : int
    stratified : bool
        Whether labels were given to balance the parts.
    """

    part: Mapping[Hashable, int] = field(repr=False)
    seed: int
    stratified: bool

    def rows(self, items: Sequence[Hashable] | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Row numbers of the train, validation and test part for these rows' items.

        Raises
        ------
        RequestError
            When an item is not in the split.
        """
        try:
            codes = np.array([self.part[item] for item in items], dtype=int)
        except KeyError as error:
            raise RequestError(f"Item {error.args[0]!r} is not in the split; build the split over all items.") from None
        return np.flatnonzero(codes == 0), np.flatnonzero(codes == 1), np.flatnonzero(codes == 2)

    def sizes(self) -> tuple[int, int, int]:
        """Items in train, validation and test."""
        values = list(self.part.values())
        return values.count(0), values.count(1), values.count(2)


def split_items(
    items: Sequence[Hashable] | np.ndarray,
    labels: Sequence[Any] | np.ndarray | pd.Series | None = None,
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2),
    seed: int = 0,
) -> Split:
    """Split the distinct items into train, validation and test.

    Parameters
    ----------
    items : [n]
        Item of each row; an item may have several rows (regimes), all of which go to one part.
    labels : [n], optional
        Labels to balance over the parts. Items are ordered by the pattern of their rows' labels (random within a
        pattern) and dealt to the parts in that order, so that frequent patterns are split by `fractions` and rare
        ones as evenly as they can be.
    fractions : (train, validation, test), summing to 1
    seed : int
    """
    _check_fractions(fractions)
    order = list(dict.fromkeys(items))
    rng = np.random.default_rng(seed)
    keys = rng.permutation(len(order))
    if labels is None:
        ranked = list(np.argsort(keys))
    else:
        patterns = _patterns(items, labels, order)
        ranked = sorted(range(len(order)), key=lambda i: (patterns[i], keys[i]))
    parts = _deal(len(order), fractions, rng)
    part = {order[i]: int(parts[rank]) for rank, i in enumerate(ranked)}
    return Split(part, seed, labels is not None)


def fold_items(
    items: Sequence[Hashable] | np.ndarray,
    folds: int,
    labels: Sequence[Any] | np.ndarray | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Fold number [n] of each row for cross-validation by item, balanced like `split_items`.

    Raises
    ------
    RequestError
        With fewer items than folds.
    """
    order = list(dict.fromkeys(items))
    if folds < 2 or len(order) < folds:
        raise RequestError(f"{folds} folds over {len(order)} items; give at least 2 folds and as many items as folds.")
    rng = np.random.default_rng(seed)
    keys = rng.permutation(len(order))
    patterns = _patterns(items, labels, order) if labels is not None else [""] * len(order)
    ranked = sorted(range(len(order)), key=lambda i: (patterns[i], keys[i]))
    fold = {}
    for start in range(0, len(order), folds):
        block = ranked[start : start + folds]
        for i, number in zip(block, rng.permutation(folds), strict=False):
            fold[order[i]] = int(number)
    return np.array([fold[item] for item in items])


def deal_tenths(labels: Mapping[Name, Sequence[str]], seed: int) -> dict[Name, int]:
    """Part of each item, 60/20/20: the items are walked label by label, and each tenth gets its parts from a random start.

    The split of steering vectors. It differs from `split_items` in its draws only, and stays because a saved vector names its
    held-out items by the seed alone.

    Parameters
    ----------
    labels : mapping of item to the labels of its rows
    seed : int
    """
    rng = np.random.default_rng(seed)
    order = list(labels)
    draw = rng.permutation(len(order))
    ranked = sorted(range(len(order)), key=lambda i: (labels[order[i]], draw[i]))
    start = rng.integers(10)
    dealt = [0, 0, 1, 0, 2, 0, 0, 1, 0, 2]
    return {order[i]: dealt[(rank + start) % 10] for rank, i in enumerate(ranked)}


def _deal(n: int, fractions: tuple[float, float, float], rng: np.random.Generator) -> np.ndarray:
    """Parts of n ranked items: at every rank the part that is furthest behind its fraction, ties at random."""
    given = np.zeros(3)
    out = np.empty(n, dtype=int)
    start = rng.random(3) * np.array(fractions)  # a random phase, so that the order of parts differs by seed
    for rank in range(n):
        behind = np.array(fractions) * (rank + 1) - given + start
        out[rank] = int(np.argmax(np.where(np.array(fractions) > 0, behind, -np.inf)))
        given[out[rank]] += 1
    return out


def _patterns(items: Any, labels: Any, order: list[Hashable]) -> list[str]:
    if len(items) != len(labels):
        raise RequestError(f"{len(labels)} labels for {len(items)} rows; give one label per row.")
    seen: dict[Hashable, list[str]] = {item: [] for item in order}
    for item, label in zip(items, labels, strict=True):
        seen[item].append(_label(label))
    return ["|".join(seen[item]) for item in order]


def _label(value: Any) -> str:
    if missing(value):
        return "?"
    return str(float(value)) if isinstance(value, bool | int | float | np.generic) else str(value)


def _check_fractions(fractions: Sequence[float]) -> None:
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-9 or fractions[0] == 0:
        raise RequestError(f"fractions are {tuple(fractions)}; give three shares that sum to 1, the first above 0.")
