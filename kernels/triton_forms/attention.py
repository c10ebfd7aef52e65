"""Triton form of `attention_row`: scores of one query per sequence against all keys, then a softmax over the row."""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention_arguments import AttentionArguments
from .row_state import INTERPRETING, LOG2E, tanh

NO_MASK, KEEP, BOOL, ADD = 0, 1, 2, 3
"""Kinds of mask: none, tokens that are no padding, full and bool, full and additive."""

GRID_END = 65535
"""Programs along the second and third axis of a CUDA grid."""


@triton.jit
def scores_kernel(
    query,
    key,
    index,
    mask,
    scores,
    heads,
    keys,
    queries,
    width,
    scale,
    softcap,
    window,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    m_batch,
    m_head,
    m_row,
    i_batch,
    HAS_INDEX: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    MASK: tl.constexpr,
    G: tl.constexpr,
    GROUPED: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Program (j, g, b): all query heads of key head g over the j-th block of N keys; G heads, GROUPED of them used."""
    batch = tl.program_id(2).to(tl.int64)
    group = tl.program_id(1).to(tl.int64)
    positions = tl.program_id(0) * N + tl.arange(0, N)
    there = positions < keys
    inside = tl.arange(0, G)
    head = group * GROUPED + inside
    used = inside < GROUPED
    if HAS_INDEX:
        row = tl.load(index + batch * i_batch)
        valid = (row >= 0) & (row < queries)
        row = tl.minimum(tl.maximum(row, 0), queries - 1)
    else:
        row = tl.zeros([], tl.int64) + queries - 1  # a size of 1 is a constant here, without methods
        valid = True
    q_at = query + batch * q_batch + head[:, None] * q_head + row * q_row
    k_at = key + batch * k_batch + group * k_head + positions.to(tl.int64)[None, :] * k_row
    z = tl.zeros([G, N], tl.float32)
    for start in range(0, width, D):
        inner = start + tl.arange(0, D)
        part = inner < width
        q = tl.load(q_at + inner[None, :], mask=used[:, None] & part[None, :], other=0.0)
        k = tl.load(k_at + inner[:, None], mask=there[None, :] & part[:, None], other=0.0)
        if UPCAST:
            q = q.to(tl.float32)
            k = k.to(tl.float32)
        z = tl.dot(q, k, z, input_precision="tf32x3")
    z = z * scale
    if HAS_SOFTCAP:
        z = softcap * tanh(z / softcap)
    position = row + keys - queries
    seen = there & valid
    if MASK < 2:
        seen = seen & (positions <= position)
    if HAS_WINDOW:
        seen = seen & (positions > position - window)
    if MASK == 1:
        seen = seen & (tl.load(mask + batch * m_batch + positions, mask=there, other=0) != 0)
    z = tl.where(seen[None, :], z, float("-inf"))
    if MASK >= 2:
        at = mask + batch * m_batch + head[:, None] * m_head + row * m_row + positions[None, :]
        inside_both = used[:, None] & there[None, :]
        if MASK == 2:
            z = tl.where(tl.load(at, mask=inside_both, other=0) != 0, z, float("-inf"))
        else:
            z = z + tl.load(at, mask=inside_both, other=0.0).to(tl.float32)
    out = scores + (batch * heads + head[:, None]) * keys + positions[None, :]
    tl.store(out, z, mask=used[:, None] & there[None, :])


@triton.jit
def softmax_kernel(scores, sinks, heads, keys, s_head, HAS_SINKS: tl.constexpr, N: tl.constexpr):
    """Softmax of one row in place; a sink takes part and is dropped; NaN where nothing may be attended."""
    row = tl.program_id(0).to(tl.int64)
    at = scores + row * keys
    m = tl.full([N], float("-inf"), tl.float32)
    total = tl.zeros([N], tl.float32)
    for start in range(0, keys, N):
        place = start + tl.arange(0, N)
        z = tl.load(at + place, mask=place < keys, other=float("-inf"))
        top = tl.maximum(m, z)
        base = tl.where(top == float("-inf"), 0.0, top)
        total = total * tl.exp2((m - base) * LOG2E) + tl.exp2((z - base) * LOG2E)
        m = top
    top = tl.max(m, axis=0)
    nothing = top == float("-inf")
    if HAS_SINKS:
        sink = tl.load(sinks + row % heads * s_head).to(tl.float32)
        top = tl.maximum(top, sink)
    base = tl.where(top == float("-inf"), 0.0, top)
    whole = tl.sum(total * tl.exp2((m - base) * LOG2E), axis=0)
    if HAS_SINKS:
        whole += tl.exp2((sink - base) * LOG2E)
    for start in range(0, keys, N):
        place = start + tl.arange(0, N)
        z = tl.load(at + place, mask=place < keys, other=float("-inf"))
        p = tl.exp2((z - base) * LOG2E) / whole
        tl.store(at + place, tl.where(nothing, float("nan"), p), mask=place < keys)


def _unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def attention_row(arguments: AttentionArguments) -> Tensor:
    """Checked arguments of `attention_row` to its result."""
    query, key, index, sinks = arguments.query, arguments.key, arguments.index, arguments.sinks
    query, key = _unit_stride(query), _unit_stride(key)
    mask = None if arguments.mask is None else _unit_stride(arguments.mask)
    scale, softcap, window = arguments.scale, arguments.softcap, arguments.window
    batch, heads, queries, width = query.shape
    groups, keys = key.shape[1], key.shape[2]
    scores = torch.empty(batch, heads, keys, dtype=torch.float32, device=query.device)
    if scores.numel() == 0:
        return scores
    if batch > GRID_END:
        for first in range(0, batch, GRID_END):
            some = slice(first, first + GRID_END)
            part = mask[some] if mask is not None and mask.shape[0] == batch else mask
            wanted = None if index is None else index[some]
            scores[some] = attention_row(replace(arguments, query=query[some], key=key[some], index=wanted, mask=part))
        return scores
    kind, strides, plain = NO_MASK, (0, 0, 0), query
    if mask is not None:
        plain = mask.view(torch.uint8) if mask.dtype == torch.bool else mask
        if mask.ndim == 2:
            kind, strides = KEEP, (mask.stride(0), 0, 0)
        else:
            kind = BOOL if mask.dtype == torch.bool else ADD
            strides = tuple(mask.stride(i) if mask.shape[i] > 1 else 0 for i in range(3))  # type: ignore[assignment]
    grouped = heads // groups
    block = 32 if INTERPRETING else 64
    # Keys come first: the other two axes of a grid end at 65535.
    scores_kernel[(triton.cdiv(keys, block), groups, batch)](
        query,
        key,
        query if index is None else index,
        plain,
        scores,
        heads,
        keys,
        queries,
        width,
        scale,
        1.0 if softcap is None else softcap,
        0 if window is None else window,
        *query.stride()[:3],
        *key.stride()[:3],
        *strides,
        0 if index is None else index.stride(0),
        HAS_INDEX=index is not None,
        HAS_SOFTCAP=softcap is not None,
        HAS_WINDOW=window is not None,
        MASK=kind,
        G=max(16, triton.next_power_of_2(grouped)),
        GROUPED=grouped,
        N=block,
        D=min(64, max(16, triton.next_power_of_2(width))),
        UPCAST=INTERPRETING,
    )
    softmax_kernel[(batch * heads,)](
        scores,
        scores if sinks is None else sinks,
        heads,
        keys,
        0 if sinks is None else sinks.stride(0),
        HAS_SINKS=sinks is not None,
        N=128 if INTERPRETING else 1024,
    )
    return scores
