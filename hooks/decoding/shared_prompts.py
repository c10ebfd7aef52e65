"""Prompts that begin alike: the common prefix is computed once per call and its keys and values are reused.

Guarantees that sharing changes nothing but rounding: a row attends to its own prefix and suffix at the positions it
would have had alone (sliding windows, softcaps and sinks included), and what comes back is laid out as the plain pass
would have laid it out, cache and attention rows too. Which prompts share depends on the prompts of the call alone. A
family whose cache cannot stand for its prefix (recurrent states, caches inside modules) is found by a small probe
before it is trusted, and then takes the plain way. This prevents the cost of running the same solved examples once
per question, and the usual fault of doing without it: padding between a prefix and its suffixes, which shifts sliding
windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ...errors import CaptureError
from ..backends.protocol import Backend, Request, Rows
from ..prompts.boundary import Batch, assemble, group
from .probe import Method, Way, choose, remembered, sample_tokens
from .rotary import length_rule

MODES = ("auto", "never", "always")
SHARE_COST = 8
"""A prefix pass, and the smaller batches after it, are counted as this fraction (1/8) of a full batch of tokens."""
LEAST_GAIN = 0.1
"""Sharing must save at least this part of a group's tokens."""
LEAST_GAIN_COMPILED = 0.5
"""The same where other passes are compiled and shared ones are not."""
KEYS_PER_TOKEN = 16
"""Most cached columns of a batch, as a multiple of its budget of new tokens."""
KEYS_PER_TOKEN_KEPT = 4
"""The same where the cache is kept for generation, and so held for all layers at once."""


@dataclass(frozen=True)
class Group:
    """Prompts of a call that go together.

    Attributes
    ----------
    length : int
        Tokens of the prefix they share; 0 for prompts that are run whole.
    rows : tuple of int
        Which prompts of the call.
    """

    length: int
    rows: tuple[int, ...]


def plan(
    prompts: Sequence[Sequence[int]],
    token_budget: int,
    mode: str = "auto",
    limits: Sequence[int] | None = None,
    least_gain: float = LEAST_GAIN,
) -> list[Group]:
    """Choose which prompts share which prefix.

    The prompts are sorted, and the tree of their common prefixes is cut where most tokens are saved; a shared pass
    must save its own cost (`SHARE_COST`) and a part of the group's tokens (`LEAST_GAIN`).

    Parameters
    ----------
    prompts : sequence of sequence of int
    token_budget : int
        Tokens of a full batch.
    mode : {"auto", "never", "always"}
        "always" shares whatever saves a single token.
    limits : sequence of int, optional
        Longest prefix that each prompt may take, at most its length less 1 (its boundary must be in the suffix).
    least_gain : float
        Part of a group's tokens that sharing must save.

    Returns
    -------
    list of Group
        Every prompt is in exactly one; the last holds those that are run whole, when there are any.
    """
    n = len(prompts)
    limits = [len(p) - 1 for p in prompts] if limits is None else limits
    chosen: list[Group] = []
    if mode != "never" and n > 1:
        cost = 0.0 if mode == "always" else token_budget / SHARE_COST
        least = 0.0 if mode == "always" else least_gain
        keys = [tuple(p[:limit]) for p, limit in zip(prompts, limits, strict=True)]
        order = sorted(range(n), key=lambda i: (keys[i], i))
        lengths = [len(prompts[i]) for i in order]
        for length, first, last in _cut(_neighbours([keys[i] for i in order]), lengths, cost, least):
            chosen.append(Group(length, tuple(sorted(order[first:last]))))
    shared = {i for g in chosen for i in g.rows}
    alone = tuple(i for i in range(n) if i not in shared)
    return [*sorted(chosen, key=lambda g: (-g.length, g.rows)), *([Group(0, alone)] if alone else [])]


def _neighbours(keys: Sequence[tuple[int, ...]]) -> list[int]:
    """Length of the common prefix of each sorted key with the next."""
    arrays = [np.asarray(key, np.int64) for key in keys]
    out = []
    for a, b in zip(arrays, arrays[1:], strict=False):
        most = min(len(a), len(b))
        differs = a[:most] != b[:most]
        out.append(int(differs.argmax()) if differs.any() else most)
    return out


@dataclass
class _Node:
    """A run of sorted prompts with a common prefix, and the best that is known to be saved inside it."""

    length: int
    first: int
    gain: float = 0.0
    cuts: tuple[tuple[int, int, int], ...] = ()


