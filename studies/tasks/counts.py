"""What a release holds, counted, and how that differs from its description.

Guarantees that each count is of rows as they were read, and that whatever does not agree (a count, a question in two splits, a
class that is missing, a stored value that does not follow from the stored distributions) is said in words.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .kl import stored_kl_error
from .rows import TaskData
from .sets import TASKS
from .sets.compression import BASELINE


@dataclass(frozen=True)
class SplitCount:
    """One split of one task.

    Attributes
    ----------
    split : str
    rows : int
    published : int or None
        Rows that the published description gives this split.
    positive : int or None
        Rows of the positive class; None for a task with a target.
    questions : int
        Questions that rows belong to.
    described : int
        Questions that the release has a prompt for.
    """

    split: str
    rows: int
    published: int | None
    positive: int | None
    questions: int
    described: int


@dataclass(frozen=True)
class TaskCount:
    """One task: its splits and whatever is to be said of it."""

    number: int
    name: str
    model: str
    unit: str
    splits: tuple[SplitCount, ...]
    remarks: tuple[str, ...]


def count(data: TaskData) -> TaskCount:
    """Counts of one task with everything in which it differs from its description.

    Parameters
    ----------
    data : TaskData

    Returns
    -------
    TaskCount
    """
    task = TASKS[data.number]
    splits = []
    for split in dict.fromkeys((*task.published, *data.splits)):
        rows = data.of(split)
        splits.append(
            SplitCount(
                split,
                len(rows),
                task.published.get(split),
                sum(bool(row.label) for row in rows) if task.has_classes else None,
                len(data.questions(split)),
                len(data.prompts.get(split, data.prompts.get("", ()))),
            )
        )
    return TaskCount(data.number, task.name, data.model, task.unit, tuple(splits), tuple(_remarks(data, splits)))


def _remarks(data: TaskData, splits: list[SplitCount]) -> list[str]:
    task = TASKS[data.number]
    found = []
    for split in splits:
        if split.published is not None and split.rows != split.published:
            published = f"{split.published:,}" if data.number != 9 else f"about {split.published:,}"
            what = "is not here" if not split.rows else f"has {split.rows:,} {task.unit}s"
            found.append(f"{split.split} {what}, where {published} are published")
        if split.rows and split.published is None:
            found.append(f"{split.split} has {split.rows:,} {task.unit}s and is not in the published description")
        if split.positive is not None and split.rows and split.positive in (0, split.rows):
            found.append(f"{split.split} has one class only, so that no score is defined there")
    shared = data.shared_questions()
    for question, places in list(shared.items())[:10]:
        found.append(f"question {question} stands in {' and '.join(places)}; its rows are not independent")
    if len(shared) > 10:
        found.append(f"and {len(shared) - 10} more questions stand in more than one split")
    if data.rows and all(row.chain is None for row in data.rows):
        found.append("its rows have no text of the chain")
    if data.number == 9 and data.rows:
        found += _choices(data)
    if data.faults:
        found.append(f"{len(data.faults)} files were left out")
    return [*found, *task.notes]


def _choices(data: TaskData) -> list[str]:
    by_method = Counter(str(row.about["method"]) for row in data.rows)
    error = stored_kl_error(data)
    checked = f"{error.rows:,} answer KLs follow from the stored distributions within {error.largest:.1e}"
    missing = f"; {error.missing:,} have no {BASELINE} beside them" if error.missing else ""
    methods = ", ".join(f"{method} {rows:,}" for method, rows in sorted(by_method.items()))
    return [f"by method: {methods}", checked + missing]
