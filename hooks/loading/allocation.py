"""How much a model may take while it is built, by the size of its checkpoint.

Guarantees that a config which describes a far larger model than its weights (more parts, larger tables, larger tensors) is refused
before the memory is asked for, whatever its kind, quantised or not, with or without a trial: every tensor is measured by its shape
before it is made. It prevents a checkpoint of a few kilobytes that takes a machine's memory.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import RequestError

_MOST_MODULES, _MODULES_A_TENSOR = 4096, 64
_LEAST = 4 << 30
"""Bytes (numbers, on the meta device) that any checkpoint may take beside its weights, such as for a mask."""
_TIMES_ONE, _TIMES_ALL = 4, 16
"""How many times the checkpoint's own bytes one tensor may take, and all that are made."""
_PACKED = 16
"""How many numbers a byte of a packed checkpoint is at most unpacked to; on the meta device, where nothing is allocated, they are counted."""


@contextlib.contextmanager
def bounded(name: str, tensors: Mapping[str, Any]) -> Iterator[None]:
    """Refuse, while a model is built in this thread, more parts or more memory than its checkpoint can need.

    Parameters
    ----------
    name : str
        What a message calls the model.
    tensors : mapping of str to torch.Tensor
        The checkpoint's own, by their headers.

    Raises
    ------
    RequestError
        From within, before the part or the tensor is made.
    """
    from torch.nn.modules.module import register_module_module_registration_hook

    most = _MOST_MODULES + _MODULES_A_TENSOR * len(tensors)
    thread, parts = threading.get_ident(), 0

    def count(parent: Any, child: str, part: Any) -> None:
        nonlocal parts
        if threading.get_ident() != thread:
            return
        parts += 1
        if parts > most:
            raise RequestError(
                f"the config.json of model {name!r} describes a model of more than {most:,} parts, and its weights are "
                f"{len(tensors):,} tensors; get the config that belongs to the weights"
            )

    handle = register_module_module_registration_hook(count)
    try:
        with _measured(name, sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())):
            yield
    finally:
        handle.remove()


def _measured(name: str, weights: int) -> Any:
    """A mode of torch in which what an operator is about to make is held to the limits before it is made."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map

    def on_meta(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to("meta")
        return torch.device("meta") if isinstance(value, torch.device) else value

    class Measured(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.made = {"meta": 0, "real": 0}

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if any(output.alias_info is not None for output in func._schema.returns):
                return func(*args, **kwargs)  # a view, or in place: nothing new is made
            devices = {leaf.device.type for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
            device = kwargs.get("device")
            devices = {torch.device(device).type} if device is not None else devices or {"cpu"}
            if devices == {"meta"}:
                made = func(*args, **kwargs)
                self.hold(made, "meta")
                return made
            try:
                like = {"device": torch.device("meta")} if not any(map(_is_tensor, tree_leaves(args))) else {}
                wanted = {key: value for key, value in kwargs.items() if key != "pin_memory"}
                self.hold(func(*tree_map(on_meta, args), **(tree_map(on_meta, wanted) | like)), "real")
            except (NotImplementedError, RuntimeError, TypeError, IndexError):
                pass  # its shape depends on numbers, or it makes no tensor
            return func(*args, **kwargs)

        def hold(self, outputs: Any, where: str) -> None:
            for tensor in filter(_is_tensor, tree_leaves(outputs)):
                size = tensor.numel() * (tensor.element_size() if where == "real" else 1)
                self.made[where] += size
                times = _PACKED if where == "meta" else 1
                if (
                    size > max(_LEAST, _TIMES_ONE * times * weights)
                    or self.made[where] > _LEAST + _TIMES_ALL * times * weights
                ):
                    unit = "bytes" if where == "real" else "numbers"
                    raise RequestError(
                        f"the config.json of model {name!r} asks for {max(size, self.made[where]):,} {unit} beside weights of {weights:,} bytes "
                        "(by a size in it, such as max_position_embeddings or vocab_size); get the config that belongs to the weights"
                    )

    def _is_tensor(value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    return Measured()
