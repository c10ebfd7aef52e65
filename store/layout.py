"""Names of the files of a run, and the version of its format.

Guarantees that writer, reader and verifier look for a file under one name, which follows from the plan alone.
"""

from __future__ import annotations

import re

from ..errors import RequestError

FORMAT = 1
"""Version of the format on disk. Readers refuse a higher one and read every lower one."""

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


def check_name(name: str, what: str) -> str:
    """`name` if it can serve as a file and Zarr node name, else RequestError."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"{what} {name!r} is no usable name: use letters, digits, '_', '-' and '.', letter or digit first."
        )
    return name


def commit_name(shard: int) -> str:
    return f"{COMMITS}/{shard:08d}.json"


def shard_of(name: str) -> int | None:
    """Shard number of a commit's file name (without folder), or None if it is another kind of file."""
    stem, dot, rest = name.partition(".")
    return int(stem) if dot and rest == "json" and len(stem) >= 8 and stem.isdigit() else None


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
