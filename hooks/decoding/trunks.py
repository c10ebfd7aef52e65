"""Rows that continue prefixes whose keys and values were computed once and are held once.

Guarantees that a row which continues the first p tokens of a trunk attends to exactly those p tokens and to itself, at the
positions it would have had alone, sliding windows, softcaps and sinks included; and that the rows' order and company change
nothing but rounding. This prevents both the cost of a key-value copy per sample and the fault that padding between a
cropped prefix and its continuation brings to windows and positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures import Architecture

_NAME = "precollapse_shared_prefix"
_QUERY_BLOCK = 256


@dataclass
class Trunk:
    """A prefix after its one pass: token ids, final states [T, d] and, per layer, keys and values [Hkv, T, d_head]."""

    tokens: tuple[int, ...]
    final: Tensor
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Origin:
    """Where a row starts: after the first `length` tokens of trunk `trunk`."""

    trunk: int
    length: int


class _Reading:
    """A trunk's own pass: attention is causal, and each layer's keys and values are kept."""

    def __init__(self, trunk: Trunk) -> None:
        self.trunk = trunk

    def attend(
        self, module: nn.Module, layer: int, query: Tensor, key: Tensor, value: Tensor, options: _Options
    ) -> Tensor:
        self.trunk.keys[layer], self.trunk.values[layer] = key[0].contiguous(), value[0].contiguous()
        heads, length = query.shape[1], query.shape[2]
        groups = heads // key.shape[1]
        out = torch.empty(length, heads, value.shape[-1], dtype=value.dtype, device=value.device)
        positions = torch.arange(length, device=query.device)
        for start in range(0, length, _QUERY_BLOCK):
            stop = min(start + _QUERY_BLOCK, length)
            q = query[0, :, start:stop].reshape(key.shape[1], groups * (stop - start), -1)
            scores = (q @ key[0, :, :stop].transpose(1, 2)).view(heads, stop - start, stop)
            distance = positions[start:stop, None] - positions[None, :stop]
            allowed = distance >= 0 if options.window is None else (distance >= 0) & (distance < options.window)
            weights = options.weights(scores.masked_fill_(~allowed, -math.inf), heads_axis=0)
            mixed = weights.to(value.dtype).reshape(key.shape[1], groups * (stop - start), stop) @ value[0, :, :stop]
            out[start:stop] = mixed.view(heads, stop - start, -1).transpose(0, 1)
        return out[None]


class Rows:
    """Rows that continue trunks, one token a step.

    Parameters
    ----------
    trunks : sequence of Trunk
    origins : sequence of Origin
        Rows of one trunk must be neighbours.
    steps : int
        Most tokens each row will be given.
    """

    def __init__(self, trunks: Sequence[Trunk], origins: Sequence[Origin], steps: int) -> None:
        self.trunks = trunks
        self.origins = list(origins)
        self.steps = steps
        self.done = 0
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._index()

    def _index(self) -> None:
        device = self.trunks[0].final.device
        self.starts = torch.tensor([o.length for o in self.origins], device=device)
        self.blocks: list[tuple[int, int, int]] = []  # trunk, first row, last row + 1
        for row, origin in enumerate(self.origins):
            if self.blocks and self.blocks[-1][0] == origin.trunk:
                self.blocks[-1] = (origin.trunk, self.blocks[-1][1], row + 1)
            else:
                self.blocks.append((origin.trunk, row, row + 1))

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these (ascending)."""
        index = torch.tensor(list(rows), dtype=torch.int64, device=self.starts.device)
        self.origins = [self.origins[r] for r in rows]
        for own in (self._keys, self._values):
            for layer, buffer in own.items():
                kept = torch.empty((len(rows), *buffer.shape[1:]), dtype=buffer.dtype, device=buffer.device)
                kept[:, :, : self.done] = buffer[index, :, : self.done]
                own[layer] = kept
        self._index()

    def attend(
        self, module: nn.Module, layer: int, query: Tensor, key: Tensor, value: Tensor, options: _Options
    ) -> Tensor:
        own_keys = self._append(self._keys, layer, key)
        own_values = self._append(self._values, layer, value)
        batch, heads = query.shape[:2]
        kv_heads, own = key.shape[1], self.done + 1
        q = query.view(batch, kv_heads, heads // kv_heads, -1)
        own_scores = q @ own_keys.transpose(2, 3)
        age = torch.arange(own - 1, -1, -1, device=query.device)
        if options.window is not None:
            own_scores = own_scores.masked_fill(age >= options.window, -math.inf)
        out = torch.empty(batch, kv_heads, heads // kv_heads, value.shape[-1], dtype=value.dtype, device=value.device)
        for trunk, first, last in self.blocks:
            reach = int(max(o.length for o in self.origins[first:last]))
            k, v = self.trunks[trunk].keys[layer][:, :reach], self.trunks[trunk].values[layer][:, :reach]
            rows = last - first
            packed = q[first:last].transpose(0, 1).reshape(kv_heads, rows * (heads // kv_heads), -1)
            scores = (packed @ k.transpose(1, 2)).view(kv_heads, rows, heads // kv_heads, reach).transpose(0, 1)
            column = torch.arange(reach, device=query.device)
            starts = self.starts[first:last, None]
            hidden = column[None] >= starts
            if options.window is not None:
                hidden = hidden | (starts + self.done - column[None] >= options.window)
            scores = scores.masked_fill(hidden[:, None, None], -math.inf)
            both = torch.cat([scores, own_scores[first:last]], dim=-1)
            weights = (
                options.weights(both.flatten(1, 2)[:, :, None], heads_axis=1)[:, :, 0].view_as(both).to(value.dtype)
            )
            of_trunk = weights[..., :reach].transpose(0, 1).reshape(kv_heads, rows * (heads // kv_heads), reach) @ v
            of_trunk = of_trunk.view(kv_heads, rows, heads // kv_heads, -1).transpose(0, 1)
            out[first:last] = of_trunk + weights[..., reach:] @ own_values[first:last]
        return out.reshape(batch, 1, heads, -1)

    def _append(self, own: dict[int, Tensor], layer: int, new: Tensor) -> Tensor:
        if layer not in own:
            shape = (new.shape[0], new.shape[1], self.steps, new.shape[3])
            own[layer] = torch.empty(shape, dtype=new.dtype, device=new.device)
        own[layer][:, :, self.done] = new[:, :, 0]
        return own[layer][:, :, : self.done + 1]


@dataclass(frozen=True)
class _Options:
    """What a layer does to its scores: factor, softcap, window, and sinks [H] that take weight but give no value."""

    scaling: float
    softcap: float | None
    window: int | None
    sinks: Tensor | None

    def weights(self, scores: Tensor, heads_axis: int) -> Tensor:
        """Attention weights of raw scores [..., queries, keys], masked with -inf; `heads_axis` is the query heads' axis."""
        scores = scores.float() * self.scaling
        if self.softcap:
            hidden = scores == -math.inf
            scores = (torch.tanh(scores / self.softcap) * self.softcap).masked_fill(hidden, -math.inf)
        if self.sinks is None:
            return torch.softmax(scores, dim=-1)
        shape = [1] * scores.ndim
        shape[heads_axis] = -1
        sink = self.sinks.float().view(shape).expand(*scores.shape[:-1], 1)
        return torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]


_active: list[_Reading | Rows] = []


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> Any:
    head = query.shape[-1]
    sinks = options.get("s_aux")
    if sinks is None:
        sinks = getattr(module, "sinks", None)
    scaling = options.get("scaling")
    chosen = _Options(
        scaling=head**-0.5 if scaling is None else float(scaling),
        softcap=options.get("softcap") or None,
        window=options.get("sliding_window") or None,
        sinks=sinks,
    )
    return _active[-1].attend(module, int(module.layer_idx), query, key, value, chosen), None  # type: ignore[arg-type]


@contextmanager
def _attending(arch: Architecture, through: _Reading | Rows) -> Iterator[None]:
    """While open, the model's attention goes through `through`; the configuration is put back however this ends."""
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, _attention)
    configs = {}
    for module in arch.backbone.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            configs[id(config)] = config
    before = {key: config._attn_implementation for key, config in configs.items()}
    try:
        for config in configs.values():
            config._attn_implementation = _NAME
        _active.append(through)
        yield
    finally:
        _active.pop()
        for key, config in configs.items():
            config._attn_implementation = before[key]


@torch.no_grad()
def read_trunk(arch: Architecture, tokens: Sequence[int], device: torch.device) -> Trunk:
    """Run a prefix once and keep what its continuations need."""
    ids = torch.tensor([list(tokens)], device=device)
    trunk = Trunk(tuple(tokens), torch.empty(0, device=device))
    with _attending(arch, _Reading(trunk)):
        positions = torch.arange(ids.shape[1], device=device)[None]
        out = arch.backbone(input_ids=ids, position_ids=positions, use_cache=False)
    trunk.final = out.last_hidden_state[0]
    return trunk


@torch.no_grad()
def step(arch: Architecture, rows: Rows, tokens: Tensor) -> Tensor:
    """Give every row one more token [B]; returns the final states [B, d] after it."""
    positions = (rows.starts + rows.done)[:, None]
    with _attending(arch, rows):
        out = arch.backbone(input_ids=tokens[:, None], position_ids=positions, use_cache=False)
    rows.done += 1
    return out.last_hidden_state[:, 0]
