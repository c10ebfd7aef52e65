"""Many continuations of few texts: each row goes on from a prefix, one token a step, by the fastest way that is right.

Guarantees that whatever way is taken (keys and values of a prefix held once, copies of its cache, or whole texts anew), a row's
states are those of its own text alone. `decoding_for` says by a probe which way a model bears; `continuing` takes whole texts
where a rotary embedding that turns by length would see parts of them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ..architectures import Architecture, describe, input_device
from ..attention import attention_modules
from ..taps import foreign_hook
from .probe import Method, Way, choose, remembered, sample_tokens
from .rotary import length_rule
from .steps import cache_of
from .tree import accepted_arguments, run_with_cache
from .trunks import Origin, Rows, read_trunk, step

_PROBE_STEPS = 3


class Continuations(Protocol):
    """Rows that go on from prefixes."""

    first: Tensor
    """Final states [B, d] at the end of each row's prefix."""

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these (ascending)."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Give every row one more token [B]; returns the final states [B, d] after it."""
        ...


class SharedTrunks:
    """Continuations that hold the keys and values of each text once.

    Parameters
    ----------
    arch : Architecture
    trunks : sequence of token ids
    origins : sequence of Origin
        Rows of one trunk must be neighbours.
    steps : int
        Most tokens each row will be given.
    device : torch.device
    """

    def __init__(
        self,
        arch: Architecture,
        trunks: Sequence[Sequence[int]],
        origins: Sequence[Origin],
        steps: int,
        device: torch.device,
    ) -> None:
        read = [read_trunk(arch, tokens, device) for tokens in trunks]
        self.arch = arch
        self.first = torch.stack([read[o.trunk].final[o.length - 1] for o in origins])
        self.rows = Rows(read, origins, steps)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these (ascending)."""
        self.rows.keep(rows)

    def step(self, tokens: Tensor) -> Tensor:
        """Give every row one more token [B]; returns the final states [B, d] after it."""
        return step(self.arch, self.rows, tokens)


class CopiedCaches:
    """The same service by copying the prefix's cache for every row and running each row by itself: slow, for any family."""

    def __init__(
        self, arch: Architecture, trunks: Sequence[Sequence[int]], origins: Sequence[Origin], device: torch.device
    ) -> None:
        self.arch, self.device = arch, device
        self.lengths = [o.length for o in origins]
        first: list[Tensor] = [torch.empty(0)] * len(origins)
        self.caches: list[Any] = [None] * len(origins)
        for t in sorted({o.trunk for o in origins}):
            cache, done = None, 0
            for row in sorted((r for r, o in enumerate(origins) if o.trunk == t), key=lambda r: origins[r].length):
                length = origins[row].length
                if length > done:
                    out = self._run(list(trunks[t])[done:length], done, cache)
                    cache, done, last = cache_of(out), length, out.last_hidden_state[0, -1]
                first[row], self.caches[row] = last, copy.deepcopy(cache)
        self.first = torch.stack(first)

    def _run(self, tokens: list[int], start: int, cache: Any) -> Any:
        ids = torch.tensor([tokens], device=self.device)
        positions = torch.arange(start, start + len(tokens), device=self.device)[None]
        return run_with_cache(self.arch, ids, positions, cache)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these."""
        self.caches, self.lengths = [self.caches[r] for r in rows], [self.lengths[r] for r in rows]

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """Give every row one more token [B]; returns the final states [B, d] after it."""
        states = []
        for row, token in enumerate(tokens.tolist()):
            out = self._run([token], self.lengths[row], self.caches[row])
            self.caches[row] = cache_of(out)
            self.lengths[row] += 1
            states.append(out.last_hidden_state[0, -1])
        return torch.stack(states)


class WholeTexts:
    """The same service by running each row's whole text at every step: nothing kept, so nothing that could be wrong."""

    def __init__(
        self, arch: Architecture, trunks: Sequence[Sequence[int]], origins: Sequence[Origin], device: torch.device
    ) -> None:
        self.arch, self.device = arch, device
        self.texts = [list(trunks[o.trunk][: o.length]) for o in origins]
        ends = {o: self._last(text) for o, text in dict(zip(origins, self.texts, strict=True)).items()}
        self.first = torch.stack([ends[o] for o in origins])

    @torch.no_grad()
    def _last(self, text: list[int]) -> Tensor:
        ids = torch.tensor([text], device=self.device)
        state: Tensor = self.arch.backbone(input_ids=ids, use_cache=False).last_hidden_state[0, -1]
        return state

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these."""
        self.texts = [self.texts[r] for r in rows]

    def step(self, tokens: Tensor) -> Tensor:
        """Give every row one more token [B]; returns the final states [B, d] after it."""
        for text, token in zip(self.texts, tokens.tolist(), strict=True):
            text.append(token)
        return torch.stack([self._last(text) for text in self.texts])


def crosses(model: Any, trunks: Sequence[Sequence[int]], origins: Sequence[Origin], budget: int) -> bool:
    """Whether some text is turned otherwise by the model's rotary embedding than what was kept of its prefix.

    LongRoPE and dynamic NTK turn all positions of a text by its length (see `hooks.decoding.rotary`), and of a batch by the longest.
    """
    rule = length_rule(model.config.get_text_config(decoder=True))
    if rule is None:
        return False
    longest = max(*map(len, trunks), max(o.length for o in origins) + budget)
    beyond = rule.kind == "longrope" and min(o.length for o in origins) > rule.limit
    return longest > rule.limit and not beyond


def continuing(model: Any, trunks: Sequence[Sequence[int]], origins: Sequence[Origin], budget: int) -> Continuations:
    """Rows that go on from prefixes of some texts, by the fastest way that is right for this model and these texts.

    Parameters
    ----------
    model : PreTrainedModel
        In evaluation mode.
    trunks : sequence of token ids
    origins : sequence of Origin
        Rows of one trunk must be neighbours.
    budget : int
        Most tokens each row will be given.
    """
    arch, device = describe(model), input_device(model)
    method = "whole" if crosses(model, trunks, origins, budget) else decoding_for(model).name
    if method == "shared":
        return SharedTrunks(arch, trunks, origins, budget, device)
    if method == "copies":
        return CopiedCaches(arch, trunks, origins, device)
    return WholeTexts(arch, trunks, origins, device)


def decoding_for(model: Any) -> Method:
    """Whether a model's continuations can share their prefix ("shared"), or need copies of its cache ("copies") or whole texts
    ("whole"), and why; probed once per model and attention implementation, while no hook of someone else's is on it."""
    arch = describe(model)
    hooked = foreign_hook(arch.backbone)
    if hooked is not None:
        return Method("whole", f"{hooked} has a hook of someone else's, which would see parts of texts", math.nan)
    return remembered(model, ("continuations",), lambda: _method(model, arch))


def _method(model: Any, arch: Architecture) -> Method:
    device = input_device(model)
    tokens, rest = sample_tokens(model, 3 * _PROBE_STEPS)
    texts = [tokens, tokens[::-1][: len(tokens) // 2]]
    origins = [Origin(0, len(tokens) // 3), Origin(0, len(tokens)), Origin(1, len(texts[1]))]
    following = torch.tensor(rest, device=device).view(_PROBE_STEPS, len(origins))

    def shared() -> list[Tensor]:
        rows = SharedTrunks(arch, texts, origins, _PROBE_STEPS, device)
        return [rows.step(tokens) for tokens in following]

    def plain() -> list[Tensor]:
        rows = WholeTexts(arch, texts, origins, device)
        return [rows.step(tokens) for tokens in following]

    return choose([Way("shared", "sharing a prefix", shared, _unfit(arch))], plain, "copies", model.dtype)


def _unfit(arch: Architecture) -> str | None:
    """Why this model's attention cannot be replaced at all."""
    if "position_ids" not in accepted_arguments(arch):
        return f"{arch.model_type} models take no position_ids"
    if len(attention_modules(arch)) != len(arch.blocks):
        return f"not every block of {arch.model_type} has an attention that can be replaced"
    return None
