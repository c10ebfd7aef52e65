"""One probe fitted, chosen and scored on one split.

Guarantees that scaler and weights see training items only, that C (and the layers, when they are not fixed in
advance) are chosen on validation items, that the test part is scored once, and that shuffled training labels go
through the very same path, choice of C included. It prevents the three leaks of published probing code: C chosen on
the test fold, a scaler fitted on all items, and a shuffle control that permutes test labels too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import statistics
from ..statistics import Interval
from . import calibration as calibrations
from .kinds import Probe, best_setting, get_probe
from .rowspace import Products
from .targets import Parts, Target

BOOTSTRAP_ROWS = 25
"""Rows of the rarer test class from which a percentile bootstrap is shown."""


@dataclass(frozen=True)
class Recoverability:
    """Outcome of one probe on one split.

    Above the usual length because it is one record: every number that is shown of a probe stands here under its own name.

    Attributes
    ----------
    test_auroc : float
        NaN where undefined; `reason` then says why. Macro average over classes when the target has more than two.
    interval : Interval
        Percentile bootstrap over test items.
    small_sample : Interval
        Newcombe's closed-form interval, for test parts so small or so well separated that a bootstrap has no width.
        Undefined where an item has several test rows, which are not independent.
    train_auroc, validation_auroc, gap : float
        gap = train - test.
    C : float
        Chosen regularisation (for other probes: the chosen setting).
    layers : tuple of int
    shuffle_auroc : float
        Mean test AUROC over refits on permuted training labels. Items with several rows are permuted whole, with items of
        as many rows.
    shuffle_null : [shuffles] float
    shuffle_p : float
        (1 + permutations at least as good) / (1 + permutations).
    undefined_resamples : int
    n_train, n_validation, n_test : int
        Rows of each part; test_positives counts class 1 in the test part.
    test_items : [n_test], item of each test row; test_labels, test_scores alongside
    test_read : [n_test] int
        Number of the class that the probe reads from each test row (see `_read`).
    left_out : int
        Rows left out for a missing label or a value that is not finite.
    reason : str
        Why the result is undefined, or what to read with care.
    """

    test_auroc: float
    interval: Interval
    train_auroc: float
    gap: float
    C: float
    layers: tuple[int, ...]
    shuffle_auroc: float
    undefined_resamples: int
    reason: str
    small_sample: Interval
    validation_auroc: float = math.nan
    shuffle_p: float = math.nan
    shuffle_null: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    n_train: int = 0
    n_validation: int = 0
    n_test: int = 0
    test_positives: int = 0
    probe: str = "logistic"
    test_items: np.ndarray = field(default_factory=lambda: np.empty(0, object), repr=False)
    test_labels: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    test_scores: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    test_read: np.ndarray = field(default_factory=lambda: np.empty(0, int), repr=False)
    left_out: int = 0
    classes: tuple[Any, ...] = ()
    calibration: calibrations.Calibration | None = field(default=None, repr=False)

    @property
    def defined(self) -> bool:
        """True when there is a test AUROC."""
        return math.isfinite(self.test_auroc)

    @property
    def shown(self) -> Interval:
        """The interval for tables: the bootstrap's, or Newcombe's closed form where that cannot be believed.

        With fewer than `BOOTSTRAP_ROWS` test rows of the rarer class, or a bootstrap without width (perfect
        separation), percentile bounds are too narrow: see docs/validity.md for how often they miss.
        """
        rarer = min(self.test_positives, self.n_test - self.test_positives)
        narrow = self.interval.lower == self.interval.upper
        return self.small_sample if self.small_sample.defined and (rarer < BOOTSTRAP_ROWS or narrow) else self.interval


def evaluate(
    candidates: Sequence[Products],
    sets: Sequence[tuple[int, ...]],
    target: Target,
    parts: Parts,
    *,
    probe: str = "logistic",
    seed: int = 0,
    resamples: int = 1000,
    shuffles: int = 20,
    level: float = 0.95,
) -> Recoverability:
    """`recoverability` from products made beforehand, one per candidate set of layers."""
    problem = target.problem(parts) or ("" if candidates else "no states of the residual stream were captured")
    if problem:
        return undefined(problem, target, parts, sets, probe, level)
    kind = get_probe(probe)
    rng = np.random.default_rng(seed)
    truth = target.one_against_rest()
    fittable = [c for c in range(truth.shape[0]) if 0 < truth[c, parts.train].sum() < parts.train.size]
    real = truth[fittable][:, parts.train]
    permuted = [real[:, statistics.permuted_rows(target.items[parts.train], rng)] for _ in range(shuffles)]
    stacked = np.concatenate([real, *permuted])  # [(1 + shuffles) * c, m]
    scores = np.stack([kind.fit(p, stacked, seed) for p in candidates])  # [sets, grid, p, r]
    scores = scores.reshape(len(candidates) * len(kind.grid), 1 + shuffles, len(fittable), -1)
    labels = truth[fittable]
    choice, note = _choose(scores, labels, parts.validation, kind, len(candidates))
    picked = scores[choice, np.arange(1 + shuffles)]  # [1 + shuffles, c, r]
    test_labels, test_scores = labels[:, parts.test], picked[..., parts.test]
    null = np.array([_macro(test_labels, s) for s in test_scores[1:]])
    interval = statistics.bootstrap_macro_auroc(
        test_labels, test_scores[0], resamples, level, seed, groups=target.items[parts.test]
    )
    train = _macro(labels[:, parts.train], picked[0][:, parts.train])
    best_set, best_setting = divmod(int(choice[0]), len(kind.grid))
    binary = len(target.classes) <= 2
    positives = int(test_labels[0].sum()) if binary else 0
    if not binary:
        small = statistics.undefined_interval("more than two classes", level=level)
    elif len(set(target.items[parts.test])) < parts.test.size:
        small = statistics.undefined_interval("several rows per item", level=level)
    else:
        small = statistics.newcombe_auroc(interval.estimate, positives, parts.test.size - positives, level)
    return Recoverability(
        test_auroc=interval.estimate,
        interval=interval,
        train_auroc=train,
        gap=train - interval.estimate,
        C=kind.grid[best_setting],
        layers=sets[best_set],
        shuffle_auroc=float(np.nanmean(null)) if null.size and np.isfinite(null).any() else math.nan,
        undefined_resamples=interval.undefined,
        reason="; ".join(part for part in (note, interval.reason, _few(test_labels)) if part),
        small_sample=small,
        validation_auroc=_macro(labels[:, parts.validation], picked[0][:, parts.validation]),
        shuffle_p=statistics.permutation_p(interval.estimate, null),
        shuffle_null=null,
        n_train=parts.train.size,
        n_validation=parts.validation.size,
        n_test=parts.test.size,
        test_positives=positives,
        probe=probe,
        test_items=target.items[parts.test],
        test_labels=test_labels[0] if binary else target.labels[parts.test],
        test_scores=test_scores[0, 0] if binary else test_scores[0].T,
        test_read=_read(picked[0], labels, parts, fittable if not binary else None),
        left_out=target.left_out,
        classes=tuple(target.classes[c] for c in fittable) if not binary else target.classes,
        calibration=(
            calibrations.calibration(test_labels[0], 0.5 * (1 + np.tanh(0.5 * test_scores[0, 0])))
            if kind.probabilistic and binary
            else None
        ),
    )


def fitted_scores(p: Products, target: Target, parts: Parts, probe: str, seed: int) -> tuple[np.ndarray, str]:
    """Scores [r] of all rows by the probe fitted on `parts.train` with the setting that `parts.validation` chose.

    Yes/no targets; the training part must hold both classes. The second value says when validation could not choose.
    """
    kind = get_probe(probe)
    truth = target.one_against_rest()
    scores = kind.fit(p, truth[:, parts.train], seed)
    choice, note = _choose(scores[:, None], truth, parts.validation, kind, 1)
    return scores[choice[0], 0], note


def _choose(
    scores: np.ndarray, labels: np.ndarray, validation: np.ndarray, kind: Probe, sets: int
) -> tuple[np.ndarray, str]:
    """Best (set, setting) of every label vector by validation AUROC; ties go to the first (most regularised)."""
    values = np.array(
        [[_macro(labels[:, validation], s[:, validation]) for s in per_vector] for per_vector in scores]
    )  # [sets * grid, 1 + shuffles]
    best = best_setting(values)
    if best is not None:
        return best, ""
    setting = kind.grid.index(kind.fallback)
    why = "one class in the validation part" if validation.size else "no validation rows"
    named = f"C fixed at {kind.fallback:g}" if kind.name == "logistic" else f"setting fixed at {kind.fallback:g}"
    first = "" if sets == 1 else ", first set of layers taken"
    return np.full(values.shape[1], setting), f"{why}: {named}{first}"


def _read(scores: np.ndarray, labels: np.ndarray, parts: Parts, classes: Sequence[int] | None) -> np.ndarray:
    """Class read from each test row, from one-against-rest scores [c, r] with their labels; yes or no without `classes`.

    Each class's score is counted from the middle between the mean training scores of its two sides, in halves of their
    distance. A penalty that validation AUROC chose may leave every score on the side of the more frequent class: ranked as
    well as ever, but read at 0 (or by the highest score) the probe would always say that class.
    """
    train, held = scores[:, parts.train], labels[:, parts.train]
    one, other = (np.where(held == side, train, 0.0).sum(1) / (held == side).sum(1) for side in (1, 0))
    half = np.abs(one - other) / 2
    place = (scores[:, parts.test] - ((one + other) / 2)[:, None]) / np.where(half > 0, half, 1.0)[:, None]
    if classes is None:
        return np.asarray((place[0] > 0).astype(int))
    return np.asarray(np.asarray(classes)[place.argmax(axis=0)])


def _macro(labels: np.ndarray, scores: np.ndarray) -> float:
    """Mean AUROC over the classes that are defined on these rows; NaN without any."""
    values = [statistics.auroc(one, s) for one, s in zip(labels, scores, strict=True)]
    known = [v for v in values if math.isfinite(v)]
    return float(np.mean(known)) if known else math.nan


def _few(test_labels: np.ndarray) -> str:
    if test_labels.shape[0] > 1:
        return ""
    positives = int(test_labels[0].sum())
    rarer = min(positives, test_labels.shape[1] - positives)
    return f"only {rarer} test rows of the rarer class" if rarer < 5 else ""


def undefined(
    reason: str, target: Target, parts: Parts, sets: Sequence[tuple[int, ...]], probe: str, level: float
) -> Recoverability:
    nan = math.nan
    nothing = statistics.undefined_interval(reason, method="percentile bootstrap", level=level, n=parts.test.size)
    return Recoverability(
        nan,
        nothing,
        nan,
        nan,
        nan,
        sets[0],
        nan,
        0,
        reason,
        nothing,
        n_train=parts.train.size,
        n_validation=parts.validation.size,
        n_test=parts.test.size,
        test_positives=int((target.labels[parts.test] == 1).sum()),
        probe=probe,
        left_out=target.left_out,
    )
