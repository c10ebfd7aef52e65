"""JSON records that notice damage to themselves.

A sealed record is plain JSON, `{"crc32c": "....", "body": {...}}`, whose checksum covers the bytes of the body
exactly as they lie in the file. A flipped or missing byte is found when the record is read, so that a damaged plan or
commit is never taken for a sound one.
"""

from __future__ import annotations

import json
from typing import Any

import google_crc32c

from ...errors import StoreError

_HEAD = b'{"crc32c": "'
_MIDDLE = b'", "body": '
_TAIL = b"}\n"
_DEPTH = 64
"""How deep lists and objects may lie within each other."""
_START = len(_HEAD) + 8 + len(_MIDDLE)


def crc32c(data: Any, start: int = 0) -> int:
    """CRC-32C of a bytes-like object or C-contiguous array, continued from `start`."""
    return int(google_crc32c.extend(start, data))


def digest(data: Any) -> str:
    """CRC-32C of `data` as eight hexadecimal digits."""
    return f"{crc32c(data):08x}"


def canonical(value: Any) -> bytes:
    """The one JSON spelling of `value`: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def seal(body: dict[str, Any]) -> bytes:
    """The bytes of a sealed record."""
    data = json.dumps(body, separators=(",", ":"), allow_nan=False).encode("ascii")
    return _HEAD + digest(data).encode("ascii") + _MIDDLE + data + _TAIL


def seal_digest(record: bytes) -> str:
    """The checksum that a sealed record states about its body (eight hexadecimal digits)."""
    return record[len(_HEAD) : len(_HEAD) + 8].decode("ascii", "replace")


def unseal(record: bytes, what: str, upto: bytes | None = None) -> dict[str, Any]:
    """The body of a sealed record; checked whole, but parsed only up to the field that starts with the bytes `upto`.

    Raises
    ------
    StoreError
        The record is cut short, is not a sealed record, or its bytes do not match its checksum. `what` names it.
    """
    body = record[_START : -len(_TAIL)]
    sound = (
        record.startswith(_HEAD)
        and record[_START - len(_MIDDLE) : _START] == _MIDDLE
        and record.endswith(_TAIL)
        and digest(body) == seal_digest(record)
    )
    if not sound:
        raise StoreError(f"{what} is damaged ({len(record)} bytes that do not match their checksum).")
    if upto is not None and (end := body.find(upto)) >= 0:  # quotes within strings are escaped, so this is a field
        body = body[:end] + b"}"
    try:
        value = json.loads(body.decode("ascii"), parse_constant=_no_number)
        if body.count(b"[") + body.count(b"{") > _DEPTH:
            check_depth(value)
    except (ValueError, RecursionError) as error:
        reason = str(error) or "it is nested too deep"
        raise StoreError(f"{what} is damaged: it is not the JSON that this package writes ({reason[:200]}).") from None
    if not isinstance(value, dict):
        raise StoreError(f"{what} is damaged: its body is not a JSON object.")
    return value


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def check_depth(value: Any) -> None:
    """Refuse (ValueError) lists and objects that lie too deep within each other, which would exhaust the stack later."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_DEPTH):
        level = [
            entry
            for container in level
            for entry in (container.values() if isinstance(container, dict) else container)
            if isinstance(entry, dict | list)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {_DEPTH} deep")
