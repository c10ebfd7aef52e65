"""Every number of a run, cell by cell (benchmark x regime), from one pass over its layers.

Guarantees that all cells of a benchmark share one split by item, that the same setting of the analysis applies to
every cell, and that a cell which failed or lacks outcomes stays in the result with the reason. Layers are read one at
a time, so memory holds one layer of one benchmark and the inner products of its rows.
"""

from __future__ import annotations

from ...declared import BASELINE
from .analysis import analyse
from .results import Benchmark, CellResult, RunAnalysis
from .settings import Settings
from .source import RunLike, model_name

__all__ = [
    "BASELINE",
    "Benchmark",
    "CellResult",
    "RunAnalysis",
    "RunLike",
    "Settings",
    "analyse",
    "model_name",
]
