"""Whether a run at a path was started with given settings, found out without opening it for writing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .files import open_files
from .mismatch import ConfigMismatch, differences
from .opening import read_plan
from .plan import Plan, RunPlan


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
    asked = RunPlan.of(plan, stored.arrays, stored.columns, stored.ragged, config, config_defaults)
    found = differences(stored, asked)
    if found:
        raise ConfigMismatch(files.path, found)
