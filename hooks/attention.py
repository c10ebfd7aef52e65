"""The boundary's attention row, computed beside the attention that the model runs.

Guarantees that looking at attention never changes how the model computes it: the user's implementation (sdpa, flash, flex,
eager) is called with the very arguments it would get, and one query row is formed from the same rotated queries and keys.
The model's configuration is put back afterwards, however the pass ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from ..errors import CaptureError
from ..kernels import attention_row
from .architectures import Architecture
from .sections import section

_PREFIX = "precollapse_"
_active: list[AttentionRecorder] = []


class AttentionRecorder:
    """Attention rows of one pass.

    Parameters
    ----------
    wanted : dict of int (id of an attention module) to int (layer)
    boundary : int64 tensor [B]
        Column of the boundary among this pass's queries.
    """

    def __init__(self, wanted: Mapping[int, int], layers: Sequence[int], boundary: torch.Tensor) -> None:
        self.wanted = dict(wanted)
        self.layers = tuple(layers)
        self.boundary = boundary
        self.rows: dict[int, torch.Tensor] = {}
        self.fired: dict[int, int] = dict.fromkeys(self.wanted.values(), 0)

    def record(self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, mask: Any, options: Mapping[str, Any]) -> None:
        """Form one layer's row from what its attention function was called with."""
        layer = self.wanted.get(id(module))
        if layer is None:
            return
        if not isinstance(mask, torch.Tensor):  # None, or flex attention's block mask, which holds causality only
            mask = None
        elif mask.ndim == 2:
            mask = mask.to(torch.bool)
        sinks = options.get("s_aux")
        with section("attention rows"):
            self.rows[layer] = attention_row(
                query,
                key,
                self.boundary,
                mask=mask,
                scale=options.get("scaling"),
                softcap=options.get("softcap") or None,
                window=options.get("sliding_window") if mask is None or mask.ndim == 2 else None,
                sinks=None if sinks is None else sinks.to(query.dtype),
            )
        self.fired[layer] += 1

    def result(self) -> list[torch.Tensor | None]:
        """The row of each asked layer, [B, H, T] float32; None for a layer without attention.

        Raises
        ------
        CaptureError
            If a layer's attention ran never or more than once.
        """
        wrong = {layer: n for layer, n in self.fired.items() if n != 1}
        if wrong:
            layer, n = next(iter(wrong.items()))
            raise CaptureError(
                f"the attention of layer {layer} was reached {n} times in one pass instead of once; capture without attention rows, "
                "or load the model with attn_implementation='sdpa' or 'eager'"
            )
        return [self.rows.get(layer) for layer in self.layers]


def attention_modules(architecture: Architecture) -> dict[int, nn.Module]:
    """The attention module of each block that goes through transformers' attention interface: layer to module."""
    found = {}
    for layer, block in enumerate(architecture.blocks):
        for module in block.modules():
            if _uses_interface(module):
                found[layer] = module
                break
    return found


def supports_attention(architecture: Architecture) -> bool:
    """Whether at least one block's attention can be read."""
    return bool(attention_modules(architecture))


@contextmanager
def attention_rows(architecture: Architecture, layers: Sequence[int], boundary: torch.Tensor) -> Iterator[AttentionRecorder]:
    """Record the boundary's attention rows of `layers` during the forward passes inside the context."""
    modules = attention_modules(architecture)
    recorder = AttentionRecorder({id(modules[layer]): layer for layer in layers if layer in modules}, layers, boundary)
    configs = {id(m.config): m.config for m in modules.values()}
    for module in [architecture.backbone, *architecture.backbone.modules()]:
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            configs[id(config)] = config
    before = {key: config._attn_implementation for key, config in configs.items()}
    try:
        for key, config in configs.items():
            config._attn_implementation = _registered(before[key] or "eager")
        _active.append(recorder)
        yield recorder
    finally:
        if recorder in _active:
            _active.remove(recorder)
        for key, config in configs.items():
            config._attn_implementation = before[key]


def _registered(implementation: str) -> str:
    """Register the recording twin of an attention implementation and return its name."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = implementation if implementation.startswith(_PREFIX) else _PREFIX + implementation
    if name not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(name, _recording(implementation))
        if implementation in ALL_MASK_ATTENTION_FUNCTIONS:
            AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[implementation])
    return name


def _recording(implementation: str) -> Callable[..., Any]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def recording_attention(module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **options: Any) -> Any:
        if _active:
            _active[-1].record(module, query, key, attention_mask, options)
        if implementation == "eager":
            function = sys.modules[type(module).__module__].eager_attention_forward
        else:
            function = ALL_ATTENTION_FUNCTIONS[implementation]
        return function(module, query, key, value, attention_mask, **options)

    return recording_attention


def _uses_interface(module: nn.Module) -> bool:
    """Whether a module calls transformers' attention interface in its own forward."""
    code = getattr(type(module).forward, "__wrapped__", type(module).forward).__code__
    names = set(code.co_names)
    return hasattr(module, "config") and "ALL_ATTENTION_FUNCTIONS" in names


def summarise(row: torch.Tensor, spans: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Reduce one prompt's attention rows to a few numbers per head.

    Parameters
    ----------
    row : float32 tensor [L, H, T]
    spans : dict of str to sequence of int
        Token columns of each named part of the prompt.

    Returns
    -------
    dict of str to float64 array [L, H]
        `entropy_bits` (of the row renormalised to sum 1), `first_token` mass, and the mass on each span; `rest` is what lies in
        no span and not on the first token.
    """
    p = row.to(torch.float64)
    total = p.sum(-1, keepdim=True)
    q = p / total
    out = {"entropy_bits": (torch.special.entr(q).sum(-1) / np.log(2)).numpy(), "first_token": p[..., 0].numpy()}
    free = torch.ones(p.shape[-1], dtype=torch.bool)
    free[0] = False
    for name, columns in spans.items():
        index = torch.as_tensor(list(columns), dtype=torch.int64)
        out[name] = p[..., index].sum(-1).numpy()
        free[index] = False
    out["rest"] = p[..., free].sum(-1).numpy()
    return out
