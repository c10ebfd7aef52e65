"""Several methods on several tasks, one after another, each result kept as soon as it is there.

Guarantees that a fit which was stopped goes on with what is missing, that one method which cannot read a task costs that
cell alone and says why, and that every method stands beside the confounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import checks
from ...errors import RequestError
from .loading import load_all
from .methods import BASELINES, known
from .protocol import finished, fit, result_path, results, save
from .rows import TaskData
from .sets import TASKS

PREDICTED = tuple(number for number in TASKS if number != 9)
"""Tasks whose rows methods score; task 9 compares choices of sentences."""


@dataclass(frozen=True)
class FitConfig:
    """What is fitted.

    Attributes
    ----------
    release : str or path
    out : Path
        Folder of the results.
    tasks : tuple of int, optional
        All that the release holds where None.
    methods : tuple of str
        Names of methods; the confounds are added.
    seed, resamples : int
    """

    release: Any
    out: Path
    tasks: tuple[int, ...] | None = None
    methods: tuple[str, ...] = ("tfidf",)
    seed: int = 0
    resamples: int = 1000

    def __post_init__(self) -> None:
        checks.whole("resamples", self.resamples, 1)
        checks.whole("seed", self.seed, 0)
        for name in self.methods:
            checks.choice("methods", name, sorted(known()))
        for number in self.tasks or ():
            if number not in PREDICTED:
                raise RequestError(
                    f"task {number} has no rows that a method scores; choose from {', '.join(map(str, PREDICTED))}"
                )


def fit_all(config: FitConfig, progress: Callable[[float, str], None] | None = None) -> list[dict[str, Any]]:
    """Fit every method on every task, and return all results of the folder.

    Parameters
    ----------
    config : FitConfig
    progress : callable (share, text), optional

    Returns
    -------
    list of dict
        As they are stored, by task and method.

    Raises
    ------
    RequestError
        Nothing can be fitted, or results of other settings are there.
    """
    say = progress or (lambda share, text: None)
    methods = tuple(dict.fromkeys((*config.methods, *BASELINES)))
    settings = {"seed": config.seed, "resamples": config.resamples, "level": 0.95}
    loaded = [
        data
        for data in load_all(config.release, config.tasks or PREDICTED if config.tasks else None)
        if data.number in PREDICTED
    ]
    work = [(data, name) for data in loaded for name in methods if _applies(data, name)]
    if not work:
        raise RequestError(f"no task in {config.release} has training, validation and test rows")
    failures = []
    for place, (data, name) in enumerate(work):
        say(place / len(work), f"task {data.number}, {name}")
        if finished(config.out, data.number, name, settings | _release(data)):
            continue
        try:
            save(fit(data, name, seed=config.seed, resamples=config.resamples, settings=_release(data)), config.out)
        except RequestError as error:
            failures.append(f"task {data.number}, {name}: {error}")
    say(1.0, "")
    if not any(result_path(config.out, data.number, name).is_file() for data, name in work):
        raise RequestError(failures[0])
    for failure in failures:
        _warn(failure)
    return results(config.out)


def _applies(data: TaskData, name: str) -> bool:
    """Whether a confound has anything to look at; other methods are tried, and say why not."""
    if name == "position":
        return all(row.position is not None for row in data.rows)
    if name == "forced-entropy":
        return all(row.distribution is not None for row in data.rows)
    return True


def _release(data: TaskData) -> dict[str, Any]:
    """What tells one release of a task from another: how many rows of each split."""
    return {"rows": {split: len(data.of(split)) for split in data.splits}}


def _warn(text: str) -> None:
    import warnings

    warnings.warn(text, stacklevel=3)
