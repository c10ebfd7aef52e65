"""Reference chains of reasoning, and sampled continuations of their prefixes.

Guarantees that the random numbers of a continuation depend on its item, prefix and sample number alone, never on what else is
in the batch, so that a resumed run draws what an uninterrupted one would have drawn; and that a chain's token count, finish
reason and truncation are kept with it. Each prefix is run once: a chain's prefixes and samples share its keys and values
(`shared_prefix`), whatever their number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import RequestError
from ...hooks.architectures import Architecture, describe
from ...hooks.decoding.continuations import (
    CopiedCaches,
    Origin,
    Rows,
    WholeTexts,
    crosses,
    decoding_for,
    read_trunk,
    step,
)
from ...hooks.decoding.greedy import end_ids
from ...hooks.evaluation import evaluating
from ...hooks.taps import foreign_hook

SYSTEM_PROMPT = "Solve the problem step by step. Put each reasoning step on its own line. End with the final answer."
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


def check_sampling(temperature: float, max_new_tokens: int, samples: int = 1) -> None:
    """Raise RequestError unless temperature >= 0, max_new_tokens >= 1 and samples >= 1."""
    if not 0 <= temperature < float("inf"):
        raise RequestError(f"the temperature must be 0 (greedy) or more, got {temperature}")
    if max_new_tokens < 1:
        raise RequestError(f"the token budget must be 1 or more, got {max_new_tokens}")
    if samples < 1:
        raise RequestError(f"m, the number of continuations per prefix, must be 1 or more, got {samples}")


def uniforms(seed: int, item: str, prefix: int, sample: int, count: int) -> np.ndarray:
    """The uniform numbers [count] of one continuation: a function of these arguments alone.

    A chain itself is `prefix` -1. Numbers beyond the first `count` do not change the first ones, so a longer budget
    continues the same draw.
    """
    key = hashlib.sha256(f"{seed}\x1f{item}\x1f{prefix}\x1f{sample}".encode()).digest()[:16]
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little"))).random(count)


def generate_chains(
    ex: Any,
    prompts: Sequence[Sequence[int]],
    items: Sequence[str],
    temperature: float = 0.7,
    max_new_tokens: int = 600,
    seed: int = 0,
) -> list[Continuation]:
    """One reference chain per prompt.

    Parameters
    ----------
    ex : anything with `.model` and `.tokenizer`
    prompts : sequence of token ids
    items : sequence of str
        Names from which the random numbers derive; equally many.
    temperature : float
        0 is greedy.
    max_new_tokens : int
        Token budget.
    seed : int
    """
    check_sampling(temperature, max_new_tokens)
    draws = np.stack([uniforms(seed, item, -1, 0, max_new_tokens) for item in items])
    origins = [Origin(i, len(p)) for i, p in enumerate(prompts)]
    return _continue(ex, prompts, origins, draws, temperature, max_new_tokens)


def sample_continuations(
    ex: Any,
    trunks: Sequence[Sequence[int]],
    prefixes: Sequence[Sequence[int]],
    items: Sequence[str],
    samples: int = 5,
    temperature: float = 0.7,
    max_new_tokens: int = 150,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> list[list[list[Continuation]]]:
    """Short continuations of every prefix of every trunk, all in one batch.

    Parameters
    ----------
    ex : anything with `.model` and `.tokenizer`
    trunks : sequence of token ids
        Prompt and chain, one after the other.
    prefixes : sequence of sequences of int
        Per trunk, how many of its tokens each prefix has (1 or more, ascending).
    items : sequence of str
        Names from which the random numbers derive.
    samples : int
        m, continuations per prefix.
    temperature, max_new_tokens, seed
        See `generate_chains`.
    progress : callable, optional
        Called with the number of tokens each step adds per row.

    Returns
    -------
    list of list of list of Continuation
        Per trunk, per prefix, m continuations.
    """
    check_sampling(temperature, max_new_tokens, samples)
    origins, draws = [], []
    for i, (item, lengths) in enumerate(zip(items, prefixes, strict=True)):
        for k, length in enumerate(lengths):
            if not 1 <= length <= len(trunks[i]):
                raise RequestError(f"prefix {k} of {item} has {length} tokens, but its text has {len(trunks[i])}")
            origins += [Origin(i, length)] * samples
            draws += [uniforms(seed, item, k, s, max_new_tokens) for s in range(samples)]
    flat = iter(_continue(ex, trunks, origins, np.stack(draws), temperature, max_new_tokens, progress))
    return [[[next(flat) for _ in range(samples)] for _ in lengths] for lengths in prefixes]


@torch.no_grad()
def _continue(
    ex: Any,
    trunks: Sequence[Sequence[int]],
    origins: Sequence[Origin],
    draws: np.ndarray,
    temperature: float,
    budget: int,
    progress: Callable[[int], None] | None = None,
) -> list[Continuation]:
    """Continue every origin until it stops or reaches the budget."""
    with evaluating(ex.model):
        return _sampled(ex.model, ex.tokenizer, trunks, origins, draws, temperature, budget, progress)


def _sampled(
    model: Any,
    tokenizer: Any,
    trunks: Sequence[Sequence[int]],
    origins: Sequence[Origin],
    draws: np.ndarray,
    temperature: float,
    budget: int,
    progress: Callable[[int], None] | None,
) -> list[Continuation]:
    arch, ends = describe(model), end_ids(model, tokenizer)
    device = model.get_input_embeddings().weight.device
    rows: Rows | CopiedCaches | WholeTexts
    if crosses(model, trunks, origins, budget) or foreign_hook(arch.backbone):  # which would see parts of texts
        rows = whole = WholeTexts(arch, trunks, origins, device)
        states = torch.stack(whole.first)
    elif decoding_for(model).name == "shared":
        read = [read_trunk(arch, t, device) for t in trunks]
        states = torch.stack([read[o.trunk].final[o.length - 1] for o in origins])
        rows = Rows(read, origins, budget)
    else:
        rows = copied = CopiedCaches(arch, trunks, origins, device)
        states = torch.stack(copied.first)
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
            chosen = chosen[torch.tensor(kept, device=device)]
        states = step(arch, rows, chosen) if isinstance(rows, Rows) else rows.step(chosen)
    return [
        Continuation(
            tuple(ids), tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False), why
        )
        for ids, why in zip(written, finish, strict=True)
    ]


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
