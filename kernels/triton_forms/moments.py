"""Triton form of the centred product that `Moments` adds: upper-triangle tiles only, accumulated into float64."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .row_state import INTERPRETING


@triton.jit
def product_kernel(x, m2, n, d, stride, T: tl.constexpr, K: tl.constexpr):
    """Program (i, j), i <= j: m2[i, j] += x[:, i].T @ x[:, j], with T x T tiles; tiles below the diagonal return."""
    left, right = tl.program_id(1), tl.program_id(0)
    if right < left:
        return
    rows = left * T + tl.arange(0, T)
    cols = right * T + tl.arange(0, T)
    inner = tl.arange(0, K)
    z = tl.zeros([T, T], tl.float32)
    for start in range(0, n, K):
        at = (start + inner).to(tl.int64) * stride
        some = start + inner < n
        a = tl.load(x + at[None, :] + rows[:, None], mask=some[None, :] & (rows < d)[:, None], other=0.0)
        b = tl.load(x + at[:, None] + cols[None, :], mask=some[:, None] & (cols < d)[None, :], other=0.0)
        z = tl.dot(a, b, z, input_precision="tf32x3")
    out = m2 + rows.to(tl.int64)[:, None] * d + cols[None, :]
    inside = (rows < d)[:, None] & (cols < d)[None, :]
    tl.store(out, tl.load(out, mask=inside, other=0.0) + z.to(tl.float64), mask=inside)


def add_product(x: Tensor, m2: Tensor) -> None:
    """m2 [d, d] float64 += x.T @ x in its upper triangle (tiles on the diagonal whole); x [n, d] float32."""
    n, d = x.shape
    tile = 32 if INTERPRETING else 64
    side = triton.cdiv(d, tile)
    product_kernel[(side, side)](x, m2, n, d, x.stride(0), T=tile, K=32, num_warps=4)
