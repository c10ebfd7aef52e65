"""Triton forms of `vocab_stats` and `logits_stats`.

Few rows are bound by reading the unembedding, so it is cut into ranges, one per program, and each range is streamed
once for all rows. Many rows are bound by arithmetic: 128 x 256 tiles on the tensor cores, tokens on the M side. Either
way a program folds its tiles into one row state, and a second kernel joins the states of a row. A third way multiplies
chunks with cuBLAS and folds the logits of a chunk in one pass; for many rows the faster one is found by measuring once.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ..options import distinct_ids, merged_surface_forms
from ..precision import product_dtype
from ..streaming import top_k
from ..vocab_arguments import ROUNDINGS, VocabArguments
from .row_state import INTERPRETING, settle_kernel
from .tile_sizes import TABLE, autotuned, bucket, capability, is_light, multiprocessors
from .vocab_kernels import logits_kernel, picked_kernel

GROUP = 16  # columns whose maximum is kept when the largest logits are asked for
CHUNK = 16384  # columns of one cuBLAS product


class Transform:
    """How logits are made, in the shape that the kernels want; a large common bias is taken out and given back."""

    def __init__(self, arguments: VocabArguments) -> None:
        bias, softcap, scale, device = arguments.bias, arguments.softcap, arguments.scale, arguments.device
        self.offset = torch.zeros(1, dtype=torch.float64, device=device)
        self.bias = self.offset  # any pointer: not read
        if bias is not None:
            wide = bias.double()
            if not arguments.bends_logits:
                largest = wide.max()
                pivot = torch.where(largest.isfinite() & (largest.abs() > 64.0), largest, 0.0)
                wide, self.offset = wide - pivot, (pivot * scale).view(1)
            self.bias = wide.float().contiguous()
        self.scale, self.softcap = scale, 1.0 if softcap is None else softcap
        self.flags = {
            "HAS_BIAS": bias is not None,
            "HAS_SCALE": scale != 1.0,
            "HAS_SOFTCAP": softcap is not None,
            "ROUND": ROUNDINGS[arguments.logits_dtype],
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


def _fused(hidden: Tensor, weight: Tensor, transform: Transform, k: int) -> _Parts:
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
    light = is_light(transform.flags, k > 0)
    autotuned(key, capability(hidden.device), light, hidden.dtype, k > 0 and not even)[(tall, splits)](
        hidden,
        weight,
        transform.bias,
        parts.m,
        parts.r,
        parts.t,
        parts.groups,
        n,
        columns,
        d,
        hidden.stride(0),
        weight.stride(0),
        transform.scale,
        transform.softcap,
        splits,
        **transform.flags,
        GROUP=GROUP if k else 0,
        EVEN_K=even,
        UPCAST=INTERPRETING,
        M=block,
    )
    return parts


def _one_pass(
    logits: Tensor, transform: Transform, parts: _Parts, first_part: int, splits: int, first_column: int
) -> None:
    """Fold logits [n, v], columns `first_column`..., into `splits` of the parts."""
    n, columns = logits.shape
    group = GROUP if parts.groups.shape[1] else 0
    rows = slice(first_part, first_part + splits)
    logits_kernel[(n, splits)](
        logits,
        transform.bias[first_column:] if transform.flags["HAS_BIAS"] else transform.bias,
        parts.m[rows],
        parts.r[rows],
        parts.t[rows],
        parts.groups,
        n,
        columns,
        logits.stride(0),
        first_column // GROUP,
        parts.groups.shape[1],
        transform.scale,
        transform.softcap,
        splits,
        **transform.flags,
        GROUP=group,
        N=256 if INTERPRETING else 4096,
        num_warps=8,
    )


def _product(hidden: Tensor, weight: Tensor) -> Tensor:
    if hidden.dtype == torch.float32 or hidden.device.type != "cuda":
        compute = product_dtype(hidden.device)
        return (hidden.to(compute) @ weight.to(compute).T).float()
    return torch.mm(hidden, weight.T, out_dtype=torch.float32)


def _chunked(hidden: Tensor, weight: Tensor, transform: Transform, k: int) -> _Parts:
    n, columns = len(hidden), weight.shape[0]
    groups = triton.cdiv(columns, GROUP) if k else 0
    parts = _Parts(n, triton.cdiv(columns, CHUNK), groups, hidden.device)
    for part, start in enumerate(range(0, columns, CHUNK)):
        _one_pass(_product(hidden, weight[start : start + CHUNK]), transform, parts, part, 1, start)
    return parts


_faster: dict[tuple[int, int, int, torch.dtype, torch.dtype, str], bool] = {}


def _fused_is_faster(hidden: Tensor, weight: Tensor, transform: Transform, k: int) -> bool:
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
            way(hidden, weight, transform, k)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(3):
                way(hidden, weight, transform, k)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        _faster[kind] = times[0] <= times[1]
    return _faster[kind]


def picked_logits(hidden: Tensor, weight: Tensor, transform: Transform, ids: Tensor) -> Tensor:
    """Logits [n, picks] float32 of the columns ids [n, picks], less the common bias; id -1 gives minus infinity."""
    n, picks = ids.shape
    out = torch.empty(n, picks, dtype=torch.float32, device=hidden.device)
    if n and picks:
        picked_kernel[(n * triton.cdiv(picks, 16),)](  # one axis: a second would end at 65535
            hidden,
            weight,
            transform.bias,
            ids.contiguous(),
            out,
            picks,
            hidden.shape[1],
            hidden.stride(0),
            weight.stride(0),
            transform.scale,
            transform.softcap,
            **transform.flags,
            P=16,
            K=64 if INTERPRETING else 256,
        )
    return out


def _columns_of(groups: Tensor, columns: int) -> Tensor:
    """Columns [n, k GROUP] of groups [n, k], in rising order, -1 past the last column."""
    inside = torch.arange(GROUP, device=groups.device)
    ids = (groups.sort(dim=1).values[..., None] * GROUP + inside).flatten(1)
    return ids.masked_fill(ids >= columns, -1)


def _top(parts: _Parts, k: int, columns: int, logits_of) -> tuple[Tensor, Tensor]:
    """The k largest: they lie in the k groups with the largest maxima, whose logits are formed (again)."""
    n = parts.n
    if k == 0:
        none = parts.m.new_empty(n, 0)
        return none, none.long()
    groups = top_k(parts.groups, min(k, parts.groups.shape[1]))[1]
    ids = _columns_of(groups, columns)
    values, places = top_k(logits_of(ids), k)
    return values, ids.gather(1, places)


def vocab_stats(arguments: VocabArguments, way: str | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Entropy, logsumexp, top logits and ids, and option logits.

    `way` is "fused" or "chunked"; by default the faster. The inner stride of weight must be 1, and n at least 1.
    """
    hidden, weight, k = arguments.contiguous_rows(), arguments.weight, arguments.top_k
    transform = Transform(arguments)
    if way is None:
        way = "fused" if _fused_is_faster(hidden, weight, transform, k) else "chunked"
    parts = (_fused if way == "fused" else _chunked)(hidden, weight, transform, k)
    entropy, lse = parts.settle(transform.offset)
    top_logits, top_ids = _top(parts, k, len(weight), lambda ids: picked_logits(hidden, weight, transform, ids))
    offset = transform.offset.float()
    options = torch.empty(len(hidden), 0, dtype=torch.float32, device=hidden.device)
    if arguments.option_ids is not None:
        ids = distinct_ids(arguments.option_ids)
        picked = picked_logits(hidden, weight, transform, ids.flatten(1)) + offset
        options = merged_surface_forms(picked.view(ids.shape), ids)
    return entropy, lse, top_logits + offset, top_ids, options


def logits_stats(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Entropy, logsumexp, top logits and ids of logits [n, V], n >= 1, inner stride 1."""
    n, columns = logits.shape
    transform = Transform(VocabArguments(logits, logits))  # no bias, no scale, no cap: logits as they are
    splits = max(1, min(triton.cdiv(columns, 4096), 4 * multiprocessors(logits.device) // n))
    parts = _Parts(n, splits, triton.cdiv(columns, GROUP) if k else 0, logits.device)
    _one_pass(logits, transform, parts, 0, splits, 0)
    entropy, lse = parts.settle(transform.offset)

    def again(ids: Tensor) -> Tensor:
        return logits.gather(1, ids.clamp_min(0)).float().masked_fill(ids < 0, -torch.inf)

    return (entropy, lse, *_top(parts, k, columns, again))
