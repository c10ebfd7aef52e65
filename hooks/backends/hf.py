"""The Hugging Face backend: plain forward hooks on the model as it is.

Guarantees that the model is left as found (hooks, attention implementation, training flag) and that the unembedding never
runs over whole sequences: the backbone alone is called.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from typing import Any

import torch

from ...errors import CaptureError, RequestError
from ..architectures import Architecture, describe, input_device
from ..attention import attention_rows, supports_attention
from ..decoding.steps import cache_name, cache_of
from ..evaluation import evaluating
from ..loading.config_file import refuse_unsupported
from ..prompts.boundary import Batch
from ..taps import RowBuffers, first_tensor, tapped
from .protocol import Request, Rows


class HuggingFaceBackend:
    """Captures through forward hooks on a `transformers` causal language model.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    """

    name = "hf"
    gives_cache = True

    def __init__(self, model: Any) -> None:
        refuse_unsupported(model.config, type(model).__name__)
        self.model = model
        self.architecture: Architecture = describe(model)
        embedding = getattr(model.get_input_embeddings(), "weight", None)
        if getattr(embedding, "is_meta", False) and not hasattr(model, "hf_device_map"):  # else accelerate loads them
            raise RequestError(
                f"the weights of this {type(model).__name__} are not loaded (they lie on the meta device); load them"
            )
        parameters = inspect.signature(self.architecture.backbone.forward).parameters
        self._takes_positions = "position_ids" in parameters
        self._cache_name = cache_name(parameters)

    @property
    def sites(self) -> tuple[str, ...]:
        return self.architecture.sites

    @property
    def gives_attention(self) -> bool:
        return supports_attention(self.architecture)

    @property
    def device(self) -> torch.device:
        """Where token ids must be."""
        return input_device(self.model)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the residual stream."""
        return torch.float32 if getattr(self.model.config, "residual_in_fp32", False) else self.model.dtype

    def inputs(self, batch: Batch, use_cache: bool = False, cache: Any = None) -> dict[str, Any]:
        """What the backbone is called with for a batch."""
        inputs: dict[str, Any] = {"input_ids": batch.input_ids, "use_cache": use_cache}
        if batch.attention_mask is not None:
            inputs["attention_mask"] = batch.attention_mask
        if batch.position_ids is not None and self._takes_positions:
            inputs["position_ids"] = batch.position_ids
        if cache is not None:
            if self._cache_name is None:
                raise CaptureError(
                    f"{type(self.model).__name__} takes no cache, so a prefix cannot be shared; capture without it"
                )
            inputs[self._cache_name] = cache
        return inputs

    def forward(self, batch: Batch, use_cache: bool = False, cache: Any = None) -> Any:
        """Run the backbone alone on a batch; returns its output object."""
        return self.architecture.backbone(**self.inputs(batch, use_cache, cache))

    def rows(self, batch: Batch, request: Request, cache: Any = None) -> Rows:
        buffers = RowBuffers(
            self.architecture, request.sites, request.layers, request.positions, self.dtype, self.device
        )
        recorded = None
        with torch.no_grad(), ExitStack() as stack:
            stack.enter_context(evaluating(self.model))
            if request.attention:
                recorded = stack.enter_context(attention_rows(self.architecture, request.layers, batch.boundary))
            stack.enter_context(tapped(buffers))
            output = self.forward(batch, request.use_cache, cache)
        return Rows(
            sites=buffers.result(),
            final_norm=buffers.gather(first_tensor(output[0])),
            attention=None if recorded is None else recorded.result(),
            cache=cache_of(output) if request.use_cache else None,
        )
