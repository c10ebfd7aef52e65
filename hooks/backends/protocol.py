"""What a backend must do: run one batch through a model and hand back rows, never whole sequences.

Guarantees that all backends are asked the same question in the same words, so that their answers can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ..architectures import Architecture
from ..prompts.boundary import Batch


@dataclass(frozen=True)
class Request:
    """What to read from one batch.

    Attributes
    ----------
    sites : tuple of str
        Layer sites to gather (`final_norm` is always returned).
    layers : tuple of int
        Block indices, in the order of the result's layer axis.
    positions : int64 tensor [B, P]
        Columns to gather in each row; [B, 1] for the boundary alone.
    attention : bool
        Whether to return the boundary's attention rows as well.
    use_cache : bool
        Whether to return the key/value cache, so that generation can go on from this pass.
    """

    sites: tuple[str, ...]
    layers: tuple[int, ...]
    positions: torch.Tensor
    attention: bool = False
    use_cache: bool = False


@dataclass
class Rows:
    """What came back from one batch.

    Attributes
    ----------
    sites : dict of str to tensor
        `[B, P, L, d]` per layer site (`[B, P, L, H, d_head]` for `z`), on the model's device.
    final_norm : tensor [B, P, d]
        The backbone's output (after its final norm) at the positions.
    attention : list of tensor or None
        Per asked layer the boundary's attention row [B, H, T] in float32, or None where that layer has no attention.
    cache : object or None
        The model's key/value cache after this pass.
    """

    sites: dict[str, torch.Tensor]
    final_norm: torch.Tensor
    attention: list[torch.Tensor | None] | None = None
    cache: Any = None
    notes: dict[str, Any] = field(default_factory=dict)


class Backend(Protocol):
    """One way of reaching into a model."""

    name: str
    model: Any
    """The Hugging Face model whose unembedding is used."""

    architecture: Architecture

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that this backend can give for this model."""
        ...

    @property
    def gives_cache(self) -> bool:
        """Whether `Request.use_cache` is supported, so that one prefill can serve capture and generation."""
        ...

    @property
    def gives_attention(self) -> bool:
        """Whether `Request.attention` is supported."""
        ...

    def rows(self, batch: Batch, request: Request, cache: Any = None) -> Rows:
        """Run the backbone on one batch and gather the rows asked for.

        Raises
        ------
        CaptureError
            If any asked row did not arrive.
        """
        ...
