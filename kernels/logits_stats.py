"""The same statistics from logits that already exist, in one pass over them."""

from __future__ import annotations

import torch
from torch import Tensor

from . import checks, native, precision
from .options import OptionIds, check_options, check_top_k, distinct_ids, merged_surface_forms, option_tensor
from .registry import LIBRARY, ROUNDED_PRODUCTS, TRITON, Operator, Tolerance, no_gradient
from .streaming import RowState, merge_top_k, top_k
from .vocab_statistics import GRADIENT_ADVICE, VocabStats, empty_outputs, told, without_order

LOGITS_STATS = Operator("logits_stats")

ACCURACY = {
    "entropy_bits": Tolerance(1e-6, 1e-12),
    "logsumexp": Tolerance(1e-6, 1e-6),
    "top_logits": Tolerance(0.0),  # picked, not computed
    "option_logits": Tolerance(2e-6, 2e-6),
}
DOUBLES = {**ACCURACY, "top_logits": Tolerance(6e-8)}
"""Bounds for float64 logits, whose largest are returned in float32."""

BLOCKS = {**ACCURACY, "logsumexp": Tolerance(1e-6, 2e-6)}
"""Bounds of the Triton form."""

Statistics = tuple[Tensor, Tensor, Tensor, Tensor]
"""Entropy, logsumexp, largest logits and their columns."""


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

    Examples
    --------
    >>> import torch
    >>> from precollapse.kernels import logits_stats
    >>> logits_stats(torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, -torch.inf, -torch.inf]])).entropy_bits
    tensor([2., 1.], dtype=torch.float64)
    """
    name = "logits_stats"
    checks.tensor(name, "logits", logits, 2, checks.FLOATS)
    if logits.shape[1] < 1:
        raise ValueError(f"{name}: logits must have at least one column, found shape {tuple(logits.shape)}.")
    top_k = check_top_k(name, top_k, logits.shape[1])
    checks.text(name, "backend", backend)
    ids = option_tensor(name, option_ids, logits.shape[0], logits.device)
    return told(name, torch.ops.precollapse.logits_stats(logits, ids, top_k, backend))


def _option_logits(logits: Tensor, ids: Tensor | None) -> Tensor:
    """Option logits [n, K] float32 picked from logits [n, V]."""
    if ids is None:
        return torch.empty(logits.shape[0], 0, dtype=torch.float32, device=logits.device)
    n, options, forms = ids.shape
    ids = distinct_ids(ids)
    picked = logits.gather(1, ids.clamp_min(0).view(n, options * forms)).view(n, options, forms)
    return merged_surface_forms(picked if logits.dtype == torch.float64 else picked.float(), ids).float()


def _streamed(logits: Tensor, k: int, compute: torch.dtype) -> Statistics:
    """The torch forms: blocks of columns, each reduced and dropped."""
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
    return without_order(state.entropy_bits(), state.logsumexp(), best.float(), best_ids)


@LOGITS_STATS.form("reference", rank=0, accuracy={**dict.fromkeys(ROUNDED_PRODUCTS, ACCURACY), torch.float64: DOUBLES})
def _reference_form(logits: Tensor, k: int) -> Statistics:
    return _streamed(logits, k, torch.float64)


@LOGITS_STATS.form("torch", rank=1, accuracy=dict.fromkeys(ROUNDED_PRODUCTS, ACCURACY))
def _torch_form(logits: Tensor, k: int) -> Statistics:
    return _streamed(logits, k, torch.float32)


@LOGITS_STATS.form(
    "cpu", rank=2, needs=LIBRARY, dtypes=ROUNDED_PRODUCTS, accuracy=dict.fromkeys(ROUNDED_PRODUCTS, ACCURACY)
)
def _cpu_form(logits: Tensor, k: int) -> Statistics:
    """The C++ form; more of the largest logits than it keeps are left to torch, without losing its precision."""
    return native.logits_stats(_rows(logits), k) if k <= native.TOP_K else _streamed(logits, k, torch.float64)


@LOGITS_STATS.form(
    "triton", rank=2, needs=TRITON, dtypes=ROUNDED_PRODUCTS, accuracy=dict.fromkeys(ROUNDED_PRODUCTS, BLOCKS)
)
def _triton_form(logits: Tensor, k: int) -> Statistics:
    if not len(logits):
        return _torch_form(logits, k)
    from .triton_forms import vocab

    return without_order(*vocab.logits_stats(_rows(logits), k))


def _rows(logits: Tensor) -> Tensor:
    return logits if logits.stride(1) == 1 else logits.contiguous()


@torch.library.custom_op("precollapse::logits_stats", mutates_args=())
def _logits_stats(
    logits: Tensor, option_ids: Tensor | None, top_k: int, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    form = LOGITS_STATS.choose(backend, logits.device, logits.dtype)
    if option_ids is not None:
        check_options("logits_stats", option_ids, logits.shape[1])
    with precision.no_autocast(logits.device):
        statistics: Statistics = form.run(logits, top_k)
        return (*statistics, _option_logits(logits, option_ids))


@_logits_stats.register_fake
def _(logits, option_ids, top_k, backend):  # type: ignore[no-untyped-def]
    return empty_outputs(logits, top_k, option_ids)


_logits_stats.register_autograd(no_gradient("logits_stats", GRADIENT_ADVICE))
