"""How the prompts of one call are put into passes of the model: which run together, and which from a shared prefix.

Guarantees that every prompt runs in exactly one pass, that each batch looks as if its prompts had been run whole, and that the reason is
noted where a prefix could have been shared and was not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .backends.protocol import Backend, Request, Rows
from .decoding import passes
from .decoding.rotary import length_rule, together
from .decoding.shared_prompts import LEAST_GAIN, LEAST_GAIN_COMPILED, Group, SharedPrefixes, plan
from .evaluation import evaluating
from .prompts.boundary import Batch, assemble, group, in_batch
from .sections import section
from .taps import foreign_hook

CPU_BATCH_TOKENS = 2048
CPU_GENERATING_TOKENS = 8192
GPU_BATCH_TOKENS = 16384


def default_batch_tokens(device_type: str, generating: bool = False) -> int:
    """Most padded tokens per batch where the caller does not say; on a CPU more when the batch is generated from."""
    if device_type != "cpu":
        return GPU_BATCH_TOKENS
    return CPU_GENERATING_TOKENS if generating else CPU_BATCH_TOKENS


@dataclass(frozen=True)
class Grouping:
    """What decides which prompts run together.

    Attributes
    ----------
    batch_tokens : int
        Most padded tokens per batch.
    share_prefix : {"auto", "never", "always"}
    left_padding_safe : bool
        Whether padding on the left changes nothing of this model.
    """

    batch_tokens: int
    share_prefix: str
    left_padding_safe: bool


@dataclass(frozen=True)
class PassRows:
    """What came of one pass: its batch, its rows, and what is to be noted of it."""

    batch: Batch
    rows: Rows
    note: dict[str, Any]


def run_prompts(
    backend: Backend,
    shared_prefixes: SharedPrefixes,
    prompts: Sequence[Sequence[int]],
    request: Request,
    grouping: Grouping,
) -> Iterator[PassRows]:
    """Run all prompts, those that begin alike from one prefix.

    Parameters
    ----------
    backend : Backend
    shared_prefixes : SharedPrefixes
        Of the same model; of the uncompiled backend where `backend` is compiled.
    prompts : sequence of sequence of int
    request : Request
        Its positions [n, P] are token numbers in each prompt of the call. With a cache, batches are padded on the left.
    grouping : Grouping

    Yields
    ------
    PassRows
        As if whole prompts had been run.
    """
    index, keep_cache = request.positions, request.use_cache
    compiled = getattr(backend, "compiler", None) is not None
    pad_id, device = shared_prefixes.pad_id, shared_prefixes.device
    side = "left" if keep_cache else "right"
    groups, why_not = _groups(backend, shared_prefixes, prompts, request, grouping)
    shared = [{"tokens": g.length, "prompts": len(g.rows)} for g in groups if g.length]
    note: dict[str, Any] = {"share_prefix": grouping.share_prefix, "shared_prefixes": shared}
    if why_not:
        note["not_shared"] = why_not
    for alike in groups:
        if alike.length:
            with section("backbone"):
                prefix = shared_prefixes.prefill(prompts[alike.rows[0]][: alike.length])
            batches = shared_prefixes.batches(prompts, alike, grouping.batch_tokens, keep_cache)
        else:
            lengths = [len(prompts[i]) for i in alike.rows]
            equal_only = keep_cache and not grouping.left_padding_safe
            parts = group(lengths, grouping.batch_tokens, equal_only, fewest=keep_cache)
            batches = [[alike.rows[k] for k in part] for part in parts]
        for members in batches:
            with section("backbone"):
                if alike.length:
                    batch, rows = shared_prefixes.rows(prompts, members, prefix, request, index)
                    if compiled:
                        rows.notes["not_compiled"] = "the pass goes on from a shared prefix"
                else:
                    batch = assemble(members, prompts, pad_id, side, device)
                    with passes.prompt_pass(members, [len(prompts[i]) for i in members], batch.boundary):
                        rows = backend.rows(batch, replace(request, positions=in_batch(batch, prompts, index)))
            yield PassRows(batch, rows, note | rows.notes)


def run_backbone(
    backend: Backend,
    prompts: Sequence[Sequence[int]],
    batches: Sequence[Sequence[int]],
    pad_id: int,
    device: torch.device,
) -> None:
    """Run the bare backbone on batches of whole prompts, without taps or unembedding, and keep nothing: to measure it."""
    with torch.no_grad(), evaluating(backend.model):
        for members in batches:
            batch = assemble(members, prompts, pad_id, "right", device)
            backend.architecture.backbone(input_ids=batch.input_ids, use_cache=False)


def _groups(
    backend: Backend,
    shared_prefixes: SharedPrefixes,
    prompts: Sequence[Sequence[int]],
    request: Request,
    grouping: Grouping,
) -> tuple[list[Group], str | None]:
    """Which prompts are run together, from which prefix; and why none is shared where sharing would pay."""
    # a shared prefix is run uncompiled, so under compile it must save more
    least = LEAST_GAIN if getattr(backend, "compiler", None) is None else LEAST_GAIN_COMPILED
    limits = request.positions.amin(1).tolist()
    rule = length_rule(backend.model.config.get_text_config(decoder=True))
    groups: list[Group] = []
    why_not = None
    for part in together(rule, [len(p) for p in prompts], request.use_cache):
        chosen = [prompts[i] for i in part]
        planned = plan(chosen, grouping.batch_tokens, grouping.share_prefix, [limits[i] for i in part], least)
        if planned[0].length:
            hooked = foreign_hook(backend.architecture.backbone)
            if hooked is not None:  # it would see the prefix once and each suffix as a pass of its own
                refusal: str | None = f"{hooked} has a hook of someone else's"
            else:
                refusal = shared_prefixes.refusal(max(map(len, chosen)), request.use_cache, grouping.left_padding_safe)
            if refusal is not None:
                planned, why_not = [Group(0, tuple(range(len(part))))], refusal
        groups += [Group(g.length, tuple(part[k] for k in g.rows)) for g in planned]
    return groups, why_not
