"""Statistics of the next-token distribution straight from hidden rows and the unembedding, without [n, V] logits.

A model's logits over a vocabulary of 150,000 take 600 kB a row in float32, only to be reduced to an entropy and a few
numbers. `vocab_stats` walks the unembedding once and keeps the row state of `streaming`, so entropies are those of the
unrounded logits, and memory does not grow with V.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

import numpy as np
import torch
from torch import Tensor

from . import checks, native, precision, registry
from .streaming import RowState, merge_top_k, top_k

FORMS = ("reference", "torch", "cpu", "triton")
OptionIds = Tensor | np.ndarray | Sequence[int] | Sequence[Sequence[int]]


@dataclass(frozen=True)
class VocabStats:
    """What is kept of n next-token distributions.

    Attributes
    ----------
    entropy_bits : Tensor
        [n] float64, over the full vocabulary. NaN where every logit is minus infinity or one is NaN.
    logsumexp : Tensor
        [n] float64, nats. ``option_logits - logsumexp`` are log-probabilities.
    top_logits, top_ids : Tensor
        [n, k] float32 and int64, by decreasing logit, ties by the lower id; id -1 in a row that holds a NaN.
    option_logits : Tensor
        [n, K] float32; a group of surface forms is merged by logsumexp. NaN where an option has no id.
    """

    entropy_bits: Tensor
    logsumexp: Tensor
    top_logits: Tensor
    top_ids: Tensor
    option_logits: Tensor

    @property
    def undefined(self) -> Tensor:
        """[n] bool: the rows whose entropy is not defined (all logits minus infinity, or a NaN)."""
        return self.entropy_bits.isnan()


def vocab_stats(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    softcap: float | None = None,
    scale: float = 1.0,
    option_ids: OptionIds | None = None,
    top_k: int = 0,
    *,
    logits_dtype: str | None = None,
    backend: str = "auto",
) -> VocabStats:
    """Entropy, logsumexp, top-k and option logits of ``z = softcap(scale * (hidden @ weight.T + bias))``.

    Parameters
    ----------
    hidden : Tensor
        [n, d], after the final norm; float32, float16, bfloat16 or float64.
    weight : Tensor
        [V, d], the unembedding, of the same dtype and device.
    bias : Tensor, optional
        [V], any of these dtypes. A column whose bias is minus infinity is outside the vocabulary, with a softcap too.
    softcap : float, optional
        c in ``c * tanh(z / c)``; applied after `scale`.
    scale : float
        Factor on the logits.
    option_ids : optional
        [n, K] int tensor or array, one id per option and row; [n, K, F] with F surface forms each; -1 fills unused
        places. Or, shared by all rows: K ids, or a sequence of K groups of ids. A form named twice in a group counts
        once.
    top_k : int
        How many of the largest logits to return.
    logits_dtype : {"bfloat16", "float16"}, optional
        Round the logits as a model does that computes its head, scale and softcap in this dtype. The default keeps
        the float32 sums.
    backend : str
        ``"auto"``, ``"reference"``, ``"torch"``, ``"cpu"`` or ``"triton"``.

    Returns
    -------
    VocabStats

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was found and what is expected. Asking a gradient of a result raises ValueError.
    """
    name = "vocab_stats"
    checks.tensor(name, "hidden", hidden, 2, checks.FLOATS)
    checks.tensor(name, "weight", weight, 2, checks.FLOATS)
    checks.size(name, "weight", weight, 1, hidden.shape[1], "width of hidden")
    if weight.dtype != hidden.dtype:
        raise TypeError(f"{name}: hidden is {hidden.dtype} but weight {weight.dtype}; cast one to the other.")
    checks.same_device(name, "weight", weight, "hidden", hidden)
    if weight.shape[0] < 1 or hidden.shape[1] < 1:
        raise ValueError(f"{name}: weight must hold at least one row and column, found shape {tuple(weight.shape)}.")
    if bias is not None:
        checks.tensor(name, "bias", bias, 1, checks.FLOATS)
        checks.size(name, "bias", bias, 0, weight.shape[0], "number of rows of weight")
        checks.same_device(name, "bias", bias, "hidden", hidden)
    checks.softcap(name, softcap)
    checks.finite(name, "scale", scale)
    top_k = check_top_k(name, top_k, weight.shape[0])
    checks.text(name, "backend", backend)
    if logits_dtype not in (None, "bfloat16", "float16"):
        raise ValueError(f"{name}: logits_dtype must be None, 'bfloat16' or 'float16', found {logits_dtype!r}.")
    ids = option_tensor(name, option_ids, hidden.shape[0], hidden.device)
    out = torch.ops.precollapse.vocab_stats(hidden, weight, bias, softcap, scale, ids, top_k, logits_dtype, backend)
    return finish(name, out)


def check_top_k(operator: str, k: int, columns: int) -> int:
    """top_k as a plain int; raise unless 0 <= k <= V."""
    k = int(k) if isinstance(k, np.integer) else k
    checks.whole(operator, "top_k", k)
    if not 0 <= k <= columns:
        raise ValueError(f"{operator}: top_k must lie between 0 and the vocabulary size {columns}, found {k}.")
    return k


def option_tensor(operator: str, ids: OptionIds | None, n: int, device: torch.device) -> Tensor | None:
    """Bring the accepted ways to name options to one int64 [n, K, F] tensor on `device`, -1 where unused."""
    if ids is None:
        return None
    if isinstance(ids, np.ndarray):
        if ids.dtype.kind not in "iu":
            raise TypeError(f"{operator}: option_ids must hold whole numbers, found {ids.dtype}.")
        ids = torch.from_numpy(ids.astype(np.int64))
    if isinstance(ids, Tensor):
        ids = ids.expand(n, *ids.shape) if ids.ndim == 1 else ids
    else:
        if isinstance(ids, str) or not isinstance(ids, Sequence):
            raise TypeError(f"{operator}: option_ids must be a tensor, an array or a sequence, found {ids!r:.40}.")
        groups = [_group(operator, entry) for entry in ids]
        far = next((i for group in groups for i in group if not -(2**63) <= i < 2**63), None)
        if far is not None:
            raise ValueError(f"{operator}: option_ids holds {far}, which is no column of any vocabulary.")
        width = max([len(group) for group in groups]) if groups else 0
        if width == 0:
            raise ValueError(f"{operator}: option_ids is empty; pass None for no options.")
        padded = [group + [-1] * (width - len(group)) for group in groups]
        ids = torch.tensor(padded, dtype=torch.int64, device=device)
        ids = ids.expand(n, -1, -1)
    if ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{operator}: option_ids must be int64 or int32, found {ids.dtype}.")
    if ids.ndim == 2:
        ids = ids[:, :, None]
    if ids.ndim != 3 or ids.shape[0] != n:
        raise ValueError(
            f"{operator}: option_ids must be [K], [n, K] or [n, K, F] with n = {n}, found shape {tuple(ids.shape)}."
        )
    return ids.to(device=device, dtype=torch.int64)


def _group(operator: str, entry: object) -> list[int]:
    """The ids of one option: itself, or its surface forms."""
    try:
        return [index(entry)]  # type: ignore[arg-type]
    except TypeError:
        pass
    try:
        return [index(form) for form in entry]  # type: ignore[attr-defined]
    except TypeError:
        raise TypeError(
            f"{operator}: option_ids must hold ints or sequences of ints, found {type(entry).__name__}: {entry!r:.40}."
        ) from None


def check_options(operator: str, ids: Tensor, columns: int) -> None:
    """Raise unless every id is -1 or a column (while a CUDA graph is captured, values cannot be looked at)."""
    if ids.numel() == 0 or (ids.device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return
    low, high = ids.min().item(), ids.max().item()
    if low < -1 or high >= columns:
        found = high if high >= columns else low
        raise ValueError(f"{operator}: option_ids holds {found}; ids run from 0 to {columns - 1}, with -1 for unused.")


def finish(operator: str, out: tuple[Tensor, ...]) -> VocabStats:
    """Wrap an operator's output; on the CPU, say so when rows are undefined."""
    stats = VocabStats(*out)
    if not torch.compiler.is_compiling() and stats.entropy_bits.device.type == "cpu":
        undefined = int(stats.undefined.sum())
        if undefined:
            warnings.warn(
                f"{operator}: {undefined} of {len(stats.entropy_bits)} rows have no distribution (every logit is "
                "minus infinity, or one is NaN or plus infinity); their entropy is NaN.",
                RuntimeWarning,
                stacklevel=3,
            )
    return stats


