"""What is kept of next-token distributions, and how the operators' outputs become it."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor


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


Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""What an operator returns: the five attributes of `VocabStats`, in their order."""

GRADIENT_ADVICE = "detach its input, or compute it from the model's own logits"
"""What to do where a gradient was wanted."""


def told(operator: str, outputs: Outputs) -> VocabStats:
    """Wrap an operator's output; on the CPU, warn when rows are undefined."""
    stats = VocabStats(*outputs)
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


def without_order(
    entropy: Tensor, logsumexp: Tensor, top_logits: Tensor, top_ids: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows that hold a NaN have no order: NaN values, id -1."""
    broken = logsumexp.isnan()[:, None]
    return entropy, logsumexp, top_logits.masked_fill(broken, math.nan), top_ids.masked_fill(broken, -1)


def empty_outputs(rows: Tensor, top_k: int, option_ids: Tensor | None) -> Outputs:
    """Outputs of the right shapes and dtypes, unset: what `torch.compile` reckons with."""
    n, options = rows.shape[0], 0 if option_ids is None else option_ids.shape[1]
    return (
        rows.new_empty(n, dtype=torch.float64),
        rows.new_empty(n, dtype=torch.float64),
        rows.new_empty((n, top_k), dtype=torch.float32),
        rows.new_empty((n, top_k), dtype=torch.int64),
        rows.new_empty((n, options), dtype=torch.float32),
    )
