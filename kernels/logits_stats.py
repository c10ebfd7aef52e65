"""The same statistics from logits that already exist, in one pass over them."""

from __future__ import annotations

import torch
from torch import Tensor

from . import checks, native, precision, registry
from .streaming import RowState, merge_top_k, top_k
from .vocab_stats import (
    OptionIds,
    VocabStats,
    check_options,
    check_top_k,
    distinct_forms,
    finish,
    merge_forms,
    no_gradient,
    option_tensor,
    settle,
)

FORMS = ("reference", "torch", "cpu", "triton")


def logits_stats(
    logits: Tensor, option_ids: OptionIds | None = None, top_k: int = 0, *, backend: str = "auto"
) -> VocabStats:
    """Entropy, logsumexp, top-k and option logits of rows of logits.

    Parameters
    ----------
    logits : Tensor
        [n, V]; float32, float16, bfloat16 or float64; minus infinity excludes a column.
    option_ids, top_k, backend
        As in `vocab_stats`.

    Returns
    -------
    VocabStats

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was found and what is expected.
    """
    name = "logits_stats"
    checks.tensor(name, "logits", logits, 2, checks.FLOATS)
    if logits.shape[1] < 1:
        raise ValueError(f"{name}: logits must have at least one column, found shape {tuple(logits.shape)}.")
    top_k = check_top_k(name, top_k, logits.shape[1])
    checks.text(name, "backend", backend)
    ids = option_tensor(name, option_ids, logits.shape[0], logits.device)
    return finish(name, torch.ops.precollapse.logits_stats(logits, ids, top_k, backend))


def options_of(logits: Tensor, ids: Tensor | None) -> Tensor:
    """Option logits [n, K] float32 picked from logits [n, V]."""
    if ids is None:
        return torch.empty(logits.shape[0], 0, dtype=torch.float32, device=logits.device)
    n, options, forms = ids.shape
    ids = distinct_forms(ids)
    picked = logits.gather(1, ids.clamp_min(0).view(n, options * forms)).view(n, options, forms)
    return merge_forms(picked if logits.dtype == torch.float64 else picked.float(), ids).float()


def _torch_form(logits: Tensor, k: int, compute: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n, columns = logits.shape
    state = RowState.empty(n, logits.device)
    best = torch.empty(n, 0, dtype=compute, device=logits.device)
    best_ids = torch.empty(n, 0, dtype=torch.int64, device=logits.device)
    block = max(256, (1 << 22) // max(1, n))
    for start in range(0, columns, block):
        z = logits[:, start : start + block].to(compute)
        if n:
            state = state.merge(RowState.of(z, start))
        if k:
            more, more_ids = top_k(z, min(k, z.shape[1]))
            best, best_ids = merge_top_k(best, best_ids, more, more_ids + start, k)
    return settle(state.entropy_bits(), state.logsumexp(), best.float(), best_ids)


@torch.library.custom_op("precollapse::logits_stats", mutates_args=())
def _logits_stats(
    logits: Tensor, option_ids: Tensor | None, top_k: int, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    form = registry.choose("logits_stats", backend, logits.device, logits.dtype, FORMS)
    if option_ids is not None:
        check_options("logits_stats", option_ids, logits.shape[1])
    with precision.no_autocast(logits.device):
        options = options_of(logits, option_ids)
        if form == "cpu" and top_k <= native.TOP_K:
            rows = logits if logits.stride(1) == 1 else logits.contiguous()
            return (*native.logits_stats(rows, top_k), options)
        if form == "triton" and len(logits):
            from . import triton_vocab

            rows = logits if logits.stride(1) == 1 else logits.contiguous()
            return (*settle(*triton_vocab.logits_stats(rows, top_k)), options)
        compute = torch.float64 if form in ("reference", "cpu") else torch.float32
        return (*_torch_form(logits, top_k, compute), options)


@_logits_stats.register_fake
def _(logits, option_ids, top_k, backend):  # type: ignore[no-untyped-def]
    n = logits.shape[0]
    options = 0 if option_ids is None else option_ids.shape[1]
    return (
        logits.new_empty(n, dtype=torch.float64),
        logits.new_empty(n, dtype=torch.float64),
        logits.new_empty((n, top_k), dtype=torch.float32),
        logits.new_empty((n, top_k), dtype=torch.int64),
        logits.new_empty((n, options), dtype=torch.float32),
    )


_logits_stats.register_autograd(no_gradient("logits_stats"))
