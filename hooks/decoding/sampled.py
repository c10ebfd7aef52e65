"""Sampled text: rows that go on from prefixes, each token drawn by a uniform number that the caller gives.

Guarantees that a row's text depends on its own prefix and its own numbers alone, whatever else is in the batch and in whatever order
rows finish; and that each text says whether the model ended it or the cap did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..architectures import Architecture, describe
from ..evaluation import evaluating
from .continuations import continuing
from .greedy import end_ids
from .stops import spelled
from .trunks import Origin

_COMPACT_BELOW = 0.75  # rows are moved together once fewer than this share are still running


@dataclass(frozen=True)
class Continuation:
    """Tokens a model wrote, without the end token: `finish` is "stop" (it ended by itself) or "length" (the cap)."""

    tokens: tuple[int, ...]
    text: str
    finish: str

    @property
    def truncated(self) -> bool:
        """Whether the cap ended it."""
        return self.finish == "length"


@torch.no_grad()
def continue_sampled(
    model: Any,
    tokenizer: Any,
    trunks: Sequence[Sequence[int]],
    origins: Sequence[Origin],
    draws: np.ndarray,
    temperature: float,
    progress: Callable[[int], None] | None = None,
) -> list[Continuation]:
    """Continue every origin until the model ends it or its numbers are used up.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        It runs in evaluation mode and is left as found.
    tokenizer : transformers.PreTrainedTokenizerBase
    trunks : sequence of token ids
    origins : sequence of Origin
        Where each row starts; rows of one trunk must be neighbours.
    draws : float64 [rows, most new tokens]
        Uniform numbers, one per row and token.
    temperature : float
        0 takes the largest logit.
    progress : callable, optional
        Called with the number of tokens that each step adds per row.

    Returns
    -------
    list of Continuation
        One per origin.
    """
    with evaluating(model):
        return _continue(model, tokenizer, trunks, origins, draws, temperature, progress)


def _continue(
    model: Any,
    tokenizer: Any,
    trunks: Sequence[Sequence[int]],
    origins: Sequence[Origin],
    draws: np.ndarray,
    temperature: float,
    progress: Callable[[int], None] | None,
) -> list[Continuation]:
    arch, ends, budget = describe(model), end_ids(model, tokenizer), draws.shape[1]
    rows = continuing(model, trunks, origins, budget)
    states = rows.first
    written: list[list[int]] = [[] for _ in origins]
    finish = ["length"] * len(origins)
    running, owner = list(range(len(origins))), list(range(len(origins)))  # owner: which row of the batch is whose
    for i in range(budget):
        chosen = _draw(arch, states, temperature, draws[owner, i])
        tokens = chosen.tolist()
        alive = set(running)
        for row, who in enumerate(owner):
            if who not in alive:
                continue
            if tokens[row] in ends:
                finish[who] = "stop"
                alive.discard(who)
            else:
                written[who].append(tokens[row])
        running = [who for who in running if who in alive]
        if progress is not None:
            progress(1)
        if not running or i + 1 == budget:
            break
        if len(running) < _COMPACT_BELOW * len(owner):
            kept = [row for row, who in enumerate(owner) if who in alive]
            rows.keep(kept)
            owner = [owner[row] for row in kept]
            chosen = chosen[torch.tensor(kept, device=chosen.device)]
        states = rows.step(chosen)
    return [Continuation(tuple(ids), spelled(tokenizer, ids), why) for ids, why in zip(written, finish, strict=True)]


def _draw(arch: Architecture, states: Tensor, temperature: float, u: np.ndarray) -> Tensor:
    """One token per row, int64 [B]: the largest logit, or the inverse of the distribution's cumulative sum at u [B]."""
    logits = arch.head(states).float() * arch.scale
    if arch.softcap:
        logits = torch.tanh(logits / arch.softcap) * arch.softcap
    if temperature == 0:
        return logits.argmax(dim=-1)
    cumulative = torch.softmax(logits / temperature, dim=-1).double().cumsum(dim=-1)
    target = torch.as_tensor(u, device=states.device, dtype=torch.float64)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).clamp_max(logits.shape[-1] - 1)[:, 0]
