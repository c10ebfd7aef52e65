"""Analysis of runs and arrays: dimension, probes, transfer, statistics, selective prediction, reports.

Guarantees that reading a run and computing every number needs neither a model nor torch: modules are loaded on first
use, and none of them imports torch, transformers or matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = {
    "cells": ".cells",
    "dimension": ".dimension",
    "directions": ".directions",
    "hypotheses": ".hypotheses",
    "information": ".information",
    "options": ".options",
    "regimes": ".regimes",
    "selective": ".selective",
    "statistics": ".statistics",
    "trajectories": ".trajectories",
    **{
        name: f".probing.{name}"
        for name in (
            "calibration",
            "ccs",
            "contrast",
            "density",
            "logistic",
            "probes",
            "rowspace",
            "splits",
            "transfer",
        )
    },
    # Pages are made in `reports`; these names were public here first.
    "figures": "..reports.figures",
    "page": "..reports.page",
    "report": "..reports.study",
    "tables": "..reports.tables",
}
"""Public name to module."""

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = import_module(_MODULES[name], __name__)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
