"""How far two computations of the same states may be apart, and how that is measured.

Guarantees that every check (at load, of shared prefixes, of compiled passes, of a run against its model, of the parity matrix)
measures the same thing, in float64, and that a NaN on either side is never taken for agreement.
"""

from __future__ import annotations

import torch
from torch import Tensor

STATES = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 8e-2}
"""Largest relative difference of states that a dtype explains."""

ENTROPY_BITS = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.25}
"""Largest difference of next-token entropies that a dtype explains, in bits."""


def states_tolerance(dtype: torch.dtype) -> float:
    """Largest relative difference of states that a dtype explains."""
    return STATES.get(dtype, 1e-3)


def entropy_tolerance(dtype: torch.dtype) -> float:
    """Largest difference of entropies in bits that a dtype explains."""
    return ENTROPY_BITS.get(dtype, 1e-2)


def relative_difference(a: Tensor, b: Tensor) -> float:
    """Largest max |a - b| / max |b| over rows (the last axis); NaN if any value is."""
    a, b = a.double(), b.double()
    return float(((a - b).abs().amax(-1) / b.abs().amax(-1).clamp_min(1e-30)).max())
