"""Studies: benchmark items under prompting regimes, captured, answered, graded and stored."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_LAZY = {
    "SteerConfig": ".steering.config",
    "StudyConfig": ".study.config",
    "TrajectoryConfig": ".trajectories.config",
    "run_steer": ".steering.run",
    "run_study": ".study.run",
    "run_trajectories": ".trajectories.run",
}
_MODULES = ("benchmarks", "grading", "prompts", "trajectories")

__all__ = [*_LAZY, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(import_module(_LAZY[name], __name__), name)
    elif name in _MODULES:
        value = import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