def transform(
    logits: Tensor, scale: float, softcap: float | None, excluded: Tensor | None, dtype: str | None
) -> Tensor:
    """Scale, then softcap, then exclusion of columns; each step rounded to `dtype` when one is named."""

    def rounded(x: Tensor) -> Tensor:
        return x if dtype is None else x.to(getattr(torch, dtype)).to(x.dtype)

    logits = rounded(logits)
    if scale != 1.0:
        logits = rounded(logits * scale)
    if softcap is not None:
        logits = rounded(rounded(torch.tanh(rounded(logits / softcap))) * softcap)
    return logits if excluded is None else logits.masked_fill(excluded, -math.inf)


def distinct_forms(ids: Tensor) -> Tensor:
    """[n, K, F] ids with every repetition inside a group replaced by -1."""
    same = ids[..., :, None] == ids[..., None, :]
    earlier = torch.ones(ids.shape[-1], ids.shape[-1], dtype=torch.bool, device=ids.device).tril(-1)
    return ids.masked_fill((same & earlier).any(-1), -1)


def merge_forms(logits: Tensor, ids: Tensor) -> Tensor:
    """Logits [n, K, F] of the forms to option logits [n, K]: logsumexp over the used forms, NaN where there is none."""
    used = ids >= 0
    logits = logits.masked_fill(~used, -math.inf)
    merged = logits[..., 0] if logits.shape[-1] == 1 else logits.logsumexp(-1)
    return merged.masked_fill(~used.any(-1), math.nan)


