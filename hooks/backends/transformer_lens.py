"""The TransformerLens backend: the same rows, read at a TransformerBridge's hook points.

Guarantees that every site is read at TransformerLens' own hook point, gathered inside its hook; that a site whose hook
point is missing, or means something else than here, is refused when the backend is made; and that other people's hooks
on the bridge stay. TransformerLens computes attention in its own way (its probabilities in float32), so states differ
from Hugging Face's by what float32 explains, in float64 as well.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from ...errors import CaptureError, RequestError
from ..architectures import unwrapped
from ..attention import attention_modules, attention_rows
from ..evaluation import evaluating
from ..prompts.boundary import Batch
from ..taps import RowBuffers, first_tensor
from .hf import HuggingFaceBackend
from .protocol import Request, Rows

_HOOKS = {
    "resid_pre": "hook_resid_pre",
    "resid_mid": "hook_resid_mid",
    "resid_post": "hook_resid_post",
    "attn_out": "hook_attn_out",
    "mlp_out": "hook_mlp_out",
    "z": "attn.hook_z",
}
_PATTERN = "attn.hook_pattern"


def wrap_model(model: Any, tokenizer: Any) -> Any:
    """Build a TransformerBridge around a loaded Hugging Face model, whose modules it replaces in place.

    The bridge is made without a tokenizer: TransformerLens would load another one that adds a BOS of its own accord, and
    this package gives token ids.

    Raises
    ------
    RequestError
        If TransformerLens has no adapter for the architecture, or its adapter fails on this model.
    """
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    kind = type(model).__name__
    reason = _unsupported(model.config)
    if reason is not None:
        raise RequestError(
            f"backend 'transformer_lens' cannot read this {model.config.model_type} model: {reason}; use backend 'hf'"
        )
    try:
        return build_bridge_from_module(model, kind, hf_config=model.config, dtype=model.dtype)
    except (ValueError, RuntimeError, AttributeError, NotImplementedError) as error:
        raise RequestError(
            f"TransformerLens cannot bridge {kind} ({str(error).splitlines()[0]}); use backend 'hf' or 'nnsight'"
        ) from error


class TransformerLensBackend(HuggingFaceBackend):
    """Captures through the hook points of a TransformerBridge.

    Parameters
    ----------
    bridge : transformer_lens.model_bridge.TransformerBridge

    Raises
    ------
    RequestError
        If the bridge's weights were processed (folded or centred), which changes what its sites hold, or the family is one that
        TransformerLens computes differently.
    """

    name = "transformer_lens"
    gives_cache = False

    def __init__(self, bridge: Any) -> None:
        if getattr(bridge, "_weights_processed", False):
            raise RequestError(
                "this TransformerBridge has processed weights (enable_compatibility_mode or process_weights), so its sites do not hold the "
                "model's own states; boot it again without processing, or with no_processing=True"
            )
        model = bridge.original_model
        reason = _unsupported(model.config)
        if reason is not None:
            raise RequestError(
                f"backend 'transformer_lens' cannot read this {model.config.model_type} model: {reason}; use backend 'hf'"
            )
        super().__init__(model)
        self.bridge = bridge
        points = bridge.hook_dict
        layers = range(len(self.architecture.blocks))
        taps, absent = {}, dict(self.architecture.absent)
        for site, tap in self.architecture.taps.items():
            if all(f"blocks.{layer}.{_HOOKS[site]}" in points for layer in layers):
                taps[site] = replace(tap, multiplier=None)  # TransformerLens multiplies before its hook point
            else:
                absent[site] = f"TransformerLens has no {_HOOKS[site]} in every block"
        self.architecture = replace(self.architecture, taps=taps, absent=absent, head=unwrapped(self.architecture.head))
        self._attending = set(attention_modules(self.architecture))

    @property
    def gives_attention(self) -> bool:
        return bool(self._attending)

    def rows(self, batch: Batch, request: Request, cache: Any = None) -> Rows:
        if cache is not None or request.use_cache:
            raise CaptureError(
                "backend 'transformer_lens' takes and gives no cache; capture without shared prefixes, or use backend 'hf'"
            )
        buffers = RowBuffers(
            self.architecture, request.sites, request.layers, request.positions, self.dtype, self.device
        )
        hooks: list[tuple[str, Callable[..., None]]] = [
            (f"blocks.{layer}.{_HOOKS[site]}", _reads(buffers, site, layer))
            for site in request.sites
            for layer in request.layers
        ]
        patterns: dict[int, torch.Tensor] = {}
        recorded = None
        with torch.no_grad(), ExitStack() as stack:
            stack.enter_context(evaluating(self.bridge))
            stack.enter_context(evaluating(self.model))  # dropouts that the bridge does not wrap are only in here
            if request.attention:
                hooks += [
                    (f"blocks.{layer}.{_PATTERN}", _keeps(patterns, layer, batch.boundary))
                    for layer in request.layers
                    if f"blocks.{layer}.{_PATTERN}" in self.bridge.hook_dict
                ]
                recorded = stack.enter_context(attention_rows(self.architecture, request.layers, batch.boundary))
            stack.enter_context(self.bridge.hooks(fwd_hooks=hooks))
            output = self.forward(batch)
        attention = None
        if recorded is not None:
            # A bridge either computes the pattern itself, or leaves a layer to Hugging Face's attention.
            attention = [self._row(layer, patterns.get(layer, recorded.rows.get(layer))) for layer in request.layers]
        return Rows(sites=buffers.result(), final_norm=buffers.gather(first_tensor(output[0])), attention=attention)

    def _row(self, layer: int, row: torch.Tensor | None) -> torch.Tensor | None:
        if row is None and layer in self._attending:
            raise CaptureError(
                f"the attention of layer {layer} never came by in this TransformerBridge; capture without attention rows, or use backend 'hf'"
            )
        return row


def _keeps(rows: dict[int, torch.Tensor], layer: int, boundary: torch.Tensor) -> Callable[..., None]:
    def hook(pattern: torch.Tensor, hook: Any = None) -> None:
        rows[layer] = pattern[torch.arange(len(boundary), device=pattern.device), :, boundary].float()

    return hook


def _reads(buffers: RowBuffers, site: str, layer: int) -> Callable[..., None]:
    def hook(value: Any, hook: Any = None) -> None:
        x = first_tensor(value)
        buffers.write(site, layer, x.flatten(2) if site == "z" and x.ndim == 4 else x)

    return hook


def _unsupported(config: Any) -> str | None:
    """Why TransformerLens' form of a model fails, or computes something else than Hugging Face's, where it does."""
    if getattr(config, "_attn_implementation", None) == "flex_attention":
        return "TransformerLens reads dense masks, which flex attention does not have; load the model with another implementation"
    if config.model_type == "falcon" and getattr(config, "alibi", False):
        return "TransformerLens takes its eager attention, which adds the ALiBi biases twice"
    if config.model_type == "opt" and not getattr(config, "do_layer_norm_before", True):
        return "TransformerLens expects a final norm, which post-norm OPT lacks"
    return None
