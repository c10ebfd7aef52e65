"""Batches of a capture as they come off the model, and how they are joined into one result.

Guarantees that the joined states hold each prompt exactly once, in the caller's order, whatever the batches were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import CaptureError
from .prompts.boundary import Batch
from .states import States


@dataclass(frozen=True)
class CapturedBatch:
    """One batch of a capture as it comes off the model.

    Attributes
    ----------
    states : States
        Of this batch's prompts, in batch order.
    batch : Batch
        `batch.rows` says which prompts of the call these are.
    next_token : int64 tensor [B]
        The most likely first output token of each prompt.
    cache : object or None
        The model's cache after the prompts, when it was asked for.
    """

    states: States
    batch: Batch
    next_token: torch.Tensor
    cache: Any


def _merged(notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What was noted of the passes of one call: what some say and others do not is kept, all its values where they differ."""
    out: dict[str, Any] = {}
    for name in dict.fromkeys(name for note in notes for name in note):
        values: list[Any] = []
        for note in notes:
            if name in note and note[name] not in values:
                values.append(note[name])
        out[name] = values[0] if len(values) == 1 else "; ".join(map(str, values))
    return out


def join(pieces: Sequence[CapturedBatch], n: int) -> States:
    """Join the batches of one `stream` into one States in the caller's order.

    Raises
    ------
    CaptureError
        If the batches do not hold each of the n prompts exactly once.
    """
    order = [row for piece in pieces for row in piece.batch.rows]
    if sorted(order) != list(range(n)):
        raise CaptureError(
            f"{len(order)} states were captured for {n} prompts; nothing was kept, which is a fault of this package"
        )
    place = np.argsort(order)
    states = [piece.states for piece in pieces]
    first = states[0]

    def arrays(name: str) -> Any:
        values = [getattr(s, name) for s in states]
        if values[0] is None:
            return None
        if isinstance(values[0], np.ndarray):
            width = max(v.shape[1] for v in values) if values[0].ndim == 2 else 0
            padded = [
                np.pad(v, ((0, 0), (0, width - v.shape[1])), constant_values=np.nan)
                if width and v.shape[1] < width
                else v
                for v in values
            ]
            return np.concatenate(padded)[place]
        joined = [x for v in values for x in v]
        return [joined[i] for i in place]

    sites = {}
    for site in first.sites:
        sample = first.sites[site]
        out = torch.empty((n, *sample.shape[1:]), dtype=sample.dtype)
        for piece in pieces:
            out[list(piece.batch.rows)] = piece.states.sites[site]
        sites[site] = out
    summary = None
    if first.attention_summary is not None:
        names = sorted({name for s in states for name in s.attention_summary or ()})
        shape = next(iter(first.attention_summary.values())).shape[1:]
        summary = {
            name: np.concatenate(
                [(s.attention_summary or {}).get(name, np.full((len(s), *shape), np.nan)) for s in states]
            )[place]
            for name in names
        }
    numbers = (
        "entropy_bits",
        "logsumexp",
        "top_ids",
        "top_logits",
        "option_logprobs",
        "option_entropy_bits",
        "option_margin",
        "option_mass",
    )
    lists = (
        "token_ids",
        "boundary",
        "positions",
        "bos_count",
        "texts",
        "template_hash",
        "option_labels",
        "attention_rows",
    )
    manifest = dict(first.manifest)
    if "passes" in manifest:
        manifest["passes"] = _merged([s.manifest["passes"] for s in states])
    return States(
        sites=sites,
        layers=first.layers,
        attention_summary=summary,
        manifest=manifest,
        **{name: arrays(name) for name in (*numbers, *lists)},
    )
