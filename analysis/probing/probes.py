"""Can an outcome be read from the boundary state by a simple probe, and would it survive a referee?

Guarantees that scaler and weights see training items only, that C (and the layers, when they are not fixed in
advance) are chosen on validation items, that the test part is scored once, and that shuffled training labels go
through the very same path, choice of C included. It prevents the three leaks of published probing code: C chosen on
the test fold, a scaler fitted on all items, and a shuffle control that permutes test labels too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ...errors import RequestError
from .. import statistics
from ..statistics import Interval
from . import calibration as calibrations
from . import logistic, rowspace, splits
from .rowspace import Layers, Products, Request
from .splits import Split

C_GRID = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)
FALLBACK_C = 1.0
BOOTSTRAP_ROWS = 25  # rows of the rarer test class from which a percentile bootstrap is shown

# a probe's setting when validation cannot choose one: the middle of its grid by meaning, not by result
_Path = Callable[[Products, np.ndarray, int], np.ndarray]


@dataclass(frozen=True)
class Probe:
    """A probe by name: its grid, the value used when validation cannot choose, and its fit.

    `fit(products, labels [p, m], seed)` returns scores [len(grid), p, r] of all rows. `norms`: it needs row lengths.
    """

    name: str
    grid: tuple[float, ...]
    fallback: float
    fit: _Path = field(repr=False)
    probabilistic: bool = False
    norms: bool = False


@dataclass(frozen=True)
class Recoverability:
    """Outcome of one probe on one split.

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
        return _undefined(problem, target, parts, sets, probe, level)
    sums: list[Products | None] = [None] * len(sets)
    for layer, (found,) in rowspace.by_layer(source, [request]):
        for i, chosen in enumerate(sets):
            if layer in chosen:
                total = sums[i]
                sums[i] = found if total is None else total + found
    candidates = [p for p in sums if p is not None]
    return evaluate(
        candidates, sets, target, parts, probe=probe, seed=seed, resamples=resamples, shuffles=shuffles, level=level
    )


# -- target and parts ------------------------------------------------------------------------------------------------


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


def _objects(values: Any) -> np.ndarray:
    out = np.empty(len(values), dtype=object)  # tuples stay items of their own
    out[:] = list(values)
    return out


def _code(values: list[Any], classes: tuple[Any, ...] | None) -> tuple[np.ndarray, tuple[Any, ...]]:
    binary = all(
        isinstance(v, bool | np.bool_) or (isinstance(v, int | float | np.number) and v in (0, 1)) for v in values
    )
    if classes is None and binary:
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


# -- fit, choose, score ----------------------------------------------------------------------------------------------


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
        return _undefined(problem, target, parts, sets, probe, level)
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
    if np.isfinite(values).all():
        return np.argmax(np.round(values, 12), axis=0), ""
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
        return (place[0] > 0).astype(int)
    return np.asarray(classes)[place.argmax(axis=0)]


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


def _undefined(
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


# -- probes by name --------------------------------------------------------------------------------------------------


def _logistic(p: Products, labels: np.ndarray, seed: int) -> np.ndarray:
    z = rowspace.coordinates(p)
    weights = logistic.fit_path(rowspace.train_coordinates(p), labels, C_GRID)
    return weights[..., :-1] @ z.T + weights[..., -1:]


RIDGE_GRID = (1e6, 1e5, 1e4, 1e3, 1e2, 1e1, 1.0)


def _ridge(p: Products, labels: np.ndarray, seed: int) -> np.ndarray:
    return _least_squares(p, labels, RIDGE_GRID)


def _linear(p: Products, labels: np.ndarray, seed: int) -> np.ndarray:
    return _least_squares(p, labels, (0.0,))


def _least_squares(p: Products, labels: np.ndarray, grid: Sequence[float]) -> np.ndarray:
    """Ridge on +-1 labels with an unpenalised intercept; alpha 0 is the least-squares solution of least norm."""
    values, vectors = rowspace.basis(p)
    signed = 2.0 * labels - 1.0
    offset = signed.mean(axis=1, keepdims=True)
    projected = (signed - offset) @ vectors
    return np.stack([projected / (values + alpha) @ vectors.T @ p.kernel.T + offset for alpha in grid])


def _mean_difference(p: Products, labels: np.ndarray, seed: int) -> np.ndarray:
    direction = labels / labels.sum(1, keepdims=True) - (1 - labels) / (1 - labels).sum(1, keepdims=True)
    return (direction @ p.kernel.T)[None]


KNN_GRID = (31.0, 15.0, 9.0, 5.0, 3.0, 1.0)


def _neighbours(p: Products, labels: np.ndarray, seed: int) -> np.ndarray:
    """Share of class 1 among the k nearest other training rows (k brought down to their number)."""
    distance = p.norms[:, None] + np.diag(p.inner)[None] - 2 * p.kernel
    for column, row in enumerate(p.train):
        if row >= 0:
            distance[row, column] = np.inf
    order = np.argsort(distance, axis=1, kind="stable")
    available = max(1, p.inner.shape[0] - 1)
    return np.stack([labels[:, order[:, : int(min(k, available))]].mean(axis=2) for k in KNN_GRID])


MLP_GRID = (10.0, 1.0, 0.1, 0.001)


def _perceptron(p: Products, labels: np.ndarray, seed: int) -> np.ndarray:
    """One hidden layer of 32 units on the coordinates of the training rows' span, l2 penalty by validation."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    z = rowspace.coordinates(p)
    train = rowspace.train_coordinates(p)
    spread = max(float(np.sqrt((train**2).sum(1).mean())), 1e-300) / math.sqrt(max(train.shape[1], 1))
    out = np.empty((len(MLP_GRID), labels.shape[0], z.shape[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 200 steps are the early stop
        for i, alpha in enumerate(MLP_GRID):
            for j, y in enumerate(labels):
                model = MLPClassifier((32,), alpha=alpha, solver="lbfgs", max_iter=200, random_state=seed)
                probability = model.fit(train / spread, y).predict_proba(z / spread)[:, 1]
                out[i, j] = probability
    return out


PROBES: Mapping[str, Probe] = {
    p.name: p
    for p in (
        Probe("logistic", C_GRID, FALLBACK_C, _logistic, probabilistic=True),
        Probe("ridge", RIDGE_GRID, 1e3, _ridge),
        Probe("linear", (0.0,), 0.0, _linear),
        Probe("mean-difference", (0.0,), 0.0, _mean_difference),
        Probe("knn", KNN_GRID, 5.0, _neighbours, norms=True),
        Probe("mlp", MLP_GRID, 1.0, _perceptron),
    )
}


def get_probe(name: str) -> Probe:
    """The probe of this name.

    Raises
    ------
    RequestError
        For an unknown name.
    """
    if name not in PROBES:
        raise RequestError(f"There is no probe {name!r}; choose one of {', '.join(PROBES)}.")
    return PROBES[name]


# -- repeated splits, nested cross-validation, layers ----------------------------------------------------------------


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
