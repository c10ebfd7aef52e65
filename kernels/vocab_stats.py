"""Statistics of the next-token distribution straight from hidden rows and the unembedding, without [n, V] logits.

A model's logits over a vocabulary of 150,000 take 600 kB a row in float32, only to be reduced to an entropy and a few
numbers. `vocab_stats` walks the unembedding once and keeps the row state of `streaming`, so entropies are those of the
unrounded logits, and memory does not grow with V.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import checks, native, precision
from .options import OptionIds, check_options, check_top_k, distinct_ids, merged_surface_forms, option_tensor
from .registry import LIBRARY, ROUNDED_PRODUCTS, TRITON, Operator, Tolerance, no_gradient
from .streaming import RowState, merge_top_k, top_k
from .vocab_arguments import ROUNDINGS, VocabArguments
from .vocab_statistics import GRADIENT_ADVICE, Outputs, VocabStats, empty_outputs, told, without_order

VOCAB_STATS = Operator("vocab_stats")

EXACT_LEADERS = {
    "entropy_bits": Tolerance(1e-6, 1e-12),
    "logsumexp": Tolerance(1e-6, 1e-6),
    "top_logits": Tolerance(2e-6, 2e-6),
    "option_logits": Tolerance(2e-6, 2e-6),
    "large logits": Tolerance(1e-6),  # entropy and logsumexp where few columns with logits of 40 carry them
    "one column": Tolerance(1e-12),  # logsumexp where one column is all of it
    "rounded logits": Tolerance(1e-4),  # entropy with logits_dtype: float32 sums fall to either side of a rounding
}
"""Bounds of the forms that make the largest logits in float64."""

FLOAT32_SUMS = {**EXACT_LEADERS, "large logits": Tolerance(1e-3), "one column": Tolerance(1e-5)}
"""Bounds of the forms that sum every product in float32."""

TILES = {
    **FLOAT32_SUMS,
    "logsumexp": Tolerance(1e-6, 2e-6),
    "common offset": Tolerance(1e-3),  # entropy and logsumexp at -3000 with a soft cap: float32 keeps 2e-4 there
}
"""Bounds of the Triton form."""


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

    Examples
    --------
    >>> import torch
    >>> from precollapse.kernels import vocab_stats
    >>> hidden, weight = torch.zeros(2, 8), torch.ones(1024, 8)  # every token is as likely as any other
    >>> stats = vocab_stats(hidden, weight, option_ids=[[5, 7], [9]], top_k=3)
    >>> stats.entropy_bits
    tensor([10., 10.], dtype=torch.float64)
    >>> stats.top_ids.shape, stats.option_logits.shape
    (torch.Size([2, 3]), torch.Size([2, 2]))
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
    if logits_dtype not in ROUNDINGS:
        raise ValueError(f"{name}: logits_dtype must be None, 'bfloat16' or 'float16', found {logits_dtype!r}.")
    ids = option_tensor(name, option_ids, hidden.shape[0], hidden.device)
    outputs = torch.ops.precollapse.vocab_stats(hidden, weight, bias, softcap, scale, ids, top_k, logits_dtype, backend)
    return told(name, outputs)


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


def option_logits(arguments: VocabArguments, compute: torch.dtype) -> Tensor:
    """Logits of the options, [n, K] float32, by gathering their rows of the unembedding; summed in dtype `compute`."""
    hidden, weight, bias, ids = arguments.hidden, arguments.weight, arguments.bias, arguments.option_ids
    if ids is None:
        return torch.empty(arguments.n, 0, dtype=torch.float32, device=arguments.device)
    n, options, forms = ids.shape
    ids = distinct_ids(ids)
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
        z = transform(z, arguments.scale, arguments.softcap, excluded, arguments.logits_dtype)
        out[start : start + rows] = merged_surface_forms(z, part)
    return out.float()


def _streamed(arguments: VocabArguments, compute: torch.dtype) -> Outputs:
    """The torch forms: the unembedding in blocks of rows, each block's logits reduced and dropped."""
    hidden, weight, bias, k = arguments.hidden, arguments.weight, arguments.bias, arguments.top_k
    n, columns = arguments.n, arguments.columns
    state = RowState.empty(n, hidden.device)
    best = torch.empty(n, 0, dtype=compute, device=hidden.device)
    best_ids = torch.empty(n, 0, dtype=torch.int64, device=hidden.device)
    rows = hidden.to(compute)
    # A large common offset in the bias would eat the digits of float32 sums: it is taken out, and added again at the end.
    pivot = torch.zeros((), dtype=torch.float64, device=hidden.device)
    if bias is not None and not arguments.bends_logits and compute == torch.float32:
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
        z = transform(z, arguments.scale, arguments.softcap, excluded, arguments.logits_dtype)
        if n:
            state = state.merge(RowState.of(z, start))
        if k:
            more, more_ids = top_k(z, min(k, z.shape[1]))
            best, best_ids = merge_top_k(best, best_ids, more, more_ids + start, k)
    offset = pivot * arguments.scale
    top_logits = (best.double() + offset).float()
    whole = without_order(state.entropy_bits(), state.logsumexp() + offset, top_logits, best_ids)
    return (*whole, option_logits(arguments, compute))