def _cut(common: list[int], lengths: list[int], cost: float, least: float) -> tuple[tuple[int, int, int], ...]:
    """Best disjoint runs (prefix length, first, last + 1) of the sorted prompts.

    The tree of common prefixes is walked bottom-up with a stack; each node keeps the better of sharing at its own
    length and of what its children save.
    """
    total = [0]
    for length in lengths:
        total.append(total[-1] + length)

    def best(node: _Node, last: int) -> _Node:
        gain = (last - node.first - 1) * node.length - cost
        if gain > 0 and gain >= least * (total[last] - total[node.first]) and gain >= node.gain:
            return _Node(node.length, node.first, gain, ((node.length, node.first, last),))
        return node

    stack = [_Node(0, 0)]
    for i, length in enumerate([*common, 0]):
        first, child = i, None
        while stack[-1].length > length:
            child = best(stack.pop(), i + 1)
            first = child.first
            if stack[-1].length >= length:
                stack[-1].gain += child.gain
                stack[-1].cuts += child.cuts
                child = None
        if stack[-1].length < length:
            stack.append(_Node(length, first) if child is None else _Node(length, first, child.gain, child.cuts))
    return stack[0].cuts


class LentLayer(DynamicLayer):
    """One layer's keys and values of a prefix, lent to every row of a batch and never grown."""

    def __init__(self, keys: Tensor, values: Tensor, rows: int) -> None:
        super().__init__()
        self.keys = self._keys = keys.expand(rows, -1, -1, -1)
        self.values = self._values = values.expand(rows, -1, -1, -1)
        self.device, self.dtype = keys.device, keys.dtype
        self.is_initialized = True

    def all_keys(self, key_states: Tensor) -> Tensor:
        """The prefix's keys and these, as a pass that adds them sees them."""
        return torch.cat([self._keys, key_states], -2)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self.all_keys(key_states), torch.cat([self._values, value_states], -2)


def _lend(cache: DynamicCache, rows: int, keep: bool) -> DynamicCache:
    """A cache that begins with the prefix in every row; with `keep` it grows by what each row adds."""
    made = DynamicCache()
    layers: list[Any] = cache.layers
    for layer in layers:
        if keep:
            own = DynamicLayer()
            own.lazy_initialization(layer.keys, layer.values)
            own.keys, own.values = layer.keys.expand(rows, -1, -1, -1), layer.values.expand(rows, -1, -1, -1)
            made.layers.append(own)
        else:
            made.layers.append(LentLayer(layer.keys, layer.values, rows))
    return made


