"""Reads which option of a multiple-choice item a generated text commits to. Strict: exactly one, or none.

Guarantees: two different options in the final answer are no answer; an option that is ruled out is never read; a box that holds a
formula does not hide the answer beside it; what the text takes back (`Wait, that fails`) is not its answer.

The final answer is, in this order: the last box that states an option; the clause after the last cue (`####`, `Answer:`, `the answer
is`, `the correct option is`, ...) that names one; the lines that consist of an option (`B`, `(B)`, `B) text`, `I choose B.`); the
whole text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from .option_labels import Labels, Mention, labels_of, plain_options
from .rules import EXCERPT, Found, first_found
from .spelling.announced import cues, rest_of_line, taken_back_for_another
from .spelling.boxes import placed_boxes
from .spelling.cues import FAILED, TAKEN_BACK

_MARK = re.compile("#{4,}")
_MARKED_LINE = re.compile(r"\#{4,}([^\n]*)")


def read_option(text: str, choices: Mapping[str, str]) -> str | None:
    """Return the label of the one option that `text` answers with, or None where it names none or several.

    Parameters
    ----------
    text : str
        What the model wrote.
    choices : mapping of str to str
        Label to option text, the item's own labels (`A`, `B`, ... or `1`, `2`, ...). Texts may be empty when unknown.
    """
    found = first_found(option_rules(choices), text)
    return found[0] if found else None


def option_rules(choices: Mapping[str, str]) -> dict[str, Callable[[str], Found[str]]]:
    """The rules for the options of one item, in their order."""
    labels = labels_of(tuple(choices.items()))
    return {
        "box": lambda text: _boxed(text, labels),
        "cue": lambda text: _announced(plain_options(text), labels),
        "lines": lambda text: _lines(plain_options(text), labels),
        "whole text": lambda text: (_single(labels.mentions(plain_options(text))), text[-EXCERPT:]),
    }


def _boxed(text: str, labels: Labels) -> Found[str]:
    """The last box that states an option; one that names several is no answer."""
    for end, content in reversed(placed_boxes(text)):
        box = plain_options(content)
        if label := labels.stated_by(box):
            return None if taken_back_for_another(text[end:]) else (label, content)
        if len({mention.label for mention in labels.mentions(box) if mention.committed}) > 1:
            return None, content
    return None


def _announced(text: str, labels: Labels) -> Found[str]:
    """The option in the clause after the last cue that names one it does not rule out."""
    headings = {label for line in _MARKED_LINE.findall(text) if (label := labels.stated_by(line))}
    # "Answer: B" stands although "the answer is not A" comes later, but not after "... not B"
    later: list[Mention] = []
    marks = [mark for mark in _MARK.finditer(text) if len(headings) < 2]  # else a heading for each option
    for cue in sorted((*cues(text), *marks), key=lambda cue: cue.end(), reverse=True):
        line, line_end = rest_of_line(text, cue.end())
        line_start = line_end - len(line)
        clause_end = labels.clause_end(text, line_start, line_end)
        mentions = labels.mentions(text, line_start, clause_end, announced=True)
        if all(mention.refused for mention in mentions + later):
            later = mentions + later
            continue
        label = _single(mentions + later)
        return _after_second_thoughts(label, text, clause_end, labels), text[line_start:clause_end]
    return None


def _after_second_thoughts(label: str | None, text: str, position: int, labels: Labels) -> str | None:
    """The answer of a text that says more after its answer: another one, or none, where it turns against what it has said."""
    turn = TAKEN_BACK.search(text, position)
    failed = FAILED.search(text, position, position + EXCERPT)
    if not turn and not failed:
        return label
    start = min(m.start() for m in (turn, failed) if m)
    others = [m for m in labels.mentions(text, start) if m.committed]
    kept = {m.label for m in others if not m.refused}
    if label is not None and any(m.refused and m.label == label for m in others) and not kept:
        return None
    if failed and not turn and kept <= {label}:
        return None if _speaks_of_answer(text, position, failed) else label
    if kept - {label}:
        return kept.pop() if len(kept) == 1 else None
    return None if turn and FAILED.search(text, turn.start(), turn.end() + EXCERPT) and not kept else label


def _speaks_of_answer(text: str, position: int, failed: re.Match[str]) -> bool:
    """Whether what fails is said right after the answer: `B. That is wrong.`"""
    return not re.search(r"\w", text[position : failed.start()])


def _lines(text: str, labels: Labels) -> Found[str]:
    """The lines that consist of an option: one, or the same one several times."""
    stated = {}
    for line in text.splitlines():
        clause = line[: labels.clause_end(line, 0, len(line))]
        if label := labels.stated_by(clause):
            stated[label] = clause
    if not stated:
        return None
    return (next(iter(stated)) if len(stated) == 1 else None), "\n".join(stated.values())


def _single(mentions: list[Mention]) -> str | None:
    kept = [mention for mention in mentions if not mention.refused]
    named = {mention.label for mention in kept}
    named -= {mention.label for mention in mentions if mention.refused}
    if len(named) != 1 or not any(mention.committed for mention in kept if mention.label in named):
        return None
    return named.pop()
