"""One protocol for every method: fitted on training rows, its threshold frozen on validation rows, scored once on the others.

Guarantees that nothing of the test parts is seen before they are scored, that whole questions are resampled, and that a
method's result is written whole under a name of its own, so that a fit which was killed goes on with what is missing.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ... import atomic
from ...analysis.detection import choose_threshold, detection, prediction
from ...analysis.statistics import Interval
from ...errors import RequestError
from .effects import explained
from .methods import Method, make
from .rows import TaskData, TaskRow, groups, labels, targets
from .sets import TASKS

TRAIN, VALIDATION = "train", "val"


@dataclass(frozen=True)
class Score:
    """One number of one method on one part.

    Attributes
    ----------
    task : int
    method : str
    part : str
        `test` or the name of a part out of distribution.
    metric : str
        `gmean2`, `auroc`, `tpr`, `tnr`, `adjusted` or `called` for classes; `r2`, `rank` or `recalibrated_r2` for a number.
    estimate, lower, upper : float
        Over questions; NaN where undefined.
    rows, questions, positives : int
    reason : str
    """

    task: int
    method: str
    part: str
    metric: str
    estimate: float
    lower: float
    upper: float
    rows: int
    questions: int
    positives: int
    reason: str = ""


@dataclass(frozen=True)
class FittedMethod:
    """A method's scores on one task.

    Attributes
    ----------
    task : int
    method : str
    threshold : float
        Frozen on the validation part; NaN for a task with a target.
    scores : tuple of Score
    rows : DataFrame
        `id`, `split`, `group`, `label` or `target`, and `score`, of every row but the training ones.
    seconds : float
        Of fitting and scoring.
    notes : tuple of str
    settings : mapping
    """

    task: int
    method: str
    threshold: float
    scores: tuple[Score, ...]
    rows: pd.DataFrame = field(repr=False)
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)


def fit(
    data: TaskData,
    method: str | Callable[[], Method],
    *,
    name: str | None = None,
    seed: int = 0,
    resamples: int = 1000,
    level: float = 0.95,
    settings: dict[str, Any] | None = None,
) -> FittedMethod:
    """Fit a method on a task and score it.

    Parameters
    ----------
    data : TaskData
    method : str or callable () -> Method
        A registered name, or something that makes a method.
    name : str, optional
        What the method is called in the result.
    seed, resamples, level
        Of the method and of the intervals.
    settings : mapping, optional
        What is recorded of the method besides.

    Returns
    -------
    FittedMethod

    Raises
    ------
    RequestError
        The task has no training or validation rows, or the method cannot read them.

    Examples
    --------
    >>> rows = tuple(TaskRow(f"{s}/{i}", s, f"{s}{i // 4}", "", ("good " if i % 2 else "bad ") * 3, label=bool(i % 2))
    ...              for s in ("train", "val", "test") for i in range(40))
    >>> fitted = fit(TaskData(3, rows, {}, ()), "tfidf", resamples=50)
    >>> [round(s.estimate, 2) for s in fitted.scores if s.metric == "gmean2"]
    [1.0]
    """
    train, validation = data.of(TRAIN), data.of(VALIDATION)
    for part, rows in ((TRAIN, train), (VALIDATION, validation)):
        if not rows:
            raise RequestError(f"task {data.number} has no {part} rows here, which every method needs")
    started = time.perf_counter()
    fitted = (make(method, seed=seed) if isinstance(method, str) else method()).fit(train, validation)
    parts = [split for split in data.splits if split not in (TRAIN, VALIDATION)]
    scored = {split: _checked(fitted.score(data.of(split)), data.of(split)) for split in (VALIDATION, *parts)}
    seconds = time.perf_counter() - started
    called = name or str(method if isinstance(method, str) else type(fitted).__name__)
    has_classes = TASKS[data.number].has_classes
    threshold = choose_threshold(labels(list(validation)), scored[VALIDATION]) if has_classes else math.nan
    scores: list[Score] = []
    for part in parts or [VALIDATION]:
        rows = data.of(part)
        limit = threshold if parts or not has_classes else _cross_fitted(rows, scored[part], seed)
        one = _classes if has_classes else _numbers
        scores += [
            Score(data.number, called, part, *values)
            for values in one(data, rows, scored[part], limit, resamples, level, seed)
        ]
    frame = pd.concat([_frame(data.of(split), values) for split, values in scored.items()], ignore_index=True)
    notes = tuple(
        f"question {question} stands in {' and '.join(splits)}" for question, splits in data.shared_questions().items()
    )
    if not parts:
        notes = (
            "no test rows are here: scores are of the validation rows, each half's threshold chosen on the other half",
            *notes,
        )
    return FittedMethod(
        data.number,
        called,
        threshold,
        tuple(scores),
        frame,
        seconds,
        notes[:3] + ((f"and {len(notes) - 3} more questions stand in two parts",) if len(notes) > 3 else ()),
        {"seed": seed, "resamples": resamples, "level": level} | (settings or {}),
    )


def _cross_fitted(rows: Sequence[TaskRow], score: np.ndarray, seed: int) -> np.ndarray:
    """A threshold for each row [n], chosen on the half of the questions that its own is not in."""
    names = groups(list(rows))
    order = sorted(set(names.tolist()))
    first = {order[i] for i in np.random.default_rng(seed).permutation(len(order))[: len(order) // 2]}
    in_first = np.array([name in first for name in names])
    y = labels(list(rows))
    limits = [choose_threshold(y[half], score[half]) for half in (~in_first, in_first)]
    return np.where(in_first, *limits)


Values = tuple[str, float, float, float, int, int, int, str]


def _classes(
    data: TaskData,
    rows: Sequence[TaskRow],
    score: np.ndarray,
    threshold: float | np.ndarray,
    resamples: int,
    level: float,
    seed: int,
) -> list[Values]:
    found = detection(
        labels(list(rows)), score, threshold, groups(list(rows)), explained(data.number, rows), resamples, level, seed
    )
    metrics = {"gmean2": found.gmean2, "auroc": found.auroc, "tpr": found.tpr, "tnr": found.tnr}
    if found.adjusted is not None:
        metrics["adjusted"] = found.adjusted
    size = (found.rows, found.questions, found.positives)
    return [_values(name, interval, size) for name, interval in metrics.items()] + [
        ("called", found.called, math.nan, math.nan, *size, "")
    ]


def _numbers(
    data: TaskData,
    rows: Sequence[TaskRow],
    score: np.ndarray,
    threshold: float | np.ndarray,
    resamples: int,
    level: float,
    seed: int,
) -> list[Values]:
    found = prediction(targets(list(rows)), score, groups(list(rows)), resamples=resamples, level=level, seed=seed)
    metrics = {"r2": found.r2, "rank": found.rank, "recalibrated_r2": found.recalibrated_r2}
    return [_values(name, interval, (found.rows, found.questions, 0)) for name, interval in metrics.items()]


def _values(name: str, interval: Interval, size: tuple[int, int, int]) -> Values:
    return (name, interval.estimate, interval.lower, interval.upper, *size, interval.reason)


def _checked(score: np.ndarray, rows: Sequence[TaskRow]) -> np.ndarray:
    """A method's scores, which must be a finite number for each row."""
    values = np.asarray(score, dtype=np.float64)
    if values.shape != (len(rows),) or not np.isfinite(values).all():
        raise RequestError(
            f"the method gave scores of shape {values.shape} for {len(rows)} rows, or some that are not finite; it must give one number for each row"
        )
    return values


