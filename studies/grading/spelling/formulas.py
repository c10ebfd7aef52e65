"""Finds the formulas of a text: `$...$`, `$$...$$`, `\\(...\\)`, `\\[...\\]`.

Guarantees that two currency signs in a sentence (`costs $18 and gives $5`) do not make a formula of the words between them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .boxes import bare

_DELIMITED = re.compile(
    r"\$\$(?P<a>[^$]{1,2000})\$\$|(?<!\\)\$(?P<b>[^$\n]{1,2000}?)(?<!\\)\$|\\\((?P<c>.{1,2000}?)\\\)|\\\[(?P<d>.{1,2000}?)\\\]"
    r"|\\begin\{(?P<env>align\*?|equation\*?|gather\*?)\}(?P<e>.{1,2000}?)\\end\{(?P=env)\}",
    re.DOTALL,
)
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname|begin|end)\s*\{[^{}]*\}")
_UNCASED = "\u0590-\u0dff\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"(?<![\\A-Za-z])[A-Za-z\u00c0-\u024f\u0400-\u04ff]{{2,}}|(?:(?![0-9])[{_UNCASED}])+")
FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan ln log exp sqrt pi gcd lcm max min mod det and or".split()
)


@dataclass(frozen=True)
class Formula:
    """A formula and where it stands, delimiters included."""

    content: str
    start: int
    end: int


def formulas(text: str) -> list[Formula]:
    """The formulas of a text, in order."""
    found, position = [], 0
    while match := _DELIMITED.search(text, position):
        content = next(match[name] for name in "abcde" if match[name] is not None)
        if match["b"] is not None and _is_currency(content):
            position = match.start() + 1
            continue
        if stripped := bare(content):
            found.append(Formula(stripped, match.start(), match.end()))
        position = match.end()
    return found


def _is_currency(content: str) -> bool:
    words = [w for w in _WORD.findall(_TEXT_COMMAND.sub(" ", content)) if w.lower() not in FUNCTIONS]
    return bool(words) or not content.strip() or (content[0].isdigit() and content[-1].isspace())


def prose_words(phrase: str) -> list[str]:
    """The words of a phrase that belong to no formula."""
    return [w for w in _WORD.findall(_TEXT_COMMAND.sub(" ", phrase)) if w.lower() not in FUNCTIONS]


def final_side(formula: str) -> str:
    """The answer of a formula, "" where it was cut off: the last side of a chain of equations (`180 - 120 = 60`), else all of it (`x^2 + y^2 = 1`)."""
    if _UNFINISHED.search(formula):
        return ""
    formula = re.sub(r"&\s*(?==)|(?<==)\s*&|\\\\\s*(?==)|\\displaystyle\s*", "", formula)
    sides = _EQUALS.split(formula)
    if len(sides) > 2 or (len(sides) == 2 and not re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", sides[0]))):
        return bare(sides[-1])
    return formula


_UNFINISHED = re.compile(r"(?:[-+*/=×÷^(<>]|\\(?:times|cdot|div|frac|le|ge))\s*$")
_EQUALS = re.compile(r"(?<![<>!\\])=(?!=)|\\approx(?![a-z])|≈|\\Rightarrow|\\implies(?![a-z])")
