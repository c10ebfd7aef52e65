"""Writing a run: one whole shard at a time, committed once, from any number of processes.

`write` stages every file of the shard under a name that no other attempt has, makes it durable, and only then publishes
the commit with put-if-absent. Whoever published moves the staged files to their final names; everyone else withdraws. A
kill at any instant therefore costs at most the shards in flight, and a late writer cannot touch a committed shard.
"""

from __future__ import annotations

import math
import operator
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from ..errors import PrecollapseError, RequestError, StoreError
from ..schema import ID
from .contents import Tally, shard_contents
from .files.errors import explained, refused
from .files.place import open_files
from .files.protocol import Files, attempt
from .geometry import ArraySpec
from .layout import PLAN, STAGING, commit_name
from .log import folds
from .log.commits import Commit, FileRecord, committed, committed_near, read_commits
from .log.failures import failure_name, failure_record
from .log.leases import Leases, identity
from .log.notes import Note, read_notes
from .log.sweep import sweep
from .mismatch import ConfigMismatch, differences
from .opening import check_vacant, check_whole, folders, read_plan, skeleton
from .plan import Plan, Shard
from .provenance import provenance
from .run_plan import RunPlan


def open_writer(
    path: str | os.PathLike[str],
    *,
    plan: Plan,
    config: Mapping[str, Any],
    config_defaults: Mapping[str, Any] | None = None,
    manifest: Mapping[str, Any] | None = None,
    arrays: Mapping[str, ArraySpec] | None = None,
    columns: Mapping[str, str] | None = None,
    ragged: Mapping[str, str] | None = None,
    lease_seconds: float = 60.0,
) -> Writer:
    """Create a run, or continue one that was started with equal settings.

    Parameters
    ----------
    path : path or "s3://bucket/prefix"
    plan : Plan
    config, config_defaults : mapping
        Settings that decide the numbers (JSON values), and the value at which each counts as not given.
    manifest : mapping, optional
        What a reader should know besides (JSON values). Versions, machine and source commit are added.
    arrays : mapping of str to ArraySpec, optional
    columns : mapping of str to "float64", "int64", "bool" or "string", optional
    ragged : mapping of str to dtype name, optional
    lease_seconds : float
        Time after which the shard of a writer that shows no sign of life may be taken over.

    Raises
    ------
    ConfigMismatch
        A run is there that was started with other settings; names each field.
    RequestError
        The path holds something else, half a run, a newer one, or must not be written.
    StoreError
        The plan or a commit is damaged, or the disk is full.
    """
    if plan.duplicates:
        warnings.warn(
            f"{len(plan.duplicates)} ids came more than once, first {plan.duplicates[0]!r}: the first of each is kept.",
            stacklevel=2,
        )
    requested = RunPlan.of(plan, arrays or {}, columns or {}, ragged or {}, config, config_defaults or {})
    name = attempt()
    files = open_files(path, name)
    with refused(files.path):
        files.probe()
        if files.size(PLAN) is None:
            check_vacant(files)
            files.make(folders(requested))
            files.create(PLAN, requested.record)
        run = read_plan(files)
        differing = differences(run, requested)
        if differing:
            raise ConfigMismatch(files.path, differing)
        check_whole(files, run, bool(committed(files, run.plan.n_shards)))
        _complete(files, run)
        added = {column: kind for column, kind in requested.columns.items() if column not in run.columns}
        for column, kind in (read_notes(files)[0].get("added_columns") or {}).items():
            if added.get(column, kind) != kind:
                raise RequestError(
                    f"Column {column!r} was added to {files.path} as {kind}, and {added[column]} is asked: give the same type."
                )
        note = Note(files, name)
        note.update(
            {
                **(manifest or {}),
                **({"added_columns": added} if added else {}),
                "writers": {
                    name: {
                        "identity": identity(),
                        "opened": datetime.now(UTC).isoformat(timespec="seconds"),
                        "config_hash": run.config_hash,
                        **provenance(),
                    }
                },
            }
        )
        commits, faults = read_commits(files, run)
        if faults:
            raise StoreError(f"{next(iter(faults.values()))} Run `precollapse repair` to have its shard done again.")
        sweep(files, run)
    return Writer(files, run, requested.columns, name, note, Leases(files, name, lease_seconds), set(commits))


def _complete(files: Files, run: RunPlan) -> None:
    """Create what a creation that was cut off lacks."""
    files.make(folders(run))
    for name, data in skeleton(run).items():
        if files.size(name) is None:
            files.replace(name, data)


