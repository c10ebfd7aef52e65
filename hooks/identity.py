"""What a model is made of now, cheaply: so that one which was changed after its extractor was made is not read as it was.

Guarantees that a module that was put in, wrapped or replaced (a head, a block, an adapter), a `forward` that was exchanged, weights of another
size or dtype and a setting of the logits that was changed give another identity. Values of weights do not count: they are read at each call.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

_SETTINGS = ("softcap", "soft_cap", "logit", "scaling", "multiplier", "unpadded", "tie_word")
"""Parts of the names of settings that say what a model does to its logits."""


def identity(model: Any) -> Hashable:
    """Which modules, which code and which sizes a model consists of.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Its modules are looked at, not run.

    Returns
    -------
    hashable
        Equal as long as nothing of these was changed. Objects are told apart by their identity in this process.
    """
    modules = tuple((id(module), id(type(module).forward), _own_forward(module)) for module in model.modules())
    weights = tuple((weight.shape, weight.dtype) for weight in model.parameters())
    config = model.config.get_text_config(decoder=True)
    settings = tuple(
        (name, value)
        for name, value in sorted(vars(config).items())
        if isinstance(value, int | float | str | None) and any(part in name for part in _SETTINGS)
    )
    heads = (id(model.get_output_embeddings()), id(model.get_input_embeddings()))
    return modules, weights, settings, heads


def _own_forward(module: Any) -> int:
    """Identity of what a module runs instead of its class's code; 0 where it runs that, or nnsight watches it."""
    own = module.__dict__.get("forward")
    if own is None or type(own).__module__.partition(".")[0] == "nnsight" or "__nnsight__" in module.__dict__:
        return 0
    return hash(own) if hasattr(own, "__func__") else id(own)
