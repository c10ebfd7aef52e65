"""Versions of the rules that read and cut texts, as the settings of runs record them.

Guarantees that a run which was begun under earlier rules is continued and not refused: its recorded versions stand. Chains are cut by the
version that the run was begun with. The grader has one version only; what an earlier one graded stays as it is, and a note says that the
rest is graded by this one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from .. import store
from .grading import graders
from .trajectories import units

CURRENT: Mapping[str, int] = {"grader": graders.VERSION, "segmentation": units.VERSION}
"""Of the rules here."""
FIRST: Mapping[str, int] = {"grader": 1, "segmentation": 1}
"""Of runs whose settings name none."""


def of_run(name: str, started: store.Run | None) -> int:
    """The version of a run that is continued, or the current one of a new run."""
    return CURRENT[name] if started is None else int(started.config.get(name, FIRST[name]))


def kept(defaults: Mapping[str, Any], started: store.Run | None) -> dict[str, int]:
    """The versions that a run's settings keep of the rules which its defaults name: those that it was begun with."""
    versions = {name: of_run(name, started) for name in CURRENT if name in defaults}
    if (
        started is not None
        and not started.progress.complete
        and versions.get("grader", CURRENT["grader"]) < CURRENT["grader"]
    ):
        warnings.warn(
            f"this run was begun under version {versions['grader']} of the grader; what is still missing is graded by version {CURRENT['grader']}, what is there stays",
            stacklevel=2,
        )
    return versions
