"""Figures, each drawn from one table of numbers that is saved beside it.

Guarantees that what is missing is drawn as missing, and that one module (`style`) says how figures look. matplotlib is imported
when the first figure is drawn.
"""

from __future__ import annotations

from .cells import bars, entropy, forest, formats, reliability, said
from .drawing import Figure, Plan, draw, write
from .grids import heat, heatmaps, transfer
from .lines import by_layer, by_size
from .style import COLOURS, DASHES, HATCHES, MARKERS

__all__ = [
    "COLOURS",
    "DASHES",
    "HATCHES",
    "MARKERS",
    "Figure",
    "Plan",
    "bars",
    "by_layer",
    "by_size",
    "draw",
    "entropy",
    "forest",
    "formats",
    "heat",
    "heatmaps",
    "reliability",
    "said",
    "transfer",
    "write",
]
