"""Finds the part of a generated text that states the final answer, where the text marks it with `####`.

Guarantees: the last `####` with something after it counts, so that one in a copied example, or one that closes the
answer
(`#### 18 ####`), is not taken for the mark.
"""

from __future__ import annotations

import re

_MARK = re.compile("#{4,}")


def marked_lines(text: str) -> list[str] | None:
    """Return the non-blank lines after the last `####` that has something after it, or None where there is none."""
    text = without_empty_marks(text)
    marks = list(_MARK.finditer(text))
    return non_blank_lines(text[marks[-1].end() :]) if marks else None


def without_empty_marks(text: str) -> str:
    """Return `text` without the white space and the `####` at its end."""
    text = text.rstrip()
    while text.endswith("####"):
        text = text.rstrip("#").rstrip()
    return text


def non_blank_lines(text: str) -> list[str]:
    """Return the stripped lines of `text` that are not blank."""
    return [line.strip() for line in text.splitlines() if line.strip()]
