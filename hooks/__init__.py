"""Capture at the pre-first-token boundary: residual streams, attention rows and next-token statistics.

`Extractor` is the way in; the other modules are its parts, one idea each.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .batches import CapturedBatch, join
from .extractor import Extractor
from .states import States
from .steering import Steering, SteeringVector

__all__ = ["CapturedBatch", "Extractor", "States", "Steering", "SteeringVector", "join", "steering_vector"]


def __getattr__(name: str) -> Any:
    """`steering_vector` learns from a run, which is no business of this folder; its public name is here."""
    if name != "steering_vector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("..studies.steering.vectors", __name__).steering_vector
