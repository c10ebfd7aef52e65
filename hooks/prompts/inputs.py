"""The forms in which prompts may be given, made into one list.

Guarantees that padded token ids are never read as if their padding were text: they come with their mask, or are refused.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any

import numpy as np
import torch

from ...errors import RequestError
from .rendering import Renderer


def as_prompts(prompts: Any, renderer: Renderer) -> list[Any]:
    """The prompts of a call as a list, one entry each, whatever form they came in.

    Raises
    ------
    RequestError
        If token ids come padded and without their mask, so that padding and text cannot be told apart.
    """
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, Mapping):
        if "input_ids" not in prompts:
            raise RequestError(
                f"prompts is a mapping with keys {sorted(prompts)}; give one with input_ids and attention_mask, or a list of prompts"
            )
        odd = [k for k in ("inputs_embeds", "position_ids", "past_key_values") if prompts.get(k) is not None]
        if odd:
            raise RequestError(f"prompts has {odd[0]}, which is not read; give input_ids and attention_mask alone")
        mask = prompts.get("attention_mask")
        if mask is None:
            return as_prompts(prompts["input_ids"], renderer)
        rows = _rows(prompts["input_ids"], mask)
        if rows is not None:
            return rows
        try:
            ids, mask = torch.as_tensor(prompts["input_ids"]), torch.as_tensor(mask)
        except (TypeError, ValueError) as error:
            raise RequestError(
                f"input_ids and attention_mask must be rectangular [batch, tokens] ({error}); or give lists of token ids without padding"
            ) from error
        if mask.shape != ids.shape or ids.ndim != 2:
            raise RequestError(
                f"input_ids {list(ids.shape)} and attention_mask {list(mask.shape)} must both be [batch, tokens] and equal in shape"
            )
        _check_mask(mask)
        return [row[keep.bool()].tolist() for row, keep in zip(ids, mask, strict=True)]
    if not isinstance(prompts, np.ndarray) and hasattr(prompts, "to_list"):  # a pandas or polars Series, an Index
        prompts = prompts.to_list()
    if isinstance(prompts, Iterator | KeysView | ValuesView):
        prompts = list(prompts)
    if isinstance(prompts, np.ndarray) and prompts.dtype.kind in "UO":
        prompts = prompts.tolist()
    if isinstance(prompts, torch.Tensor | np.ndarray):
        ids = torch.as_tensor(prompts)
        if ids.ndim not in (1, 2) or ids.is_floating_point() or ids.is_complex():
            raise RequestError(
                f"a tensor of prompts must hold integers [tokens] or [batch, tokens], found {ids.dtype} of shape {list(ids.shape)}"
            )
        rows = [ids.tolist()] if ids.ndim == 1 else ids.tolist()
        _refuse_padding(dict(enumerate(rows)), renderer.tokenizer)
        return rows
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes | bytearray):
        raise RequestError(
            f"prompts is a {type(prompts).__name__}; give a string, chat messages, token ids, or a list of these"
        )
    items = list(prompts)
    for i, item in enumerate(items):
        if isinstance(item, Mapping) and "input_ids" in item:  # tokenizer("...") of each
            own = as_prompts(item, renderer)
            if len(own) != 1:
                raise RequestError(f"prompt {i} holds {len(own)} rows of token ids; give one prompt each")
            items[i] = own[0]
        elif isinstance(item, Iterator):
            items[i] = list(item)
    if items and (all(isinstance(p, Mapping) and "role" in p for p in items) or all(_is_id(p) for p in items)):
        items = [items]
    _refuse_padding({i: _ids_of(item) for i, item in enumerate(items)}, renderer.tokenizer)
    return items


def _rows(ids: Any, mask: Any) -> list[list[int]] | None:
    """Token ids and masks as a tokenizer gives them without padding: one flat list, or lists of several lengths; None for others."""
    if isinstance(ids, torch.Tensor | np.ndarray):
        return [np.asarray(ids)[np.asarray(mask).astype(bool)].tolist()] if ids.ndim == 1 == np.ndim(mask) else None
    if not isinstance(ids, Sequence) or not isinstance(mask, Sequence) or not ids:
        return None
    if all(_is_id(i) for i in ids):
        ids, mask = [ids], [mask]
    own = [list(row) for row in ids] if all(isinstance(row, Sequence) for row in ids) else None
    flags = [list(row) for row in mask] if all(isinstance(row, Sequence) for row in mask) else None
    if own is None or flags is None or [len(row) for row in own] != [len(row) for row in flags]:
        return None
    for row in flags:
        _check_mask(torch.as_tensor([row]))
    return [[int(i) for i, keep in zip(a, b, strict=True) if keep] for a, b in zip(own, flags, strict=True)]


def _check_mask(mask: torch.Tensor) -> None:
    """Refuse what is no padding mask: an additive one (0 where a token counts) would be read the wrong way round."""
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise RequestError(
            f"attention_mask must be 1 for tokens and 0 for padding, found values {mask.min().item():g} to {mask.max().item():g}; an additive mask cannot be read"
        )
    begins = mask.to(torch.int64).diff(dim=1, prepend=torch.zeros(len(mask), 1, dtype=torch.int64)).eq(1).sum(1)
    if bool((begins > 1).any()):
        raise RequestError(
            f"attention_mask of prompt {int((begins > 1).nonzero()[0])} has zeros between its ones; padding may stand before or after a prompt only, so take the tokens out"
        )


def _refuse_padding(prompts: Mapping[int, Sequence[int]], tokenizer: Any) -> None:
    """Refuse token ids that hold padding, whose last token would be taken for the boundary.

    Where the pad token also begins or ends texts, one of it may be meant; two in a row are not, nor is one that only
    some rows of a rectangle have.
    """
    pad = getattr(tokenizer, "pad_token_id", None)
    rows = {i: row for i, row in prompts.items() if row}
    if pad is None or not rows:
        return
    may_be_meant = pad in (getattr(tokenizer, "bos_token_id", None), getattr(tokenizer, "eos_token_id", None))
    rectangle = len(rows) > 1 and len({len(row) for row in rows.values()}) == 1
    for where, step in (("starts", 1), ("ends", -1)):
        padded = [i for i, row in rows.items() if row[::step][0] == pad]
        if may_be_meant and (not rectangle or len(padded) == len(rows)):
            padded = [i for i in padded if list(rows[i][::step][:2]) == [pad, pad]]
        if padded:
            raise RequestError(
                f"prompt {padded[0]} was given as token ids without a mask and {where} with the pad token {pad}; pass {{'input_ids': ..., 'attention_mask': ...}}, with ones in the mask where that token is meant"
            )


def _ids_of(prompt: Any) -> list[int]:
    """A prompt's token ids, empty where it is no list of ids."""
    if isinstance(prompt, torch.Tensor | np.ndarray):
        prompt = prompt.tolist() if prompt.ndim == 1 else []
    if isinstance(prompt, str | bytes | bytearray | Mapping) or not isinstance(prompt, Sequence):
        return []
    return [int(i) for i in prompt] if all(_is_id(i) for i in prompt) else []


def _is_id(value: Any) -> bool:
    """Whether a value is one token id: an integer of Python, numpy or torch."""
    return (
        isinstance(value, numbers.Integral)
        and not isinstance(value, bool)
        or isinstance(value, torch.Tensor)
        and value.ndim == 0
    )
