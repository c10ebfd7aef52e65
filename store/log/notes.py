"""The manifest: what a reader should know about how a run came about.

The manifest is kept as one note per writer, each rewritten whole, so that several writers never undo each other's
entries. Reading merges them in the order in which they were last written; entries that are objects merge key by key.
"""

from __future__ import annotations

from typing import Any

from ...errors import StoreError
from .. import records
from ..files.errors import unreadable
from ..files.protocol import Files, read_records
from ..files.sealed import seal, unseal
from ..layout import NOTES
from ..run_plan import COLUMN_TYPES, json_form
from .leases import IDENTITY

_WRITER = records.fields({"identity": records.optional(IDENTITY)})
_NOTE = records.fields({"revision": records.whole(), "values": records.json_object})
_OWN = records.fields(
    {
        "writers": records.optional(records.mapping(records.text(), _WRITER)),
        "added_columns": records.optional(records.mapping(records.name, records.choice(*COLUMN_TYPES))),
    }
)
"""The entries of a manifest that the store itself uses; all others are their reader's."""


def read_notes(files: Files) -> tuple[dict[str, Any], dict[str, str], int]:
    """The merged manifest, what is wrong with unreadable notes by name, and the highest revision."""
    names = sorted(files.list(NOTES))
    entries, faults = [], {}
    for name, record in zip(names, read_records(files, [f"{NOTES}/{name}" for name in names]), strict=True):
        if record is None:
            continue
        what = f"Manifest note {NOTES}/{name} of {files.path}"
        try:
            if isinstance(record, OSError):
                raise unreadable(what, record)
            note = records.sound(_NOTE, unseal(record, what), what)
            records.sound(_OWN, note["values"], what)
            entries.append((note["revision"], name, note["values"]))
        except StoreError as error:
            faults[name] = str(error)
    merged: dict[str, Any] = {}
    for _, _, values in sorted(entries, key=lambda entry: entry[:2]):
        merge(merged, values)
    return merged, faults, max((revision for revision, _, _ in entries), default=0)


def merge(into: dict[str, Any], values: dict[str, Any]) -> None:
    """Update `into` in place; objects on both sides merge key by key."""
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


class Note:
    """The note of one writer."""

    def __init__(self, files: Files, writer: str) -> None:
        self._files = files
        self._name = f"{NOTES}/{writer}.json"
        self._values: dict[str, Any] = {}

    def update(self, values: dict[str, Any]) -> None:
        """Add entries, durably."""
        merge(self._values, json_form(values, "manifest"))
        revision = min(read_notes(self._files)[2] + 1, records.MOST)
        self._files.replace(self._name, seal({"revision": revision, "values": self._values}))
