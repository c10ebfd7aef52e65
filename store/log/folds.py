"""Blobs of many shards merged into one file per cell, where the parts together are larger than their sum.

A fold of the first `upto` shards of a cell is made when they all have commits, in plan order and in groups that follow
from the plan, so its bytes depend on the plan alone: two writers that make the same fold make the same file, and
put-if-absent lets one of them. Only then do the parts go. A reader takes the largest fold and the parts after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import StoreError
from ..files.protocol import Files
from ..files.sealed import crc32c
from ..layout import BLOBS, FOLDS, blob_name
from ..plan import Cell
from ..run_plan import RunPlan
from .commits import Commit, read_commits

Merge = Callable[[Sequence[bytes]], bytes]


def fold_name(cell: int, upto: int, name: str) -> str:
    """File that holds the blobs `name` of the shards before `upto` of a cell."""
    return f"{FOLDS}/{cell:04d}.{upto:08d}.{name}"


def folded(files: Files, name: str = "", cell: int | None = None) -> dict[tuple[int, str], int]:
    """First shard after the largest fold, by cell number and blob name (of all blobs, or of one; of all cells, or of one)."""
    marks: dict[tuple[int, str], int] = {}
    bounds = ("", "") if cell is None else (f"{cell:04d}.", f"{cell:04d}/")
    for file in files.list(FOLDS, *bounds):
        head, _, rest = file.partition(".")
        upto, _, blob = rest.partition(".")
        if head.isdigit() and upto.isdigit() and blob and name in ("", blob):
            key = (int(head), blob)
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


@dataclass
class Folding:
    """What one writer does to fold a blob of one cell, and how far it has seen the fold.

    Nothing is asked of the place before a group of shards is complete, and then only about the shards since the last look, so that a
    shard costs the same in a run of ten and of ten thousand.

    Parameters
    ----------
    files, run, cell
    name : str
        Of the blob.
    group : int
        Shards that are folded together; the same in every call.
    merge : callable (sequence of bytes) -> bytes
        Makes one blob of several, given in plan order.
    upto : int or None
        First shard after the fold when it was last looked at; None before the first look.
    """

    files: Files
    run: RunPlan
    cell: Cell
    name: str
    group: int
    merge: Merge
    upto: int | None = None

    def fold(self, index: int, done: Collection[int]) -> None:
        """Fold what can be folded after shard `index` was committed; `done` are shards that have a commit."""
        if self.upto is not None and index >= self.upto and not self._complete(self.upto, done):
            return
        # A repair may have taken the fold away: nothing is removed on the word of an earlier look.
        upto = folded(self.files, self.name, self.cell.index).get((self.cell.index, self.name), self.cell.first_shard)
        while self._complete(upto, done):
            try:
                merged = self.merge(self._parts(upto))
            except (FileNotFoundError, KeyError):
                self.upto = None
                return  # another writer has folded them meanwhile, or a shard was taken out of the run
            stop = upto + self.group
            file = fold_name(self.cell.index, stop, self.name)
            self.files.create(file, crc32c(merged).to_bytes(4, "little") + merged)
            upto = stop
        self._clear(self.cell.first_shard if self.upto is None else min(index, self.upto), upto)
        self.upto = upto

    def _complete(self, upto: int, done: Collection[int]) -> bool:
        """Whether the group of shards that begins at `upto` is there."""
        stop = upto + self.group
        return stop <= self.cell.shards.stop and all(k in done for k in range(upto, stop))

    def _parts(self, upto: int) -> list[bytes]:
        """The fold so far, and the blobs of the group after it."""
        shards = range(upto, upto + self.group)
        commits, _ = read_commits(self.files, self.run, shards)
        before = [read_fold(self.files, self.cell.index, upto, self.name)] if upto > self.cell.first_shard else []
        return before + [_part(self.files, commits[k], self.name) for k in shards]

    def _clear(self, first: int, upto: int) -> None:
        """Remove smaller folds, and the blobs of shards from `first` on that the fold holds; a kill may have left some."""
        if upto == self.cell.first_shard:
            return
        largest = f"{self.cell.index:04d}.{upto:08d}."
        for file in self.files.list(FOLDS, f"{self.cell.index:04d}.", largest):
            if file.split(".", 2)[2:] == [self.name]:
                self.files.remove(f"{FOLDS}/{file}")
        for file in self.files.list(BLOBS, f"{first:08d}.", f"{upto:08d}.") if first < upto else ():
            if file.partition(".")[2] == self.name:
                self.files.remove(f"{BLOBS}/{file}")


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
