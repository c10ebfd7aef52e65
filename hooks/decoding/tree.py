"""One sequence and many branches of it, in one forward pass.

Guarantees that every branch sees exactly its own prefix and itself, at the positions it would have had if it had been run
alone, in full-attention and sliding-window layers alike; and that a model for which this does not hold is found out before
its numbers are used. `method_for` runs a small probe once per model, compares it with plain forward passes, and falls back
to running the prefix once and reusing its cache, saying why. This prevents the silent fault of tree masks: a family that
ignores the mask, the positions or the window still returns numbers.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import RequestError
from ..architectures import Architecture, describe
from ..evaluation import evaluating
from ..taps import foreign_hook
from .probe import RESERVE, Method, Way, choose, remembered, sample_tokens
from .rotary import length_rule
from .steps import cache_name, cache_of

TRUNK = -1
_MASKED_ATTENTION = ("eager", "sdpa")
_MASKED_LAYERS = {"full_attention", "sliding_attention"}


@dataclass(frozen=True)
class Segment:
    """A run of tokens that continues another one.

    Attributes
    ----------
    tokens : tuple of int
    parent : int
        Index of the segment it continues, which must come earlier; `TRUNK` for a sequence of its own.
    cut : int
        How many of the parent's tokens it sees.
    """

    tokens: tuple[int, ...]
    parent: int = TRUNK
    cut: int = 0


@dataclass(frozen=True)
class Row:
    """A position whose state is wanted: token `index` of segment `segment`."""

    segment: int
    index: int


@dataclass(frozen=True)
class TreeStates:
    """States at the rows asked for.

    Attributes
    ----------
    final : Tensor
        [rows, d], after the final norm: what the unembedding reads.
    residual : Tensor or None
        [rows, layers, d], each block's output; None unless asked for.
    tokens : int
        Tokens the model ran.
    """

    final: Tensor
    residual: Tensor | None
    tokens: int


@dataclass(frozen=True)
class TreeLayout:
    """Segments laid out in one row: token ids [Q], positions [Q], visibility [Q, Q], and each segment's first column."""

    tokens: Tensor
    positions: Tensor
    visible: Tensor
    offsets: tuple[int, ...]


def lay_out(segments: Sequence[Segment]) -> TreeLayout:
    """Concatenate segments and derive which token sees which, and at what position each stands."""
    offsets: list[int] = []
    starts: list[int] = []
    lineages: list[list[tuple[int, int]]] = []
    total = 0
    for s in segments:
        offsets.append(total)
        total += len(s.tokens)
        if s.parent == TRUNK:
            starts.append(0)
            lineages.append([])
        else:
            starts.append(starts[s.parent] + s.cut)
            lineages.append([*lineages[s.parent], (s.parent, s.cut)])
    visible = torch.zeros(total, total, dtype=torch.bool)
    positions = torch.empty(total, dtype=torch.int64)
    for s, offset, start, lineage in zip(segments, offsets, starts, lineages, strict=True):
        here = slice(offset, offset + len(s.tokens))
        positions[here] = torch.arange(start, start + len(s.tokens))
        visible[here, here] = torch.ones(len(s.tokens), len(s.tokens), dtype=torch.bool).tril()
        for ancestor, cut in lineage:
            visible[here, offsets[ancestor] : offsets[ancestor] + cut] = True
    tokens = torch.tensor([t for s in segments for t in s.tokens], dtype=torch.int64)
    return TreeLayout(tokens, positions, visible, tuple(offsets))


def attention_masks(config: Any, visible: Tensor, query: Tensor, key: Tensor, dtype: torch.dtype) -> Any:
    """The additive mask a model takes, [1, 1, Q, K], or one per kind of layer where the model has several.

    Parameters
    ----------
    config : PreTrainedConfig
    visible : bool Tensor, [Q, K]
    query, key : int64 Tensor, [Q] and [K]
        Positions in the text, from which the sliding window is measured.
    dtype : torch.dtype
        The model's, in which the mask is added to the scores.
    """
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)

    def additive(allowed: Tensor) -> Tensor:
        mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
        return mask.masked_fill_(~allowed, torch.finfo(dtype).min)[None, None]

    near = visible if window is None else visible & (query[:, None] - key[None, :] < window)
    if kinds is None:
        return additive(near)
    return {"full_attention": additive(visible), "sliding_attention": additive(near)}


