"""Next-token statistics of final-norm rows, through the model's own unembedding, on boundary rows only.

Guarantees that what the model does to its logits (bias, scale, softcap) is done here too, and that an unembedding which is
not a plain matrix (quantised, adapted) is run as the module it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..kernels import VocabStats, logits_stats, vocab_stats
from .architectures import Architecture


def is_plain(head: nn.Module) -> bool:
    """Whether the unembedding is an ordinary Linear layer with floating-point weights, its own forward and no hooks."""
    return (
        type(head) is nn.Linear
        and head.weight.is_floating_point()
        and not head._forward_hooks
        and not head._forward_pre_hooks
        and not _forward_replaced(head)
    )


def _forward_replaced(module: nn.Module) -> bool:
    """Whether calling the module runs something else than its class does.

    nnsight puts a stand-in into every module that it wraps, which runs what was there before.
    """
    own = module.__dict__.get("forward")
    if own is None:
        return False
    before = getattr(module.__dict__.get("__nnsight__"), "original", None)
    return type(own).__module__.partition(".")[0] != "nnsight" or before is not type(module).forward


def row_statistics(
    architecture: Architecture,
    rows: torch.Tensor,
    top_k: int,
    option_ids: torch.Tensor | None,
) -> VocabStats:
    """Entropy, log normaliser, top-k and option logits of the next-token distribution.

    Parameters
    ----------
    architecture : Architecture
    rows : tensor [n, d]
        After the final norm.
    top_k : int
    option_ids : int64 tensor [n, K, F] or None

    Returns
    -------
    VocabStats
    """
    head: Any = architecture.head
    softcap = architecture.softcap or None
    tokens = slice(architecture.vocabulary)
    if architecture.before_head is not None:
        with torch.no_grad():
            rows = architecture.before_head(rows)
    if is_plain(head):
        weight = head.weight.detach()[tokens]
        bias = None if head.bias is None else head.bias.detach()[tokens]
        return vocab_stats(rows.to(weight.dtype), weight, bias, softcap, architecture.scale, option_ids, top_k)
    with torch.no_grad():
        logits = head(rows)[..., tokens]
        logits = (logits if logits.dtype == torch.float64 else logits.float()) * architecture.scale
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    return logits_stats(logits, option_ids=option_ids, top_k=top_k)
