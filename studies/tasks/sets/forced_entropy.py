"""Task 8: how uncertain is the answer when it is forced after this sentence?

The release has the forced distributions and no text of the chains, so that methods which read text need chains made anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scipy.stats import entropy

from ....checks import shown
from ..fields import FieldError, choices, distribution, present, text, whole, word
from ..release import Record
from ..rows import TaskRow
from ..task import Task, by_question, rest
from .authority import with_options


def read(record: Record, question: Mapping[str, Any]) -> Iterator[TaskRow]:
    """A row for each forced sentence of a rollout; the target is the entropy over the options in nats."""
    content = record.content
    points = present(content, "sentence_summaries")
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        raise FieldError(f"its 'sentence_summaries' is {shown(points, 40)}, where a list of objects is expected")
    group = word(content, "question_id")
    prompt = with_options(text(question, "question"), choices(question)) if question else ""
    about = rest(content, "question_id", "sentence_summaries")
    places = set()
    for point in points:
        place = whole(point, "sentence_idx")
        if place in places:
            raise FieldError(f"it has sentence {place} twice")
        places.add(place)
        shares = distribution(point, "answer_distribution")
        yield TaskRow(
            id=f"{record.place}/{record.name}#{place}",
            split=record.place,
            group=group,
            prompt=prompt,
            chain=text(point, "partial_cot") if "partial_cot" in point else None,
            target=float(entropy(list(shares.values()))),
            position=place,
            distribution=shares,
            about=about | rest(point, "sentence_idx", "answer_distribution", "answer_counts", "partial_cot"),
        )


TASK = Task(
    8,
    "answer_entropy",
    "The text is the beginning of a model's reasoning about a question with options. How uncertain would its answer be if it had to answer now?",
    "",
    "",
    read,
    by_question,
    {
        "train": 12247,
        "val": 2871,
        "test": 2919,
        "ood_test_1": 739,
        "ood_test_2": 778,
        "ood_test_3": 687,
        "ood_test_4": 869,
    },
    unit="sentence",
    notes=("the release has no text of these chains: text methods need chains of your own (`tasks make 8`)",),
)
