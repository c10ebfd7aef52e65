"""How far two computations of the same states may be apart, and how that is measured.

Guarantees that every check (at load, of fast ways of running a model, of compiled passes, of a run against its model, of the parity
matrix) measures the same thing, in float64 and row by row, so that a wrong row is not hidden behind larger ones; that what a dtype
explains stands in one table; and that a NaN on either side is never taken for agreement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Limits:
    """What a dtype explains.

    Attributes
    ----------
    states : float
        Largest relative difference of states.
    compiled_states : float
        The same where one side is compiled, which fuses and reorders what is rounded.
    entropy_bits : float
        Largest difference of next-token entropies, in bits.
    logits : float
        Largest difference of single logits and of their logsumexp, relative to the largest logit.
    """

    states: float
    compiled_states: float
    entropy_bits: float
    logits: float


LIMITS = {
    torch.float64: Limits(1e-6, 1e-6, 1e-6, 1e-6),
    torch.float32: Limits(1e-4, 1e-3, 1e-3, 1e-4),
    torch.float16: Limits(2e-2, 5e-2, 0.1, 5e-3),
    torch.bfloat16: Limits(5e-2, 0.15, 0.25, 2e-2),
}
"""What was measured: the largest difference of two right ways of running the same model, over 57 families of two layers with sdpa and eager
attention, is 6.5e-7 in float64 (transformers computes norms and rotary tables in float32 whatever the dtype), 1.7e-6 in float32, 4.8e-3 in
float16 and 3.1e-2 in bfloat16; wrong ways differ by 0.02 and more. Of logits, fused against the model's own: 6e-8, 3e-7, 8.5e-4 and 5.2e-3.
Limits leave room for deeper models."""
_OTHER = Limits(1e-3, 1e-3, 1e-2, 1e-3)


def limits(dtype: torch.dtype | str) -> Limits:
    """What a dtype, or the dtype of that name ("float32"), explains."""
    return LIMITS.get(getattr(torch, dtype) if isinstance(dtype, str) else dtype, _OTHER)


def relative_difference(a: Tensor, b: Tensor) -> float:
    """Largest max |a - b| / max |b| over rows (the last axis); NaN if any value is."""
    a, b = a.double(), b.double()
    return float(((a - b).abs().amax(-1) / b.abs().amax(-1).clamp_min(1e-30)).max())


def largest(differences: Iterable[float]) -> float:
    """The largest difference; NaN if any is NaN, which Python's max may drop, or if there is none."""
    values = list(differences)
    return math.nan if not values or any(map(math.isnan, values)) else max(values)
