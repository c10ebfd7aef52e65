"""How the text of a flag, and an entry of a configuration file, become the value that a setting takes.

Guarantees that both ways of giving a value end in the same value, and that one of another type is refused: `n: five` is never
text where a number belongs, and YAML's `no` never a benchmark of that name.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import strict_json
from ..checks import is_whole, shown
from ..errors import RequestError


@dataclass(frozen=True)
class Value:
    """A type of value.

    Attributes
    ----------
    what : str
        What an entry of a configuration file must be, for a refusal.
    from_entry : callable
        The value of an entry of a configuration file; raises TypeError or ValueError for one of another type.
    keywords : mapping
        What argparse is told about the flag.
    """

    what: str
    from_entry: Callable[[Any], Any]
    keywords: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_switch(self) -> bool:
        """Whether the flag stands alone, and setting it is its value."""
        return "const" in self.keywords


# --- the text of a flag -------------------------------------------------------------------------------------------------


class _Read(argparse.Action):
    """Reads the text with a function of text and flag, whose refusal keeps its own sentence."""

    def __init__(self, *, reader: Callable[[str, str], Any], **keywords: Any) -> None:
        super().__init__(**keywords)
        self.reader = reader

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, self.reader(values, self.option_strings[0]))


class _Pairs(argparse.Action):
    """Collects NAME=FILE from each time that the flag is given."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        pairs = getattr(namespace, self.dest, {})
        setattr(namespace, self.dest, {**pairs, **files([values], self.option_strings[0], taken=pairs)})


def names(text: str) -> tuple[str, ...]:
    """The parts of a comma list, without blanks around them and without empty ones."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def files(entries: Sequence[str], flag: str, taken: Mapping[str, str] | None = None) -> dict[str, str]:
    """Files by name, of entries NAME=FILE.

    Raises
    ------
    RequestError
        An entry of another form, or a name that stands twice (or among the names `taken`).
    """
    paths: dict[str, str] = {}
    for entry in entries:
        name, equals, path = entry.partition("=")
        if not equals or not name or not path:
            raise RequestError(f"{flag} {entry!r} is not NAME=FILE; write for example {flag} gsm8k=rows.jsonl")
        if name in paths or name in (taken or ()):
            raise RequestError(f"{flag} names {name!r} twice; give one file per benchmark")
        paths[name] = path
    return paths


class _Arguments(argparse.Action):
    """Collects NAME=VALUE from each time that the flag is given; a value that is JSON is read as such."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        name, equals, text = values.partition("=")
        if not equals or not name:
            flag = self.option_strings[0]
            raise RequestError(
                f"{flag} {shown(values)} is not NAME=VALUE; write for example {flag} enable_thinking=false"
            )
        try:
            value = strict_json.loads(text)
        except ValueError:
            value = text
        setattr(namespace, self.dest, {**getattr(namespace, self.dest, {}), name: value})


