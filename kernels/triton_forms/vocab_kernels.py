"""Triton kernels of the vocabulary operators: tiles of products, logits that exist, and single columns.

A program folds what it is given into one row state; no kernel writes logits that nobody asked for.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .row_state import join, transformed


@triton.jit
def tiles_kernel(
    hidden,
    weight,
    bias,
    part_m,
    part_r,
    part_t,
    group_max,
    n,
    columns,
    d,
    stride_h,
    stride_w,
    scale,
    softcap,
    splits,
    HAS_BIAS: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    ROUND: tl.constexpr,
    GROUP: tl.constexpr,
    EVEN_K: tl.constexpr,
    UPCAST: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Program (i, s): rows [i M, (i + 1) M) over the s-th range of column tiles; one state per row and range."""
    split = tl.program_id(1)
    rows = tl.program_id(0) * M + tl.arange(0, M)
    safe_rows = tl.minimum(rows, n - 1).to(tl.int64)
    inner = tl.arange(0, K)
    tiles = tl.cdiv(columns, N)
    each = tl.cdiv(tiles, splits)
    first = split * each
    last = tl.minimum(first + each, tiles)
    m = tl.full([M], float("-inf"), tl.float32)
    r = tl.zeros([M], tl.float64)
    t = tl.zeros([M], tl.float64)
    for tile in range(first, last):
        cols = tile * N + tl.arange(0, N)
        safe_cols = tl.minimum(cols, columns - 1).to(tl.int64)
        h_at = hidden + safe_rows[:, None] * stride_h + inner[None, :]
        w_at = weight + safe_cols[None, :] * stride_w + inner[:, None]
        z = tl.zeros([M, N], tl.float32)
        for start in range(0, d, K):
            if EVEN_K:
                h = tl.load(h_at)
                w = tl.load(w_at)
            else:
                left = inner < d - start
                h = tl.load(h_at, mask=left[None, :], other=0.0)
                w = tl.load(w_at, mask=left[:, None], other=0.0)
            if UPCAST:
                h = h.to(tl.float32)
                w = w.to(tl.float32)
            z = tl.dot(h, w, z, input_precision="tf32x3")
            h_at += K
            w_at += K
        if HAS_BIAS:
            b = tl.load(bias + safe_cols)[None, :]
        else:
            b = 0.0
        z = transformed(z, b, scale, softcap, HAS_BIAS, HAS_SCALE, HAS_SOFTCAP, ROUND)
        z = tl.where((cols < columns)[None, :], z, float("-inf"))
        if GROUP > 0:
            groups = tl.cdiv(columns, GROUP)
            peak = tl.max(tl.reshape(z, [M, N // GROUP, GROUP]), axis=2)
            g = tile * (N // GROUP) + tl.arange(0, N // GROUP)
            at = rows.to(tl.int64)[:, None] * groups + g[None, :]
            tl.store(group_max + at, peak, mask=(rows < n)[:, None] & (g < groups)[None, :])
        m, r, t = join(z, m, r, t)
    at = split.to(tl.int64) * n + rows
    tl.store(part_m + at, m, mask=rows < n)
    tl.store(part_r + at, r, mask=rows < n)
    tl.store(part_t + at, t, mask=rows < n)


@triton.jit
def logits_kernel(
    logits,
    bias,
    part_m,
    part_r,
    part_t,
    group_max,
    n,
    columns,
    stride,
    first_group,
    groups,
    scale,
    softcap,
    splits,
    HAS_BIAS: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    ROUND: tl.constexpr,
    GROUP: tl.constexpr,
    N: tl.constexpr,
):
    """Program (i, s): row i of logits that exist, over the s-th range of blocks of N columns."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    blocks = tl.cdiv(columns, N)
    each = tl.cdiv(blocks, splits)
    first = split * each
    last = tl.minimum(first + each, blocks)
    m = tl.full([1], float("-inf"), tl.float32)
    r = tl.zeros([1], tl.float64)
    t = tl.zeros([1], tl.float64)
    for block in range(first, last):
        cols = block * N + tl.arange(0, N)
        there = cols < columns
        z = tl.load(logits + row * stride + cols, mask=there, other=float("-inf")).to(tl.float32)
        if HAS_BIAS:
            b = tl.load(bias + cols, mask=there, other=0.0)
        else:
            b = 0.0
        z = transformed(z, b, scale, softcap, HAS_BIAS, HAS_SCALE, HAS_SOFTCAP, ROUND)
        z = tl.where(there, z, float("-inf"))
        if GROUP > 0:
            peak = tl.max(tl.reshape(z, [N // GROUP, GROUP]), axis=1)
            g = block * (N // GROUP) + tl.arange(0, N // GROUP)
            tl.store(group_max + row * groups + first_group + g, peak, mask=g < tl.cdiv(columns, GROUP))
        m, r, t = join(z[None, :], m, r, t)
    at = split.to(tl.int64) * n + row + tl.arange(0, 1)
    tl.store(part_m + at, m)
    tl.store(part_r + at, r)
    tl.store(part_t + at, t)


@triton.jit
def picked_kernel(
    hidden,
    weight,
    bias,
    ids,
    out,
    picks,
    d,
    stride_h,
    stride_w,
    scale,
    softcap,
    HAS_BIAS: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    ROUND: tl.constexpr,
    P: tl.constexpr,
    K: tl.constexpr,
):
    """Logits of the columns ids [n, picks] of every row; id -1 gives minus infinity."""
    blocks = tl.cdiv(picks, P)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    which = tl.program_id(0) % blocks * P + tl.arange(0, P)
    column = tl.load(ids + row * picks + which, mask=which < picks, other=-1)
    safe = tl.maximum(column, 0)
    inner = tl.arange(0, K)
    z = tl.zeros([P], tl.float32)
    for start in range(0, d, K):
        left = inner < d - start
        h = tl.load(hidden + row * stride_h + start + inner, mask=left, other=0.0).to(tl.float32)
        w = tl.load(weight + safe[:, None] * stride_w + start + inner[None, :], mask=left[None, :], other=0.0)
        z += tl.sum(w.to(tl.float32) * h[None, :], axis=1)
    if HAS_BIAS:
        b = tl.load(bias + safe)
    else:
        b = 0.0
    z = transformed(z, b, scale, softcap, HAS_BIAS, HAS_SCALE, HAS_SOFTCAP, ROUND)
    z = tl.where(column < 0, float("-inf"), z)
    tl.store(out + row * picks + which, z, mask=which < picks)
