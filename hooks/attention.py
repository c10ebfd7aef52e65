"""The boundary's attention row, computed beside the attention that the model runs.

Guarantees that looking at attention never changes how the model computes it: the user's implementation (sdpa, flash, flex,
eager) is called with the very arguments it would get, and one query row is formed from the same rotated queries and keys.
The model's configuration is put back afterwards, however the pass ends.
"""

from __future__ import annotations

import inspect
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

    def record(
        self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, mask: Any, options: Mapping[str, Any]
    ) -> None:
        """Form one layer's row from what its attention function was called with."""
        layer = self.wanted.get(id(module))
        if layer is None:
            return
        if hasattr(mask, "mask_mod"):  # flex attention's block mask: a function of batch, head, query and key
            mask = _block_mask_row(mask, self.boundary, key.shape[2])
        elif isinstance(mask, torch.Tensor) and mask.ndim == 2:
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

    def keep(self, layer: int, row: torch.Tensor) -> None:
        """Take a row [B, H, T] that was read from the model itself."""
        self.rows[layer] = row.float()
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
    """The attention module of each block whose attention can be read: layer to module."""
    found = {}
    for layer, block in enumerate(architecture.blocks):
        for module in block.modules():
            if _uses_interface(module) or type(module).__name__ in _OWN_ATTENTION:
                found[layer] = module
                break
    return found


def supports_attention(architecture: Architecture) -> bool:
    """Whether at least one block's attention can be read."""
    return bool(attention_modules(architecture))


def why_no_attention(architecture: Architecture) -> str:
    """A clause that says why no attention row can be had from a model for which `supports_attention` is False."""
    suspects = [m for m in architecture.blocks[0].modules() if "attention" in type(m).__name__.lower()]
    if architecture.heads == 0 or not suspects:
        return "its blocks have no attention"
    return f"{type(suspects[0]).__name__} does not go through transformers' attention interface and is not one of {', '.join(_OWN_ATTENTION)}"


@contextmanager
def attention_rows(
    architecture: Architecture, layers: Sequence[int], boundary: torch.Tensor
) -> Iterator[AttentionRecorder]:
    """Record the boundary's attention rows of `layers` during the forward passes inside the context."""
    modules = {layer: m for layer, m in attention_modules(architecture).items() if layer in layers}
    own = {layer: m for layer, m in modules.items() if type(m).__name__ in _OWN_ATTENTION}
    recorder = AttentionRecorder({id(m): layer for layer, m in modules.items()}, layers, boundary)
    configs: dict[int, Any] = {}
    if len(own) < len(modules):
        for module in [*modules.values(), architecture.backbone, *architecture.backbone.modules()]:
            config = getattr(module, "config", None)
            if config is not None and hasattr(config, "_attn_implementation"):
                configs[id(config)] = config
    before = {key: config._attn_implementation for key, config in configs.items()}
    handles: list[Any] = []
    try:
        for layer, module in own.items():
            handles += _OWN_ATTENTION[type(module).__name__](module, layer, recorder)
        for key, config in configs.items():
            config._attn_implementation = _registered(before[key] or "eager")
        _active.append(recorder)
        yield recorder
    finally:
        if recorder in _active:
            _active.remove(recorder)
        for handle in handles:
            handle.remove()
        for key, config in configs.items():
            config._attn_implementation = before[key]


def _returned_weights(module: nn.Module, layer: int, recorder: AttentionRecorder) -> list[Any]:
    """BLOOM and GPT-Neo always form the weights and return them second: keep the boundary's row of that."""

    def hook(_module: nn.Module, _args: Any, output: Any) -> None:
        recorder.keep(layer, _row_of(output[1], recorder.boundary))

    return [module.register_forward_hook(hook)]


def _falcon(module: nn.Module, layer: int, recorder: AttentionRecorder) -> list[Any]:
    """Falcon calls sdpa by itself: form the row from its fused projection, its rotary embedding and its mask.

    With ALiBi and sdpa the mask that Falcon passes down already holds the position biases.
    """
    fused: list[torch.Tensor] = []

    def after_projection(_module: nn.Module, _args: Any, output: torch.Tensor) -> None:
        fused[:] = [output]

    def after_attention(attention: Any, _args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if output[1] is not None:  # Falcon's eager attention returns its weights
            recorder.keep(layer, _row_of(output[1], recorder.boundary))
            return
        query, key, _ = (x.transpose(1, 2) for x in attention._split_heads(fused.pop()))
        if kwargs.get("alibi") is None:
            cos, sin = kwargs["position_embeddings"]
            query, key = sys.modules[type(attention).__module__].apply_rotary_pos_emb(query, key, cos, sin)
        past = kwargs.get("layer_past")
        if past is not None:
            key = past.layers[attention.layer_idx].keys
        recorder.record(attention, query, key, kwargs.get("attention_mask"), {"scaling": attention.inv_norm_factor})

    projection: Any = module.query_key_value
    return [
        projection.register_forward_hook(after_projection),
        module.register_forward_hook(after_attention, with_kwargs=True),
    ]


_OWN_ATTENTION: dict[str, Callable[[nn.Module, int, AttentionRecorder], list[Any]]] = {
    "BloomAttention": _returned_weights,
    "GPTNeoSelfAttention": _returned_weights,
    "FalconAttention": _falcon,
}


def _row_of(weights: torch.Tensor, boundary: torch.Tensor) -> torch.Tensor:
    """The boundary's row [B, H, T] of attention weights [B, H, Tq, T]."""
    return weights[torch.arange(len(boundary), device=weights.device), :, boundary]


def _block_mask_row(mask: Any, boundary: torch.Tensor, keys: int) -> torch.Tensor:
    """The boundary's row of a flex attention block mask: bool [B, 1, 1, T]."""
    batch = torch.arange(len(boundary), device=boundary.device)[:, None]
    columns = torch.arange(keys, device=boundary.device)[None]
    zero = torch.zeros_like(batch)
    seen = mask.mask_mod(batch, zero, boundary[:, None], columns)
    return seen.expand(len(boundary), keys)[:, None, None].contiguous()


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

    def recording_attention(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        **options: Any,
    ) -> Any:
        if _active:
            _active[-1].record(module, query, key, attention_mask, options)
        if implementation == "eager":
            function = _eager_function(module)
        else:
            function = ALL_ATTENTION_FUNCTIONS[implementation]
        return function(module, query, key, value, attention_mask, **options)

    return recording_attention


def _eager_function(module: nn.Module) -> Callable[..., Any]:
    """The eager attention of the file that defines a module's class, or a class it is derived from."""
    for kind in type(module).__mro__:
        found = getattr(sys.modules[kind.__module__], "eager_attention_forward", None)
        if found is not None:
            return found
    raise CaptureError(
        f"{type(module).__name__} has no eager attention of its own; capture without attention rows, or load the model with attn_implementation='sdpa'"
    )


def _uses_interface(module: nn.Module) -> bool:
    """Whether a module calls transformers' attention interface in its own forward."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and hasattr(module, "config") and "ALL_ATTENTION_FUNCTIONS" in code.co_names


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