class SharedPrefixes:
    """Runs groups of prompts that share a prefix, on one backend.

    Parameters
    ----------
    backend : Backend
    pad_id : int
    device : torch.device
    """

    def __init__(self, backend: Backend, pad_id: int, device: torch.device) -> None:
        self.backend = backend
        self.pad_id = pad_id
        self.device = device

    def refusal(self, longest: int, keep_cache: bool, left_padding_safe: bool) -> str | None:
        """Why prompts of up to `longest` tokens cannot share a prefix on this model; None when they can.

        The first call runs a few tokens both ways and compares them.
        """
        if not self.backend.gives_cache:
            return f"backend {self.backend.name!r} gives no cache"
        if keep_cache and not left_padding_safe:
            return "this model cannot bear padding on the left, which going on from a shared prefix needs"
        config = self.backend.model.config.get_text_config(decoder=True)
        rule = length_rule(config)
        if rule is not None and longest > rule.limit:
            return f"{rule.kind} rotary embedding depends on each prompt's whole length beyond {rule.limit} tokens"
        kinds = {type(layer) for layer in DynamicCache(config=config).layers}
        if not kinds <= {DynamicLayer, DynamicSlidingWindowLayer}:
            others = sorted(kind.__name__ for kind in kinds - {DynamicLayer, DynamicSlidingWindowLayer})
            return f"{config.model_type} models keep more of their past than keys and values ({', '.join(others)})"
        question = ("shared prompts", self.backend.name, "cache kept" if keep_cache else "cache dropped")
        return remembered(self.backend.model, question, lambda: self._method(keep_cache)).reason

    def batches(
        self, prompts: Sequence[Sequence[int]], shared: Group, token_budget: int, keep_cache: bool
    ) -> list[list[int]]:
        """Which prompts of a group are run together: at most `token_budget` new tokens, and few enough columns."""
        suffixes = [len(prompts[i]) - shared.length for i in shared.rows]
        columns = token_budget * (KEYS_PER_TOKEN_KEPT if keep_cache else KEYS_PER_TOKEN)
        parts = group(suffixes, token_budget, extra=shared.length, column_budget=columns, fewest=keep_cache)
        return [[shared.rows[k] for k in part] for part in parts]

    def prefill(self, tokens: Sequence[int]) -> DynamicCache:
        """Keys and values of a prefix, of all layers.

        Raises
        ------
        CaptureError
            If the model keeps anything else about its past.
        """
        batch = assemble([0], [tokens], self.pad_id, "right", self.device)
        # a cache without a config holds every layer in full: sliding windows are then cut by their mask, not by columns
        cache = self.backend.rows(batch, Request((), (), batch.boundary[:, None], use_cache=True), DynamicCache()).cache
        layers = getattr(cache, "layers", None) or []
        if not layers or any(
            type(layer) is not DynamicLayer or layer.get_seq_length() != len(tokens) for layer in layers
        ):
            raise CaptureError(f"{type(self.backend.model).__name__} keeps more of its past than keys and values")
        return cache

    def rows(
        self,
        prompts: Sequence[Sequence[int]],
        rows: Sequence[int],
        prefix: DynamicCache,
        request: Request,
        index: Tensor,
    ) -> tuple[Batch, Rows]:
        """Run what follows the prefix in some prompts.

        Parameters
        ----------
        prompts : sequence of sequence of int
            All prompts of the call.
        rows : sequence of int
            Which of them; each begins with the prefix and goes on after it.
        prefix : DynamicCache
            From `prefill`; it is only read.
        request : Request
            Its positions are replaced.
        index : int64 tensor [n, P]
            Token positions to read in each prompt of the call, none inside its prefix.

        Returns
        -------
        (Batch, Rows)
            As if the whole prompts had been run: padded on the left when the cache is kept, else on the right.
        """
        length = prefix.get_seq_length()
        batch = assemble(range(len(rows)), [prompts[i][length:] for i in rows], self.pad_id, "right", self.device)
        width = batch.input_ids.shape[1]
        batch = replace(
            batch, position_ids=torch.arange(length, length + width, device=self.device).expand(len(rows), -1)
        )
        asked = replace(request, positions=index[list(rows)].to(self.device) - length, use_cache=True)
        got = self.backend.rows(batch, asked, _lend(prefix, len(rows), request.use_cache))
        got.cache = got.cache if request.use_cache else None
        whole = assemble(rows, prompts, self.pad_id, "left" if request.use_cache else "right", self.device)
        if whole.attention_mask is not None:
            _pad_left(got, length + width - whole.attention_mask.sum(1))
        return whole, got

    def _method(self, keep_cache: bool) -> Method:
        """Hold prompts that share a prefix, and with `keep_cache` one more token of each, to the same prompts run whole."""
        tokens, rest = sample_tokens(self.backend.model, 3)
        half = len(tokens) // 2
        prompts = [tokens, [*tokens[:half], *rest], tokens[: half + 1]]
        index = torch.tensor([[len(prompt) - 1] for prompt in prompts])
        layers = tuple(range(len(self.backend.architecture.blocks)))
        whole = assemble(range(3), prompts, self.pad_id, "left" if keep_cache else "right", self.device)
        request = Request(("resid_post",), layers, whole.boundary[:, None], use_cache=keep_cache)

        def states(batch: Batch, got: Rows) -> list[Tensor]:
            following = [self._one_more(batch, got.cache)] if keep_cache else []
            return [got.sites["resid_post"], got.final_norm, *following]

        def plain() -> list[Tensor]:
            return states(whole, self.backend.rows(whole, request))

        def shared() -> list[Tensor]:
            return states(*self.rows(prompts, range(3), self.prefill(tokens[:half]), request, index))

        return choose(
            [Way("shared", "a prefix shared from its cache", shared)], plain, "whole", self.backend.model.dtype
        )

    def _one_more(self, batch: Batch, cache: Any) -> Tensor:
        """The state of one more token after each row of a left-padded batch, going on from its cache."""
        assert batch.attention_mask is not None
        mask = torch.cat([batch.attention_mask, batch.attention_mask.new_ones(len(batch.rows), 1)], 1)
        token = torch.full_like(mask[:, :1], 5)
        step = Batch(batch.rows, token, mask, mask.sum(1, keepdim=True) - 1, torch.zeros_like(batch.boundary))
        return self.backend.rows(step, Request((), (), step.boundary[:, None], use_cache=True), cache).final_norm


def _pad_left(got: Rows, shift: Tensor) -> None:
    """Move the padding of a pass from the right to the left, in the cache and in the attention rows."""
    for layer in got.cache.layers:
        layer.keys, layer.values = _rolled(layer.keys, shift), _rolled(layer.values, shift)
    if got.attention is not None:
        got.attention = [None if row is None else _rolled(row[..., None], shift)[..., 0] for row in got.attention]


def _rolled(x: Tensor, shift: Tensor) -> Tensor:
    """x [B, H, T, d] with row b moved right by shift[b] columns, around the end."""
    columns = (torch.arange(x.shape[2], device=x.device) - shift.to(x.device)[:, None]) % x.shape[2]
    return x[torch.arange(x.shape[0], device=x.device)[:, None], :, columns].transpose(1, 2)
