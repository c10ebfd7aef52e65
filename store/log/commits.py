"""The commit log: one record per finished shard, made once, never changed.

A shard exists for a reader when its commit does. The commit names the states, and every file of the shard with its
size and checksums, so that nothing is ever inferred from what happens to lie on disk. Its files are those that the plan gives the shard,
under no other names: a record that says otherwise, whoever made it, is no commit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ...errors import StoreError
from .. import records
from ..files.errors import unreadable
from ..files.protocol import Files, read_records
from ..files.sealed import seal, unseal
from ..geometry import Geometry
from ..layout import COMMITS, STAGING, commit_name, shard_of, staged_shard
from ..run_plan import RunPlan

_NEAR = 1000
"""Names that a service lists in one answer."""


@dataclass(frozen=True)
class FileRecord:
    """One file of a shard.

    Parameters
    ----------
    staged : str
        Name under which the attempt wrote it; its content until it is moved to its final name.
    size : int
        Bytes.
    crc32c : str or None
        Checksum of the whole file, for tables, ragged arrays and blobs.
    chunks : str or None
        Checksums of the inner chunks in file order, eight hexadecimal digits each, for Zarr shards.
    """

    staged: str
    size: int
    crc32c: str | None = None
    chunks: str | None = None


_CHECKSUM = records.text("[0-9a-f]{8}", "a checksum of eight hexadecimal digits")
_ATTEMPT = records.text("[A-Za-z0-9_-]{1,64}", "a name of letters and digits")
_FILE = records.fields(
    {
        "staged": records.text(),
        "size": records.whole(),
        "crc32c": records.optional(_CHECKSUM),
        "chunks": records.optional(records.text("([0-9a-f]{8})*", "checksums of eight hexadecimal digits each")),
    }
)
_COMMIT = records.fields(
    {
        "shard": records.whole(),
        "plan": _CHECKSUM,
        "attempt": _ATTEMPT,
        "writer": _ATTEMPT,
        "files": records.mapping(records.text(), _FILE),
        "seconds": records.optional(records.number(0)),
        "written": records.optional(records.number()),
        "blobs": records.listing(records.name),
    }
)


@dataclass(frozen=True)
class Commit:
    """What a commit record says. `files` maps final names to FileRecords."""

    shard: int
    plan: str
    attempt: str
    writer: str
    files: dict[str, FileRecord]
    seconds: float | None = None
    written: float | None = None
    blobs: list[str] = field(default_factory=list)

    def record(self, ids: list[str], version: int) -> bytes:
        """The bytes of the commit record in a run of this format, which also names the states."""
        files = {
            name: {key: value for key, value in vars(file).items() if value is not None}
            for name, file in self.files.items()
        }
        return seal({"format": version, **vars(self), "files": files, "ids": ids})

    @classmethod
    def read(cls, record: bytes, shard: int, run: RunPlan, path: str) -> Commit:
        """The commit in the bytes of a record.

        Raises
        ------
        StoreError
            The record is damaged, or belongs to another plan or shard.
        """
        what = f"Commit {shard} of {path} ({commit_name(shard)})"
        body = unseal(record, what, upto=b',"ids":[')
        if body.get("format") != run.format:
            raise StoreError(f"{what} has format {body.get('format')}, its run has {run.format}.")
        checked = records.sound(_COMMIT, body, what)
        commit = cls(**{**checked, "files": {name: FileRecord(**entry) for name, entry in checked["files"].items()}})
        if commit.plan != run.digest or commit.shard != shard:
            raise StoreError(f"{what} was made for another plan or shard: it does not belong to this run.")
        clause = _misfit(commit, run)
        if clause:
            raise StoreError(f"{what} does not fit the plan: {clause}. Nothing in it is used.")
        return commit


def _misfit(commit: Commit, run: RunPlan) -> str | None:
    """What a commit says of its files that the plan does not: their names, staged names, sizes, kinds of checksums."""
    wanted = run.shard_files(commit.shard, commit.blobs)
    differing = sorted(wanted.keys() ^ commit.files.keys())
    if differing:
        has = "has no" if differing[0] in wanted else "names a"
        return f"it {has} file {records.shown(differing[0])}"
    staged: set[str] = set()
    for name, file in commit.files.items():
        folder, _, last = file.staged.rpartition("/")
        if folder != STAGING or staged_shard(last) != commit.shard or last in staged:
            return f"{records.shown(file.staged)} is no staged name of {name} in this shard"
        staged.add(last)
        clause = _odd_size(file, wanted[name], len(run.plan.shard_rows(commit.shard)))
        if clause:
            return f"{name} {clause}"
    return None


def _odd_size(file: FileRecord, geometry: Geometry | None, states: int) -> str | None:
    if geometry is None:
        return "has no checksum" if file.crc32c is None or file.chunks is not None else None
    count = geometry.used_groups(states) * geometry.spec.n_layers
    if file.size != geometry.file_bytes(states) or file.crc32c is not None or len(file.chunks or "") != 8 * count:
        return f"has {file.size} bytes and {len(file.chunks or '') // 8} checksums, where {geometry.file_bytes(states)} and {count} belong"
    return None


def committed(files: Files, n_shards: int) -> set[int]:
    """Numbers of the shards that have a commit, sound or not."""
    return _numbers(files.list(COMMITS), n_shards)


def committed_near(files: Files, n_shards: int, shard: int) -> set[int]:
    """The same of this shard and those after it, as many as a service lists in one answer."""
    first, end = commit_name(shard), commit_name(shard + _NEAR)
    after = first.rpartition("/")[2].removesuffix(".json")  # sorts before the name itself
    return _numbers(files.list(COMMITS, after, end.rpartition("/")[2]), n_shards)


def _numbers(names: Collection[str], n_shards: int) -> set[int]:
    numbers = (shard_of(name) for name in names)
    return {shard for shard in numbers if shard is not None and shard < n_shards}


def read_commits(
    files: Files, run: RunPlan, only: Collection[int] | None = None
) -> tuple[dict[int, Commit], dict[int, str]]:
    """The sound commits by shard, in plan order, and what is wrong with each of the others; of these shards `only`."""
    n_shards = run.plan.n_shards
    shards = sorted(committed(files, n_shards) if only is None else (k for k in only if k < n_shards))
    sound: dict[int, Commit] = {}
    faults: dict[int, str] = {}
    for shard, record in zip(shards, read_records(files, [commit_name(k) for k in shards]), strict=True):
        if record is None:
            continue
        try:
            if isinstance(record, OSError):
                raise unreadable(f"Commit {shard} of {files.path} ({commit_name(shard)})", record)
            sound[shard] = Commit.read(record, shard, run, files.path)
        except StoreError as error:
            faults[shard] = str(error)
    return sound, faults


def finish_moves(files: Files, commit: Commit, present: Collection[str]) -> int:
    """Move the files of a commit that still have their staged names, of those in `present`; returns how many."""
    moved = 0
    for name, file in commit.files.items():
        if file.staged.rpartition("/")[2] in present:
            moved += files.move(file.staged, name)
    return moved


def names_states(record: bytes, ids: Sequence[str]) -> bool:
    """Whether a sound commit record names these states, in this order."""
    return unseal(record, "The commit").get("ids") == list(ids)
