"""TF-IDF of words and pairs of words with a logistic (or ridge) regression: what the wording alone gives."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold

from ....errors import RequestError
from ..rows import TaskRow, groups, labels, targets
from .method import has_targets, register, texts

STRENGTHS = (0.1, 1.0, 10.0, 100.0)
"""Inverse L2 strengths that grouped cross-validation on the training rows chooses from."""


class TfIdf:
    """Word 1- and 2-grams, weighted by TF-IDF, and a linear model whose L2 strength grouped cross-validation chooses.

    Parameters
    ----------
    seed : int
    most : int
        Words and pairs that are kept, the most frequent of the training rows.
    """

    def __init__(self, seed: int = 0, most: int = 50_000) -> None:
        self.seed, self.most = seed, most
        self.chosen = float("nan")
        self._words: Any = None
        self._model: Any = None
        self._targets = False

    def fit(self, rows: Sequence[TaskRow], validation: Sequence[TaskRow] = ()) -> TfIdf:
        """Fit on training rows; the strength is chosen by folds of them that share no question.

        Raises
        ------
        RequestError
            Rows without text, or without a word.
        """
        rows = list(rows)
        self._targets = has_targets(rows)
        y = targets(rows) if self._targets else labels(rows)
        self._words = TfidfVectorizer(ngram_range=(1, 2), max_features=self.most, sublinear_tf=True, min_df=2)
        try:
            x = self._words.fit_transform(texts(rows))
        except ValueError as error:
            raise RequestError(f"TF-IDF found no words to count in the training rows ({error})") from None
        self.chosen = self._choose(x, y, groups(rows))
        self._model = self._linear(self.chosen)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._model.fit(x, y)
        return self

    def score(self, rows: Sequence[TaskRow]) -> np.ndarray:
        """Probability of the positive class, or the number."""
        x = self._words.transform(texts(rows))
        return np.asarray(self._model.predict(x) if self._targets else self._model.predict_proba(x)[:, 1])

    def weights(self, row: TaskRow, most: int = 20) -> list[tuple[str, float]]:
        """The words and pairs that moved a row's score most, with what each added to the log-odds."""
        x = self._words.transform([row.text]).tocoo()
        coefficients = np.ravel(self._model.coef_)
        names = self._words.get_feature_names_out()
        added = [(str(names[c]), float(v * coefficients[c])) for c, v in zip(x.col, x.data, strict=True)]
        return sorted(added, key=lambda pair: -abs(pair[1]))[:most]

    def _linear(self, strength: float) -> Any:
        if self._targets:
            return Ridge(alpha=1 / strength)
        return LogisticRegression(C=strength, max_iter=200, solver="liblinear", random_state=self.seed)

    def _choose(self, x: Any, y: np.ndarray, names: np.ndarray) -> float:
        """The strength with the best held-out score over folds of questions; the middle one where there are too few."""
        folds = min(5, len(set(names.tolist())))
        if folds < 2:
            return STRENGTHS[1]
        splitter = (
            GroupKFold(folds) if self._targets else StratifiedGroupKFold(folds, shuffle=True, random_state=self.seed)
        )
        marks = np.zeros(len(STRENGTHS))
        for train, held in splitter.split(x, y, names):
            if not self._targets and (len(set(y[train])) < 2 or len(set(y[held])) < 2):
                continue
            for place, strength in enumerate(STRENGTHS):
                model = self._linear(strength).fit(x[train], y[train])
                if self._targets:
                    marks[place] -= float(np.sum((model.predict(x[held]) - y[held]) ** 2))
                else:
                    marks[place] += roc_auc_score(y[held], model.predict_proba(x[held])[:, 1])
        return STRENGTHS[int(np.argmax(marks))]


register("tfidf", TfIdf)
