"""Finds the part of a generated text that states the final answer, where the text marks it with `####`.

Guarantees: the last `####` with something after it counts, so that one in a copied example, or one that closes the
answer (`#### 18 ####`), is not taken for the mark; and a Markdown heading of the fourth level (`#### Step 2`, `#### Check of the 3
boxes`) is not taken for one, whatever numbers it holds.
"""

from __future__ import annotations

import re

from .spelling.cues import CUE, CUE_ALONE

_MARK = re.compile(r"(?<!#)#{4,}(?!#)")
_SECTION = re.compile(
    r"\W*(?:steps?|parts?|case|question|problem|example|method|approach|section|phase|stage|option|exercise|task|day|week|equation|attempt|"
    r"scenario|chapter|item|figure|table|note|hint|round|iteration|first|second|third|next|then|verify|verification|check|checking|"
    r"paso|étape|etapa|schritt|шаг|langkah|passo|चरण|ধাপ|الخطوة|步骤|第)(?![a-z])[^\n]*",
    re.IGNORECASE,
)
_ENUMERATED = re.compile(r"\W*(?:\d{1,2}|[ivx]{1,4}|[A-H])[.):]\s+[^\W\d].*", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]{2,}")
_MOST_WORDS = 3
"""Of a marked line that is followed by others; one with more is a heading, or a sentence."""


def marked_lines(text: str) -> list[str] | None:
    """Return the non-blank lines after the last `####` that marks an answer, or None where none does."""
    text = without_empty_marks(text)
    marks = list(_MARK.finditer(text))
    for number in range(len(marks) - 1, -1, -1):
        lines = non_blank_lines(text[marks[number].end() :])
        if not lines:
            continue
        on_its_line = text[marks[number].end() :].split("\n", 1)[0].strip()
        if not on_its_line or not _is_heading(on_its_line, followed=len(lines) > 1):
            return lines
    return None


def _is_heading(line: str, followed: bool) -> bool:
    line = line.strip("# *_")
    if (
        CUE_ALONE.fullmatch(line)
        or CUE.match(line)
        or re.match(r"\W*(?:the )?(?:final )?answer\b", line, re.IGNORECASE)
    ):
        return False
    if _SECTION.fullmatch(line) or _ENUMERATED.fullmatch(line):
        return True
    if not followed:
        return False
    words = _WORD.findall(re.sub(r"\\[A-Za-z]+", " ", line))
    return (
        line.endswith(":")
        or len(words) > _MOST_WORDS
        or (bool(words) and not re.search(r"\d|[=\\$^]", line) and len(words) > 1)
        or _named_heading(line)
    )


def _named_heading(line: str) -> bool:
    """`Solution`, `Calculation`: one word that names a section and no answer."""
    return bool(
        re.fullmatch(
            r"\W*(?:solution|calculations?|explanation|reasoning|analysis|conclusion|summary|given|setup|total|result|work|answer|final|therefore|"
            r"rechnung|lösung|cálculo|solución|calcul|решение)\W*",
            line,
            re.IGNORECASE,
        )
    )


def without_empty_marks(text: str) -> str:
    """Return `text` without the white space and the `####` at its end."""
    text = text.rstrip()
    while text.endswith("####"):
        text = text.rstrip("#").rstrip()
    return text


def non_blank_lines(text: str) -> list[str]:
    """Return the stripped lines of `text` that are not blank."""
    return [line.strip() for line in text.splitlines() if line.strip()]
