"""The attention row of one query position, computed beside whatever fast kernel the model uses.

Fast attention kernels never hold the weights. This forms one query's row per sequence from the same query and key that
the kernel gets (after rotary embedding), so a model need not be switched to its slow attention to be looked at.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import checks, precision
from .attention_arguments import AttentionArguments
from .registry import ROUNDED_PRODUCTS, TRITON, Operator, Tolerance, no_gradient

ATTENTION_ROW = Operator("attention_row")

ACCURACY = {"row": Tolerance(1e-5, 1e-6)}


def attention_row(
    query: Tensor,
    key: Tensor,
    index: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Attention probabilities of one query per sequence over all keys.

    ``softmax(softcap(scale * q . k) + mask)`` in float32, with query head h reading key head ``h // (H / Hkv)``.

    Parameters
    ----------
    query : Tensor
        [B, H, Tq, dh].
    key : Tensor
        [B, Hkv, Tk, dh], Tk >= Tq, H a multiple of Hkv; the last Tq keys belong to the queries.
    index : Tensor, optional
        [B] int64 position of the wanted query in [0, Tq); the last one by default.
    mask : Tensor, optional
        [B or 1, H or 1, Tq or 1, Tk] as the model gives it to its attention: bool (True may be attended) or an additive
        float; it is then taken as complete. Or [B, Tk] bool, the tokens that are not padding: causality is added, as it
        is without a mask.
    scale : float, optional
        1 / sqrt(dh) by default.
    softcap : float, optional
        c in ``c * tanh(score / c)``, before the mask.
    window : int, optional
        A key at distance window or more before the query is not seen.
    sinks : Tensor, optional
        [H], one more score per head that takes part in the softmax and is dropped.

    Returns
    -------
    Tensor
        [B, H, Tk] float32. A row sums to 1 (with sinks: to 1 less the sink's share), and is NaN where no key may be
        attended.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was found and what is expected. Asking a gradient of the result raises ValueError.

    Examples
    --------
    >>> import torch
    >>> from precollapse.kernels import attention_row
    >>> query, key = torch.zeros(1, 2, 1, 4), torch.randn(1, 1, 3, 4)  # two query heads share one key head; three keys
    >>> attention_row(query, key).sum(-1)
    tensor([[1., 1.]])
    """
    name = "attention_row"
    checks.tensor(name, "query", query, 4, checks.FLOATS)
    checks.tensor(name, "key", key, 4, checks.FLOATS)
    batch, heads, queries, width = query.shape
    checks.size(name, "key", key, 0, batch, "batch size of query")
    checks.size(name, "key", key, 3, width, "head width of query")
    checks.same_device(name, "key", key, "query", query)
    if key.dtype != query.dtype:
        raise TypeError(f"{name}: query is {query.dtype} but key {key.dtype}; cast one to the other.")
    if key.shape[1] < 1 or heads % key.shape[1]:
        raise ValueError(f"{name}: {heads} query heads are not a multiple of {key.shape[1]} key heads.")
    if width < 1:
        raise ValueError(f"{name}: query has heads of width 0, expected at least 1.")
    if queries < 1 or key.shape[2] < queries:
        raise ValueError(
            f"{name}: key holds {key.shape[2]} positions; expected at least the {queries} of query, and 1."
        )
    if index is not None:
        checks.tensor(name, "index", index, 1, (torch.int64,))
        checks.size(name, "index", index, 0, batch, "batch size of query")
        checks.same_device(name, "index", index, "query", query)
    if mask is not None:
        checks.tensor(name, "mask", mask, (2, 4), (torch.bool, *checks.FLOATS))
        checks.same_device(name, "mask", mask, "query", query)
        _check_mask(name, mask, (batch, heads, queries, key.shape[2]))
    if sinks is not None:
        checks.tensor(name, "sinks", sinks, 1, checks.FLOATS)
        checks.size(name, "sinks", sinks, 0, heads, "number of query heads")
        checks.same_device(name, "sinks", sinks, "query", query)
    checks.softcap(name, softcap)
    if scale is not None:
        checks.finite(name, "scale", scale)
    if window is not None:
        checks.whole(name, "window", window)
        if window < 1:
            raise ValueError(f"{name}: window must be at least 1, found {window}.")
    checks.text(name, "backend", backend)
    factor = 1.0 / math.sqrt(width) if scale is None else scale
    row: Tensor = torch.ops.precollapse.attention_row(query, key, index, mask, factor, softcap, window, sinks, backend)
    return row


