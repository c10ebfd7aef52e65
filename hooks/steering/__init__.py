"""Changing a running model along a vector: what is to change, where, and the hooks that do it.

Guarantees that a steering is the same in capture and in generation, and that one which did nothing is never taken for one without effect.
"""

from __future__ import annotations

from .change import MODES, POSITIONS
from .steering import Steering
from .vector import SteeringVector

__all__ = ["MODES", "POSITIONS", "Steering", "SteeringVector"]
