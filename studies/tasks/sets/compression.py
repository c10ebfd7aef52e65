"""Task 9: which sentences of a chain carry its answer? A row is one choice of sentences, with what its deletion of the others did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ....checks import shown
from ..fields import FieldError, choices, distribution, number, optional_number, text, whole, word
from ..release import Record
from ..rows import TaskRow
from ..task import Task, by_question, rest
from .authority import with_options

BASELINE, DELETION = "baseline", "deletion"
"""The whole prefix, and the prefix without anything but its last sentences."""


def read(record: Record, question: Mapping[str, Any]) -> Iterator[TaskRow]:
    """A method's choice at a prefix length and a budget; the target is the answer KL that the release states."""
    content = record.content
    method = word(content, "method")
    if record.place and record.place.split("/")[0] != method:
        raise FieldError(f"its 'method' is {method!r}, but it lies in the folder {record.place!r}")
    prefix, keep = whole(content, "prefix_length", 1), whole(content, "keep_m")
    group = word(content, "question_id")
    chosen = content.get("selected_indices")
    if chosen is not None and (
        not isinstance(chosen, list)
        or not all(isinstance(place, int) and not isinstance(place, bool) and 0 <= place < prefix for place in chosen)
    ):
        raise FieldError(f"its 'selected_indices' is {shown(chosen, 40)}, where places below {prefix} are expected")
    optional_number(content, "token_kl")
    yield TaskRow(
        id=f"{method}/{group}/{prefix}/{keep}",
        split="all",
        group=group,
        prompt=with_options(text(question, "question_text"), choices(question)) if question else "",
        chain=None,
        target=number(content, "kl_to_baseline"),
        position=prefix,
        distribution=distribution(content, "distribution"),
        about=rest(content, "question_id", "kl_to_baseline", "distribution"),
    )


TASK = Task(
    9,
    "cot_compression",
    "Which sentences of this reasoning must be kept so that the answer stays what it is?",
    "",
    "",
    read,
    by_question,
    {"all": 37000},
    unit="choice",
    notes=("41 questions and about 37,000 choices are published",),
)
