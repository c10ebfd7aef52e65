"""What is in a run and how far it is, as plain data."""

from __future__ import annotations

import os
from typing import Any

from .layout import FORMAT
from .reader import open_run


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
        "format": FORMAT,
        "complete": progress.complete,
        "shards": {"committed": progress.shards, "total": progress.shards_total},
        "states": {"committed": progress.states, "total": progress.states_total},
        "bytes": sum(file.size for commit in commits.values() for file in commit.files.values()),
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
