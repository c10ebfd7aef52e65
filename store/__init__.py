"""Runs on disk: nothing lost, nothing invented, fast both ways.

A run holds the states of one model over items and regimes. It is planned first, written shard by shard with a commit
log, and read by layer, regime or item while it grows. Works on local folders and S3-compatible storage; needs no torch.
"""

from __future__ import annotations

from .describe import describe
from .export import export
from .formats.importing import import_activations
from .geometry import ArraySpec, shard_size_for
from .layout import FORMAT
from .mismatch import ConfigMismatch, Difference
from .plan import Cell, Plan, Shard
from .provenance import provenance
from .reading.progress import CellProgress, Progress
from .reading.run import Run, open_run
from .repair import Repair, repair
from .verify import Fault, verify
from .writer import Writer, open_writer

__all__ = [
    "FORMAT",
    "ArraySpec",
    "Cell",
    "CellProgress",
    "ConfigMismatch",
    "Difference",
    "Fault",
    "Plan",
    "Progress",
    "Repair",
    "Run",
    "Shard",
    "Writer",
    "describe",
    "export",
    "import_activations",
    "open_run",
    "open_writer",
    "provenance",
    "repair",
    "shard_size_for",
    "verify",
]
