"""Task 6: will this chain end in the answer that the model seldom gives to its question?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..fields import label, text, word
from ..release import Record
from ..rows import TaskRow
from ..task import Task, by_question, rest


def read(record: Record, question: Mapping[str, Any]) -> Iterator[TaskRow]:
    """A rollout with its answer left out of the chain."""
    content = record.content
    yield TaskRow(
        id=f"{record.place}/{record.name}",
        split=record.place,
        group=word(content, "question_id"),
        prompt=text(question, "question_text") if question else "",
        chain=text(content, "cot_content"),
        label=label(content, ["minority"], ["majority"]),
        about=rest(content, "question_id", "cot_content", "label"),
    )


TASK = Task(
    6,
    "atypical_answer",
    "The text is a model's reasoning about a question to which it mostly gives one answer and seldom another. Does this reasoning end in the answer that it seldom gives?",
    "minority",
    "majority",
    read,
    by_question,
    {"train": 1830, "val": 1290, "test": 1590, "ood_test": 660},
    balance="15 rows of either class a question",
)
