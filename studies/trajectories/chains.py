"""Reference chains of reasoning, and sampled continuations of their prefixes.

Guarantees that the random numbers of a continuation depend on its item, prefix and sample number alone, never on what else is
in the batch, so that a resumed run draws what an uninterrupted one would have drawn; and that a chain's token count, finish
reason and truncation are kept with it. Each prefix is run once: a chain's prefixes and samples share its keys and values
(`hooks.decoding.sampled`), whatever their number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import RequestError
from ...hooks.decoding.sampled import Continuation, continue_sampled
from ...hooks.decoding.trunks import Origin

SYSTEM_PROMPT = "Solve the problem step by step. Put each reasoning step on its own line. End with the final answer."


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
    return continue_sampled(ex.model, ex.tokenizer, prompts, origins, draws, temperature)


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
    flat = iter(continue_sampled(ex.model, ex.tokenizer, trunks, origins, np.stack(draws), temperature, progress))
    return [[[next(flat) for _ in range(samples)] for _ in lengths] for lengths in prefixes]
