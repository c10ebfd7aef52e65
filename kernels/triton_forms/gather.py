"""Triton form of `gather_rows`: one launch, nothing allocated."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def gather_kernel(
    x, index, out, tokens, d, x_batch, x_row, x_inner, index_batch, out_batch, out_inner, N: tl.constexpr
):
    """Program (b, j): the j-th N elements of x[b, index[b]]; NaN where that position does not exist."""
    batch = tl.program_id(0).to(tl.int64)
    inner = (tl.program_id(1) * N + tl.arange(0, N)).to(tl.int64)
    row = tl.load(index + batch * index_batch)
    exists = (inner * 0 + row >= 0) & (inner * 0 + row < tokens)
    inside = inner < d
    value = tl.load(x + batch * x_batch + row * x_row + inner * x_inner, mask=inside & exists, other=float("nan"))
    tl.store(out + batch * out_batch + inner * out_inner, value.to(out.dtype.element_ty), mask=inside)


def gather_rows(x: Tensor, index: Tensor, out: Tensor, layer: int) -> None:
    """Checked arguments of `gather_rows`."""
    batch, tokens, d = x.shape
    if batch == 0 or d == 0:
        return
    place = out[:, layer]
    gather_kernel[(batch, triton.cdiv(d, 1024))](
        x, index, place, tokens, d, *x.stride(), *index.stride(), *place.stride(), N=1024, num_warps=4
    )
