"""A row of a task: what a method reads, what it is asked, and what it is split by.

Guarantees that all nine tasks look alike to whatever reads them: the prompt, the chain (or the conversation), a label or a
target, and the group, which is the question. Splits, resamples and folds go by group, so that no method is paid for knowing a
question again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SPLITS = ("train", "val", "test", "ood_test")
"""The splits of a release, in the order in which they are used; those out of distribution begin with `ood_test`."""


@dataclass(frozen=True)
class TaskRow:
    """One row of one task.

    Attributes
    ----------
    id : str
        Unique within the task: its split, then the name of its file in the release, and `#place` where a file holds several.
    split : str
        `train`, `val`, `test`, `ood_test`, or `ood_test_1` and so on.
    group : str
        The question. Rows of one question are never apart in a split, a fold or a resample.
    prompt : str
        What the model was asked; "" where the release does not say.
    chain : str or None
        What it thought, the text that a method reads; None where the release has no text.
    label : bool or None
        Whether the row is of the positive class; None for a task with a target.
    target : float or None
        The number that is predicted; None for a task with classes.
    messages : tuple of (role, text), optional
        The conversation, for a task whose rows are conversations; the chain is then its text in one piece.
    position : int, optional
        Place of the row in its chain (sentences from 0), for a task with several rows a chain.
    distribution : mapping of str to float, optional
        Probability of each option after the chain, for a task that has options.
    about : mapping
        Everything else that the release says of the row.
    """

    id: str
    split: str
    group: str
    prompt: str
    chain: str | None
    label: bool | None = None
    target: float | None = None
    messages: tuple[tuple[str, str], ...] = ()
    position: int | None = None
    distribution: Mapping[str, float] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The chain, or "" where there is none."""
        return self.chain or ""


@dataclass(frozen=True)
class Fault:
    """A file of a release that was left out: where it is, and what is wrong with it."""

    file: str
    reason: str


@dataclass(frozen=True)
class TaskData:
    """All rows of one task that a release holds.

    Attributes
    ----------
    number : int
    rows : tuple of TaskRow
        By split, then by id.
    prompts : mapping of str to tuple of str
        The questions that the release describes, by split.
    faults : tuple of Fault
        Files that were left out.
    model : str
        Whose chains they are, as the release names it; "" where there are none.
    """

    number: int
    rows: tuple[TaskRow, ...]
    prompts: Mapping[str, tuple[str, ...]]
    faults: tuple[Fault, ...]
    model: str = ""

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have rows, in the order of use."""
        return ordered(row.split for row in self.rows)

    def of(self, *splits: str) -> tuple[TaskRow, ...]:
        """The rows of some splits, in their order."""
        return tuple(row for split in splits for row in self.rows if row.split == split)

    def questions(self, split: str) -> frozenset[str]:
        """The questions of a split."""
        return frozenset(row.group for row in self.rows if row.split == split)

    def shared_questions(self) -> dict[str, tuple[str, ...]]:
        """Questions that stand in more than one split, each with those splits; there should be none."""
        places: dict[str, list[str]] = {}
        for split in self.splits:
            for question in self.questions(split):
                places.setdefault(question, []).append(split)
        return {question: tuple(splits) for question, splits in sorted(places.items()) if len(splits) > 1}


def ordered(splits: Any) -> tuple[str, ...]:
    """Names of splits, each once, in the order of use."""
    return tuple(sorted(set(splits), key=lambda name: (_place(name), name)))


def _place(split: str) -> int:
    return next((place for place, name in enumerate(SPLITS) if split.startswith(name)), len(SPLITS))


def labels(rows: tuple[TaskRow, ...] | list[TaskRow]) -> np.ndarray:
    """Labels [n], int64 0/1, of rows that have classes."""
    return np.array([bool(row.label) for row in rows], dtype=np.int64)


def targets(rows: tuple[TaskRow, ...] | list[TaskRow]) -> np.ndarray:
    """Targets [n], float64, of rows that have one."""
    return np.array([row.target for row in rows], dtype=np.float64)


def groups(rows: tuple[TaskRow, ...] | list[TaskRow]) -> np.ndarray:
    """Questions [n], as text."""
    return np.array([row.group for row in rows], dtype=object)
