"""From the rows of one batch on the model's device to states: next-token statistics, transfer, option scores, attention.

Guarantees that a row which is not finite raises with its prompt and place, and that whatever was asked for of a prompt stands in its
batch's states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import CaptureError
from .architectures import Architecture
from .attention import summarise
from .batches import CapturedBatch
from .prompts.boundary import Batch
from .prompts.options import OptionForms, form_ids, score_options
from .prompts.rendering import Rendered
from .running import PassRows
from .sections import section
from .states import States
from .unembedding import row_statistics


@dataclass(frozen=True)
class CaptureRequest:
    """What one call captures of its n prompts, checked and resolved.

    Attributes
    ----------
    rendered : tuple of Rendered
    sites : tuple of str
    layers : tuple of int
    attention : {"none", "summary", "rows"}
    top_k : int
    keep_cache : bool
    options : list of OptionForms or None
        Per prompt.
    spans : list of dict
        Per prompt, columns of the named spans of an attention summary.
    positions : list of tuple of int or None
        Per prompt, token numbers at which the sites are read; None for the boundary alone.
    """

    rendered: tuple[Rendered, ...]
    sites: tuple[str, ...]
    layers: tuple[int, ...]
    attention: str
    top_k: int
    keep_cache: bool
    options: list[OptionForms | None] | None
    spans: list[dict[str, list[int]]] | None
    positions: list[tuple[int, ...]] | None


def captured_batch(
    architecture: Architecture, request: CaptureRequest, rows: PassRows, manifest: Mapping[str, Any]
) -> CapturedBatch:
    """The states of one batch, on the CPU.

    Parameters
    ----------
    architecture : Architecture
    request : CaptureRequest
    rows : PassRows
        Whose last position is the boundary: next-token statistics are read there.
    manifest : mapping
        Of the capture; what is noted of the pass is added.

    Raises
    ------
    CaptureError
        If a value is not finite.
    """
    batch, got, layers, top_k = rows.batch, rows.rows, request.layers, request.top_k
    rendered = [request.rendered[i] for i in batch.rows]
    options = None if request.options is None else [request.options[i] for i in batch.rows]
    with section("head and statistics"):
        ids = None if options is None else torch.as_tensor(form_ids(options), device=got.final_norm.device)
        stats = row_statistics(architecture, got.final_norm[:, -1], max(top_k, 1), ids)
    with section("transfer"):
        chosen = slice(0, -1) if request.positions else 0
        kept = {s: (got.final_norm if s == "final_norm" else got.sites[s])[:, chosen].to("cpu") for s in request.sites}
        attended = None if got.attention is None else [None if row is None else row.cpu() for row in got.attention]
        entropy, lse = stats.entropy_bits.cpu().numpy(), stats.logsumexp.cpu().numpy()
        top_ids, top_logits = stats.top_ids.cpu(), stats.top_logits[:, :top_k].double().cpu().numpy()
    _refuse_non_finite(kept, stats.entropy_bits, got.final_norm.dtype, batch, layers)
    scores = None if options is None else score_options(stats.option_logits.cpu().numpy(), lse)
    attention_rows, summary = None, None
    if request.attention != "none":
        with section("attention rows"):
            attention_rows = _attention_rows(attended, batch, [len(r.token_ids) for r in rendered])
            if request.attention == "summary":
                assert request.spans is not None
                summary = _summary(
                    [summarise(row, request.spans[i]) for row, i in zip(attention_rows, batch.rows, strict=True)]
                )
    states = States(
        sites=kept,
        layers=layers,
        entropy_bits=entropy,
        logsumexp=lse,
        top_ids=top_ids[:, :top_k].numpy(),
        top_logits=top_logits,
        token_ids=[r.token_ids for r in rendered],
        boundary=[len(r.token_ids) - 1 for r in rendered],
        positions=None if request.positions is None else [request.positions[i] for i in batch.rows],
        bos_count=[r.bos_count for r in rendered],
        texts=[r.text for r in rendered],
        template_hash=[r.template_hash for r in rendered],
        option_logprobs=None if scores is None else scores.logprobs,
        option_entropy_bits=None if scores is None else scores.entropy_bits,
        option_margin=None if scores is None else scores.margin,
        option_mass=None if scores is None else scores.mass,
        option_labels=None if options is None else [o.labels if o else () for o in options],
        attention_rows=attention_rows if request.attention == "rows" else None,
        attention_summary=summary,
        manifest={**manifest, "passes": rows.note},
    )
    return CapturedBatch(states, batch, stats.top_ids[:, 0], got.cache)


def _refuse_non_finite(
    kept: Mapping[str, torch.Tensor], entropy: torch.Tensor, dtype: torch.dtype, batch: Batch, layers: tuple[int, ...]
) -> None:
    for site, rows in kept.items():
        bad = ~torch.isfinite(rows)
        if bool(bad.any()):
            where = bad.nonzero()[0].tolist()
            place = f" at layer {layers[where[-2 if site != 'z' else -3]]}" if site != "final_norm" else ""
            raise not_finite(f"{site}{place}", rows.dtype, batch.rows[where[0]])
    bad_rows = (~torch.isfinite(entropy)).nonzero()
    if len(bad_rows):
        raise not_finite("the next-token distribution", dtype, batch.rows[int(bad_rows[0])])


def not_finite(what: str, dtype: torch.dtype, prompt: int) -> CaptureError:
    """The error for values that are no numbers; `prompt` says which, for callers that know it by another name."""
    narrow = dtype == torch.float16
    why = (
        "float16 overflows there: load the model with dtype='bfloat16' or 'float32'"
        if narrow
        else "its weights or its arithmetic give NaN or infinity there: check the model's files"
    )
    error = CaptureError(f"{what} of prompt {prompt} is not finite in {str(dtype).removeprefix('torch.')}; {why}")
    error.prompt = prompt
    return error


def _attention_rows(
    attention: list[torch.Tensor | None] | None, batch: Batch, lengths: list[int]
) -> list[torch.Tensor]:
    """Cut each prompt's own columns out of the batch: [L, H, T_i] on the CPU, NaN at layers without attention."""
    assert attention is not None
    known = next(row for row in attention if row is not None)
    stacked = torch.stack([torch.full_like(known, float("nan")) if row is None else row for row in attention], 1)
    out = []
    for b, length in enumerate(lengths):
        end = int(batch.boundary[b]) + 1
        out.append(stacked[b, :, :, end - length : end].clone())
    return out


def _summary(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """One array per name, NaN where a prompt has no such span."""
    empty = np.full(next(iter(parts[0].values())).shape, np.nan)
    return {
        name: np.stack([part.get(name, empty) for part in parts])
        for name in sorted({name for part in parts for name in part})
    }
