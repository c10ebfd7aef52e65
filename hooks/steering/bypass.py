"""The way around the MLP: a change of `resid_mid` has to reach the block's output as well, which adds the MLP to what was there before.

Guarantees that resid_mid + mlp_out = resid_post also when steered, within one rounding. Adding the change to the block's output would not do:
where a channel is massive, the MLP's part was rounded away in 16 bits when the block added it, and a change that takes the channel down
would leave nothing of it.
"""

from __future__ import annotations

from typing import Any

import torch

from ..architectures import Architecture
from ..taps import first_tensor, is_idle


class Bypass:
    """Carries a changed `resid_mid` of one block to the block's output.

    Attributes
    ----------
    changed : tuple of Tensor or None
        The site's tensor before and after the change, in this pass.
    """

    def __init__(self, architecture: Architecture, layer: int | None) -> None:
        assert layer is not None
        self.architecture, self.layer = architecture, layer
        self.changed: tuple[torch.Tensor, torch.Tensor] | None = None
        self._added: torch.Tensor | None = None

    def attach(self, handles: list[Any]) -> None:
        """Register the hooks: one that sees what the MLP adds, where the model has that site, and one on the block."""
        tap = self.architecture.taps.get("mlp_out")
        if tap is not None and tap.side == "output":
            handles.append(self.architecture.module(self.layer, "mlp_out").register_forward_hook(self._see))
        block = self.architecture.blocks[self.layer]
        handles.append(block.register_forward_hook(self._carry, prepend=True))
        before_readers(block)

    def _see(self, _module: Any, _args: Any, output: Any) -> None:
        added = first_tensor(output)
        multiplier = self.architecture.multipliers.get(self.architecture.taps["mlp_out"].multiplier or "", 1.0)
        self._added = added if multiplier == 1.0 else added * multiplier

    def _carry(self, _module: Any, _args: tuple[Any, ...], output: Any) -> Any:
        changed, added = self.changed, self._added
        self.changed = self._added = None
        if changed is None:
            return None
        x = first_tensor(output)
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        old, new = (part.reshape(x.shape).to(wide) for part in changed)
        moved = x.to(wide) + (new - old)
        if added is not None:
            part = added.reshape(x.shape).to(wide)
            moved = torch.where((old + part).to(x.dtype) == x, new + part, moved)  # else something else is added there
        return with_first(output, torch.where(new == old, x, moved.to(x.dtype)))


def before_readers(module: Any) -> None:
    """Put what transformers left to read hidden states behind the steering, so that it shows what goes on from here."""
    for number, hook in list(module._forward_hooks.items()):
        if is_idle(hook):
            module._forward_hooks.move_to_end(number)


def with_first(output: Any, new: torch.Tensor) -> Any:
    """A module's output with its hidden states replaced."""
    if isinstance(output, tuple):
        return (new, *output[1:])
    if isinstance(output, list):
        return [new, *output[1:]]
    return new
