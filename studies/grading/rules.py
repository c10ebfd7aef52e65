"""Rules that read an answer, tried in their order.

Guarantees that what `explain` shows is what grading does: both ask the same rules, grading for the first that applies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

Answer = TypeVar("Answer")
Found = tuple[Answer | None, str] | None
"""What a rule reads and the text that it read it in; (None, text) where it applies and there is no answer; None where it does not
apply."""

EXCERPT = 80
"""Characters of the text that are shown where a rule read all of it."""


def first_found(rules: Mapping[str, Callable[[str], Found[Answer]]], text: str) -> Found[Answer]:
    """What the first rule reads that applies."""
    return next((found for rule in rules.values() if (found := rule(text)) is not None), None)
