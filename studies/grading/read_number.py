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

_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("\u2212\ufe63\uff0d\u2010\u2011\u2013", "-"),
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
        "\uff0b": "+",
        "\uff0c": ",",
        "\uff0e": ".",
        "\uff05": "%",
        "\uff0f": "/",
        "\u2044": "/",
        "\uff04": "$",
        "\uffe5": "¥",
        "½": " 1/2",
        "¼": " 1/4",
        "¾": " 3/4",
        "⅓": " 1/3",
        "⅔": " 2/3",
        "⅛": " 1/8",
        "⅜": " 3/8",
        "⅝": " 5/8",
        "⅞": " 7/8",
        "⅕": " 1/5",
        "⅖": " 2/5",
        "⅗": " 3/5",
        "⅘": " 4/5",
        "⅙": " 1/6",
        "⅚": " 5/6",
    }
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")

_SUPERSCRIPT_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_LATEX_SPACE_IN_NUMBER = re.compile(r"(?<=[0-9])(?:\\[,;:!]|[\u00a0\u2009\u202f])(?=[0-9]{3}(?![0-9]))")
_SPACE_BEFORE_THOUSANDS = re.compile(r"(?<=[0-9])[ ](?=(?:[0-9]{3}[ ])*000(?![0-9]))")
_LATEX_COMMA = re.compile(r"\{,\}(?:\\!)?|,\\!")
_LATEX_FRACTION = re.compile(
    r"(?:(?<![A-Za-z0-9])(?P<whole>[0-9])\s*)?\\[dtc]?frac\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))"
)
_LATEX_COMMAND = re.compile(r"\\[A-Za-z]+")
_TIMES_POWER_OF_TEN = re.compile(
    r"(?<=[0-9])\s*(?:×|x|\*|·|\\times|\\cdot)\s*10\s*(?:\^|\*\*)\s*(?:\{\s*([-+]?[0-9]{1,3})\s*\}|([-+]?[0-9]{1,3}))(?![0-9])"
)
_POWER = re.compile(r"(?<![0-9.,A-Za-z])([0-9]{1,4})\s*(?:\^|\*\*)\s*(?:\{\s*([0-9]{1,2})\s*\}|([0-9]{1,2}))(?![0-9])")

_CURRENCY = "$€£¥₹₩₽"
_NUMBER = re.compile(
    rf"""
    (?:(?<![0-9A-Za-z)\]}}])(?P<sign>[-+]))?
    (?:[{_CURRENCY}][ ]?(?P<inner_sign>[-+])?)?
    (?:(?<![0-9A-Za-z])|(?<=USD)|(?<=EUR)|(?<=GBP)|(?<=INR)|(?<=Rs))
    (?:(?P<whole>[0-9]+)(?:[ ]|[ ]and[ ])(?=[0-9]+/[1-9][0-9]*(?![0-9/]|\.[0-9])))?
    (?P<digits>[0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|(?<!\w)\.[0-9]+)
    (?:[eE](?P<exponent>[-+]?[0-9]{{1,3}})(?![0-9A-Za-z]))?
    (?P<over>(?:[ ]?/[ ]?[0-9]+(?![0-9]|\.[0-9]))*)
    """,
    re.VERBOSE,
)
_RAISED_OR_LOWERED = re.compile(r"(?:\^|(?<=[0-9A-Za-z)}\]])_)\{?$")
MOST_DIGITS = 10_000
"""Most characters of a number."""
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


def final_number(text: str) -> Number | None:
    """Return the final answer of a free response as a number, or None where there is none.

    With a `####`: the last number of the first line after the last `####` that holds a number. Without: the last
    number.
    """
    lines = marked_lines(text)
    if lines is None:
        return last_number(text)
    return next((number for line in lines if (number := last_number(line))), None)


def last_number(text: str) -> Number | None:
    """Return the last number in `text`, or None where there is none."""
    text = _plain(text)
    last = None
    for match in _NUMBER.finditer(text):
        if len(match[0]) > MOST_DIGITS:  # a number all the same: what stands before it is not the answer
            last = None
        elif (number := _read(match, text)) is not None:
            last = number
    return last


def whole_number(text: str) -> Number | None:
    """Return the number that `text` consists of (a currency sign and a full stop may stand beside it), or else None."""
    text = _plain(_WHOLE_TEXT_WRAP.sub("", text)).strip().rstrip(".")
    match = _NUMBER.fullmatch(text)
    return _read(match, text) if match and len(text) <= MOST_DIGITS else None


def _plain(text: str) -> str:
    """Rewrite typographic and LaTeX spellings of numbers to plain ASCII ones; other LaTeX commands become spaces."""
    text = text.translate(_CHARACTERS)
    text = _SUPERSCRIPT_RUN.sub(lambda run: "^" + run[0].translate(_SUPERSCRIPTS), text)
    text = text.replace(r"\$", "$").replace(r"\%", "%")
    text = _LATEX_COMMA.sub(",", text)
    text = _LATEX_SPACE_IN_NUMBER.sub("", text)
    text = _SPACE_BEFORE_THOUSANDS.sub("", text)
    text = _LATEX_FRACTION.sub(_slash, text)
    text = _TIMES_POWER_OF_TEN.sub(lambda power: f"e{power[1] or power[2]}", text)
    text = _POWER.sub(lambda power: str(int(power[1]) ** int(power[2] or power[3])), text)
    return _LATEX_COMMAND.sub(" ", text)


def _slash(fraction: re.Match[str]) -> str:
    whole = f"{fraction['whole']} " if fraction["whole"] else ""
    before = fraction.string[: fraction.start()][-1:]
    apart = " " if before.isalnum() else ""  # after a letter or a name's digit it is a number of its own
    return f"{apart}{whole}{fraction[2] or fraction[3]}/{fraction[4] or fraction[5]}"


def _read(match: re.Match[str], text: str) -> Number | None:
    if _RAISED_OR_LOWERED.search(text, max(0, match.start() - 3), match.start()):
        return None
    negative = "-" in (match["sign"], match["inner_sign"])
    spelling = match["digits"].replace(",", "")
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


def _decimal_text(number: Decimal) -> str:
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
