"""What is in a run and how far it is, as plain data."""

from __future__ import annotations

import os
from typing import Any

from .files.errors import readable
from .files.place import open_files
from .layout import blob_name, fold_name
from .log.folds import folded
from .reading.run import Run, open_run


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Contents and progress of a run, ready for JSON.

    Returns
    -------
    dict
        `path`, `format`, `complete`; `shards`, `states` (committed and total); `bytes` of committed data; `seconds` of
        work and `states_per_second` over the shards that were timed (None where none was); `cells`, with the failure
        of each that failed; `arrays`, `columns`, `ragged`; `config`, `config_hash`, `duplicates`, `faults`; `manifest`.
    """
    run = open_run(path)
    progress = run.progress
    commits = run.commits
    timed = [commit for commit in commits.values() if commit.seconds]
    seconds = sum(commit.seconds or 0.0 for commit in timed)
    timed_states = sum(len(run.plan.shard_rows(commit.shard)) for commit in timed)
    return {
        "path": run.path,
        "format": run.manifest["format"],
        "complete": progress.complete,
        "shards": {"committed": progress.shards, "total": progress.shards_total},
        "states": {"committed": progress.states, "total": progress.states_total},
        "bytes": _size(run),
        "seconds": seconds if timed else None,
        "states_per_second": timed_states / seconds if timed else None,
        "cells": [vars(cell) for cell in progress.cells],
        "arrays": {name: spec.to_json() for name, spec in run.arrays.items()},
        "columns": run.columns,
        "ragged": run.ragged_arrays,
        "config": run.config,
        "config_hash": run.config_hash,
        "duplicates": list(run.plan.duplicates),
        "faults": {str(shard): fault for shard, fault in run.faults.items()},
        "manifest": run.manifest,
    }


def _size(run: Run) -> int:
    """Bytes of the committed data: the files of the commits, and folds in place of the blobs they hold."""
    files = open_files(run.path)
    with readable(run.path):
        folds = folded(files, run.plan)
        folds_bytes = sum(files.size(fold_name(cell, upto, name)) or 0 for (cell, name), upto in folds.items())
    gone = {
        blob_name(name, shard)
        for (cell, name), upto in folds.items()
        for shard in run.plan.cells[cell].shards
        if shard < upto
    }
    kept = sum(file.size for commit in run.commits.values() for name, file in commit.files.items() if name not in gone)
    return kept + folds_bytes