def option_logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    softcap: float | None,
    scale: float,
    ids: Tensor,
    logits_dtype: str | None,
    compute: torch.dtype,
) -> Tensor:
    """Logits of the named columns only, by gathering their rows of the unembedding: [n, K] in dtype `compute`."""
    n, options, forms = ids.shape
    ids = distinct_forms(ids)
    out = torch.empty(n, options, dtype=compute, device=hidden.device)
    rows = max(1, (1 << 22) // max(1, options * forms * hidden.shape[1]))
    for start in range(0, n, rows):
        part = ids[start : start + rows]
        picked = weight[part.clamp_min(0)].to(compute)
        z = torch.einsum("nkfd,nd->nkf", picked, hidden[start : start + rows].to(compute))
        excluded = None
        if bias is not None:
            chosen = bias[part.clamp_min(0)]
            excluded = chosen == -math.inf
            z = z + chosen.to(compute)
        out[start : start + rows] = merge_forms(transform(z, scale, softcap, excluded, logits_dtype), part)
    return out


def _streamed(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    softcap: float | None,
    scale: float,
    ids: Tensor | None,
    k: int,
    logits_dtype: str | None,
    compute: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The torch forms: the unembedding in blocks of rows, each block's logits reduced and dropped."""
    n, columns = hidden.shape[0], weight.shape[0]
    state = RowState.empty(n, hidden.device)
    best = torch.empty(n, 0, dtype=compute, device=hidden.device)
    best_ids = torch.empty(n, 0, dtype=torch.int64, device=hidden.device)
    rows = hidden.to(compute)
    # A large common offset in the bias would eat the digits of float32 sums: it is taken out, and added again at the end.
    pivot = torch.zeros((), dtype=torch.float64, device=hidden.device)
    if bias is not None and softcap is None and logits_dtype is None and compute == torch.float32:
        largest = torch.where(bias.isfinite(), bias.double(), -math.inf).max()
        pivot = torch.where(largest.isfinite(), largest, pivot)
    block = max(256, min(columns, (1 << 22) // max(n, hidden.shape[1])))
    for start in range(0, columns, block):
        z = rows @ weight[start : start + block].to(compute).T
        excluded = None
        if bias is not None:
            part = bias[start : start + block]
            excluded = part == -math.inf
            z = z + (part.double() - pivot).to(compute)
        z = transform(z, scale, softcap, excluded, logits_dtype)
        if n:
            state = state.merge(RowState.of(z, start))
        if k:
            more, more_ids = top_k(z, min(k, z.shape[1]))
            best, best_ids = merge_top_k(best, best_ids, more, more_ids + start, k)
    options = torch.empty(n, 0 if ids is None else ids.shape[1], dtype=torch.float32, device=hidden.device)
    if ids is not None:
        options = option_logits(hidden, weight, bias, softcap, scale, ids, logits_dtype, compute).float()
    lse, top = state.logsumexp() + pivot * scale, (best.double() + pivot * scale).float()
    return (*settle(state.entropy_bits(), lse, top, best_ids), options)


def _cpu_form(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    softcap: float | None,
    scale: float,
    ids: Tensor | None,
    k: int,
    logits_dtype: str | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The C++ form, which wants unit inner strides; a weight without is not copied whole but left to torch.

    In float64 then: float32 sums would miss the 1e-6 that this form is held to.
    """
    if weight.stride(1) != 1:
        return _streamed(hidden, weight, bias, softcap, scale, ids, k, logits_dtype, torch.float64)
    rows = hidden if hidden.stride(1) == 1 else hidden.contiguous()
    out = native.vocab_stats(rows, weight, bias, softcap, scale, k, logits_dtype)
    options = torch.empty(len(hidden), 0, dtype=torch.float32, device=hidden.device)
    if ids is not None:
        compute = precision.product_dtype(hidden.device)
        options = option_logits(hidden, weight, bias, softcap, scale, ids, logits_dtype, compute).float()
    return (*out, options)


def _triton_form(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    softcap: float | None,
    scale: float,
    ids: Tensor | None,
    k: int,
    logits_dtype: str | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if weight.stride(1) != 1:
        compute = precision.product_dtype(hidden.device)
        return _streamed(hidden, weight, bias, softcap, scale, ids, k, logits_dtype, compute)
    from . import triton_vocab

    rows = hidden if hidden.stride(1) == 1 else hidden.contiguous()
    distinct = None if ids is None else distinct_forms(ids)
    flat = None if distinct is None else distinct.flatten(1)
    *out, picked = triton_vocab.vocab_stats(rows, weight, bias, softcap, scale, flat, k, logits_dtype)
    options = picked if distinct is None else merge_forms(picked.view(distinct.shape), distinct)
    return (*settle(*out), options)


def settle(entropy: Tensor, lse: Tensor, best: Tensor, best_ids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows that hold a NaN have no order: NaN values, id -1."""
    broken = lse.isnan()[:, None]
    return entropy, lse, best.masked_fill(broken, math.nan), best_ids.masked_fill(broken, -1)


@torch.library.custom_op("precollapse::vocab_stats", mutates_args=())
def _vocab_stats(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    softcap: float | None,
    scale: float,
    option_ids: Tensor | None,
    top_k: int,
    logits_dtype: str | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    form = registry.choose("vocab_stats", backend, hidden.device, hidden.dtype, FORMS)
    if option_ids is not None:
        check_options("vocab_stats", option_ids, weight.shape[0])
    with precision.no_autocast(hidden.device):
        if form == "cpu" and top_k <= native.TOP_K:
            return _cpu_form(hidden, weight, bias, softcap, scale, option_ids, top_k, logits_dtype)
        if form == "triton" and len(hidden):
            return _triton_form(hidden, weight, bias, softcap, scale, option_ids, top_k, logits_dtype)
        # More of the largest logits than the C++ form keeps must not cost it its precision.
        exact = form in ("reference", "cpu")
        compute = torch.float64 if exact else precision.product_dtype(hidden.device)
        return _streamed(hidden, weight, bias, softcap, scale, option_ids, top_k, logits_dtype, compute)


@_vocab_stats.register_fake
def _(hidden, weight, bias, softcap, scale, option_ids, top_k, logits_dtype, backend):  # type: ignore[no-untyped-def]
    n = hidden.shape[0]
    options = 0 if option_ids is None else option_ids.shape[1]
    return (
        hidden.new_empty(n, dtype=torch.float64),
        hidden.new_empty(n, dtype=torch.float64),
        hidden.new_empty((n, top_k), dtype=torch.float32),
        hidden.new_empty((n, top_k), dtype=torch.int64),
        hidden.new_empty((n, options), dtype=torch.float32),
    )


def no_gradient(operator: str):  # type: ignore[no-untyped-def]
    """A backward function that refuses, for operators that have no gradient."""

    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        raise ValueError(f"{operator} has no gradient; detach its input, or compute it from the model's own logits.")

    return backward


_vocab_stats.register_autograd(no_gradient("vocab_stats"))
