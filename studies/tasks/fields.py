"""Fields of a release's files, read for what they mean in whichever form they come.

Guarantees that a label which is a word, a number or a boolean, and a text which is a string or a list of parts, is read as
what it says, and that anything else is a sentence which names the field, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from ...checks import shown


class FieldError(ValueError):
    """A field is missing or is not what it has to be; the message is what goes into the list of faults."""


def present(content: Mapping[str, Any], name: str) -> Any:
    """The value of a field.

    Raises
    ------
    FieldError
        There is none.
    """
    if name not in content:
        raise FieldError(f"it has no field {name!r}")
    return content[name]


def text(content: Mapping[str, Any], name: str) -> str:
    """A text: a string, or a list of parts (strings, or objects with a `text`) put one after another.

    Examples
    --------
    >>> text({"thinking": [{"type": "reasoning.text", "text": "Let "}, {"text": "me see."}]}, "thinking")
    'Let me see.'
    """
    value = present(content, name)
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_part(part, name) for part in value)
    raise FieldError(f"its {name!r} is {shown(value, 40)}, where a text or a list of parts is expected")


def _part(part: Any, name: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        for field in ("text", "summary", "content"):
            if isinstance(part.get(field), str):
                return str(part[field])
    raise FieldError(f"its {name!r} has a part without a text: {shown(part, 40)}")


def word(content: Mapping[str, Any], name: str) -> str:
    """A name that is not empty: a string, or a whole number written as one."""
    value = present(content, name)
    if isinstance(value, bool) or not isinstance(value, str | int) or str(value) == "":
        raise FieldError(f"its {name!r} is {shown(value, 40)}, where a name is expected")
    return str(value)


def number(content: Mapping[str, Any], name: str, least: float = -math.inf, most: float = math.inf) -> float:
    """A finite number within bounds."""
    value = present(content, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FieldError(f"its {name!r} is {shown(value, 40)}, where a number is expected")
    if not least <= value <= most:
        raise FieldError(f"its {name!r} is {value:g}, where {least:g} to {most:g} are possible")
    return float(value)


def optional_number(
    content: Mapping[str, Any], name: str, least: float = -math.inf, most: float = math.inf
) -> float | None:
    """The same, or None where the field is missing or null."""
    return None if content.get(name) is None else number(content, name, least, most)


def whole(content: Mapping[str, Any], name: str, least: int = 0) -> int:
    """A whole number of at least `least`."""
    value = number(content, name, least)
    if value != int(value):
        raise FieldError(f"its {name!r} is {value:g}, where a whole number is expected")
    return int(value)


def label(
    content: Mapping[str, Any], positive: Collection[str], negative: Collection[str], name: str = "label"
) -> bool:
    """Whether a row is of the positive class: a word of either class, 1 or 0, true or false.

    Examples
    --------
    >>> label({"label": "yes"}, ["yes"], ["no"]), label({"label": 0}, ["yes"], ["no"])
    (True, False)
    """
    value = present(content, name)
    key = str(value).strip().lower() if isinstance(value, str | bool | int) else None
    if isinstance(value, float) and value in (0.0, 1.0):
        key = str(int(value))
    if key in {*(word.lower() for word in positive), "1", "true"}:
        return True
    if key in {*(word.lower() for word in negative), "0", "false"}:
        return False
    words = " or ".join(repr(next(iter(one))) for one in (positive, negative))
    raise FieldError(f"its {name!r} is {shown(value, 40)}, where {words} is expected")


def distribution(content: Mapping[str, Any], name: str) -> dict[str, float]:
    """Probabilities by option: finite, none negative, summing to 1 within 1e-3 (stored as they are).

    Raises
    ------
    FieldError
        They are not.
    """
    value = present(content, name)
    if not isinstance(value, dict) or not value:
        raise FieldError(f"its {name!r} is {shown(value, 40)}, where probabilities by option are expected")
    shares = {str(option): number(value, option, 0.0) for option in value}
    if abs(math.fsum(shares.values()) - 1) > 1e-3:
        raise FieldError(f"its {name!r} sums to {math.fsum(shares.values()):g}, where probabilities sum to 1")
    return shares


def choices(content: Mapping[str, Any]) -> dict[str, str]:
    """Options by letter, from a mapping or a list; empty where there are none."""
    value = content.get("choices")
    if isinstance(value, dict):
        return {str(letter): str(option) for letter, option in value.items()}
    if isinstance(value, list) and len(value) <= 26:
        return {chr(ord("A") + place): str(option) for place, option in enumerate(value)}
    return {}
