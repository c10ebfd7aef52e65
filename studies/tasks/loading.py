"""Tasks read from a release: rows, questions, and the files that were left out.

Guarantees that a file which is not what its task says is named with the reason and costs its own rows only, that no row is
there twice, and that rows come in one order wherever the release lies.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import RequestError
from .fields import FieldError
from .release import Record, records
from .rows import Fault, TaskData, TaskRow, ordered
from .sets import TASKS

PROMPTS = "prompts"


def load(path: str | os.PathLike[str], task: int) -> TaskData:
    """One task of a release.

    Parameters
    ----------
    path : str or path
        The release: a clone of it, its `datasets` folder, a task's folder, a .tar.gz of any of these, or a folder of such files.
        Nothing is unpacked.
    task : int
        1 to 9.

    Returns
    -------
    TaskData
        Its rows by split and id, and the files that were left out, each with the reason.

    Raises
    ------
    RequestError
        There is no such task, or nothing of it at that place, or no row of it that can be read.
    """
    return load_all(path, (task,))[0]


def load_all(path: str | os.PathLike[str], tasks: Iterable[int] | None = None) -> tuple[TaskData, ...]:
    """Several tasks of a release in one reading; all that it holds where `tasks` is None.

    Raises
    ------
    RequestError
        As in `load`; a task that was not named and is not there is left out.
    """
    wanted = tuple(TASKS) if tasks is None else tuple(dict.fromkeys(tasks))
    for number in wanted:
        if number not in TASKS:
            raise RequestError(f"there is no task {number!r}; tasks are 1 to {max(TASKS)}")
    faults: list[Fault] = []
    found: dict[int, list[Record]] = {number: [] for number in wanted}
    for record in records(path, wanted, faults):
        found[record.task].append(record)
    loaded = tuple(_task(number, found[number], faults) for number in wanted if found[number] or tasks is not None)
    for data in loaded:
        if not data.rows and tasks is not None:
            first = data.faults[0] if data.faults else None
            reason = f"; {first.file}: {first.reason}" if first else ""
            raise RequestError(f"no row of task {data.number} was found in {path}{reason}")
    return loaded


def _task(number: int, files: list[Record], faults: list[Fault]) -> TaskData:
    task = TASKS[number]
    own = [fault for fault in faults if _of(fault, number)]
    questions: dict[tuple[str, str], Mapping[str, Any]] = {}
    for record in files:
        if record.owner == PROMPTS:
            questions[record.place, record.name] = record.content
    rows: dict[str, TaskRow] = {}
    models = set()
    for record in files:
        if record.owner == PROMPTS:
            continue
        name = task.question(record.content)
        question = questions.get((record.place, name)) or questions.get(("", name)) or {}
        try:
            made = tuple(task.read(record, question))
            again = next((row.id for row in made if row.id in rows), None)
            if again is not None:
                raise FieldError(f"its row {again} is there twice")
        except FieldError as error:
            own.append(Fault(record.file, str(error)))
            continue
        models.add(record.owner)
        rows |= {row.id: row for row in made}
    places = {split: tuple(sorted(n for s, n in questions if s == split)) for split in ordered(s for s, _ in questions)}
    splits = ordered(row.split for row in rows.values())
    return TaskData(
        number,
        tuple(sorted(rows.values(), key=lambda row: (splits.index(row.split), row.id))),
        places,
        tuple(sorted(own, key=lambda fault: fault.file)),
        ", ".join(sorted(models)),
    )


def _of(fault: Fault, number: int) -> bool:
    """Whether a fault is of a task's file, or of an archive that may hold it."""
    return not fault.file.startswith("datasets/") or fault.file.startswith(f"datasets/{number}/")
