"""Task 7: is this chain unusually long for its question, or unusually short?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..fields import label, text, word
from ..release import Record
from ..rows import TaskRow
from ..task import Task, by_question, rest


def read(record: Record, question: Mapping[str, Any]) -> Iterator[TaskRow]:
    """A rollout with its length against that of its question's others."""
    content = record.content
    yield TaskRow(
        id=f"{record.place}/{record.name}",
        split=record.place,
        group=word(content, "question_id"),
        prompt=text(question, "prompt_text") if question else "",
        chain=text(content, "chain_of_thought"),
        label=label(content, ["long"], ["short"]),
        about=rest(content, "question_id", "chain_of_thought", "label"),
    )


TASK = Task(
    7,
    "atypical_cot_length",
    "The text is a model's reasoning about a question. Is it unusually long for this question, rather than unusually short?",
    "long",
    "short",
    read,
    by_question,
    {"train": 2444, "val": 200, "test": 200, "ood_test": 200},
    balance="pairs of either class in bins of 500 words",
)
