"""What modules and configs say of themselves: widths, lengths, the module under a path, the one inside a wrapper.

Guarantees that packed and quantised weights are not read for the matrix that they stand for, and that a wrapper is looked through.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ... import checks
from ...errors import RequestError


def context_length(config: Any) -> int | None:
    """Most tokens that a model was built for, where its config says."""
    if config is None:
        return None
    config = config.get_text_config(decoder=True)
    for name in ("max_position_embeddings", "n_positions", "seq_length"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def input_device(model: Any) -> torch.device:
    """Where token ids are sent: to the embedding's weights, or where accelerate runs it when it keeps them elsewhere (offloaded, sharded)."""
    embedding = model.get_input_embeddings()
    weight = getattr(embedding, "weight", None)
    if weight is not None and weight.device.type != "meta":
        return torch.device(weight.device)
    for holder in (embedding, *(module for module in model.modules())):
        place = getattr(getattr(holder, "_hf_hook", None), "execution_device", None)
        if place is not None:
            return torch.device(f"cuda:{place}" if isinstance(place, int) else place)
    return torch.device(model.device)


def allowed_context(model: Any, wanted: int | None) -> int | None:
    """Most tokens of a prompt: what was asked for, else what the config says.

    Raises
    ------
    RequestError
        More was asked for than the model has learned positions; rotary and relative positions have no such end.
    """
    own = context_length(model.config)
    if wanted is None:
        return own
    wanted = checks.whole("context_length", wanted, least=1)
    for name, module in model.named_modules():
        table = getattr(module, "weight", None)
        if "pos" in name.rpartition(".")[2].replace("wpe", "pos") and getattr(table, "ndim", 0) == 2:
            if own is not None and wanted > own:
                raise RequestError(
                    f"context_length={wanted} is more than the {own} positions that the model has learned ({name}); only rotary or relative positions can be taken further"
                )
    return wanted


def input_width(module: Any) -> int:
    """Input width of an output projection, plain or quantised, Linear or GPT-2's Conv1D.

    Raises
    ------
    RequestError
        If the module is of a kind that does not say it.
    """
    module = unwrapped(module)
    width = declared_width(module)
    if width:
        return width
    if isinstance(getattr(module, "nf", None), int) and getattr(module.weight, "ndim", 0) == 2:
        return int(module.weight.shape[0])  # GPT-2's Conv1D, whose weight is [input, output]
    raise RequestError(
        f"{type(module).__name__} does not say how wide its input is, so `z` cannot be read there; leave that site out"
    )


def output_width(module: Any) -> int | None:
    """Output width of an unembedding, plain or packed; None where it does not say."""
    module = unwrapped(module)
    for name in ("out_features", "outfeatures"):
        if isinstance(value := getattr(module, name, None), int):
            return value
    weight: Any = getattr(module, "weight", None)
    return int(weight.shape[0]) if getattr(weight, "ndim", 0) == 2 else None


def declared_width(module: Any) -> int | None:
    """The input width that a module declares; packed weights have other shapes than the matrix they stand for."""
    for name in ("in_features", "infeatures", "nx"):
        if isinstance(value := getattr(unwrapped(module), name, None), int):
            return value
    return None


def unwrapped(module: Any) -> Any:
    """The module inside a wrapper that keeps it as `original_component`, as TransformerLens' do; else the module itself."""
    while isinstance(inner := getattr(module, "original_component", None), nn.Module):
        module = inner
    return module


def submodule(root: nn.Module, path: str) -> nn.Module:
    """`root.a.b` for the path "a.b", looking into wrappers; root itself for "".

    Raises
    ------
    AttributeError
        If there is no such module.
    """
    module = root
    for name in path.split(".") if path else ():
        inner = unwrapped(module)
        module = getattr(inner, name)
        if not isinstance(module, nn.Module):
            raise AttributeError(f"{name} of {type(inner).__name__} is no module")
    return module


def optional_submodule(root: Any, path: str | None) -> nn.Module | None:
    """`submodule`, or None where there is none or no path is given."""
    if path is None:
        return None
    try:
        return submodule(root, path)
    except AttributeError:
        return None
