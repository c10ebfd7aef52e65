"""The ids of the rows of a folder of activations, and what else is said of each row.

Guarantees that ids and files belong together as far as either says so: a torn line, a value of two types, a row that lies elsewhere, and an
order of files that is in doubt are refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...errors import RequestError
from ...schema import BENCHMARK, ID, ITEM_ID, REGIME
from ..dtypes import is_text
from .import_files import About
from .saved import Saved

_NUMBER = re.compile(r"\d+")


def states_of(
    root: Path, records: list[dict[str, Any]], count: int, reserved: set[str], types: dict[str, str]
) -> tuple[list[dict[str, str]], dict[str, str]]:
    """Plan states, and column types (those that an export names, else guessed from the values)."""
    if len(records) != count:
        raise RequestError(f"{root} has {count} rows of tensors, but ids for {len(records)}.")
    states = []
    for number, record in enumerate(records):
        if not isinstance(record.get(ID), str) or not record[ID]:
            raise RequestError(f"{root}: row {number} has id {record.get('id')!r}: a string is needed.")
        keys = {BENCHMARK: root.name or "imported", REGIME: "imported", ITEM_ID: record[ID]}
        for key in keys:
            value = record.get(key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
                raise RequestError(f"{root}: row {number} has {key} {value!r}: a string is needed.")
            keys[key] = keys[key] if value is None else str(value)
        states.append({ID: record[ID], **keys})
    columns: dict[str, str] = {}
    for name in dict.fromkeys(key for record in records for key in record):
        if name not in reserved:
            columns[name] = types.get(name) or _column_type(root, name, [record.get(name) for record in records])
    return states, columns


def _column_type(root: Path, name: str, values: list[Any]) -> str:
    kinds = {type(value) for value in values if value is not None}
    for kind, fits in (("bool", {bool}), ("int64", {int}), ("float64", {int, float}), ("string", {str})):
        if kinds and kinds <= fits:
            return kind
    if not kinds:
        return "string"
    raise RequestError(f"{root}: field {name!r} holds {', '.join(sorted(k.__name__ for k in kinds))}: use one type.")


def read_records(root: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """The bytes of the file that names the rows, and its records."""
    for name, read in (("states.jsonl", _lines), ("ids.json", _json_ids), ("ids.txt", _text_ids)):
        file = root / name
        if file.exists():
            source = file.read_bytes()
            try:
                return source, list(read(file, source.decode("utf-8-sig")))
            except UnicodeDecodeError as error:
                raise RequestError(f"{file} is no UTF-8 text ({error}): save it as UTF-8.") from None
    raise RequestError(f"{root} gives no ids for its rows: add states.jsonl, ids.json or ids.txt.")


def fields_as_records(
    root: Path, names: Sequence[str], contents: Sequence[Saved], counts: Sequence[int]
) -> tuple[bytes, list[dict[str, Any]]] | None:
    """What the files themselves say of their rows, and a text that stands for it; None where they give no ids.

    Raises
    ------
    RequestError
        One file gives fields that another does not, or not one value for each of its rows.
    """
    if not any(ID in content.fields for content in contents):
        return None
    records: list[dict[str, Any]] = []
    for name, content, count in zip(names, contents, counts, strict=True):
        if content.fields.keys() != contents[0].fields.keys():
            odd = sorted(content.fields.keys() ^ contents[0].fields.keys())[0]
            raise RequestError(f"{root}: {names[0]} and {name} do not hold the same fields ({odd!r}).")
        for field, values in content.fields.items():
            if len(values) != count:
                raise RequestError(f"{root / name}: {field!r} has {len(values)} values for {count} rows.")
            for value in values:
                if not is_text(field) or isinstance(value, str) and not is_text(value):
                    raise RequestError(
                        f"{root / name}: {field!r} holds half of a surrogate pair, which is no character."
                    )
        records += [{field: values[row] for field, values in content.fields.items()} for row in range(count)]
    return json.dumps(records, default=str).encode(), records


def _lines(file: Path, text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            torn = "is no JSON object" if text.count("\n") >= number else "is torn: it ends in the middle"
            raise RequestError(f"{file}, line {number}, {torn}: mend or remove it.") from None
        if not isinstance(record, dict):
            raise RequestError(f"{file}, line {number}, is no JSON object: give one object a line.")
        for key, value in record.items():
            if not is_text(key) or isinstance(value, str) and not is_text(value):
                raise RequestError(
                    f"{file}, line {number}, field {key!r} holds half of a surrogate pair, which is no character: mend it."
                )
        yield record


def _json_ids(file: Path, text: str) -> Iterator[dict[str, Any]]:
    try:
        ids = json.loads(text)
    except ValueError as error:
        raise RequestError(f"{file} is no JSON list of ids ({error}).") from None
    if not isinstance(ids, list):
        raise RequestError(f"{file} is no JSON list of ids.")
    yield from ({ID: name} for name in ids)


def _text_ids(_file: Path, text: str) -> Iterator[dict[str, Any]]:
    lines = text.split("\n")
    yield from ({ID: line.removesuffix("\r")} for line in (lines[:-1] if lines[-1] == "" else lines))


def place_fields(records: list[dict[str, Any]], names: list[str], about: About) -> tuple[str, str] | None:
    """Names of the fields that say in which file and row a state lies; None where the records have none."""
    if about.places:
        return about.places
    files, stated = set(names), (r.get("file") for r in records if "row" in r)
    return ("file", "row") if any(isinstance(file, str) and file in files for file in stated) else None


def check_places(
    root: Path, records: list[dict[str, Any]], fields: tuple[str, str] | None, names: list[str], counts: list[int]
) -> None:
    """The ids must agree with the order of the files, as far as they say where they lie; without that, the order of the
    files must be beyond doubt."""
    if fields is None:
        alike: dict[str, list[str]] = {}
        for name in names:
            alike.setdefault(_NUMBER.sub("#", name), []).append(name)
        for same_pattern in alike.values():
            for before, after in zip(same_pattern, same_pattern[1:], strict=False):
                if [int(n) for n in _NUMBER.findall(before)] > [int(n) for n in _NUMBER.findall(after)]:
                    raise RequestError(
                        f"{root}: files are read in the order of their names, and {before} comes before {after} there: "
                        "write the numbers with leading zeros, or give each id its file and row in states.jsonl."
                    )
        return
    places = [(name, row) for name, count in zip(names, counts, strict=True) for row in range(count)]
    for number, (record, place) in enumerate(zip(records, places, strict=True)):
        said = (record.get(fields[0], place[0]), record.get(fields[1], place[1]))
        if said != place:
            raise RequestError(f"{root}: row {number} of the ids lies in {said}, the files have {place} there.")