@VOCAB_STATS.form("reference", rank=0, accuracy=dict.fromkeys(checks.FLOATS, EXACT_LEADERS))
def _reference_form(arguments: VocabArguments) -> Outputs:
    return _streamed(arguments, torch.float64)


@VOCAB_STATS.form("torch", rank=1, accuracy=dict.fromkeys(ROUNDED_PRODUCTS, FLOAT32_SUMS))
def _torch_form(arguments: VocabArguments) -> Outputs:
    return _streamed(arguments, precision.product_dtype(arguments.device))


@VOCAB_STATS.form(
    "cpu", rank=2, needs=LIBRARY, dtypes=ROUNDED_PRODUCTS, accuracy=dict.fromkeys(ROUNDED_PRODUCTS, EXACT_LEADERS)
)
def _cpu_form(arguments: VocabArguments) -> Outputs:
    """The C++ form, which wants unit inner strides; a weight without is not copied whole but left to torch.

    So are more of the largest logits than it keeps. In float64 then: float32 sums would miss what it is held to.
    """
    if arguments.weight.stride(1) != 1 or arguments.top_k > native.TOP_K:
        return _streamed(arguments, torch.float64)
    statistics = native.vocab_stats(arguments)
    return (*statistics, option_logits(arguments, precision.product_dtype(arguments.device)))


@VOCAB_STATS.form(
    "triton", rank=2, needs=TRITON, dtypes=ROUNDED_PRODUCTS, accuracy=dict.fromkeys(ROUNDED_PRODUCTS, TILES)
)
def _triton_form(arguments: VocabArguments) -> Outputs:
    if arguments.weight.stride(1) != 1 or not arguments.n:
        return _torch_form(arguments)
    from .triton_forms import vocab

    *statistics, options = vocab.vocab_stats(arguments)
    return (*without_order(*statistics), options)


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
    form = VOCAB_STATS.choose(backend, hidden.device, hidden.dtype)
    if option_ids is not None:
        check_options("vocab_stats", option_ids, weight.shape[0])
    arguments = VocabArguments(hidden, weight, bias, softcap, scale, option_ids, top_k, logits_dtype)
    with precision.no_autocast(hidden.device):
        outputs: Outputs = form.run(arguments)
    return outputs


@_vocab_stats.register_fake
def _(hidden, weight, bias, softcap, scale, option_ids, top_k, logits_dtype, backend):  # type: ignore[no-untyped-def]
    return empty_outputs(hidden, top_k, option_ids)


_vocab_stats.register_autograd(no_gradient("vocab_stats", GRADIENT_ADVICE))
