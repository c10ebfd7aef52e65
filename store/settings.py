"""What stands at a path, and whether it was started with given settings, found out without opening it for writing.

Guarantees that a run whose creation was cut off counts as not begun, so that the same command goes on from there, while
anything else that is no run is refused before a model is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .files.errors import refused
from .files.place import open_files
from .layout import PLAN
from .mismatch import ConfigMismatch, differences
from .opening import check_vacant, read_plan
from .plan import Plan
from .reading.run import Run, open_run
from .run_plan import RunPlan


def started_run(path: str | os.PathLike[str]) -> Run | None:
    """The run at `path`; None where nothing is there yet, or only what a creation that was cut off left.

    Raises
    ------
    RequestError, StoreError
        Something else is there, or a run that cannot be read.
    """
    files = open_files(path)
    with refused(files.path):
        if files.size(PLAN) is None:
            check_vacant(files)
            return None
    return open_run(path)


def check_settings(
    path: str | os.PathLike[str], *, plan: Plan, config: Mapping[str, Any], config_defaults: Mapping[str, Any]
) -> None:
    """Compare configuration and plan (not the arrays) with those of an existing run.

    Raises
    ------
    ConfigMismatch
        Naming each field that differs, with the stored and the asked value.
    RequestError, StoreError
        There is no readable run at `path`.
    """
    files = open_files(path)
    stored = read_plan(files)
    requested = RunPlan.of(plan, stored.arrays, stored.columns, stored.ragged, config, config_defaults)
    differing = differences(stored, requested)
    if differing:
        raise ConfigMismatch(files.path, differing)