class _Stops(argparse.Action):
    """Collects stop texts from each time that the flag is given; `\\n` and `\\t` are a line break and a tab, and `none` is none."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        texts = getattr(namespace, self.dest, ())
        if values != "none":
            texts = (*texts, values.replace("\\n", "\n").replace("\\t", "\t"))
        setattr(namespace, self.dest, texts)


def numbers(text: str, flag: str) -> tuple[float, ...]:
    """The numbers of a comma list."""
    try:
        return tuple(float(part) for part in names(text))
    except ValueError as error:
        raise RequestError(
            f"{flag} {shown(text)} is not a comma list of numbers; write for example {flag}=-8,-4,0,4,8"
        ) from error


def whole_or_none(text: str, flag: str) -> int | None:
    """A whole number, or None for the word none."""
    try:
        return None if text == "none" else int(text)
    except ValueError as error:
        raise RequestError(f"{flag} {shown(text)} is not a whole number; give one, or none") from error


def whole(text: str) -> int:
    """A whole number of 64 bits.

    Raises
    ------
    argparse.ArgumentTypeError
        It is none, or has more.
    """
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number") from None
    if not is_whole(number, -(2**63), 2**63 - 1):
        raise argparse.ArgumentTypeError(f"{shown(text)} has more than 64 bits; give a smaller number")
    return number


def place(text: str) -> str:
    """A path or an address, with `~` for the home folder, which a shell leaves as it is behind --out=."""
    return os.path.expanduser(text)


def caps(text: str, flag: str) -> int | dict[str, int]:
    """A number for all regimes, or numbers by regime."""
    try:
        if "=" not in text:
            return int(text)
        pairs = [part.split("=") for part in names(text)]
        by_regime = {regime: int(number) for regime, number in pairs}
    except ValueError as error:
        raise RequestError(
            f"{flag} {shown(text)} is neither a number nor regime=number,...; write for example 160 or baseline=50,cot=160"
        ) from error
    if len(by_regime) != len(pairs):
        raise RequestError(f"{flag} {shown(text)} names a regime twice; give one cap each")
    return by_regime


# --- an entry of a configuration file -----------------------------------------------------------------------------------

_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")  # YAML 1.1 takes 1e-3 for text


def _text(entry: Any) -> str:
    if not isinstance(entry, str):
        raise TypeError
    return entry


def _whole(entry: Any) -> int:
    if not isinstance(entry, int) or isinstance(entry, bool):
        raise TypeError
    return entry


def _number(entry: Any) -> float:
    if isinstance(entry, str) and _EXPONENT.fullmatch(entry):
        return float(entry)
    if not isinstance(entry, int | float) or isinstance(entry, bool):
        raise TypeError
    return float(entry)


def _true_or_false(entry: Any) -> bool:
    if not isinstance(entry, bool):
        raise TypeError
    return entry


def _text_or_number(entry: Any) -> str:
    return entry if isinstance(entry, str) else str(_whole(entry) if isinstance(entry, int) else _number(entry))


def _each(entry: Any, one: Callable[[Any], Any]) -> tuple[Any, ...]:
    return tuple(one(part) for part in entry) if isinstance(entry, list) else (one(entry),)


def _names(entry: Any) -> tuple[str, ...]:
    return names(entry) if isinstance(entry, str) else _each(entry, _text)


def _sites(entry: Any) -> tuple[str, ...]:
    return () if entry == "none" else _names(entry)


def _places(entry: Any) -> tuple[str, ...]:
    return names(entry) if isinstance(entry, str) else _each(entry, _text_or_number)


def _numbers(entry: Any) -> tuple[float, ...]:
    return numbers(entry, "") if isinstance(entry, str) else _each(entry, _number)


def _files(entry: Any) -> dict[str, str]:
    if not isinstance(entry, dict):
        return files(_each(entry, _text), "")
    return {_text(name): _text(path) for name, path in entry.items()}


def _whole_or_none(entry: Any) -> int | None:
    return None if entry == "none" else _whole(entry)


def _caps(entry: Any) -> int | dict[str, int]:
    if isinstance(entry, dict):
        return {_text(regime): _whole(number) for regime, number in entry.items()}
    return caps(entry, "") if isinstance(entry, str) else _whole(entry)


def _mapping(entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise TypeError
    return {_text(name): value for name, value in entry.items()}


def _stops(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {_text(regime): _each(texts, _text) for regime, texts in entry.items()}
    return () if entry == "none" else _each(entry, _text)


# --- the types ----------------------------------------------------------------------------------------------------------

TEXT = Value("text", _text)
TEXTS = Value("text, or a list of texts", lambda entry: _each(entry, _text), {"action": "append"})
LABEL = Value("text or a number", _text_or_number)
WHOLE = Value("a whole number", _whole, {"type": whole})
WHOLE_OR_NONE = Value("a whole number, or none", _whole_or_none, {"action": _Read, "reader": whole_or_none})
NUMBER = Value("a number", _number, {"type": float})
NUMBERS = Value("a number, or a list of numbers", _numbers, {"action": _Read, "reader": numbers})
PAIR = Value("a list of two texts", lambda entry: _each(entry, _text), {"nargs": 2})
NAMES = Value("a name, or a list of names", _names, {"type": names})
SOME_NAMES = Value(
    "a name, or a list of names", lambda entry: _names(entry) or None, {"type": lambda t: names(t) or None}
)
SITES = Value("a site, a list of sites, or none", _sites, {"type": _sites})
PLACES = Value("a place, or a list of places", _places, {"type": names})
LAYERS = Value("text, a number, or a list of them", lambda entry: ",".join(_each(entry, _text_or_number)))
FILES = Value("a mapping of names to files", _files, {"action": _Pairs})
CAPS = Value("a whole number, or a mapping of regimes to whole numbers", _caps, {"action": _Read, "reader": caps})
ON = Value("true or false", _true_or_false, {"action": "store_const", "const": True})
OFF = Value("true or false", lambda entry: not _true_or_false(entry), {"action": "store_const", "const": False})
PLACE = Value("a path", lambda entry: place(_text(entry)), {"type": place})
ARGUMENTS = Value("a mapping of names to values", _mapping, {"action": _Arguments})
STOPS = Value("a text, a list of texts, or a mapping of regimes to them", _stops, {"action": _Stops})
DAY = Value("a day such as 2026-12-01", lambda entry: str(entry) if isinstance(entry, datetime.date) else _text(entry))
PATHS = Value(
    "a list of paths", lambda entry: _each(entry, lambda part: place(_text(part))), {"nargs": "+", "type": place}
)


def choice(*allowed: str) -> Value:
    """One of a few names."""

    def from_entry(entry: Any) -> str:
        if entry not in allowed:
            raise ValueError
        return _text(entry)

    return Value(f"one of {', '.join(allowed)}", from_entry, {"choices": allowed})
