"""The readers by name, with answers as JSON can hold them: what `reading` calls here for short texts, and in a worker for long ones."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from .read_expression import final_expression, final_phrase
from .read_number import Number, final_number, whole_number
from .read_option import read_option

Answer = str | tuple[str, str, str] | list[str] | None
"""Text, or a number as its text and hexadecimal numerator and denominator."""


def read(reader: str, text: str, choices: Mapping[str, str] | None) -> Answer:
    """The answer that a reader finds in a text, or None.

    Parameters
    ----------
    reader : {"final_number", "whole_number", "final_expression", "final_phrase", "option"}
    text : str
    choices : mapping of str to str, or None
        Of "option": label to text.
    """
    if reader == "option":
        return read_option(text, choices or {})
    if reader in ("final_number", "whole_number"):
        number = final_number(text) if reader == "final_number" else whole_number(text)
        if number is None:
            return None
        return number.text, hex(number.value.numerator), hex(number.value.denominator)
    return final_expression(text) if reader == "final_expression" else final_phrase(text)


def as_number(answer: Answer) -> Number | None:
    """The number that an answer of a reader of numbers stands for."""
    if answer is None:
        return None
    assert not isinstance(answer, str)
    text, numerator, denominator = answer
    return Number(text, Fraction(int(numerator, 16), int(denominator, 16)))
