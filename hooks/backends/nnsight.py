"""The nnsight backend: the same rows, read inside an nnsight trace.

Guarantees that rows are gathered inside the trace, so that no saved value holds a whole sequence; that the trace stops at
the backbone's end, so that the unembedding never runs; and that the attention of the model stays as the user set it, as it
does with plain hooks. nnsight serves values in the order in which the model makes them, so sites are read in that order.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch

from ...errors import CaptureError, RequestError
from ..architectures import LAYER_SITES
from ..attention import attention_rows
from ..evaluation import evaluating
from ..prompts.boundary import Batch
from ..taps import RowBuffers, first_tensor
from .hf import HuggingFaceBackend
from .protocol import Request, Rows

_ORDER = ("resid_pre", "z", "attn_out", "resid_mid", "mlp_out", "resid_post")
assert set(_ORDER) == set(LAYER_SITES)


def wrap_model(model: Any, tokenizer: Any) -> Any:
    """Wrap a loaded Hugging Face model as an nnsight `TransformersModel`; the model is not copied or changed."""
    from nnsight.modeling.transformers import TransformersModel

    return TransformersModel(model, tokenizer=tokenizer, task="text-generation")


class NnsightBackend(HuggingFaceBackend):
    """Captures through traces of an nnsight model.

    Parameters
    ----------
    wrapped : nnsight.NNsight
        A `TransformersModel`, or `NNsight` around a Hugging Face causal language model.

    Raises
    ------
    RequestError
        If its weights are not loaded yet, or no Hugging Face model is inside.
    """

    name = "nnsight"
    gives_cache = False

    def __init__(self, wrapped: Any) -> None:
        model = wrapped._module
        if not hasattr(model, "config"):
            raise RequestError(
                f"the nnsight model wraps a {type(model).__name__}, which is not a Hugging Face model; wrap a causal language model"
            )
        if any(parameter.is_meta for parameter in model.parameters()):
            raise RequestError("the nnsight model's weights are not loaded yet; make it with dispatch=True")
        super().__init__(model)
        self.wrapped = wrapped
        self._envoys = {id(envoy._module): envoy for envoy in wrapped.modules()}

    def rows(self, batch: Batch, request: Request, cache: Any = None) -> Rows:
        if cache is not None or request.use_cache:
            raise CaptureError(
                "backend 'nnsight' takes and gives no cache; capture without shared prefixes, or use backend 'hf'"
            )
        buffers = RowBuffers(
            self.architecture, request.sites, request.layers, request.positions, self.dtype, self.device
        )
        inputs = self.inputs(batch)
        final: list[torch.Tensor] = []
        recorded = None
        with torch.no_grad(), ExitStack() as stack:
            stack.enter_context(evaluating(self.model))
            if request.attention:
                recorded = stack.enter_context(attention_rows(self.architecture, request.layers, batch.boundary))
            with self._trace(inputs) as tracer:
                self._read(buffers, final)
                tracer.stop()
        if not final:
            raise CaptureError(
                "the nnsight trace ended before the backbone's output was read; nothing of this batch was kept"
            )
        return Rows(
            sites=buffers.result(),
            final_norm=final[0],
            attention=None if recorded is None else recorded.result(),
        )

    def _trace(self, inputs: dict[str, Any]) -> Any:
        """A trace of a pass; a plain `NNsight` hands on what it is given, and takes a mapping for the first argument."""
        takes_mapping = any(
            kind.__name__ in ("LanguageModel", "TransformersModel") for kind in type(self.wrapped).__mro__
        )
        return self.wrapped.trace(inputs) if takes_mapping else self.wrapped.trace(**inputs)

    def _read(self, buffers: RowBuffers, final: list[torch.Tensor]) -> None:
        """Gather every asked row while the model runs, in the order in which it comes by."""
        architecture = self.architecture
        for layer in sorted(buffers.layers):
            for site in _ORDER:
                if site not in buffers.sites:
                    continue
                envoy = self._envoys[id(architecture.module(layer, site))]
                value = envoy.input if architecture.taps[site].side == "input" else envoy.output
                buffers.write(site, layer, first_tensor(value))
        output = self._envoys[id(architecture.stack)].output
        final.append(buffers.gather(first_tensor(output[0])))
