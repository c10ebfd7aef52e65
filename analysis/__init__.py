"""Analysis of runs and arrays: dimension, probes, transfer, statistics, selective prediction, reports.

Guarantees that reading a run and computing every number needs neither a model nor torch: modules are loaded on first
use, and none of them imports torch or transformers. matplotlib is imported only where a figure is drawn.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = (
    "calibration",
    "ccs",
    "cells",
    "contrast",
    "density",
    "dimension",
    "figures",
    "hypotheses",
    "information",
    "logistic",
    "options",
    "page",
    "probes",
    "regimes",
    "report",
    "rowspace",
    "selective",
    "splits",
    "statistics",
    "tables",
    "trajectories",
    "transfer",
)

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = import_module(f".{name}", __name__)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
