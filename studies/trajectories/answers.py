"""The answers that are forced: the words that ask for them, the tokens that spell them, and how probable each is.

Guarantees that an option's probability counts all its surface forms: one-token forms where every option has one, whole sequences
otherwise, never the first piece of a longer option; and that options which are compared are events that exclude each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import RequestError
from ...hooks.decoding.branches import Step
from ...hooks.prompts.options import option_forms

ANCHOR = " So, the answer is:"
ANCHOR_PARAPHRASES = (
    ANCHOR,
    " Therefore, the final answer is:",
    " Thus, the correct answer is:",
    " In short, my answer is:",
    " Hence the answer must be:",
)
TAG_SIDES = ("before", "after")


@dataclass(frozen=True)
class AnswerSet:
    """Answers to score: for each label its forms, each a tuple of token ids."""

    labels: tuple[str, ...]
    forms: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def longest(self) -> int:
        """Most tokens of any form."""
        return max((len(form) for group in self.forms for form in group), default=0)


def answer_forms(tokenizer: Any, labels: Sequence[str], where: str = "options") -> AnswerSet:
    """Token forms of answer options.

    When every option has a one-token form, those are its forms (`hooks.prompts.options.option_forms`). Otherwise every option is
    scored as a sequence, in two forms: as it stands and after a space. A sequence that another one starts with counts only
    what does not go on to the longer one.

    Raises
    ------
    RequestError
        For fewer than two options, a repeated or empty one, or two that are the same tokens.
    """
    labels = tuple(labels)
    stripped = {t.strip() for t in labels if isinstance(t, str)} - {""}
    if len(labels) < 2 or len(stripped) != len(labels):
        raise RequestError(f"{where} must be at least two different non-empty strings, found {list(labels)}")
    sequences = [
        tuple(dict.fromkeys(tuple(tokenizer(t, add_special_tokens=False)["input_ids"]) for t in (label, " " + label)))
        for label in labels
    ]
    if all(any(len(form) == 1 for form in group) for group in sequences):
        single = option_forms(tokenizer, labels, where)
        return AnswerSet(labels, tuple(tuple((i,) for i in group) for group in single.forms))
    owners: dict[tuple[int, ...], str] = {}
    for label, group in zip(labels, sequences, strict=True):
        for form in group:
            if owners.setdefault(form, label) != label:
                raise RequestError(f"{where} {owners[form]!r} and {label!r} are the same tokens; rename one")
    return AnswerSet(labels, tuple(sequences))


def candidate_forms(tokenizer: Any, answers: Sequence[str]) -> AnswerSet:
    """Candidate answers as sequences after a space, one form each."""
    unique = tuple(dict.fromkeys(a.strip() for a in answers))
    if any(not a for a in unique):
        raise RequestError("a candidate answer is empty; give the text of each")
    return AnswerSet(unique, tuple((tuple(tokenizer(" " + a, add_special_tokens=False)["input_ids"]),) for a in unique))


def anchor_tokens(tokenizer: Any, anchor: str, end_tag: str | None = None, tag_side: str = "before") -> tuple[int, ...]:
    """Token ids of an anchor, with the model's end-of-thinking tag before or after it when one is given."""
    if tag_side not in TAG_SIDES:
        raise RequestError(f"the end-of-thinking tag goes {' or '.join(TAG_SIDES)} the anchor, got {tag_side!r}")
    parts = [anchor] if end_tag is None else ([end_tag, anchor] if tag_side == "before" else [anchor, end_tag])
    ids = tuple(i for part in parts for i in tokenizer(part, add_special_tokens=False)["input_ids"])
    if not ids:
        raise RequestError(
            "the anchor is empty; give the words after which the answer is read, such as ' So, the answer is:'"
        )
    return ids


def sequence_logprobs(answers: list[list[list[Step]]], logprobs: dict[Step, float]) -> list[float]:
    """Log-probability (nats) of each answer: its forms' sequence probabilities added."""
    return [float(np.logaddexp.reduce([math.fsum(logprobs[s] for s in form) for form in group])) for group in answers]


def exclusive_logprobs(answers: AnswerSet, steps: list[list[list[Step]]], logprobs: dict[Step, float]) -> list[float]:
    """Log-probability of each answer, of what does not go on to be another one: `4` counts without `42`.

    These are probabilities of events that exclude each other, so they can be compared, and add up to at most 1.
    """
    by_form = {
        form: math.fsum(logprobs[s] for s in of_form)
        for group, of_group in zip(answers.forms, steps, strict=True)
        for form, of_form in zip(group, of_group, strict=True)
    }
    return [float(np.logaddexp.reduce([logprob_alone(form, by_form) for form in group])) for group in answers.forms]


def logprob_alone(form: tuple[int, ...], by_form: Mapping[tuple[int, ...], float]) -> float:
    """Log-probability of a sequence less that of the others that begin with it."""
    longer = sorted((f for f in by_form if len(f) > len(form) and f[: len(form)] == form), key=len)
    nearest: list[tuple[int, ...]] = []  # those of which none begins with another
    for f in longer:
        if not any(f[: len(g)] == g for g in nearest):
            nearest.append(f)
    left = 1 - math.fsum(math.exp(by_form[f] - by_form[form]) for f in nearest)
    return by_form[form] + math.log(max(left, float(np.finfo(np.float32).eps)))  # less is rounding
