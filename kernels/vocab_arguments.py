"""The arguments of the vocabulary operators as one record.

Guarantees that every form is given the same things by the same names: `torch.library` wants them one by one, and between
its schema and the forms nobody types them again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDINGS = {None: 0, "bfloat16": 1, "float16": 2}
"""What logits may be rounded to, and the numbers that the compiled forms know it by."""


@dataclass(frozen=True)
class VocabArguments:
    """Checked arguments of `vocab_stats`.

    Attributes
    ----------
    hidden, weight : Tensor
        [n, d] and [V, d], of one dtype and device.
    bias : Tensor, optional
        [V]; minus infinity leaves a column out.
    softcap : float, optional
        c in ``c * tanh(z / c)``.
    scale : float
        Factor on the logits, before the soft cap.
    option_ids : Tensor, optional
        [n, K, F] int64: F surface forms of each option, -1 where unused.
    top_k : int
        How many of the largest logits are wanted.
    logits_dtype : str, optional
        One of `ROUNDINGS`: logits are rounded to it at each step.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None = None
    softcap: float | None = None
    scale: float = 1.0
    option_ids: Tensor | None = None
    top_k: int = 0
    logits_dtype: str | None = None

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.hidden.shape[0]

    @property
    def columns(self) -> int:
        """Size of the vocabulary."""
        return self.weight.shape[0]

    @property
    def device(self) -> torch.device:
        return self.hidden.device

    @property
    def bends_logits(self) -> bool:
        """Whether the logits are capped or rounded, so that no common offset may be taken out of them."""
        return self.softcap is not None or self.logits_dtype is not None

    def contiguous_rows(self) -> Tensor:
        """`hidden` with an inner stride of 1."""
        return self.hidden if self.hidden.stride(1) == 1 else self.hidden.contiguous()
