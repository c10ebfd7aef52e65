"""Entropy along chains of reasoning: the kind of study, and its pieces for scripts of one's own.

`shape` says what a trajectory looks like, `segment` where a chain is cut, `forced_answers` forces an answer at every boundary in
one pass, `sample_continuations` samples short continuations of every prefix.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_LAZY = {
    "ANCHOR": ".answers",
    "ANCHOR_PARAPHRASES": ".answers",
    "ForcedTrajectory": ".forced",
    "TrajectoryConfig": ".config",
    "forced_answers": ".forced",
    "forced_under_anchors": ".forced",
    "generate_chains": ".chains",
    "run_trajectories": ".run",
    "sample_continuations": ".chains",
    "segment": ".segmentation",
    "shape": "...analysis.trajectories",
    "trajectory_report": "...reports.trajectories",
}

__all__ = list(_LAZY)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
