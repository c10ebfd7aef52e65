"""Reads numbers out of generated text, with their exact values.

Guarantees: a value is exact (a `Fraction` made from the digits as written), so 199 never passes for 200 nor 18.9 for
18; a number is read with all of its parts (sign, currency sign, thousands separators, decimals, fraction bar, power of
ten), so a trailing comma is punctuation, `42.0` is 42 and `1/2` is a half, not a 1 and a 2. An exponent or an index
(`cm^2`, `x_1`) and digits inside a name (`H2O`) are not numbers of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from .answer_span import marked_lines
from .rules import EXCERPT, Found, first_found
from .spelling.announced import (
    denies,
    ends_in_denial,
    last_announced,
    leaves_open,
    taken_back_for_another,
)
from .spelling.answer_text import plain
from .spelling.boxes import placed_boxes
from .spelling.number_text import UNREADABLE, number_text

_CURRENCY = "$€£¥₹₩₽₪₺₦৳"
_GROUPED = r"""
    [0-9]{1,3}(?:\.[0-9]{3})+,[0-9]+(?![0-9])                        # 1.234,56
    | [0-9]{1,3}(?:\.[0-9]{3}){2,}(?![0-9])                         # 1.234.567
    | [0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?                 # 1,234.5
    | [0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}(?![0-9])(?:\.[0-9]+)?        # 12,34,567
    | [0-9]{1,3}(?:'[0-9]{3})+(?![0-9])(?:[.,][0-9]+)?               # 1'234.5
    | (?<![(\[{,.0-9])(?<!,[ ])(?:[0-9]+,(?:[0-9]{1,2}|[0-9]{4,})|0,[0-9]{3})(?![0-9]|[.,][0-9])(?![ ]?,[ ]?[0-9])  # 3,14
"""
_QUANTITY = re.compile(
    rf"""
    (?P<unreadable>{UNREADABLE})
    | (?:(?<![0-9A-Za-z)\]}}])(?P<sign>[-+]))?
    (?:[{_CURRENCY}][ ]?(?P<inner_sign>[-+])?)?
    (?:(?<![0-9A-Za-z])|(?<=USD)|(?<=EUR)|(?<=GBP)|(?<=INR)|(?<=Rs))
    (?:(?P<whole>[0-9]+)(?:[ ]|[ ]and[ ])(?=[0-9]+/[1-9][0-9]*(?![0-9/]|\.[0-9])))?
    (?P<digits>{_GROUPED} | [0-9]+(?:\.[0-9]+)? | (?<!\w)\.[0-9]+)
    (?:[eE](?P<exponent>[-+]?[0-9]{{1,3}})(?![0-9A-Za-z]))?
    (?P<over>(?:[ ]?/[ ]?[0-9]+(?![0-9]|\.[0-9]))*)
    """,
    re.VERBOSE,
)
_RAISED_OR_LOWERED = re.compile(r"(?:\^|(?<=[0-9A-Za-z)}\]])_)\{?$")
MOST_DIGITS = 10_000
"""Most characters of a number."""
_EQUALS = re.compile("[=≈]")
_ONLY_BEFORE = re.compile(
    r"[\W_]*(?:(?:about|approximately|around|exactly|roughly|therefore|thus|then|simply|just|only|a total of|x|y|n)[\W_]*)*",
    re.IGNORECASE,
)
_GOES_ON = re.compile(r"\s*(?:[-+*/×÷^–,]|and\b|or\b|to\b|plus\b|minus\b|times\b)[ ]*[$(]?[0-9]", re.IGNORECASE)
_AROUND = 60  # characters
_OPERATOR_BEFORE = re.compile(r"(?:[0-9)}\]][ ]?,[ ]?(?:and[ ]|or[ ])?|[\w)\]}][ ]?[-+*/^×·÷]|[<>≤≥≠^/&])[ ]?$")
_OPERATOR_AFTER = re.compile(
    r"[abcdiknpqrtuvwxyzABDEGHIMNOPQRSTUXYZ](?![A-Za-z])|[ ]?(?:[+*/^×·÷<>≤≥≠]|-(?=[ ]?[\w(]))[ ]?[\w(\\]|[ ]*(?:&|\\\\)"
)
_UNFINISHED = re.compile(r"(?:(?<=[\w)\]}%\s])[=×÷·+]|(?<=[0-9A-Za-z)] )[*/])\s*$")
_OPEN_PAIR = re.compile(r"[(\[][^()\[\]\n]*,[^()\[\]\n]*$|[(\[][^()\[\]\n,]*$")
_CLOSED_PAIR = re.compile(r"[^()\[\]\n]*,[^()\[\]\n]*[)\]]|[)\]]")
_OVER_PART = re.compile("[0-9]+")
_WHOLE_TEXT_WRAP = re.compile(r"^(?:\\[(\[]|\${1,2}(?=.*\$$)|\s)+|(?:\\[)\]]|(?<=.)\$|\s)+$", re.DOTALL)


@dataclass(frozen=True)
class Number:
    """A number as read.

    Attributes
    ----------
    text : str
        Plain spelling: no currency sign, no separators, no trailing zeros after the point (`2125`, `-0.5`, `1/2`, `2
        1/2`).
    value : fractions.Fraction
        The exact value.
    """

    text: str
    value: Fraction


def _marked(text: str) -> Found[Number]:
    """The last number of the first line after the last `####` that marks an answer."""
    lines = marked_lines(text)
    if lines is None:
        return None
    number, line = next(((n, line) for line in lines if (n := last_number(line)) is not None), (None, lines[0]))
    return number, line


def _boxed(text: str) -> Found[Number]:
    """The last number of the last box that holds one, where the text does not take it back for another."""
    for end, box in reversed(placed_boxes(text)):
        if (number := last_number(box)) is not None:
            return None if taken_back_for_another(text[end:]) else (number, box)
    return None


def _announced(text: str) -> Found[Number]:
    """What the last cue announces, where it is plain which number that is."""
    text = plain(text)
    if ends_in_denial(text):
        return None, text[-EXCERPT:]
    clause = last_announced(text)
    if clause is not None and (denies(clause) or leaves_open(clause)):
        goes_on = last_number(text[text.rfind(clause) + len(clause) :]) is not None
        return None if goes_on else (None, clause)
    number = None if clause is None else stated_number(clause)
    return None if number is None or clause is None else (number, clause)


def _last(text: str) -> Found[Number]:
    """The last number of the text, or none where the last quantity cannot be read as one."""
    return last_number(text), text[-EXCERPT:]


RULES = {"mark": _marked, "box": _boxed, "cue": _announced, "last number": _last}
"""The rules for numbers, in their order."""


def final_number(text: str) -> Number | None:
    """Return the final answer of a free response as a number, or None where there is none: what the first of `RULES` reads that
    applies. A quantity of which no number can be read (`\\frac{\\pi}{6}`) is no answer, and what stands before it is not taken
    in its place."""
    found = first_found(RULES, text)
    return found[0] if found else None


def last_number(text: str, alone: bool = False) -> Number | None:
    """Return the last number in `text`, or None where there is none or the last quantity cannot be read as one.

    Parameters
    ----------
    text : str
    alone : bool
        Whether one that is part of a sum, a product, an inequality or a pair counts as one that cannot be read.
    """
    text = number_text(text)
    if _UNFINISHED.search(text):
        return None
    last = None
    for match in _QUANTITY.finditer(text):
        if match["unreadable"] or len(match[0]) > MOST_DIGITS or _part_of_a_formula(match, text):
            last = None
        elif (number := _read(match, text)) is not None:
            last = None if alone and not _stands_alone(match, text) else number
    return last


def _stands_alone(match: re.Match[str], text: str) -> bool:
    before, after = text[max(0, match.start() - _AROUND) : match.start()], text[match.end() : match.end() + _AROUND]
    in_brackets = _OPEN_PAIR.search(before) and _CLOSED_PAIR.match(after)
    return not (_OPERATOR_BEFORE.search(before) or _OPERATOR_AFTER.match(after) or in_brackets)


def stated_number(clause: str) -> Number | None:
    """The number that a clause after a cue states, or None where it is not plain which."""
    plain = number_text(clause)
    quantities = [
        match for match in _QUANTITY.finditer(plain) if match["unreadable"] or _read(match, plain) is not None
    ]
    if len(quantities) < 2 or _EQUALS.search(plain):
        return last_number(clause)
    first = quantities[0]
    if first["unreadable"] or _part_of_a_formula(first, plain) or len(first[0]) > MOST_DIGITS:
        return None
    if not _ONLY_BEFORE.fullmatch(plain[: first.start()]) or _GOES_ON.match(plain, first.end()):
        return None
    return _read(first, plain)


def _part_of_a_formula(match: re.Match[str], text: str) -> bool:
    before, after = text[max(0, match.start() - 3) : match.start()], text[match.end() : match.end() + 3]
    return before.rstrip(" *·").endswith(UNREADABLE) or after.lstrip(" *·").startswith(UNREADABLE)


def whole_number(text: str) -> Number | None:
    """Return the number that `text` consists of (a currency sign and a full stop may stand beside it), or else None."""
    text = number_text(_WHOLE_TEXT_WRAP.sub("", text)).strip().rstrip(".")
    match = _QUANTITY.fullmatch(text)
    return _read(match, text) if match and not match["unreadable"] and len(text) <= MOST_DIGITS else None


def _read(match: re.Match[str], text: str) -> Number | None:
    if _RAISED_OR_LOWERED.search(text, max(0, match.start() - 3), match.start()):
        return None
    negative = "-" in (match["sign"], match["inner_sign"])
    spelling = _plain_digits(match["digits"])
    if match["exponent"]:
        spelling += f"e{match['exponent']}"
    value = Fraction(Decimal(spelling))
    spelled = _decimal_text(Decimal(spelling))
    over = _OVER_PART.findall(match["over"])
    if len(over) > 1:  # a date or a ratio chain, not one value: its last part stands for itself
        value, spelled = Fraction(Decimal(over[-1])), _decimal_text(Decimal(over[-1]))
    elif over:
        denominator = Fraction(Decimal(over[0]))
        if not denominator:
            return None
        value, spelled = value / denominator, f"{spelled}/{_decimal_text(Decimal(over[0]))}"
        if match["whole"]:
            value, spelled = Fraction(Decimal(match["whole"])) + value, f"{match['whole']} {spelled}"
    if negative and value:
        value, spelled = -value, f"-{spelled}"
    return Number(spelled, value)


def _plain_digits(digits: str) -> str:
    """Digits with a point before the decimals and no signs between groups."""
    digits = digits.replace("'", "")
    point, comma = digits.rfind("."), digits.rfind(",")
    if point >= 0 and comma >= 0:  # the later of the two stands before the decimals
        return digits.replace(".", "").replace(",", ".") if comma > point else digits.replace(",", "")
    if digits.count(".") > 1:
        return digits.replace(".", "")
    if comma >= 0:
        groups = digits.split(",")
        decimal = len(groups) == 2 and (len(groups[1]) != 3 or groups[0] == "0")
        return digits.replace(",", "." if decimal else "")
    return digits


def _decimal_text(number: Decimal) -> str:
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
