"""Capture at the pre-first-token boundary: residual streams, attention rows and next-token statistics.

`Extractor` is the way in; the other modules are its parts, one idea each.
"""

from __future__ import annotations

from .directions import SteeringVector, steering_vector
from .extractor import CapturedBatch, Extractor, join
from .states import States
from .steering import Steering

__all__ = ["CapturedBatch", "Extractor", "States", "Steering", "SteeringVector", "join", "steering_vector"]
