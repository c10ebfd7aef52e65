"""Triton forms of `vocab_stats` and `logits_stats`.

Few rows are bound by reading the unembedding, so it is cut into ranges, one per program, and each range is streamed
once for all rows. Many rows are bound by arithmetic: 128 x 256 tiles on the tensor cores, tokens on the M side. Either
way a program folds its tiles into one row state, and a second kernel joins the states of a row. A third way multiplies
chunks with cuBLAS and folds the logits of a chunk in one pass; for many rows the faster one is found by measuring once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from .precision import product_dtype
from .streaming import top_k
from .triton_row_state import INTERPRETING, join, settle_kernel, transformed

GROUP = 16  # columns whose maximum is kept when the largest logits are asked for
CHUNK = 16384  # columns of one cuBLAS product

ROUNDINGS = {None: 0, "bfloat16": 1, "float16": 2}

# The autotune table: bucket of n -> (M, [(N, K, warps, stages), ...]).
TABLE: dict[int, tuple[int, list[tuple[int, int, int, int]]]] = {
    16: (16, [(64, 128, 4, 4), (128, 128, 4, 3), (32, 256, 4, 4)]),
    32: (32, [(128, 128, 4, 3), (128, 64, 4, 4)]),
    64: (64, [(64, 128, 4, 3), (128, 128, 8, 3)]),
    128: (128, [(128, 64, 8, 4)]),
    4096: (128, [(128, 64, 8, 4)]),
}
# Many rows where products are warp-group wide (compute capability 9) and little is done with the logits: before, with a
# soft cap to compute, or with both a bias and the largest logits to find, this tile would spill registers.
LARGE_TILE = (256, 64, 8, 3)
# Before it, a tile of the table would spill registers when much is done with the logits.
SMALL_TILE = (64, 64, 8, 4)
# float32 rows take three products each, and twice the shared memory.
FLOAT32 = {16: (64, 64, 4, 3), 32: (64, 32, 4, 3), 64: (64, 32, 4, 3), 128: (64, 32, 8, 3), 4096: (64, 32, 8, 3)}


def bucket(n: int) -> int:
    """The key of `TABLE` for n rows."""
    return next((key for key in TABLE if n <= key), max(TABLE))


def choices(
    key: int, capability: int, light: bool, dtype: torch.dtype, crowded: bool = False
) -> list[tuple[int, int, int, int]]:
    """The (N, K, warps, stages) that are tried for a bucket on a GPU of this major compute capability.

    `light`: see `is_light`. `crowded`: the largest logits are to be found, and d is no multiple of 256, so that the end of
    each row has to be masked as well.
    """
    if dtype == torch.float32:
        return [FLOAT32[key]]
    if key > 64 and light and capability == 9:
        return [LARGE_TILE, *TABLE[key][1]]
    if key > 64 and (not light or crowded) and capability < 9:
        return [SMALL_TILE]
    return TABLE[key][1]


def is_light(flags: Mapping[str, object], top: bool) -> bool:
    """Whether what is done with the logits leaves registers for `LARGE_TILE`."""
    return not (flags["HAS_SOFTCAP"] or flags["ROUND"] or (flags["HAS_BIAS"] and top))


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


class _Logits:
    """How logits are made, in the shape that the kernels want; a large common bias is taken out and given back."""

    def __init__(
        self, bias: Tensor | None, softcap: float | None, scale: float, logits_dtype: str | None, device: torch.device
    ) -> None:
        self.offset = torch.zeros(1, dtype=torch.float64, device=device)
        self.bias = self.offset  # any pointer: not read
        if bias is not None:
            wide = bias.double()
            if softcap is None and logits_dtype is None:
                largest = wide.max()
                pivot = torch.where(largest.isfinite() & (largest.abs() > 64.0), largest, 0.0)
                wide, self.offset = wide - pivot, (pivot * scale).view(1)
            self.bias = wide.float().contiguous()
        self.scale, self.softcap = scale, 1.0 if softcap is None else softcap
        self.flags = {
            "HAS_BIAS": bias is not None,
            "HAS_SCALE": scale != 1.0,
            "HAS_SOFTCAP": softcap is not None,
            "ROUND": ROUNDINGS[logits_dtype],
        }


class _Parts:
    """States [parts, n] of the ranges of every row, and the maxima of column groups when they are wanted."""

    def __init__(self, n: int, parts: int, groups: int, device: torch.device) -> None:
        self.n, self.parts = n, parts
        self.m = torch.empty(parts, n, dtype=torch.float32, device=device)
        self.r = torch.empty(parts, n, dtype=torch.float64, device=device)
        self.t = torch.empty(parts, n, dtype=torch.float64, device=device)
        self.groups = torch.empty(n, groups, dtype=torch.float32, device=device)

    def settle(self, offset: Tensor) -> tuple[Tensor, Tensor]:
        entropy = torch.empty(self.n, dtype=torch.float64, device=self.m.device)
        lse = torch.empty_like(entropy)
        width = triton.next_power_of_2(self.parts)
        settle_kernel[(self.n,)](
            self.m, self.r, self.t, offset, entropy, lse, self.n, self.parts, PARTS=width, num_warps=1
        )
        return entropy, lse


def multiprocessors(device: torch.device) -> int:
    """How many programs run side by side; a few under the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


