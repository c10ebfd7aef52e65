"""Names of the files of a run, and the version of its format.

Guarantees that writer, reader and verifier look for a file under one name, which follows from the plan alone.
"""

from __future__ import annotations

import re

from ..errors import RequestError

FORMAT = 2
"""Version of the format on disk. Readers refuse a higher one and read every lower one.

2: the checksum of a fold covers which plan, cell and shards it is of.
"""

ROOT = "zarr.json"
PLAN = "plan.json"
COMMITS = "_commits"
LEASES = "_leases"
FAILED = "_failed"
STAGING = "_staging"
NOTES = "_manifest"
CELLS = "cells"
TABLES = "tables"
RAGGED = "ragged"
BLOBS = "blobs"
FOLDS = "folds"
DAMAGED = "_damaged"
FOLDERS = (COMMITS, LEASES, FAILED, STAGING, NOTES, CELLS, TABLES, RAGGED, BLOBS, FOLDS)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")


def is_name(name: str) -> bool:
    """Whether a name can serve as that of a file and of a Zarr node."""
    return len(name) <= 1000 and _NAME.fullmatch(name) is not None


def check_name(name: str, what: str) -> str:
    """`name` if it can serve as a file and Zarr node name, else RequestError."""
    if not is_name(name):
        raise RequestError(
            f"{what} {name!r} is no usable name: use letters, digits, '_', '-' and '.', letter or digit first."
        )
    return name


def commit_name(shard: int) -> str:
    return f"{COMMITS}/{shard:08d}.json"


def shard_of(name: str) -> int | None:
    """Shard number of a commit's file name (without folder), or None if it is another kind of file."""
    return _number(name.removesuffix(".json"), 8) if name.endswith(".json") else None


def _number(digits: str, width: int) -> int | None:
    """The number that is written with at least `width` digits in the one way in which names have it."""
    if not (width <= len(digits) <= 15 and digits.isascii() and digits.isdigit()):
        return None
    return int(digits) if f"{int(digits):0{width}d}" == digits else None


def staged_shard(name: str) -> int | None:
    """Shard of a staged file's name (without folder), or None if it is another kind of file."""
    head, dot, rest = name.partition(".")
    return _number(head, 8) if dot and is_name(rest) else None


def lease_name(shard: int, generation: int) -> str:
    return f"{LEASES}/{shard:08d}.{generation:06d}.json"


def lease_of(name: str) -> tuple[int, int] | None:
    """Shard and generation of a lease's file name (without folder), or None if it is another kind of file."""
    parts = name.split(".")
    if len(parts) != 3 or parts[2] != "json":
        return None
    shard, generation = _number(parts[0], 8), _number(parts[1], 6)
    return None if shard is None or generation is None else (shard, generation)


def fold_name(cell: int, upto: int, name: str) -> str:
    """File that holds the blobs `name` of the shards before `upto` of a cell."""
    return f"{FOLDS}/{cell:04d}.{upto:08d}.{name}"


def fold_of(name: str) -> tuple[int, int, str] | None:
    """Cell, first shard after it and blob name of a fold's file name (without folder), or None if it is another kind of file."""
    parts = name.split(".", 2)
    if len(parts) != 3 or not is_name(parts[2]):
        return None
    cell, upto = _number(parts[0], 4), _number(parts[1], 8)
    return None if cell is None or upto is None else (cell, upto, parts[2])


def table_name(shard: int) -> str:
    return f"{TABLES}/{shard:08d}.safetensors"


def ragged_name(shard: int) -> str:
    return f"{RAGGED}/{shard:08d}.safetensors"


def blob_name(name: str, shard: int) -> str:
    return f"{BLOBS}/{shard:08d}.{name}"


def cell_folder(index: int, benchmark: str, regime: str) -> str:
    """Folder of a cell: its number and a readable part; the exact names stand in its Zarr attributes."""
    readable = re.sub(r"[^A-Za-z0-9.=-]+", "_", f"{benchmark}-{regime}")[:80]
    return f"{CELLS}/{index:04d}-{readable}"
