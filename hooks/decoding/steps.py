"""One more token after a prefill: what the model must be given, for every kind of cache.

Guarantees that generation and the gate step a model in the same way, so that the gate's check of a padded step speaks for the
texts that studies keep.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ...errors import CaptureError

CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""What a model's cache is called, by transformers' version and by family."""


def cache_name(accepted: Iterable[str]) -> str | None:
    """Under which of these argument names a forward takes its cache; None where it takes none."""
    names = set(accepted)
    return next((name for name in CACHE_NAMES if name in names), None)


def cache_in(arguments: Mapping[str, Any]) -> Any:
    """The cache among a pass's arguments, None where there is none."""
    return next((arguments[name] for name in CACHE_NAMES if arguments.get(name) is not None), None)


def cache_of(output: Any) -> Any:
    """The key/value (or recurrent) cache in a model's output, None where there is none."""
    return next((value for name in CACHE_NAMES if (value := getattr(output, name, None)) is not None), None)


def takes_mask(cache: Any) -> bool:
    """Whether a step that goes on from this cache needs the mask of what came before.

    Keys and values of padding must stay hidden. A purely recurrent state holds no columns that could be hidden: its
    padding was left out when the prompt was read, and Mamba multiplies the one new token by the whole mask if it is given.
    """
    layers = getattr(cache, "layers", None)
    return not layers or any(isinstance(getattr(layer, "keys", None), torch.Tensor) for layer in layers)


def step_inputs(
    model: Any, cache: Any, token: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor
) -> dict[str, Any]:
    """Keyword arguments of the model's forward for one new token per row.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    cache : object
        Of everything before the new tokens.
    token : int64 tensor [B]
    mask : int64 tensor [B, T + 1] or None
        Of what came before and the new token; None when nothing was padded.
    positions : int64 tensor [B]
        Position of each row's new token, counted from its own first token.

    Raises
    ------
    CaptureError
        If the model's forward takes no cache.
    """
    names = inspect.signature(model.forward).parameters
    keyword = cache_name(names)
    if keyword is None:
        raise CaptureError(
            f"{type(model).__name__} takes no cache, so generation cannot go on from a capture; capture only"
        )
    inputs: dict[str, Any] = {"input_ids": token[:, None], "use_cache": True, keyword: cache}
    if mask is not None and takes_mask(cache):
        inputs["attention_mask"] = mask
    if "position_ids" in names:
        inputs["position_ids"] = positions[:, None]
    return inputs