def _check_mask(operator: str, mask: Tensor, full: tuple[int, int, int, int]) -> None:
    batch, heads, queries, keys = full
    if mask.ndim == 2:
        fits = tuple(mask.shape) == (batch, keys) and mask.dtype == torch.bool
        wanted = f"bool [{batch}, {keys}]"
    else:
        allowed = ((1, batch), (1, heads), (1, queries), (keys,))
        fits = all(size in sizes for size, sizes in zip(mask.shape, allowed, strict=True))
        wanted = f"[{batch} or 1, {heads} or 1, {queries} or 1, {keys}]"
    if not fits:
        raise ValueError(f"{operator}: mask is {mask.dtype} of shape {tuple(mask.shape)}; expected {wanted}.")


def _softmaxed(arguments: AttentionArguments, compute: torch.dtype) -> Tensor:
    """The torch forms: scores of one query per sequence in dtype `compute`, masked, then a softmax over the row."""
    query, key, index, mask = arguments.query, arguments.key, arguments.index, arguments.mask
    scale, softcap, window, sinks = arguments.scale, arguments.softcap, arguments.window, arguments.sinks
    batch, heads, queries, width = query.shape
    groups, keys = key.shape[1], key.shape[2]
    rows = torch.arange(batch, device=query.device)
    if index is None:
        index = torch.full((batch,), queries - 1, dtype=torch.int64, device=query.device)
    q = query[rows, :, index].to(compute).view(batch, groups, heads // groups, width)
    scores = (q @ key.to(compute).transpose(2, 3)).reshape(batch, heads, keys) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    seen = torch.ones(batch, 1, keys, dtype=torch.bool, device=query.device)
    columns = torch.arange(keys, device=query.device)
    position = (index + keys - queries)[:, None, None]
    if mask is None or mask.ndim == 2:
        seen = seen & (columns <= position)
    if window is not None:
        seen = seen & (columns > position - window)
    if mask is not None and mask.ndim == 2:
        seen = seen & mask[:, None]
    elif mask is not None:
        row = mask[rows if mask.shape[0] > 1 else rows * 0, :, index if mask.shape[2] > 1 else rows * 0]
        if mask.dtype == torch.bool:
            seen = seen & row
        else:
            scores = scores + row.to(compute)
    scores = scores.masked_fill(~seen, -math.inf)
    if sinks is None:
        return torch.softmax(scores, dim=-1).float()
    extra = sinks.to(compute)[None, :, None].expand(batch, heads, 1)
    row = torch.softmax(torch.cat([scores, extra], dim=-1), dim=-1)[..., :-1]
    return row.masked_fill((scores == -math.inf).all(-1, keepdim=True), math.nan).float()


@ATTENTION_ROW.form("reference", rank=0, accuracy=dict.fromkeys(checks.FLOATS, ACCURACY))
def _reference_form(arguments: AttentionArguments) -> Tensor:
    return _softmaxed(arguments, torch.float64)


@ATTENTION_ROW.form("torch", rank=1, accuracy=dict.fromkeys(ROUNDED_PRODUCTS, ACCURACY))
def _torch_form(arguments: AttentionArguments) -> Tensor:
    return _softmaxed(arguments, precision.product_dtype(arguments.query.device))


@ATTENTION_ROW.form(
    "triton", rank=2, needs=TRITON, dtypes=ROUNDED_PRODUCTS, accuracy=dict.fromkeys(ROUNDED_PRODUCTS, ACCURACY)
)
def _triton_form(arguments: AttentionArguments) -> Tensor:
    from .triton_forms import attention

    return attention.attention_row(arguments)


@torch.library.custom_op("precollapse::attention_row", mutates_args=())
def _attention_row(
    query: Tensor,
    key: Tensor,
    index: Tensor | None,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
    window: int | None,
    sinks: Tensor | None,
    backend: str,
) -> Tensor:
    form = ATTENTION_ROW.choose(backend, query.device, query.dtype)
    if index is not None and index.device.type == "cpu" and index.numel():
        low, high = int(index.min()), int(index.max())
        if low < 0 or high >= query.shape[2]:
            outside = low if low < 0 else high
            raise ValueError(f"attention_row: index holds {outside}; positions run from 0 to {query.shape[2] - 1}.")
    with precision.no_autocast(query.device):
        row: Tensor = form.run(AttentionArguments(query, key, index, mask, scale, softcap, window, sinks))
    return row


@_attention_row.register_fake
def _(query, key, index, mask, scale, softcap, window, sinks, backend):  # type: ignore[no-untyped-def]
    return query.new_empty((query.shape[0], query.shape[1], key.shape[2]), dtype=torch.float32)


_attention_row.register_autograd(
    no_gradient("attention_row", "detach query and key, or use the model's eager attention")
)
