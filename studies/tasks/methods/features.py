"""Methods that look at a few numbers or at one word per row: the confounds that every other method is held against.

Guarantees that each sees what its name says and nothing else, so that a high score of one of them is an explanation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.stats import entropy
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ....errors import RequestError
from ..rows import TaskRow, groups, labels, targets
from .method import has_targets, register, texts


class Confound:
    """A logistic (or ridge) regression on some numbers of each row.

    Parameters
    ----------
    features : callable (rows) -> [n, f]
    seed : int
        Not used; every method takes one.
    """

    def __init__(self, features: Callable[[Sequence[TaskRow]], np.ndarray], seed: int = 0) -> None:
        self.features = features
        self._model: Any = None
        self._targets = False

    def fit(self, rows: Sequence[TaskRow], validation: Sequence[TaskRow] = ()) -> Confound:
        """Fit the regression; validation rows are not looked at."""
        self._targets = has_targets(rows)
        model = Ridge() if self._targets else LogisticRegression(max_iter=1000)
        y = targets(list(rows)) if self._targets else labels(list(rows))
        self._model = make_pipeline(StandardScaler(), model).fit(self.features(rows), y)
        return self

    def score(self, rows: Sequence[TaskRow]) -> np.ndarray:
        """Probability of the positive class, or the number."""
        x = self.features(rows)
        return np.asarray(self._model.predict(x) if self._targets else self._model.predict_proba(x)[:, 1])


def length(rows: Sequence[TaskRow]) -> np.ndarray:
    """Log of characters and of words [n, 2]; of the forced prefix where a row has no text."""
    if all(row.chain is None and "partial_cot_length" in row.about for row in rows):
        return np.array([[math.log1p(float(row.about["partial_cot_length"]))] for row in rows])
    return np.array([[math.log1p(len(text)), math.log1p(len(text.split()))] for text in texts(rows)])


def position(rows: Sequence[TaskRow]) -> np.ndarray:
    """Place in the chain, and its log [n, 2].

    Raises
    ------
    RequestError
        Rows have no place.
    """
    places = [row.position for row in rows]
    if any(place is None for place in places):
        raise RequestError("these rows have no place in a chain, so that position says nothing of them")
    return np.array([[float(place or 0), math.log1p(place or 0)] for place in places])


def forced_entropy(rows: Sequence[TaskRow]) -> np.ndarray:
    """Mean, deviation, least and largest entropy of the answers forced earlier in the same chain, and how many [n, 5].

    A row sees the points before its own and never its own, which is its target.

    Raises
    ------
    RequestError
        Rows have no forced answers.
    """
    if any(row.distribution is None or row.position is None for row in rows):
        raise RequestError("these rows have no forced answers, so that their entropy says nothing of them")
    chains: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        chains.setdefault(_chain(row), []).append(
            (int(row.position or 0), float(entropy(list((row.distribution or {}).values()))))
        )
    found = np.zeros((len(rows), 5))
    for place, row in enumerate(rows):
        before = [bits for at, bits in chains[_chain(row)] if at < int(row.position or 0)]
        if before:
            found[place] = (np.mean(before), np.std(before), min(before), max(before), math.log1p(len(before)))
    return found


def _chain(row: TaskRow) -> str:
    return row.id.rpartition("#")[0]


class PromptIdentity:
    """The share of positives (or the mean number) of a question's training rows: what memory of questions alone gives.

    A question that was not trained on gets the share over all rows, so that this is at chance where questions do not overlap.
    """

    def __init__(self, seed: int = 0) -> None:
        self._shares: dict[str, float] = {}
        self._overall = math.nan

    def fit(self, rows: Sequence[TaskRow], validation: Sequence[TaskRow] = ()) -> PromptIdentity:
        """Learn a number for each question."""
        rows = list(rows)
        y = targets(rows) if has_targets(rows) else labels(rows).astype(np.float64)
        names = groups(rows)
        self._overall = float(y.mean())
        self._shares = {str(name): float(y[names == name].mean()) for name in set(names.tolist())}
        return self

    def score(self, rows: Sequence[TaskRow]) -> np.ndarray:
        """The number of each row's question."""
        return np.array([self._shares.get(row.group, self._overall) for row in rows])


class Prior:
    """The share of positives (or the mean number) of all training rows, whatever the row."""

    def __init__(self, seed: int = 0) -> None:
        self._value = math.nan

    def fit(self, rows: Sequence[TaskRow], validation: Sequence[TaskRow] = ()) -> Prior:
        """Learn one number."""
        rows = list(rows)
        self._value = float(np.mean(targets(rows) if has_targets(rows) else labels(rows)))
        return self

    def score(self, rows: Sequence[TaskRow]) -> np.ndarray:
        """That number for each row."""
        return np.full(len(rows), self._value)


def _confound(features: Callable[[Sequence[TaskRow]], np.ndarray]) -> Callable[..., Confound]:
    def make(seed: int = 0) -> Confound:
        return Confound(features, seed)

    return make


BASELINES = ("length", "prompt", "position", "forced-entropy", "prior")
"""Names of the confounds, in the order in which they are printed."""

register("length", _confound(length))
register("prompt", PromptIdentity)
register("position", _confound(position))
register("forced-entropy", _confound(forced_entropy))
register("prior", Prior)
