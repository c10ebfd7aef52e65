"""The arguments of `attention_row` as one record: every form is given the same things by the same names."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AttentionArguments:
    """Checked arguments of `attention_row`, as it describes them; `scale` is given."""

    query: Tensor
    key: Tensor
    index: Tensor | None
    mask: Tensor | None
    scale: float
    softcap: float | None
    window: int | None
    sinks: Tensor | None
