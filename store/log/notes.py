"""The manifest: what a reader should know about how a run came about.

The manifest is kept as one note per writer, each rewritten whole, so that several writers never undo each other's
entries. Reading merges them in the order in which they were last written; entries that are objects merge key by key.
"""

from __future__ import annotations

from typing import Any

from ...errors import StoreError
from ..files.protocol import Files
from ..files.sealed import seal, unseal
from ..layout import NOTES
from ..run_plan import json_form


def read_notes(files: Files) -> tuple[dict[str, Any], dict[str, str], int]:
    """The merged manifest, what is wrong with unreadable notes by name, and the highest revision."""
    names = sorted(files.list(NOTES))
    entries, faults = [], {}
    for name, record in zip(names, files.read_many([f"{NOTES}/{name}" for name in names]), strict=True):
        if record is None:
            continue
        try:
            note = unseal(record, f"Manifest note {NOTES}/{name} of {files.path}")
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
        revision = read_notes(self._files)[2] + 1
        self._files.replace(self._name, seal({"revision": revision, "values": self._values}))
