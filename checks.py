"""Checks of settings and arguments, each with one sentence for what is wrong.

A leaf that any folder may import. Guarantees that a wrong value is refused in the same words wherever it is given, and that
"a whole number" means the same everywhere: numpy's integers are whole numbers, booleans are not. Each function gives the checked
value back, as a plain Python one where it is a number.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Collection, Iterable
from numbers import Integral, Real
from typing import Any

from .errors import RequestError


def is_whole(value: object, least: int | None = None, most: int | None = None) -> bool:
    """Whether a value is a whole number, no boolean, within bounds that count as inside."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return False
    number = int(value)
    return (least is None or number >= least) and (most is None or number <= most)


def whole(name: str, value: object, least: int | None = None, most: int | None = None, hint: str = "") -> int:
    """A whole number within bounds that count as inside, and of 64 bits: no file of a run holds more.

    Parameters
    ----------
    name : str
        What a message calls the value.
    value : object
    least, most : int, optional
    hint : str
        What to do instead, put after the sentence's semicolon.

    Raises
    ------
    RequestError
        When it is another kind of value, or out of bounds.

    Examples
    --------
    >>> whole("top_k", 3, least=0)
    3
    >>> whole("n", 0, least=1)
    Traceback (most recent call last):
    precollapse.errors.RequestError: n must be a whole number of at least 1, found 0.
    """
    if is_whole(value, least, most) and is_whole(value, -(2**63), 2**63 - 1):
        return int(value)  # type: ignore[call-overload, no-any-return]
    bits = " that 64 bits hold" if is_whole(value, least, most) else ""
    raise RequestError(f"{name} must be a whole number{_bounds(least, most)}{bits}, found {shown(value)}{_after(hint)}")


def optional_whole(
    name: str, value: object, least: int | None = None, most: int | None = None, hint: str = ""
) -> int | None:
    """The same where None stands for a value that is not given."""
    return None if value is None else whole(name, value, least, most, hint)


def finite(name: str, value: object, least: float | None = None, most: float | None = None, hint: str = "") -> float:
    """A finite number within bounds that count as inside.

    Raises
    ------
    RequestError
        When it is another kind of value, NaN, infinite, or out of bounds.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number) and (least is None or number >= least) and (most is None or number <= most):
            return number
    raise RequestError(f"{name} must be a finite number{_bounds(least, most)}, found {shown(value)}{_after(hint)}")


def inside(name: str, value: object, low: float, high: float, hint: str = "") -> float:
    """A number strictly between two bounds, such as a confidence level.

    Raises
    ------
    RequestError
        When it is another kind of value, or not between them.
    """
    if isinstance(value, Real) and not isinstance(value, bool) and low < float(value) < high:
        return float(value)
    raise RequestError(f"{name} must lie between {low:g} and {high:g}, found {shown(value)}{_after(hint)}")


def choice(name: str, value: Any, choices: Collection[Any], hint: str = "") -> Any:
    """One of the choices.

    Parameters
    ----------
    name : str
        What a message calls the value.
    value : object
    choices : collection
        A mapping stands for its keys.
    hint : str
        Put after the list of choices, as in "or give your own rows with --items".

    Raises
    ------
    RequestError
        When it is none of them.

    Examples
    --------
    >>> choice("mode", "plus", ("add", "replace"))
    Traceback (most recent call last):
    precollapse.errors.RequestError: mode 'plus' is unknown; choose from add, replace.
    """
    allowed = list(choices)
    if not isinstance(value, str | Integral | None) or value not in allowed:
        raise RequestError(
            f"{name} {shown(value)} is unknown; choose from {', '.join(map(str, allowed))}{', ' if hint else ''}{hint}."
        )
    return value


def unique(name: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """The values, each there once.

    Raises
    ------
    RequestError
        When one comes twice.
    """
    listed = tuple(values)
    if len(set(listed)) != len(listed):
        twice = next(value for value in listed if listed.count(value) > 1)
        raise RequestError(f"{name} {', '.join(map(str, listed))} name one twice ({twice!r}); name each once.")
    return listed


def names(name: str, value: object, empty: bool = True) -> tuple[str, ...]:
    """Names, each there once; a single one stands for itself.

    Parameters
    ----------
    name : str
        What a message calls them.
    value : str or iterable of str
    empty : bool
        Whether there may be none.

    Raises
    ------
    RequestError
        When it is something else, a name comes twice, or there is none where one is needed.
    """
    listed: tuple[Any, ...] = (
        (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else ()
    )
    if not isinstance(value, str | Iterable) or not all(isinstance(one, str) for one in listed):
        raise RequestError(f"{name} must be names, found {shown(value)}.")
    if not listed and not empty:
        raise RequestError(f"{name} must name at least one thing, found none.")
    return unique(name, listed)


def fields(where: str, given: Iterable[Any], known: Iterable[str]) -> None:
    """Refuse a field that is not among the known ones.

    Raises
    ------
    RequestError
        Names the first unknown field, in the order of the alphabet, and all known ones.
    """
    allowed = tuple(known)
    unknown = sorted(str(field) for field in given if field not in allowed)
    if unknown:
        raise RequestError(f"{where} has an unknown field {shown(unknown[0])}; known: {', '.join(allowed)}.")


def shown(value: object, most: int = 80) -> str:
    """A value as a message shows it: as Python writes it, on one line, cut where it is long, whatever it holds.

    Examples
    --------
    >>> shown({"a": [1] * 1000})
    "{'a': [1, 1, 1, 1, 1, 1, ...]}"
    >>> shown("\\x1b[31m" + "x" * 1000)[:20]
    "'\\\\x1b[31mxxxxxxxxxxx"
    """
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = most
    try:
        text = short.repr(value)
    except ValueError:  # a whole number of more digits than Python writes
        text = f"a {type(value).__name__} that is too long to be shown"
    return text if len(text) <= 2 * most else f"{text[: 2 * most - 3]}..."


def _bounds(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f" from {least:g} to {most:g}" if isinstance(least, float) else f" from {least} to {most}"
    return f" of at least {least}" if least is not None else f" of at most {most}" if most is not None else ""


def _after(hint: str) -> str:
    return f"; {hint}." if hint else "."
