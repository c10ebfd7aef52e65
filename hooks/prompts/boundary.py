"""Which column is the boundary, under any padding, and how prompts are put together into batches.

Guarantees that the boundary is computed from each prompt's own length or mask and never assumed to be -1, and that batches
depend on the prompts of one call alone: the same prompts give the same batches, and so the same numbers.

Prompts are padded on the right by default: in a causal model nothing to the right of the boundary can reach it, so no mask
and no position ids are needed and the fast causal attention stays in use. Left padding (which generation needs) always
carries its mask and its position ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import RequestError
from .rendering import Rendered

PASS_COST = 16
"""A pass through the model is counted as this fraction (1/16) of a full batch of tokens, besides the tokens it runs."""


@dataclass(frozen=True)
class Batch:
    """Padded prompts.

    Attributes
    ----------
    rows : tuple of int
        Which prompts of the call these are, in order.
    input_ids : int64 tensor [B, T]
    attention_mask : int64 tensor [B, T] or None
        None when no mask is needed (no padding, or padding on the right of a causal model).
    position_ids : int64 tensor [B, T] or None
        Given whenever padding is on the left.
    boundary : int64 tensor [B]
        Column of each prompt's last token.
    """

    rows: tuple[int, ...]
    input_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    position_ids: torch.Tensor | None
    boundary: torch.Tensor


def boundary_index(attention_mask: torch.Tensor) -> torch.Tensor:
    """Column of the last real token of each row.

    Parameters
    ----------
    attention_mask : tensor [B, T]
        1 for prompt tokens, 0 for padding, which may be on either side.

    Returns
    -------
    int64 tensor [B]

    Raises
    ------
    RequestError
        If a row has no token at all.
    """
    mask = attention_mask.to(torch.int64)
    if mask.ndim != 2 or bool((mask.sum(1) == 0).any()):
        raise RequestError(
            f"attention_mask must be [batch, tokens] with a token in every row, found shape {list(mask.shape)}; check the padding"
        )
    return mask.shape[1] - 1 - mask.flip(1).argmax(1)


def padding_id(wanted: int, model: Any) -> int:
    """The id to pad with: the tokenizer's, or 0 where the model's embedding has no such row (a pad token that was added to the
    tokenizer alone). Padded positions reach no state, so any row does."""
    table = model.get_input_embeddings()
    rows = int(getattr(table, "num_embeddings", 0) or table.weight.shape[0])
    return wanted if 0 <= wanted < rows else 0


def refuse_long(rendered: Sequence[Rendered], limit: int | None) -> None:
    """Refuse prompts of more tokens than a model's context (RequestError, by number)."""
    for i, r in enumerate(rendered):
        if limit is not None and len(r.token_ids) > limit:
            raise RequestError(
                f"prompt {i} has {len(r.token_ids)} tokens, more than the model's context of {limit}; shorten or leave it out"
            )


def group(
    lengths: Sequence[int],
    token_budget: int,
    equal_only: bool = False,
    extra: int = 0,
    column_budget: int | None = None,
    fewest: bool = False,
) -> list[list[int]]:
    """Group prompts of similar length into batches of at most `token_budget` padded tokens.

    Of all ways to cut the prompts, sorted by length, into batches, this is the one with the fewest padded tokens, each batch
    counted as a further `token_budget / PASS_COST` tokens.

    Parameters
    ----------
    lengths : sequence of int
        Tokens per prompt.
    token_budget : int
        Most padded tokens (rows x longest) in a batch; a longer prompt forms a batch of its own.
    equal_only : bool
        Only put prompts of the same length together, so that no batch has any padding (recurrent families).
    extra : int
        Columns that every row has besides its own tokens (a shared prefix).
    column_budget : int, optional
        Most columns, those of `extra` included, in a batch.
    fewest : bool
        Make as few batches as possible, and among those the one with the fewest padded tokens: for batches that are generated
        from, since a decoding step costs nearly the same for few rows as for many.

    Returns
    -------
    list of list of int
        Prompt indices, longest first; every prompt is in exactly one batch.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    pass_cost = token_budget * len(lengths) if fewest else token_budget / PASS_COST
    # cheapest[k]: padded tokens and passes for the k longest prompts; start[k]: where their last batch begins
    cheapest, start = [0.0], [0]
    for k in range(1, len(order) + 1):
        best = None
        for i in range(k - 1, -1, -1):
            longest, rows = lengths[order[i]], k - i
            alone = rows == 1
            fits = rows * longest <= token_budget and (
                column_budget is None or rows * (longest + extra) <= column_budget
            )
            if not alone and (not fits or (equal_only and longest != lengths[order[k - 1]])):
                break
            cost = cheapest[i] + rows * longest + pass_cost
            if best is None or cost <= best[0]:
                best = (cost, i)
        assert best is not None
        cheapest.append(best[0])
        start.append(best[1])
    batches: list[list[int]] = []
    k = len(order)
    while k:
        batches.append(order[start[k] : k])
        k = start[k]
    return batches[::-1]


def assemble(
    rows: Sequence[int],
    prompts: Sequence[Sequence[int]],
    pad_id: int,
    padding_side: str = "right",
    device: torch.device | str = "cpu",
) -> Batch:
    """Pad the prompts `rows` of a call into one batch.

    Parameters
    ----------
    rows : sequence of int
        Indices into `prompts`.
    prompts : sequence of sequence of int
        Token ids per prompt, without padding.
    pad_id : int
        Token to fill with; which one is irrelevant to the result.
    padding_side : {"right", "left"}
    device : torch.device

    Returns
    -------
    Batch
    """
    lengths = [len(prompts[i]) for i in rows]
    width = max(lengths)
    padded = any(length != width for length in lengths)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
    mask = torch.zeros((len(rows), width), dtype=torch.int64)
    for b, i in enumerate(rows):
        start = width - lengths[b] if padding_side == "left" else 0
        ids[b, start : start + lengths[b]] = torch.as_tensor(prompts[i], dtype=torch.int64)
        mask[b, start : start + lengths[b]] = 1
    left = padded and padding_side == "left"
    return Batch(
        rows=tuple(rows),
        input_ids=ids.to(device),
        attention_mask=mask.to(device) if left else None,
        position_ids=(mask.cumsum(1) - 1).clamp_min(0).to(device) if left else None,
        boundary=boundary_index(mask).to(device),
    )


def in_batch(batch: Batch, prompts: Sequence[Sequence[int]], index: torch.Tensor) -> torch.Tensor:
    """Columns of a batch that hold the tokens `index` ([n, P], counted from each prompt's start) of its prompts: int64 [B, P]."""
    last = torch.tensor([len(prompts[i]) - 1 for i in batch.rows])
    return (
        index[list(batch.rows)].to(batch.boundary.device) + (batch.boundary - last.to(batch.boundary.device))[:, None]
    )
