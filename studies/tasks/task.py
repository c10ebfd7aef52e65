"""What a task is: which question a method answers, how a file of it becomes rows, what its description promises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import fields
from .release import Record
from .rows import TaskRow

Reader = Callable[[Record, Mapping[str, Any]], Iterable[TaskRow]]
"""Rows of one file, given what the release says of its question (empty where it says nothing)."""


@dataclass(frozen=True)
class Task:
    """One of the nine tasks.

    Attributes
    ----------
    number : int
    name : str
        As in the published scores, without its number.
    asks : str
        What a method is to say of a chain, in one sentence that a monitor is given as it stands.
    positive, negative : str
        The two classes in the release's words; "" for a task with a target.
    read : callable
        Makes rows of a file.
    question : callable (content) -> str
        The name of a file under `prompts/`, as a row's file refers to it.
    published : mapping of str to int
        Rows by split, as the published description counts them.
    unit : str
        What a row is called.
    balance : str, optional
        How the description balances the classes.
    effect : bool
        Whether rows of the positive class may be there without the intervention, so that an adjusted rate is shown.
    """

    number: int
    name: str
    asks: str
    positive: str
    negative: str
    read: Reader
    question: Callable[[Mapping[str, Any]], str]
    published: Mapping[str, int]
    unit: str = "chain"
    balance: str = ""
    effect: bool = False
    notes: tuple[str, ...] = field(default=())

    @property
    def has_classes(self) -> bool:
        """Whether rows have a class; else they have a number."""
        return bool(self.positive)


def by_question(content: Mapping[str, Any]) -> str:
    """The question's own name."""
    return str(content.get("question_id", ""))


def chain_rows(chain: str, prompt: str, positive: Sequence[str], negative: Sequence[str]) -> Reader:
    """A reader of files that hold one chain, its question's name and a label.

    Parameters
    ----------
    chain, prompt : str
        The fields of the chain, and of the prompt in the question's file.
    positive, negative : sequence of str
        Words of either class.
    """

    def read(record: Record, question: Mapping[str, Any]) -> Iterator[TaskRow]:
        content = record.content
        yield TaskRow(
            id=f"{record.place}/{record.name}",
            split=record.place,
            group=fields.word(content, "question_id"),
            prompt=fields.text(question, prompt) if question else "",
            chain=fields.text(content, chain),
            label=fields.label(content, positive, negative),
            about=rest(content, "question_id", chain, "label"),
        )

    return read


def rest(content: Mapping[str, Any], *read: str) -> dict[str, Any]:
    """What a file says besides the fields that were read."""
    return {name: value for name, value in content.items() if name not in read}
