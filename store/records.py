"""What a record of a run may say, field by field: its type and its bounds, checked before any of it is used.

A checksum tells damage, not who wrote a record: one that somebody else made may be sound and still say anything. So a name in it is a
name, a number is one that a run can have, and what is not is told by its field, and never becomes a path, an allocation or a TypeError.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..errors import StoreError
from .dtypes import is_text
from .layout import is_name

Check = Callable[[Any, str], Any]
"""Gives the checked value back. Arguments: the value, and the words for where it stands. Raises Malformed."""

Result = TypeVar("Result")

MOST = 1 << 53
"""The largest number that a record may state: whole numbers up to here are exact wherever they are read."""


class Malformed(ValueError):
    """A field is not what it must be; the message is a clause that names it."""


def sound(check: Callable[[Any, str], Result], value: Any, what: str) -> Result:
    """The checked value.

    Raises
    ------
    StoreError
        It is not what it must be; `what` names the record.
    """
    try:
        return check(value, "it")
    except Malformed as error:
        raise StoreError(
            f"{what} is damaged, or made by other hands: {error}. Nothing in it is used; run `precollapse verify`."
        ) from None


def shown(value: Any) -> str:
    """A value in an error message: short, whatever it is."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return ascii(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, int | float):
        return repr(value)
    names: dict[type, str] = {list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def refuse(value: Any, where: str, wanted: str) -> Malformed:
    return Malformed(f"{where} is {shown(value)}, not {wanted}")


def text(pattern: str | None = None, wanted: str = "text") -> Check:
    """A string of whole characters that matches a pattern."""
    expression = None if pattern is None else re.compile(pattern)

    def check(value: Any, where: str) -> str:
        if isinstance(value, str) and (expression.fullmatch(value) if expression else is_text(value)):
            return value
        raise refuse(value, where, wanted)

    return check


def name(value: Any, where: str) -> str:
    """A name that can serve as that of a file, as `layout.check_name` wants it when it is written."""
    if isinstance(value, str) and is_name(value):
        return value
    raise refuse(value, where, "a name of letters, digits, '_', '-' and '.'")


def whole(least: int = 0, most: int = MOST) -> Check:
    """A whole number within bounds that count as inside."""

    def check(value: Any, where: str) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise refuse(value, where, f"a whole number from {least} to {most}")

    return check


def number(least: float = -math.inf) -> Check:
    """A finite number."""

    def check(value: Any, where: str) -> float:
        if isinstance(value, float | int) and not isinstance(value, bool) and abs(value) <= 1e300 and value >= least:
            return value
        raise refuse(value, where, "a finite number" + (f" of at least {least:g}" if least > -math.inf else ""))

    return check


def choice(*values: Any) -> Check:
    """One of these texts."""

    def check(value: Any, where: str) -> Any:
        if isinstance(value, str) and value in values:
            return value
        raise refuse(value, where, "one of " + ", ".join(values))

    return check


def listing(check: Check, least: int = 0, most: int = MOST) -> Check:
    """A list of so many values that each pass the same check."""

    def check_all(value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise refuse(value, where, "a list")
        if not least <= len(value) <= most:
            raise Malformed(f"{where} has {len(value)} entries, where {least} to {most} can be")
        return [check(entry, f"entry {i} of {where}") for i, entry in enumerate(value)]

    return check_all


def texts(value: Any, where: str) -> list[str]:
    """A list of strings of whole characters; as `listing(text())`, and fast for the ids of millions of states."""
    if not isinstance(value, list):
        raise refuse(value, where, "a list")
    try:
        "".join(value).encode()
    except (TypeError, UnicodeEncodeError):
        listed: list[str] = listing(text())(value, where)  # finds the one that is none
        return listed
    return value


def mapping(keys: Check, values: Check) -> Check:
    """An object whose names pass one check and whose values pass another."""

    def check(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise refuse(value, where, "an object")
        return {
            keys(key, f"a name in {where}"): values(entry, f"{shown(key)} of {where}") for key, entry in value.items()
        }

    return check


def anything(value: Any, where: str) -> Any:
    """Any JSON value: settings and manifests of users."""
    return value


def json_object(value: Any, where: str) -> dict[str, Any]:
    """An object that may hold anything."""
    if isinstance(value, dict):
        return value
    raise refuse(value, where, "an object")


def optional(check: Check) -> Check:
    """The same, or null, or a field that is not there."""

    def check_given(value: Any, where: str) -> Any:
        return None if value is None else check(value, where)

    check_given.optional = True  # type: ignore[attr-defined]
    return check_given


def fields(checks: Mapping[str, Check]) -> Check:
    """An object with these fields; further ones are left out of the result."""

    def check_fields(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise refuse(value, where, "an object")
        result = {}
        for field, check in checks.items():
            if field not in value and not hasattr(check, "optional"):
                raise Malformed(f"{where} lacks {field!r}")
            result[field] = check(value.get(field), field if where == "it" else f"{field!r} of {where}")
        return result

    return check_fields
