"""Which columns of a pass a steering changes, told by the code that runs the pass, or worked out where nobody tells.

Guarantees that prompt and output are never confused: a pass of the model's own (`generate`, a direct call) whose columns cannot be
told apart is refused, not guessed at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...errors import CaptureError
from ..decoding import passes
from ..decoding.steps import cache_in
from ..prompts.boundary import boundary_index


class Columns:
    """The columns of one pass after another.

    Parameters
    ----------
    positions : str or sequence of int
        As in `Steering`.
    """

    def __init__(self, positions: str | Sequence[int]) -> None:
        self.positions = positions
        self._prompts: torch.Tensor | None = None  # those of the last undeclared pass that began a call

    def chosen(
        self, declared: passes.Pass | None, arguments: Mapping[str, Any], tokens: torch.Tensor
    ) -> torch.Tensor | str:
        """Which columns of a pass are to change: "all", "none", or int64 [B, P].

        Padding is changed along with "all" of a prompt: nothing real can see it.

        Parameters
        ----------
        declared : Pass or None
            What the running code says of the pass.
        arguments : mapping
            What the stack of blocks is called with.
        tokens : tensor [B, T] or [B, T, d]
            Its token ids or embeddings.

        Raises
        ------
        CaptureError
            If prompt and output cannot be told apart, or a position is outside a prompt.
        """
        positions, batch = self.positions, int(tokens.shape[0])
        if positions == "all":
            return "all"
        what = declared or self._guessed(arguments, tokens)
        if what.start is None or what.end is None:
            return "all" if positions in ("generated", "response") else "none"
        if what.written and positions in ("prompt", "generated", "response"):
            first, last = int(what.start[0]), int(what.end[0])
            beyond = last + what.written
            low, high = {"prompt": (first, last), "generated": (last + 1, beyond), "response": (last, beyond)}[
                positions
            ]
            return torch.arange(low, high + 1, device=what.end.device).expand(batch, -1)
        if positions in ("prompt", "generated"):
            return "all" if positions == "prompt" else "none"
        if isinstance(positions, str):
            return what.end[:, None]
        index = torch.as_tensor(positions, device=what.end.device)[None]
        columns = torch.where(index < 0, what.end[:, None] + 1 + index, what.start[:, None] + index)
        if bool(((columns < what.start[:, None]) | (columns > what.end[:, None])).any()):
            raise CaptureError(
                f"one of the steering's positions {list(positions)} is outside a prompt of this pass of "
                f"{tokens.shape[1]} columns"
            )
        return columns

    def _guessed(self, given: Mapping[str, Any], tokens: torch.Tensor) -> passes.Pass:
        """What an undeclared pass (the model's own call or `generate`) holds."""
        batch, width = int(tokens.shape[0]), int(tokens.shape[1])
        rows = tuple(range(batch))
        mask = given.get("attention_mask")
        filled = _filled(cache_in(given))
        if filled and width == 1 and not self._cropped(cache_in(given)):
            return passes.Pass(rows)
        repeated = (
            cache_in(given) is None
            and self._prompts is not None
            and self._prompts.shape[0] == batch
            and width > self._prompts.shape[1]
            and torch.equal(tokens[:, : self._prompts.shape[1]], self._prompts)
        )
        if filled is not False or repeated or (mask is not None and getattr(mask, "ndim", 0) != 2):
            raise CaptureError(
                f"prompt and output cannot be told apart in a pass of {width} columns (of a model called "
                "directly); generate with a cache, without chunks and without candidate tokens (assisted or "
                "prompt-lookup decoding), or steer positions='all'"
            )
        self._prompts = tokens
        if mask is None:
            end = torch.full((batch,), width - 1, device=tokens.device)
            return passes.Pass(rows, torch.zeros_like(end), end)
        return passes.Pass(rows, mask.to(torch.int64).argmax(1), boundary_index(mask))

    def _cropped(self, cache: Any) -> bool:
        """Whether a cache holds less than the prompt was taken to be: candidates ran along with it and were dropped."""
        try:
            return self._prompts is not None and int(cache.get_seq_length()) < self._prompts.shape[1]
        except (AttributeError, ValueError, TypeError):  # a kind that does not count
            return False


def _filled(cache: Any) -> bool | None:
    """Whether a cache holds anything yet; None when that cannot be told."""
    if cache is None:
        return False
    for ask in ("get_seq_length", "has_previous_state"):
        try:
            return bool(getattr(cache, ask)())
        except (AttributeError, ValueError):  # each kind of cache answers one of the two
            continue
    return None
