"""Rows of JSON Lines files and of data sets: reading them, their fields, and refusing what cannot be used by its line.

Guarantees that a bad line is refused by its number before any work, whoever reads the file; and that numbers are texts as they are
written (0.50 stays 0.50).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from .. import strict_json
from ..errors import RequestError

LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Row:
    """One row, and how a message names its place."""

    number: int
    """From 0, blank lines not counted."""
    place: str
    """How a message names it: file and line, or data set and row."""
    values: Any


class Fault(ValueError):
    """What is wrong with a row; the caller knows where it stands."""


def file_rows(path: Path, what: str = "items file") -> Iterator[Row]:
    """The objects of a JSON Lines file.

    Raises
    ------
    RequestError
        The file is missing, empty, or holds a line that is no JSON; it is named.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise RequestError(f"the {what} {str(path)!r} does not exist") from None
    except OSError as error:
        raise RequestError(f"the {what} {str(path)!r} cannot be read: {error.strerror or error}") from None
    number = 0
    # Split at \n alone: JSON strings may hold other characters that str.splitlines would break at.
    for line_number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {line_number}"
        try:
            values = strict_json.loads(line.decode("utf-8"), parse_float=Decimal)
        except UnicodeDecodeError as error:
            raise RequestError(f"{place}: not UTF-8 text (byte {error.start + 1}); save the file as UTF-8") from None
        except json.JSONDecodeError as error:
            raise RequestError(
                f"{place}: not valid JSON ({error.msg}, column {error.colno}); each line is one object"
            ) from None
        except ValueError as error:
            raise RequestError(f"{place}: not valid JSON ({error}); each line is one object") from None
        yield Row(number, place, values)
        number += 1
    if not number:
        raise RequestError(f"the {what} {str(path)!r} is empty; it needs one JSON object a line")


def labelled_texts(choices: Any) -> list[tuple[str, str]]:
    """Label and text of each option, of a list of texts, of an object label to text, or of the lists `text` and
    `label`.

    Raises
    ------
    Fault
        It is none of these.
    """
    if isinstance(choices, list):
        if len(choices) > len(LABELS):
            raise Fault(f"a list of choices can have at most {len(LABELS)} entries; found {len(choices)}")
        pairs = list(zip(LABELS, (scalar(text, "choices") for text in choices), strict=False))
    elif isinstance(choices, Mapping) and choices.keys() == {"text", "label"} and isinstance(choices["text"], list):
        pairs = labelled_lists(choices)
    elif isinstance(choices, Mapping):
        pairs = [(label, scalar(text, "choices")) for label, text in choices.items()]
    else:
        raise Fault(f"field 'choices' must be a list of texts or an object label to text; found {kind_of(choices)}")
    return pairs


def labelled_lists(choices: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and text of each option, of the lists `text` and `label`."""
    texts, labels = choices["text"], choices["label"]
    if not isinstance(texts, list) or not isinstance(labels, list) or len(texts) != len(labels):
        raise Fault("the lists 'text' and 'label' of field 'choices' must be equally long")
    pairs = zip(labels, texts, strict=True)
    return [(scalar(label, "choices"), scalar(text, "choices")) for label, text in pairs]


def value_of(row: Mapping[str, Any], field: str) -> Any:
    """The value of a field that a row must have."""
    if row.get(field) is None:
        raise Fault(f"field {field!r} is missing; the row has {', '.join(map(repr, row)) or 'no fields'}")
    return row[field]


def text_of(row: Mapping[str, Any], field: str) -> str:
    """The text of a field that a row must have, not blank."""
    text = scalar(value_of(row, field), field)
    if not text.strip():
        raise Fault(f"field {field!r} is blank")
    return text


def identity_of(row: Mapping[str, Any], field: str, number: int) -> str:
    """The row's own id, or its number."""
    return str(number) if row.get(field) is None else text_of(row, field).strip()


def scalar(value: Any, field: str) -> str:
    """A value as text, numbers as they are written."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise Fault(f"field {field!r} must hold text; found {kind_of(value)}")
    text = str(value)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Fault(f"field {field!r} holds half of a surrogate pair, which is no text") from None
    return text


def kind_of(value: Any) -> str:
    """What a value is, for a message."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float | Decimal) else type(value).__name__)


def shown_value(value: Any) -> str:
    """A value for a message, cut."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
