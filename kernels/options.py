"""Answer options: the ways in which callers name their ids, brought to one tensor, and surface forms merged to options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index

import numpy as np
import torch
from torch import Tensor

from . import checks

OptionIds = Tensor | np.ndarray | Sequence[int] | Sequence[Sequence[int]]


def option_tensor(operator: str, ids: OptionIds | None, n: int, device: torch.device) -> Tensor | None:
    """Bring the accepted ways to name options to one int64 [n, K, F] tensor on `device`, -1 where unused."""
    if ids is None:
        return None
    if isinstance(ids, np.ndarray):
        if ids.dtype.kind not in "iu":
            raise TypeError(f"{operator}: option_ids must hold whole numbers, found {ids.dtype}.")
        ids = torch.from_numpy(ids.astype(np.int64))
    if isinstance(ids, Tensor):
        ids = ids.expand(n, *ids.shape) if ids.ndim == 1 else ids
    else:
        if isinstance(ids, str) or not isinstance(ids, Sequence):
            raise TypeError(f"{operator}: option_ids must be a tensor, an array or a sequence, found {ids!r:.40}.")
        groups = [_group(operator, entry) for entry in ids]
        far = next((i for group in groups for i in group if not -(2**63) <= i < 2**63), None)
        if far is not None:
            raise ValueError(f"{operator}: option_ids holds {far}, which is no column of any vocabulary.")
        width = max([len(group) for group in groups]) if groups else 0
        if width == 0:
            raise ValueError(f"{operator}: option_ids is empty; pass None for no options.")
        padded = [group + [-1] * (width - len(group)) for group in groups]
        ids = torch.tensor(padded, dtype=torch.int64, device=device)
        ids = ids.expand(n, -1, -1)
    if ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{operator}: option_ids must be int64 or int32, found {ids.dtype}.")
    if ids.ndim == 2:
        ids = ids[:, :, None]
    if ids.ndim != 3 or ids.shape[0] != n:
        raise ValueError(
            f"{operator}: option_ids must be [K], [n, K] or [n, K, F] with n = {n}, found shape {tuple(ids.shape)}."
        )
    return ids.to(device=device, dtype=torch.int64)


def _group(operator: str, entry: object) -> list[int]:
    """The ids of one option: itself, or its surface forms."""
    try:
        return [index(entry)]  # type: ignore[arg-type]
    except TypeError:
        pass
    try:
        return [index(form) for form in entry]  # type: ignore[attr-defined]
    except TypeError:
        raise TypeError(
            f"{operator}: option_ids must hold ints or sequences of ints, found {type(entry).__name__}: {entry!r:.40}."
        ) from None


def check_options(operator: str, ids: Tensor, columns: int) -> None:
    """Raise unless every id is -1 or a column (while a CUDA graph is captured, values cannot be looked at)."""
    if ids.numel() == 0 or (ids.device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return
    low, high = ids.min().item(), ids.max().item()
    if low < -1 or high >= columns:
        outside = high if high >= columns else low
        raise ValueError(
            f"{operator}: option_ids holds {outside}; ids run from 0 to {columns - 1}, with -1 for unused."
        )


def check_top_k(operator: str, k: int, columns: int) -> int:
    """top_k as a plain int; raise unless 0 <= k <= V."""
    k = int(k) if isinstance(k, np.integer) else k
    checks.whole(operator, "top_k", k)
    if not 0 <= k <= columns:
        raise ValueError(f"{operator}: top_k must lie between 0 and the vocabulary size {columns}, found {k}.")
    return k


def distinct_ids(ids: Tensor) -> Tensor:
    """[n, K, F] ids with every repetition inside a group replaced by -1."""
    same = ids[..., :, None] == ids[..., None, :]
    earlier = torch.ones(ids.shape[-1], ids.shape[-1], dtype=torch.bool, device=ids.device).tril(-1)
    return ids.masked_fill((same & earlier).any(-1), -1)


def merged_surface_forms(logits: Tensor, ids: Tensor) -> Tensor:
    """Logits [n, K, F] to option logits [n, K]: logsumexp over the surface forms used, NaN where there is none."""
    used = ids >= 0
    logits = logits.masked_fill(~used, -math.inf)
    merged = logits[..., 0] if logits.shape[-1] == 1 else logits.logsumexp(-1)
    return merged.masked_fill(~used.any(-1), math.nan)