class Writer:
    """A run that is being written. Made by `open_writer`; a context manager.

    Use `claimed()` for a loop that shares the work with other writers and waits for shards of dead ones, or `pending()`
    and `claim()` for a loop of your own.
    """

    def __init__(
        self,
        files: Files,
        run: RunPlan,
        columns: Mapping[str, str],
        name: str,
        note: Note,
        leases: Leases,
        done: set[int],
    ) -> None:
        self._files = files
        self._run = run
        self._columns = dict(columns)
        self._name = name
        self._note = note
        self._leases = leases
        self._done = done
        self._folds: dict[tuple[int, str], folds.Folding] = {}
        self._closed = False

    @property
    def path(self) -> str:
        """Where the run lies."""
        return self._files.path

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self._run.plan

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def shard(self, index: int) -> Shard:
        """A shard with its states."""
        return self._run.plan.shard(index)

    def pending(self) -> list[int]:
        """Shards without a commit at this moment.

        Under torchrun (RANK and WORLD_SIZE) this worker's share comes first, so that workers meet only at the end.
        """
        with explained(self.path, "read"):
            self._done |= committed(self._files, self.plan.n_shards)
        left = [k for k in range(self.plan.n_shards) if k not in self._done]
        rank, world = _rank()
        return sorted(left, key=lambda k: (k % world - rank) % world) if world > 1 else left

    def claim(self, index: int) -> bool:
        """Take a shard for this writer: False where another live writer holds it or it is committed."""
        self._check_open()
        self.plan.cell_of(index)
        with explained(self.path, "claim a shard of"):
            if not self._leases.claim(index):
                return False
            if self._files.size(commit_name(index)) is None:
                return True
        self._done.add(index)
        self._leases.release(index)
        return False

    def claimed(self, wait: bool = True, poll_seconds: float = 1.0) -> Iterator[int]:
        """Shards for this writer to do, each claimed, until all have a commit.

        Parameters
        ----------
        wait : bool
            Whether to wait for shards that others hold, and take them over should their holders die. With False the
            iteration ends when only such shards are left.
        poll_seconds : float
            Time between looks at shards that others hold.
        """
        given_up: set[int] = set()
        left = self.pending()
        while left:
            mine = next((index for index in left if index not in self._done and self.claim(index)), None)
            if mine is not None:
                yield mine
                if mine not in self._done:
                    given_up.add(mine)  # by the caller, as after a cell that failed
                    self._leases.release(mine)
                self._look(mine)
                left = [k for k in left if k not in self._done and k not in given_up]
            if mine is None or not left:
                left = [k for k in self.pending() if k not in given_up]
                if not wait:
                    return
                if left:
                    time.sleep(poll_seconds)

    def _look(self, index: int) -> None:
        """See which shards near this one were committed meanwhile. To list all of them each time costs more the more there are."""
        with explained(self.path, "read"):
            self._done |= committed_near(self._files, self.plan.n_shards, index)

    def write(
        self,
        index: int,
        *,
        arrays: Mapping[str, Any] | None = None,
        table: Mapping[str, Sequence[Any] | None] | None = None,
        ragged: Mapping[str, Sequence[Any]] | None = None,
        blobs: Mapping[str, bytes] | None = None,
        seconds: float | None = None,
    ) -> bool:
        """Write a whole shard of r states and commit it.

        Parameters
        ----------
        index : int
        arrays : mapping of str to array [r, *spec.shape]
            Every array of the plan, in its exact dtype (bfloat16: see `dtypes.to_stored`).
        table : mapping of str to sequence of r values
            Every column; None stands for a missing value, and for a column that is missing throughout.
        ragged : mapping of str to sequence of r arrays
        blobs : mapping of str to bytes, optional
            Anything else that belongs to the shard, such as accumulated moments.
        seconds : float, optional
            Time that the work took, for the manifest.

        Returns
        -------
        bool
            True if this write became the shard; False if another writer had committed it before, in which case nothing
            of this write is kept.

        Raises
        ------
        RequestError
            A name, shape, type or number of rows is not that of the plan. Nothing was written.
        StoreError
            The disk is full, permission or the folder is gone. Nothing that was committed is lost.
        """
        self._check_open()
        index = operator.index(index)
        if seconds is not None and not 0 <= seconds < math.inf:
            seconds = None
        shard = self.shard(index)
        contents = shard_contents(self._run, self._columns, shard, arrays or {}, table or {}, ragged or {}, blobs or {})
        token = attempt()
        prefix = f"{STAGING}/{index:08d}.{self._name}.{token}"
        records: dict[str, FileRecord] = {}
        publishing = False
        try:
            with explained(self.path, f"write shard {index} of"):
                for number, (name, parts, checksums) in enumerate(contents):
                    staged = f"{prefix}.{number}"
                    records[name] = FileRecord(staged, 0)
                    tally = Tally()
                    size = self._files.stage(staged, parts if checksums is not None else tally.over(parts))
                    records[name] = (
                        FileRecord(staged, size, crc32c=f"{tally.crc32c:08x}")
                        if checksums is None
                        else FileRecord(staged, size, chunks="".join(f"{c:08x}" for c in checksums))
                    )
                self._files.settle()
                commit = Commit(
                    shard=index,
                    plan=self._run.digest,
                    attempt=token,
                    writer=self._name,
                    files=records,
                    seconds=seconds,
                    written=round(time.time(), 3),
                    blobs=sorted(blobs or {}),
                )
                beaten = self._files.size(commit_name(index)) is not None
                checked = records.values() if self._files.immediate and not beaten else ()
                if any(self._files.size(file.staged) != file.size for file in checked):
                    raise StoreError(
                        f"Shard {index} of {self.path} was not written: its unfinished files were removed."
                    )
                publishing = not beaten
                won = publishing and (
                    self._files.create(
                        commit_name(index), commit.record([state[ID] for state in shard.states], self._run.format)
                    )
                    or self._is_mine(index, token)
                )
        except BaseException:
            self._withdraw(index, token, records, publishing and not self._files.immediate)
            raise
        with explained(self.path, f"finish shard {index} of"):
            if won:
                for name, file in records.items():
                    self._files.move(file.staged, name)
            else:
                for file in records.values():
                    self._files.remove(file.staged)
            self._done.add(index)
            self._leases.release(index)
            if won:
                self._clear_failure(index)
        return won

    def fold(self, index: int, name: str, group: int, merge: folds.Merge) -> None:
        """Merge the blobs `name` of the cell of shard `index`, as far as whole groups of shards are committed.

        For blobs that take less room merged than apart, such as moments. See `folds`; `Run.parts` reads the result.

        Parameters
        ----------
        index : int
        name : str
        group : int
            Shards merged at a time, the same in every call for a run.
        merge : callable (sequence of bytes) -> bytes
            Must give the same bytes for the same parts.
        """
        self._check_open()
        cell = self.plan.cell_of(index)
        folding = folds.Folding(self._files, self._run, cell, name, group, merge)
        with explained(self.path, f"fold the {name} of"):
            self._folds.setdefault((cell.index, name), folding).fold(index, self._done)

    def fail_cell(self, benchmark: str, regime: str, reason: str) -> None:
        """Record that a cell could not be finished, and why. Forgotten when the cell is completed."""
        self._check_open()
        cell = self.plan.cell(benchmark, regime)
        with explained(self.path, "write"):
            self._files.replace(failure_name(cell.index), failure_record(cell, str(reason)))

    def update_manifest(self, values: Mapping[str, Any]) -> None:
        """Add entries to the manifest; objects merge key by key."""
        self._check_open()
        with explained(self.path, "write the manifest of"):
            self._note.update(dict(values))

    def close(self) -> None:
        """Give back all leases, and sweep what dead writers left."""
        if self._closed:
            return
        self._closed = True
        try:
            self._leases.close()
            sweep(self._files, self._run)
        except (OSError, PrecollapseError) as error:
            warnings.warn(f"{self.path} was left untidy ({error}); the next opening sweeps it.", stacklevel=2)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"The writer of {self.path} is closed: open it anew.")

    def _is_mine(self, index: int, token: str) -> bool:
        """Whether the commit that is there is this attempt's (a put whose answer was lost and that was tried again)."""
        try:
            record = self._files.read(commit_name(index))
            return Commit.read(record, index, self._run, self.path).attempt == token
        except (OSError, PrecollapseError):
            return False

    def _withdraw(self, index: int, token: str, records: Mapping[str, FileRecord], unsure: bool) -> None:
        """Remove what an interrupted write staged, unless its commit got through.

        While a commit may still arrive (`unsure`), its files stay until the shard has one.
        """
        try:
            if self._files.size(commit_name(index)) is None:
                for file in [] if unsure else records.values():
                    self._files.remove(file.staged)
            elif self._is_mine(index, token):
                for name, file in records.items():
                    self._files.move(file.staged, name)
        except (OSError, PrecollapseError):
            pass  # the next sweep does it

    def _clear_failure(self, index: int) -> None:
        cell = self.plan.cell_of(index)
        name = failure_name(cell.index)
        if self._files.size(name) is not None and not set(cell.shards) & set(self.pending()):
            self._files.remove(name)


def _rank() -> tuple[int, int]:
    try:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1
    return (rank, world) if 0 <= rank < world else (0, 1)
