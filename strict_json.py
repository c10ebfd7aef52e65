"""JSON that somebody else wrote, with nothing in it lost or guessed.

A leaf that any folder may import. Guarantees that a row means what it says: a name that appears twice is refused (JSON keeps the last
without a word), and so are NaN and infinity, which are no JSON, and whole numbers that no 64 bits hold, which other readers round.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .checks import is_whole, shown


def loads(text: str, parse_float: Callable[[str], Any] = float) -> Any:
    """The value of a JSON text.

    Parameters
    ----------
    text : str
    parse_float : callable
        What makes a number with a point or an exponent of its digits.

    Raises
    ------
    ValueError
        The text is not JSON, or holds what this module refuses; the message says what, and `json.JSONDecodeError` where.

    Examples
    --------
    >>> loads('{"id": 1, "id": 2}')
    Traceback (most recent call last):
    ValueError: the name 'id' appears twice
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_whole,
            parse_float=parse_float,
            parse_constant=_constant,
        )
    except RecursionError:
        raise ValueError("lists and objects within one another, more deeply than is read") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"the name {shown(name)} appears twice")
        fields[name] = value
    return fields


def _whole(digits: str) -> int:
    if len(digits) > 20 or not is_whole(number := int(digits), -(2**63), 2**63 - 1):
        raise ValueError(
            f"the whole number {shown(digits, 40)[1:-1]} has more than 64 bits; put it into quotes as a text"
        )
    return number


def _constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON value")
