"""Task 3: does this chain push the answer to a follow-up question up or down, when it is forced?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..fields import label, text, word
from ..release import Record
from ..rows import TaskRow
from ..task import Task, by_question, rest


def read(record: Record, question: Mapping[str, Any]) -> Iterator[TaskRow]:
    """A chain that was forced 15 times."""
    content = record.content
    yield TaskRow(
        id=f"{record.place}/{record.name}",
        split=record.place,
        group=word(content, "question_id"),
        prompt=text(question, "prompt_text") if question else "",
        chain=text(content, "cot_text"),
        label=label(content, ["positive"], ["negative"]),
        about=rest(content, "question_id", "cot_text", "label"),
    )


TASK = Task(
    3,
    "follow_up_response",
    "The text is a model's reasoning about a question. Asked a rating afterwards, will it rate higher than it usually does for this question, rather than lower?",
    "positive",
    "negative",
    read,
    by_question,
    {"train": 286, "val": 92, "test": 86, "ood_test": 88},
    balance="as many positive as negative",
)
