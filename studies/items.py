"""One benchmark question, and the formats of answers.

Guarantees that what loads items and what grades answers speak of the same formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FREE = "free"
CHOICE = "choice"

FORMATS: Mapping[str, str] = {
    "gsm8k": FREE,
    "math500": FREE,
    "arc_challenge": CHOICE,
    "aqua_rat": CHOICE,
    "builtin": FREE,
    "builtin_choice": CHOICE,
    "mmlu": CHOICE,
}
"""Answer format of each known benchmark. Any other name is a user's own items, whose format the file decides."""


@dataclass(frozen=True)
class Item:
    """One benchmark question with its gold answer.

    Attributes
    ----------
    id : str
        Unique within the benchmark; the source's own id, or the number of the row (from 0).
    question : str
    answer : str
        The gold answer: a number, an expression, or one of the labels.
    choices : dict of str to str, or None
        Label to option text, in the order shown; None for free response.
    """

    id: str
    question: str
    answer: str
    choices: dict[str, str] | None = None

    @property
    def format(self) -> str:
        """`"choice"` or `"free"`."""
        return FREE if self.choices is None else CHOICE