@contextmanager
def _reading_residual(blocks: Sequence[Any], rows: Tensor, out: list[Tensor]) -> Iterator[None]:
    """While open, appends every block's output at `rows` to `out`, in block order; nothing is left behind."""

    def read(_module: Any, _inputs: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        out.append(hidden[0, rows].detach())

    handles = [block.register_forward_hook(read) for block in blocks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def run_tree(
    arch: Architecture, model: Any, segments: Sequence[Segment], rows: Sequence[Row], residual: bool = False
) -> TreeStates:
    """States of `rows` in one forward pass under a tree mask."""
    device = model.get_input_embeddings().weight.device
    layout = lay_out(segments)
    index = torch.tensor([layout.offsets[r.segment] + r.index for r in rows], device=device)
    positions = layout.positions.to(device)
    config = model.config.get_text_config(decoder=True)
    mask = attention_masks(config, layout.visible.to(device), positions, positions, model.dtype)
    outputs: list[Tensor] = []
    with _reading_residual(arch.blocks if residual else (), index, outputs):
        out = arch.backbone(
            input_ids=layout.tokens[None].to(device), position_ids=positions[None], attention_mask=mask, use_cache=False
        )
    states = torch.stack(outputs, dim=1) if residual else None
    return TreeStates(out.last_hidden_state[0, index], states, len(layout.tokens))


@torch.no_grad()
def run_cached(
    arch: Architecture, model: Any, segments: Sequence[Segment], rows: Sequence[Row], residual: bool = False
) -> TreeStates:
    """The same states by running each segment once and continuing copies of its cache, one branch at a time.

    Works for every family that has a cache, recurrent ones included; slower, since each branch is a forward pass.
    """
    device = model.get_input_embeddings().weight.device
    wanted: dict[int, list[int]] = {}
    for r in rows:
        wanted.setdefault(r.segment, []).append(r.index)
    children: dict[int, list[int]] = {}
    for i, s in enumerate(segments):
        children.setdefault(s.parent, []).append(i)
    final: dict[Row, Tensor] = {}
    blocks: dict[Row, Tensor] = {}
    ran = 0

    def walk(i: int, cache: Any, start: int) -> None:
        nonlocal ran
        segment = segments[i]
        branches = sorted(children.get(i, ()), key=lambda c: segments[c].cut)
        stops = sorted({segments[c].cut for c in branches} | {len(segment.tokens)})
        done = 0
        for stop in stops:
            if stop > done:
                local = [k for k in wanted.get(i, ()) if done <= k < stop]
                index = torch.tensor([k - done for k in local], dtype=torch.int64, device=device)
                ids = torch.tensor([segment.tokens[done:stop]], device=device)
                positions = torch.arange(start + done, start + stop, device=device)[None]
                outputs: list[Tensor] = []
                with _reading_residual(arch.blocks if residual else (), index, outputs):
                    out = run_with_cache(arch, ids, positions, cache)
                cache = cache_of(out)
                ran += stop - done
                for j, k in enumerate(local):
                    final[Row(i, k)] = out.last_hidden_state[0, index[j]]
                    if residual:
                        blocks[Row(i, k)] = torch.stack([output[j] for output in outputs])
                done = stop
            here = [c for c in branches if segments[c].cut == stop]
            for c in here:
                walk(c, copy.deepcopy(cache), start + stop)

    for root in children.get(TRUNK, ()):
        walk(root, None, 0)
    return TreeStates(
        torch.stack([final[r] for r in rows]), torch.stack([blocks[r] for r in rows]) if residual else None, ran
    )


def run_with_cache(arch: Architecture, ids: Tensor, positions: Tensor, cache: Any) -> Any:
    """One forward pass of `ids` [1, T] that continues `cache` (None: from the start), under whatever name the family has."""
    accepted = accepted_arguments(arch)
    arguments: dict[str, Any] = {"input_ids": ids, "use_cache": True}
    if "position_ids" in accepted:
        arguments["position_ids"] = positions
    if cache is not None:
        keyword = cache_name(accepted)
        assert keyword is not None  # a model that takes no cache never gave one
        arguments[keyword] = cache
    return arch.backbone(**arguments)


def accepted_arguments(arch: Architecture) -> set[str]:
    """Names of the arguments that the backbone's forward pass takes."""
    return set(inspect.signature(arch.backbone.forward).parameters)


@torch.no_grad()
def run_separately(
    arch: Architecture, model: Any, segments: Sequence[Segment], rows: Sequence[Row], residual: bool = False
) -> TreeStates:
    """The same states by running every row's whole text anew: what the other methods are held against."""
    device = model.get_input_embeddings().weight.device
    final, blocks, ran = [], [], 0
    for row in rows:
        ids = torch.tensor([_path(segments, row)], device=device)
        outputs: list[Tensor] = []
        last = torch.tensor([ids.shape[1] - 1], device=device)
        with _reading_residual(arch.blocks if residual else (), last, outputs):
            out = arch.backbone(input_ids=ids, use_cache=False)
        final.append(out.last_hidden_state[0, -1])
        blocks += [torch.cat(outputs)] if residual else []
        ran += ids.shape[1]
    return TreeStates(torch.stack(final), torch.stack(blocks) if residual else None, ran)


def _path(segments: Sequence[Segment], row: Row) -> list[int]:
    """The whole text that ends in a row's token."""
    segment = segments[row.segment]
    tokens = list(segment.tokens[: row.index + 1])
    while segment.parent != TRUNK:
        cut, segment = segment.cut, segments[segment.parent]
        tokens = [*segment.tokens[:cut], *tokens]
    return tokens


_RUNNERS = {"tree": run_tree, "cache": run_cached, "separate": run_separately}


def run(
    model: Any, segments: Sequence[Segment], rows: Sequence[Row], residual: bool = False, method: str = "auto"
) -> TreeStates:
    """States of `rows` by the fastest method that is right for this model (`method_for`), or by a named one.

    Parameters
    ----------
    model : PreTrainedModel
        A causal language model; it runs in evaluation mode and is left as found.
    segments : sequence of Segment
    rows : sequence of Row
    residual : bool
        Also return each block's output at the rows.
    method : {"auto", "tree", "cache", "separate"}

    Returns
    -------
    TreeStates
    """
    if method != "auto" and method not in _RUNNERS:
        raise RequestError(f"unknown method {method!r}; choose auto, {', '.join(_RUNNERS)}")
    name = method_for(model).name if method == "auto" else method
    with evaluating(model):
        return _RUNNERS[name](describe(model), model, segments, rows, residual)


def method_for(model: Any) -> Method:
    """How a model's branches are run: "tree" (one pass), "cache" (each prefix once, its cache copied) or "separate" (every
    text anew); probed once per model and attention implementation, while no hook of someone else's is on it."""
    arch = describe(model)
    hooked = foreign_hook(arch.backbone)
    if hooked is not None:
        return Method(
            "separate", f"{hooked} has a hook of someone else's, which is right on whole texts only", math.nan
        )
    return remembered(model, ("branches",), lambda: _method(model, arch))


def _method(model: Any, arch: Architecture) -> Method:
    if length_rule(model.config.get_text_config(decoder=True)) is not None:
        return Method("separate", "its rotary embedding turns positions by the length of the whole text", math.nan)
    segments, rows = _probe_branches(model)

    def way(name: str, title: str, unfit: str | None) -> Way:
        return Way(name, title, lambda: [_RUNNERS[name](arch, model, segments, rows).final], unfit)

    unfit = _unfit(model, arch)
    no_cache = None if cache_name(accepted_arguments(arch)) is not None else "it has no cache to reuse"
    if no_cache is None and unfit is not None and model.dtype.itemsize < 4:
        # some such families are off by 0.02 to 0.07 when their cache is reused, and rounding in 16 bits by 0.03
        no_cache = f"in {str(model.dtype).removeprefix('torch.')} rounding would hide whether its cache may be reused"
    ways = [
        way("tree", "one pass under a tree mask", unfit),
        way("cache", "reusing its cache", no_cache),
    ]
    return choose(ways, lambda: [run_separately(arch, model, segments, rows).final], "separate", model.dtype)


def _unfit(model: Any, arch: Architecture) -> str | None:
    """Why a tree mask cannot be given to this model at all."""
    implementation = model.config._attn_implementation
    if implementation not in _MASKED_ATTENTION:
        return (
            f"the attention {implementation!r} takes no explicit mask (load the model with attn_implementation='sdpa')"
        )
    missing = {"position_ids", "attention_mask"} - accepted_arguments(arch)
    if missing:
        return f"{arch.model_type} models take no {' and no '.join(sorted(missing))}"
    if getattr(model.config, "alibi", False):
        return f"this {arch.model_type} model takes its positions from the mask (ALiBi)"
    other = set(getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()) - _MASKED_LAYERS
    if other:
        return f"{arch.model_type} has layers of kind {', '.join(sorted(other))}, which a mask does not govern"
    return None


def _probe_branches(model: Any) -> tuple[list[Segment], list[Row]]:
    """A trunk with three branches, one of them of a branch."""
    trunk, rest = sample_tokens(model, RESERVE)
    segments = [
        Segment(tuple(trunk)),
        Segment(tuple(rest[:3]), 0, len(trunk) // 3),
        Segment(tuple(rest[3:6]), 0, len(trunk) - 1),
        Segment(tuple(rest[6:8]), 1, 2),
    ]
    return segments, [Row(0, len(trunk) - 1), Row(1, 2), Row(2, 1), Row(3, 1)]
