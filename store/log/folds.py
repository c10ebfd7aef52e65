"""Blobs of many shards merged into one file per cell, where the parts together are larger than their sum.

A fold of the first `upto` shards of a cell is made when they all have commits, in plan order and in groups that follow
from the plan, so its bytes depend on the plan alone: two writers that make the same fold make the same file, and
put-if-absent lets one of them. Only then do the parts go. A reader takes the largest fold and the parts after it. A fold's checksum
covers, beside its bytes, the plan, the cell, the shards and the blob that it is of, so that it is sound under its own name only; in a run
of format 1 it covers the bytes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ...errors import StoreError
from ..files.protocol import Files
from ..files.sealed import canonical, crc32c
from ..layout import BLOBS, FOLDS, blob_name, fold_name, fold_of
from ..plan import Cell, Plan
from ..run_plan import RunPlan
from .commits import Commit, read_commits

Merge = Callable[[Sequence[bytes]], bytes]


def folded(files: Files, plan: Plan, name: str = "", cell: int | None = None) -> dict[tuple[int, str], int]:
    """First shard after the largest fold, by cell number and blob name (of all blobs, or of one; of all cells, or of one).

    What lies among the folds and is none of the plan's is left out: see `stray_folds`.
    """
    marks: dict[tuple[int, str], int] = {}
    bounds = ("", "") if cell is None else (f"{cell:04d}.", f"{cell:04d}/")
    for number, upto, blob in _own(files.list(FOLDS, *bounds), plan):
        if name in ("", blob):
            marks[number, blob] = max(marks.get((number, blob), 0), upto)
    return marks


def _own(names: Collection[str], plan: Plan) -> list[tuple[int, int, str]]:
    """Cell, first shard after it and blob name of each fold whose name is one that the plan allows."""
    places = (fold_of(name) for name in names)
    return [place for place in places if place is not None and _fits(plan, place[0], place[1])]


def _fits(plan: Plan, cell: int, upto: int) -> bool:
    return cell < len(plan.cells) and plan.cells[cell].first_shard < upto <= plan.cells[cell].shards.stop


def stray_folds(files: Files, plan: Plan) -> list[str]:
    """Names of what lies among the folds and is none of this plan's."""
    present = files.list(FOLDS)
    own = {fold_name(*place) for place in _own(present, plan)}
    return sorted({f"{FOLDS}/{file}" for file in present} - own)


def _checksum(run: RunPlan, cell: int, upto: int, name: str, data: bytes) -> bytes:
    """The bytes before those of a fold."""
    shards = (run.plan.cells[cell].first_shard, upto)
    owner = canonical([run.digest, cell, *shards, name]) if run.format > 1 else b""
    return crc32c(data, crc32c(owner)).to_bytes(4, "little")


def read_fold(files: Files, run: RunPlan, cell: int, upto: int, name: str) -> bytes:
    """The bytes of a fold, checked.

    Raises
    ------
    StoreError
        They do not match their checksum, or are those of another plan, cell, blob or other shards.
    FileNotFoundError
        There is no such fold, or no more since a larger one was made.
    """
    data = files.read(fold_name(cell, upto, name))
    body = data[4:]
    if len(data) < 4 or _checksum(run, cell, upto, name, body) != data[:4]:
        raise StoreError(
            f"{files.path}/{fold_name(cell, upto, name)} is damaged or another cell's: its bytes do not match its checksum. "
            "Run `precollapse repair` to have its shards done again."
        )
    return body


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
        upto = folded(self.files, self.run.plan, self.name, self.cell.index).get(
            (self.cell.index, self.name), self.cell.first_shard
        )
        while self._complete(upto, done):
            try:
                merged = self.merge(self._parts(upto))
            except (FileNotFoundError, KeyError):
                self.upto = None
                return  # another writer has folded them meanwhile, or a shard was taken out of the run
            stop = upto + self.group
            file = fold_name(self.cell.index, stop, self.name)
            self.files.create(file, _checksum(self.run, self.cell.index, stop, self.name, merged) + merged)
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
        before = (
            [read_fold(self.files, self.run, self.cell.index, upto, self.name)] if upto > self.cell.first_shard else []
        )
        return before + [_part(self.files, commits[k], self.name) for k in shards]

    def _clear(self, first: int, upto: int) -> None:
        """Remove smaller folds, and the blobs of shards from `first` on that the fold holds; a kill may have left some."""
        if upto == self.cell.first_shard:
            return
        largest = f"{self.cell.index:04d}.{upto:08d}."
        for file in self.files.list(FOLDS, f"{self.cell.index:04d}.", largest):
            if (place := fold_of(file)) is not None and place[2] == self.name:
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
