"""The ways into a model, behind one protocol."""

from __future__ import annotations

from typing import Any

from ...errors import RequestError
from .protocol import Backend

BACKENDS = ("hf", "nnsight", "transformer_lens")


def recognise(model: Any) -> str:
    """Which backend a loaded object belongs to.

    Raises
    ------
    RequestError
        If it is none of them.
    """
    kinds = {f"{c.__module__.partition('.')[0]}.{c.__name__}" for c in type(model).__mro__}
    if "transformer_lens.TransformerBridge" in kinds:
        return "transformer_lens"
    if any(kind.startswith("nnsight.") for kind in kinds):
        return "nnsight"
    if "transformers.PreTrainedModel" in kinds:
        return "hf"
    raise RequestError(
        f"model is a {type(model).__name__}; give a Hugging Face causal language model, an nnsight model or a TransformerBridge"
    )


def make_backend(model: Any, name: str | None = None) -> Backend:
    """The backend for a loaded object; `name`, when given, must be the one that fits it."""
    found = recognise(model)
    if name is not None and name not in BACKENDS:
        raise RequestError(f"backend {name!r} is unknown; choose from {', '.join(BACKENDS)}")
    if name is not None and name != found:
        raise RequestError(
            f"backend {name!r} was asked for, but the model is a {type(model).__name__}, which backend {found!r} reads; leave backend out"
        )
    if found == "hf":
        from .hf import HuggingFaceBackend

        return HuggingFaceBackend(model)
    if found == "nnsight":
        from .nnsight import NnsightBackend

        return NnsightBackend(model)
    from .transformer_lens import TransformerLensBackend

    return TransformerLensBackend(model)


def wrap(model: Any, tokenizer: Any, name: str) -> Any:
    """Wrap a loaded Hugging Face model in the object that a backend reads.

    Raises
    ------
    RequestError
        If the backend's package is not installed.
    """
    if name == "hf":
        return model
    try:
        if name == "nnsight":
            from .nnsight import wrap_model
        else:
            from .transformer_lens import wrap_model
    except ImportError as error:
        extra = name.replace("_", "-")
        raise RequestError(
            f"backend {name!r} needs a package that is not installed ({error}); pip install 'precollapse[{extra}]'"
        ) from error
    return wrap_model(model, tokenizer)
