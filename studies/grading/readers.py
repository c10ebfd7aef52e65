"""The readers by name, with answers as JSON can hold them: what `reading` calls here for short texts, and in a worker for long ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from .read_expression import EXPRESSION_RULES, PHRASE_RULES
from .read_number import RULES as NUMBER_RULES
from .read_number import Number, whole_number
from .read_option import option_rules
from .rules import first_found
from .spelling.announced import before_next_question

Answer = str | tuple[str, str, str] | list[str] | None
"""Text, or a number as its text and hexadecimal numerator and denominator."""


def rules_of(reader: str, choices: Mapping[str, str] | None) -> Mapping[str, Callable[[str], Any]]:
    """The rules of a reader by name, in their order."""
    if reader == "option":
        return option_rules(choices or {})
    rules: Mapping[str, Mapping[str, Callable[[str], Any]]] = {
        "final_number": NUMBER_RULES,
        "final_expression": EXPRESSION_RULES,
        "final_phrase": PHRASE_RULES,
    }
    return rules[reader]


def read(reader: str, text: str, choices: Mapping[str, str] | None) -> Answer:
    """The answer that a reader finds in a text, or None.

    Parameters
    ----------
    reader : {"final_number", "whole_number", "final_expression", "final_phrase", "option", "explain: ..."}
        "explain: " before one gives what each of its rules reads, as JSON: rule, whether it applies, answer, excerpt.
    text : str
    choices : mapping of str to str, or None
        Of "option": label to text.
    """
    if reader != "whole_number":
        text = before_next_question(text)
    if reader.startswith(EXPLAIN):
        return json.dumps(_each(rules_of(reader.removeprefix(EXPLAIN), choices), text))
    if reader == "whole_number":
        return _as_json(whole_number(text))
    found = first_found(rules_of(reader, choices), text)
    return _as_json(found[0]) if found else None


EXPLAIN = "explain: "


def _each(rules: Mapping[str, Callable[[str], Any]], text: str) -> list[tuple[str, bool, str | None, str]]:
    read_by = []
    for name, rule in rules.items():
        found = rule(text)
        answer = found[0] if found else None
        spelled = answer.text if isinstance(answer, Number) else answer
        read_by.append((name, found is not None, spelled, found[1] if found else ""))
    return read_by


def _as_json(answer: Any) -> Answer:
    if isinstance(answer, Number):
        return answer.text, hex(answer.value.numerator), hex(answer.value.denominator)
    spelled: str | None = answer
    return spelled


def as_number(answer: Answer) -> Number | None:
    """The number that an answer of a reader of numbers stands for."""
    if answer is None:
        return None
    assert not isinstance(answer, str)
    text, numerator, denominator = answer
    return Number(text, Fraction(int(numerator, 16), int(denominator, 16)))