def capability(device: torch.device) -> int:
    """Major compute capability of a GPU; 0 under the interpreter."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0


@functools.cache
def _autotuned(key: int, capability: int, light: bool, dtype: torch.dtype, crowded: bool) -> triton.runtime.Autotuner:
    """The tile kernel with the configurations of one bucket; the interpreter takes a single small one."""
    tried = [(32, 32, 4, 1)] if INTERPRETING else choices(key, capability, light, dtype, crowded)
    configs = [triton.Config({"N": n, "K": k}, num_warps=warps, num_stages=stages) for n, k, warps, stages in tried]
    return triton.autotune(configs, key=["columns", "d", "GROUP"])(tiles_kernel)


def _fused(hidden: Tensor, weight: Tensor, how: _Logits, k: int) -> _Parts:
    n, d = hidden.shape
    columns = weight.shape[0]
    key = bucket(n)
    block = TABLE[key][0]
    tall = triton.cdiv(n, block)
    processors = multiprocessors(hidden.device)
    # Few rows: two programs on each multiprocessor keep more loads in flight. Many: one wave of large tiles.
    splits = max(1, 2 * processors // tall if key <= 64 else round(processors / tall))
    parts = _Parts(n, splits, triton.cdiv(columns, GROUP) if k else 0, hidden.device)
    even = d % 256 == 0
    light = is_light(how.flags, k > 0)
    _autotuned(key, capability(hidden.device), light, hidden.dtype, k > 0 and not even)[(tall, splits)](
        hidden,
        weight,
        how.bias,
        parts.m,
        parts.r,
        parts.t,
        parts.groups,
        n,
        columns,
        d,
        hidden.stride(0),
        weight.stride(0),
        how.scale,
        how.softcap,
        splits,
        **how.flags,
        GROUP=GROUP if k else 0,
        EVEN_K=even,
        UPCAST=INTERPRETING,
        M=block,
    )
    return parts


def _one_pass(logits: Tensor, how: _Logits, parts: _Parts, first_part: int, splits: int, first_column: int) -> None:
    """Fold logits [n, v], columns `first_column`..., into `splits` of the parts."""
    n, columns = logits.shape
    group = GROUP if parts.groups.shape[1] else 0
    rows = slice(first_part, first_part + splits)
    logits_kernel[(n, splits)](
        logits,
        how.bias[first_column:] if how.flags["HAS_BIAS"] else how.bias,
        parts.m[rows],
        parts.r[rows],
        parts.t[rows],
        parts.groups,
        n,
        columns,
        logits.stride(0),
        first_column // GROUP,
        parts.groups.shape[1],
        how.scale,
        how.softcap,
        splits,
        **how.flags,
        GROUP=group,
        N=256 if INTERPRETING else 4096,
        num_warps=8,
    )


def _product(hidden: Tensor, weight: Tensor) -> Tensor:
    if hidden.dtype == torch.float32 or hidden.device.type != "cuda":
        compute = product_dtype(hidden.device)
        return (hidden.to(compute) @ weight.to(compute).T).float()
    return torch.mm(hidden, weight.T, out_dtype=torch.float32)


def _chunked(hidden: Tensor, weight: Tensor, how: _Logits, k: int) -> _Parts:
    n, columns = len(hidden), weight.shape[0]
    groups = triton.cdiv(columns, GROUP) if k else 0
    parts = _Parts(n, triton.cdiv(columns, CHUNK), groups, hidden.device)
    for part, start in enumerate(range(0, columns, CHUNK)):
        _one_pass(_product(hidden, weight[start : start + CHUNK]), how, parts, part, 1, start)
    return parts


_faster: dict[tuple[int, int, int, torch.dtype, torch.dtype, str], bool] = {}


def _fused_is_faster(hidden: Tensor, weight: Tensor, how: _Logits, k: int) -> bool:
    """Whether tiles beat chunks for this kind of call: measured once for each, on the device, and remembered."""
    if hidden.device.type != "cuda" or bucket(len(hidden)) <= 64:
        return True
    place, compute = torch.cuda.get_device_name(hidden.device), product_dtype(hidden.device)
    kind = (bucket(len(hidden)), hidden.shape[1], weight.shape[0], hidden.dtype, compute, place)
    if kind not in _faster:
        if torch.cuda.is_current_stream_capturing():
            return True
        times = []
        for way in (_fused, _chunked):
            way(hidden, weight, how, k)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(3):
                way(hidden, weight, how, k)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        _faster[kind] = times[0] <= times[1]
    return _faster[kind]


def picked_logits(hidden: Tensor, weight: Tensor, how: _Logits, ids: Tensor) -> Tensor:
    """Logits [n, picks] float32 of the columns ids [n, picks], less the common bias; id -1 gives minus infinity."""
    n, picks = ids.shape
    out = torch.empty(n, picks, dtype=torch.float32, device=hidden.device)
    if n and picks:
        picked_kernel[(n * triton.cdiv(picks, 16),)](  # one axis: a second would end at 65535
            hidden,
            weight,
            how.bias,
            ids.contiguous(),
            out,
            picks,
            hidden.shape[1],
            hidden.stride(0),
            weight.stride(0),
            how.scale,
            how.softcap,
            **how.flags,
            P=16,
            K=64 if INTERPRETING else 256,
        )
    return out


def _columns_of(groups: Tensor, columns: int) -> Tensor:
    """Columns [n, k GROUP] of groups [n, k], in rising order, -1 past the last column."""
    inside = torch.arange(GROUP, device=groups.device)
    ids = (groups.sort(dim=1).values[..., None] * GROUP + inside).flatten(1)
    return ids.masked_fill(ids >= columns, -1)


def _top(parts: _Parts, k: int, columns: int, logits_of) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    """The k largest: they lie in the k groups with the largest maxima, whose logits are formed (again)."""
    n = parts.n
    if k == 0:
        none = parts.m.new_empty(n, 0)
        return none, none.long()
    groups = top_k(parts.groups, min(k, parts.groups.shape[1]))[1]
    ids = _columns_of(groups, columns)
    values, places = top_k(logits_of(ids), k)
    return values, ids.gather(1, places)


def vocab_stats(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    softcap: float | None,
    scale: float,
    ids: Tensor | None,
    k: int,
    logits_dtype: str | None,
    way: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Entropy, logsumexp, top logits and ids, and logits of the columns ids [n, picks].

    `way` is "fused" or "chunked"; by default the faster. Inner strides must be 1, and n at least 1.
    """
    how = _Logits(bias, softcap, scale, logits_dtype, hidden.device)
    if way is None:
        way = "fused" if _fused_is_faster(hidden, weight, how, k) else "chunked"
    parts = (_fused if way == "fused" else _chunked)(hidden, weight, how, k)
    entropy, lse = parts.settle(how.offset)
    values, top_ids = _top(parts, k, weight.shape[0], lambda ids: picked_logits(hidden, weight, how, ids))
    offset = how.offset.float()
    picked = torch.empty(len(hidden), 0, dtype=torch.float32, device=hidden.device)
    if ids is not None:
        picked = picked_logits(hidden, weight, how, ids) + offset
    return entropy, lse, values + offset, top_ids, picked


def logits_stats(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Entropy, logsumexp, top logits and ids of logits [n, V], n >= 1, inner stride 1."""
    n, columns = logits.shape
    how = _Logits(None, None, 1.0, None, logits.device)
    splits = max(1, min(triton.cdiv(columns, 4096), 4 * multiprocessors(logits.device) // n))
    parts = _Parts(n, splits, triton.cdiv(columns, GROUP) if k else 0, logits.device)
    _one_pass(logits, how, parts, 0, splits, 0)
    entropy, lse = parts.settle(how.offset)

    def again(ids: Tensor) -> Tensor:
        return logits.gather(1, ids.clamp_min(0)).float().masked_fill(ids < 0, -torch.inf)

    return (entropy, lse, *_top(parts, k, columns, again))
