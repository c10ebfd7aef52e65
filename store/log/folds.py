"""Blobs of many shards merged into one file per cell, where the parts together are larger than their sum.

A fold of the first `upto` shards of a cell is made when they all have commits, in plan order and in groups that follow
from the plan, so its bytes depend on the plan alone: two writers that make the same fold make the same file, and
put-if-absent lets one of them. Only then do the parts go. A reader takes the largest fold and the parts after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from ...errors import StoreError
from ..files.protocol import Files
from ..files.sealed import crc32c
from ..layout import FOLDS, blob_name
from ..plan import Cell
from ..run_plan import RunPlan
from .commits import Commit, read_commits

Merge = Callable[[Sequence[bytes]], bytes]


def fold_name(cell: int, upto: int, name: str) -> str:
    """File that holds the blobs `name` of the shards before `upto` of a cell."""
    return f"{FOLDS}/{cell:04d}.{upto:08d}.{name}"


def folded(files: Files, name: str = "") -> dict[tuple[int, str], int]:
    """First shard after the largest fold, by cell number and blob name (of all blobs, or of one)."""
    marks: dict[tuple[int, str], int] = {}
    for file in files.list(FOLDS):
        cell, _, rest = file.partition(".")
        upto, _, blob = rest.partition(".")
        if cell.isdigit() and upto.isdigit() and blob and name in ("", blob):
            key = (int(cell), blob)
            marks[key] = max(marks.get(key, 0), int(upto))
    return marks


def read_fold(files: Files, cell: int, upto: int, name: str) -> bytes:
    """The bytes of a fold, checked.

    Raises
    ------
    StoreError
        They do not match their checksum.
    FileNotFoundError
        There is no such fold, or no more since a larger one was made.
    """
    data = files.read(fold_name(cell, upto, name))
    if len(data) < 4 or crc32c(np.frombuffer(data, np.uint8)[4:]).to_bytes(4, "little") != data[:4]:
        raise StoreError(
            f"{files.path}/{fold_name(cell, upto, name)} is damaged: its bytes do not match its checksum. "
            "Run `precollapse repair` to have its shards done again."
        )
    return data[4:]


def fold(files: Files, run: RunPlan, cell: Cell, done: Collection[int], name: str, group: int, merge: Merge) -> int:
    """Fold what can be folded of one cell.

    Parameters
    ----------
    files, run, cell
    done : collection of int
        Shards that have a commit.
    name : str
        Of the blob.
    group : int
        Shards that are folded together; the same in every call.
    merge : callable (sequence of bytes) -> bytes
        Makes one blob of several, given in plan order.

    Returns
    -------
    int
        First shard after the fold; the cell's first where there is none.
    """
    upto = folded(files, name).get((cell.index, name), cell.first_shard)
    while upto + group <= cell.shards.stop and all(k in done for k in range(upto, upto + group)):
        shards = range(upto, upto + group)
        commits, _ = read_commits(files, run, shards)
        try:
            parts = [read_fold(files, cell.index, upto, name)] if upto > cell.first_shard else []
            parts += [_part(files, commits[k], name) for k in shards]
        except (FileNotFoundError, KeyError):
            return upto  # another writer has folded them meanwhile, or a shard was taken out of the run
        merged = merge(parts)
        files.create(fold_name(cell.index, shards.stop, name), crc32c(merged).to_bytes(4, "little") + merged)
        if upto > cell.first_shard:
            files.remove(fold_name(cell.index, upto, name))
        upto = shards.stop
    _clear(files, cell, upto, name)
    return upto


def _part(files: Files, commit: Commit, name: str) -> bytes:
    file = blob_name(name, commit.shard)
    record = commit.files[file]
    try:
        data = files.read(file)
    except FileNotFoundError:
        data = files.read(record.staged)
    if len(data) != record.size or f"{crc32c(data):08x}" != record.crc32c:
        raise StoreError(
            f"{files.path}/{file} is damaged: its bytes do not match the commit. Run `precollapse repair`."
        )
    return data


def _clear(files: Files, cell: Cell, upto: int, name: str) -> None:
    """Remove the parts that a fold holds, and smaller folds; a kill may have left some."""
    for file in files.list(FOLDS):
        head = file.split(".", 2)
        if head[0] == f"{cell.index:04d}" and head[2:] == [name] and int(head[1]) < upto:
            files.remove(f"{FOLDS}/{file}")
    for shard in range(cell.first_shard, upto):
        if files.size(blob_name(name, shard)) is not None:
            files.remove(blob_name(name, shard))
