"""The running state of a softmax row and how two parts of a row merge; the numerics that every form follows.

For logits z (scaled to base 2) a part of a row is held as the maximum ``m``, its column ``a``, ``r``, the sum of
2**(z - m) over all columns **but** ``a``, and ``t``, the sum of (z - m) 2**(z - m). Then

    H = log2(1 + r) - t / (1 + r)          (bits)
    logsumexp = (m + log2(1 + r)) ln 2     (nats)

Leaving the maximum's own 1 out of ``r`` keeps entropies near 0 exact: with it, 1 + 1e-9 would round to 1 in float32.
Two parts merge without making NaN when their maxima are equal or minus infinity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LOG2E = math.log2(math.e)
LN2 = math.log(2.0)


@dataclass
class RowState:
    """State of n rows over the columns seen so far: float64 [n] each, and int64 [n] for `argmax`."""

    m: Tensor
    r: Tensor
    t: Tensor
    argmax: Tensor

    @classmethod
    def of(cls, logits: Tensor, first_column: int = 0) -> RowState:
        """State of a block of logits [n, v], v >= 1, whose first column has this index in the row."""
        z = logits.double() * LOG2E
        m, argmax = z.max(dim=1)
        shifted = z - m[:, None]
        shifted = shifted.masked_fill((z == -math.inf), -math.inf)  # also where m is -inf: -inf - -inf is NaN
        power = torch.exp2(shifted).scatter(1, argmax[:, None], 0.0)
        weighted = torch.where(shifted == -math.inf, 0.0, shifted) * power
        return cls(m, power.sum(dim=1), weighted.sum(dim=1), argmax + first_column)

    @classmethod
    def empty(cls, n: int, device: torch.device) -> RowState:
        """State of no columns."""
        zeros = torch.zeros(n, dtype=torch.float64, device=device)
        return cls(zeros - math.inf, zeros, zeros.clone(), torch.zeros(n, dtype=torch.int64, device=device))

    def merge(self, other: RowState) -> RowState:
        """State of both parts together; on equal maxima the lower column stays the argmax."""
        first = (self.m > other.m) | ((self.m == other.m) & (self.argmax <= other.argmax)) | self.m.isnan()
        m = torch.where(first, self.m, other.m)
        low = torch.where(first, other.m, self.m)
        delta = torch.where(low == m, 0.0, low - m)
        absent = low == -math.inf
        factor = torch.where(absent, 0.0, torch.exp2(delta))
        delta = torch.where(absent, 0.0, delta)
        r_high, r_low = torch.where(first, self.r, other.r), torch.where(first, other.r, self.r)
        t_high, t_low = torch.where(first, self.t, other.t), torch.where(first, other.t, self.t)
        return RowState(
            m,
            r_high + factor * (1.0 + r_low),
            t_high + factor * (t_low + delta * (1.0 + r_low)),
            torch.where(first, self.argmax, other.argmax),
        )

    def entropy_bits(self) -> Tensor:
        """Entropy in bits, float64 [n]; NaN where every column is minus infinity."""
        log = torch.where(self.r < 0.5, torch.log1p(self.r) * LOG2E, torch.log2(1.0 + self.r))
        entropy = log - self.t / (1.0 + self.r)
        return torch.where(self.m == -math.inf, math.nan, entropy)

    def logsumexp(self) -> Tensor:
        """log(sum(exp(logits))) in nats, float64 [n]."""
        return self.m * LN2 + torch.log1p(self.r)


def top_k(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row of [n, v], ties by the lower column: (values, int64 columns), each [n, k]."""
    if values.dtype == torch.float64:
        ordered, ids = values.sort(dim=1, descending=True, stable=True)
        return ordered[:, :k], ids[:, :k]
    bits = (values.float() + 0.0).view(torch.int32).long()
    ordered_bits = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    columns = torch.arange(values.shape[1], device=values.device)
    keys = (ordered_bits << 32) | (0xFFFFFFFF - columns)
    ids = 0xFFFFFFFF - (keys.topk(k, dim=1).values & 0xFFFFFFFF)
    return values.gather(1, ids), ids


def merge_top_k(values: Tensor, ids: Tensor, more: Tensor, more_ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of two such lists, the second list's columns being higher than the first's."""
    values, ids = torch.cat([values, more], dim=1), torch.cat([ids, more_ids], dim=1)
    values, kept = top_k(values, min(k, values.shape[1]))
    return values, ids.gather(1, kept)
