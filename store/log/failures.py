"""Notes of cells that could not be finished, one a cell.

Guarantees that a note is that of the cell whose number it bears, and that one which is damaged or says something else is named and hides
no other.
"""

from __future__ import annotations

from ...errors import StoreError
from .. import records
from ..files.errors import unreadable
from ..files.protocol import Files, read_records
from ..files.sealed import seal, unseal
from ..layout import FAILED
from ..plan import Cell, Plan

_NOTE = records.fields({"benchmark": records.text(), "regime": records.text(), "reason": records.text("(?s:.*)")})


def failure_name(cell: int) -> str:
    """File of the note of a cell."""
    return f"{FAILED}/{cell:04d}.json"


def failure_record(cell: Cell, reason: str) -> bytes:
    """The bytes of a note."""
    return seal({"benchmark": cell.benchmark, "regime": cell.regime, "reason": reason})


def read_failures(files: Files, plan: Plan) -> tuple[dict[int, str], dict[str, str]]:
    """Reasons by cell number, and what is wrong with each other note, by its file's name."""
    places = {failure_name(cell.index): cell for cell in plan.cells}
    names = sorted(f"{FAILED}/{name}" for name in files.list(FAILED))
    reasons, faults = {}, {}
    for name, record in zip(names, read_records(files, names), strict=True):
        if record is None:
            continue  # the cell was finished meanwhile
        what = f"The note of a failed cell {files.path}/{name}"
        try:
            if isinstance(record, OSError):
                raise unreadable(what, record)
            note = records.sound(_NOTE, unseal(record, what), what)
            cell = places.get(name)
            if cell is None or (note["benchmark"], note["regime"]) != (cell.benchmark, cell.regime):
                raise StoreError(f"{what} is that of no cell of this plan.")
            reasons[cell.index] = note["reason"]
        except StoreError as error:
            faults[name] = str(error)
    return reasons, faults