def _frame(rows: Sequence[TaskRow], score: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "id": [row.id for row in rows],
            "split": [row.split for row in rows],
            "group": [row.group for row in rows],
            "label": [row.label for row in rows],
            "target": [row.target for row in rows],
            "score": score,
        }
    )


def save(fitted: FittedMethod, folder: Path) -> Path:
    """Write a result whole into `folder/task-N/METHOD/`: `result.json` and `rows.csv`.

    Returns
    -------
    Path
        Of the result.
    """
    place = result_path(folder, fitted.task, fitted.method)
    place.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(place.with_name("rows.csv"), fitted.rows.to_csv(index=False))
    content = {
        "task": fitted.task,
        "name": TASKS[fitted.task].name,
        "method": fitted.method,
        "threshold": _json(fitted.threshold),
        "seconds": round(fitted.seconds, 3),
        "settings": fitted.settings,
        "notes": list(fitted.notes),
        "scores": [{key: _json(value) for key, value in asdict(score).items()} for score in fitted.scores],
    }
    atomic.write(place, json.dumps(content, indent=1) + "\n")
    return place


def result_path(folder: Path, task: int, method: str) -> Path:
    """Where a method's result lies."""
    return folder / f"task-{task}" / method / "result.json"


def finished(folder: Path, task: int, method: str, settings: dict[str, Any]) -> bool:
    """Whether a method's result is there.

    Raises
    ------
    RequestError
        It is there, made under other settings.
    """
    place = result_path(folder, task, method)
    if not place.is_file():
        return False
    found = json.loads(place.read_text()).get("settings", {})
    differing = sorted(key for key in {*found, *settings} if found.get(key) != settings.get(key))
    if differing:
        raise RequestError(
            f"{place} was made under other settings ({', '.join(f'{key}: {found.get(key)!r}, now {settings.get(key)!r}' for key in differing[:3])}); choose another --out, or delete it"
        )
    return True


def results(folder: Path) -> list[dict[str, Any]]:
    """Every result below a folder, by task and method.

    Raises
    ------
    RequestError
        There is none.
    """
    places: Iterable[Path] = sorted(folder.glob("task-*/*/result.json"))
    found = [json.loads(place.read_text()) for place in places]
    if not found:
        raise RequestError(f"{folder} holds no results; `precollapse tasks fit` writes them")
    return found


def _json(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
