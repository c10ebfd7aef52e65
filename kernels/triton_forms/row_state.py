"""Row states in Triton: how a tile of logits joins a row's state, and how the parts of a row are put together.

The same numerics as `streaming`, with the sums of a tile in float32 and the running sums in float64. The maximum's own
term is left out by value: every column that equals the new maximum is dropped and all but one are added back as ones,
which needs no tensor of column indices.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..streaming import LN2 as _LN2
from ..streaming import LOG2E as _LOG2E

LOG2E = tl.constexpr(_LOG2E)
LN2 = tl.constexpr(_LN2)
INTERPRETING = bool(triton.knobs.runtime.interpret)


@triton.jit
def rounded(z, ROUND: tl.constexpr):
    """Nearest bfloat16 (1) or float16 (2) as float32; by bits for bfloat16, which the interpreter cannot store."""
    if ROUND == 1:
        bits = z.to(tl.int32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        z = tl.where(z == z, nearest.to(tl.float32, bitcast=True), z)
    elif ROUND == 2:
        z = z.to(tl.float16).to(tl.float32)
    return z


@triton.jit
def tanh(x):
    """Odd polynomial near 0, so that a large soft cap keeps all digits; by exp2 elsewhere."""
    size = tl.abs(x)
    decay = tl.exp2(size * (-2.0 * LOG2E))
    large = (1.0 - decay) / (1.0 + decay)
    square = x * x
    p = -5.70498872745e-3
    p = p * square + 2.06390887954e-2
    p = p * square - 5.37397155531e-2
    p = p * square + 1.33314422036e-1
    p = p * square - 3.33332819422e-1
    small = p * square * x + x
    return tl.where(size < 0.625, small, tl.where(x < 0, -large, large))


@triton.jit
def transformed(
    z,
    bias,
    scale,
    softcap,
    HAS_BIAS: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    ROUND: tl.constexpr,
):
    """Bias, scale, softcap, each rounded as asked; columns whose bias is minus infinity are excluded after it all."""
    if HAS_BIAS:
        z = z + bias
    z = rounded(z, ROUND)
    if HAS_SCALE:
        z = rounded(z * scale, ROUND)
    if HAS_SOFTCAP:
        z = rounded(tanh(rounded(z / softcap, ROUND)), ROUND)
        z = rounded(z * softcap, ROUND)
    if HAS_BIAS:
        z = tl.where(bias == float("-inf"), float("-inf"), z)
    return z


@triton.jit
def join(z, m, r, t):
    """State (m float32, r and t float64, each [M]) after the tile z [M, N] joins it."""
    top = tl.max(z, axis=1)
    grown = top > m
    base = tl.where(grown, top, m)
    base = tl.where(base == float("-inf"), 0.0, base)
    # NaN must come through; minus infinity becomes a power of exactly 0 without 0 * infinity.
    x = tl.maximum((z - base[:, None]) * LOG2E, -200.0, propagate_nan=tl.PropagateNan.ALL)
    leading = (z == top[:, None]) & grown[:, None]
    power = tl.where(leading, 0.0, tl.exp2(x))
    r_tile = tl.sum(power, axis=1)
    t_tile = tl.sum(power * x, axis=1)
    ties = tl.sum(leading.to(tl.float32), axis=1) - 1.0
    absent = m == float("-inf")
    delta = tl.where(grown & ~absent, (m - base) * LOG2E, 0.0)
    factor = tl.where(absent, 0.0, tl.exp2(delta)).to(tl.float64)
    whole = 1.0 + r
    r_new = tl.where(grown, (r_tile + ties).to(tl.float64) + factor * whole, r + r_tile.to(tl.float64))
    t_new = tl.where(
        grown, t_tile.to(tl.float64) + factor * (t + delta.to(tl.float64) * whole), t + t_tile.to(tl.float64)
    )
    return tl.where(grown, top, m), r_new, t_new


@triton.jit
def settle_kernel(part_m, part_r, part_t, offset, entropy, logsumexp, n, parts, PARTS: tl.constexpr):
    """The `parts` states [parts, n] of one row to its entropy (bits) and logsumexp (nats, plus `offset`)."""
    row = tl.program_id(0)
    which = tl.arange(0, PARTS)
    there = which < parts
    at = which.to(tl.int64) * n + row
    m = tl.load(part_m + at, mask=there, other=float("-inf"))
    r = tl.load(part_r + at, mask=there, other=0.0)
    t = tl.load(part_t + at, mask=there, other=0.0)
    top = tl.max(m, axis=0)
    first = tl.argmax(m, axis=0)
    absent = m == float("-inf")
    delta = tl.where(absent | (m == top), 0.0, (m - top).to(tl.float64) * LOG2E)
    factor = tl.where(absent, 0.0, tl.exp2(delta))
    whole = tl.where(which == first, r, 1.0 + r)
    total = tl.sum(factor * whole, axis=0)
    weighted = tl.sum(factor * (t + delta * whole), axis=0)
    log = tl.where(total < 1e-5, total * (1.0 - 0.5 * total) * LOG2E, tl.log2(1.0 + total))
    bits = log - weighted / (1.0 + total)
    undefined = (top == float("-inf")) | (top == float("inf"))
    tl.store(entropy + row, tl.where(undefined, float("nan"), bits))
    nats = top.to(tl.float64) + log * LN2 + tl.load(offset)
    tl.store(logsumexp + row, tl.where(undefined, top.to(tl.float64), nats))
