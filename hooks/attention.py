"""The boundary's attention row, computed beside the attention that the model runs.

Guarantees that looking at attention never changes how the model computes it: the user's implementation (sdpa, flash, flex,
eager) is called with the very arguments it would get, and one query row is formed from the same rotated queries and keys.
The model's configuration is not touched, since attention functions and blocks read the implementation's name from it;
the function behind that name is replaced during the pass, and put back however the pass ends.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ..errors import CaptureError
from ..kernels import attention_row
from .architectures import Architecture
from .decoding.shared_prompts import LentLayer
from .sections import section

_active: list[AttentionRecorder] = []
_replaced: dict[tuple[int, str], _Replaced] = {}


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
            try:
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
            except (TypeError, ValueError) as error:
                raise CaptureError(
                    f"the attention row of layer {layer} cannot be formed from what {type(module).__name__} was given ({error}); "
                    "capture without attention rows, or load the model with attn_implementation='eager'"
                ) from error
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
            if type(module).__name__ in _OWN_ATTENTION or _interface(module) is not None:
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
    recorder = AttentionRecorder({id(m): layer for layer, m in modules.items()}, layers, boundary)
    undo = ExitStack()
    try:
        names = set()
        for layer, module in modules.items():
            reader = _own_reader(module)
            if reader is not None:
                for handle in reader(module, layer, recorder):
                    undo.callback(handle.remove)
                continue
            interface: Any = _interface(module)
            name = _implementation(module)
            if (id(interface), name) not in names:
                names.add((id(interface), name))
                undo.enter_context(_recorded(interface, name))
        _active.append(recorder)
        yield recorder
    finally:
        if recorder in _active:
            _active.remove(recorder)
        undo.close()


@dataclass
class _Replaced:
    """An attention function that records, and what stood in its place."""

    interface: Any
    users: int
    local: Callable[..., Any] | None


@contextmanager
def _recorded(interface: Any, name: str) -> Iterator[None]:
    """Let the attention function `name` of an interface record; what stood there is put back when its last user leaves."""
    key = (id(interface), name)
    if key not in _replaced:
        before = interface.get(name)
        _replaced[key] = _Replaced(interface, 0, interface._local_mapping.get(name))
        interface[name] = _recording(name, before)
    _replaced[key].users += 1
    try:
        yield
    finally:
        own = _replaced[key]
        own.users -= 1
        if own.users == 0:
            del _replaced[key]
            if own.local is None:
                del interface[name]
            else:
                interface[name] = own.local


def _returned_weights(module: nn.Module, layer: int, recorder: AttentionRecorder) -> list[Any]:
    """These modules form the weights and return them second (BLOOM and GPT-Neo always do): keep the boundary's row."""

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
            cached = past.layers[attention.layer_idx]
            key = cached.all_keys(key) if isinstance(cached, LentLayer) else cached.keys
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


def _recording(name: str, function: Callable[..., Any] | None) -> Callable[..., Any]:
    """An attention function that records and then calls the one that stood there; eager ones stand with each module."""

    def recording_attention(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        **options: Any,
    ) -> Any:
        for recorder in _active:
            recorder.record(module, query, key, attention_mask, options)
        return (function or _eager_function(module))(module, query, key, value, attention_mask, **options)

    recording_attention.__name__ = f"recording_{name}"
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


def _interface(module: nn.Module) -> Any:
    """The attention interface that a module's own forward looks functions up in; None where it uses none."""
    function = inspect.unwrap(type(module).forward)
    code = getattr(function, "__code__", None)
    if code is None or not hasattr(module, "config") or "ALL_ATTENTION_FUNCTIONS" not in code.co_names:
        return None
    return function.__globals__.get("ALL_ATTENTION_FUNCTIONS")


def _implementation(module: Any) -> str:
    return module.config._attn_implementation or "eager"


def _own_reader(module: Any) -> Callable[[nn.Module, int, AttentionRecorder], list[Any]] | None:
    """How to read a module whose attention bypasses the interface; None where it does not."""
    if getattr(module, "reorder_and_upcast_attn", False) and _implementation(module) == "eager":
        return _returned_weights  # GPT-2's other eager form
    return _OWN_ATTENTION.get(type(module).__name__)


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
