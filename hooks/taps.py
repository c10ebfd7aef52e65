"""Forward hooks that gather rows where they arise, leave no trace, and fail when they did not fire.

Guarantees: a tap only reads (its hook returns None, since a returned tensor would replace the model's own); the rows of
all layers go into one preallocated buffer per site, so no [B, T, d] is kept; hooks are removed on success, error and
Ctrl-C, and nobody else's hooks are touched; a tap that fired never or twice raises instead of returning stale rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import CaptureError
from ..kernels import gather_rows
from .architectures import Architecture, Tap
from .sections import section


def first_tensor(value: Any) -> torch.Tensor:
    """The hidden states in a module's output: the tensor itself, or the first of a tuple."""
    return value[0] if isinstance(value, tuple | list) else value


def first_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """The hidden states among a module's arguments."""
    if args:
        return args[0]
    for name in ("hidden_states", "x", "input"):
        if name in kwargs:
            return kwargs[name]
    raise CaptureError(
        f"a hooked module was called without hidden states (keywords {sorted(kwargs)}); this architecture is not supported at this site"
    )


def as_sequences(x: torch.Tensor, batch: int, what: str) -> torch.Tensor:
    """A module's values as [batch, T, width], which some families give as [batch * T, width].

    Raises
    ------
    CaptureError
        For any other shape: several residual streams per token, say, among which no row is "the" state.
    """
    if x.ndim == 3 and x.shape[0] == batch:
        return x
    if x.ndim == 2 and x.shape[0] % batch == 0:
        return x.reshape(batch, -1, x.shape[-1])
    raise CaptureError(
        f"{what} has shape {list(x.shape)} for a batch of {batch}, not [batch, tokens, width]: this architecture keeps its "
        "states in another form and is not supported at this site"
    )


def is_idle(hook: Any) -> bool:
    """Whether a hook is one that transformers leaves behind once hidden states or attentions were asked for.

    It reads, and only while they are asked for again.
    """
    return getattr(hook, "__module__", None) == "transformers.utils.output_capturing"


def foreign_hook(backbone: Any) -> str | None:
    """A module of the backbone that has a hook which may change a pass; None where there is none."""
    for name, module in backbone.named_modules():
        if module._forward_pre_hooks or not all(map(is_idle, module._forward_hooks.values())):
            return name or "the backbone"
    return None


class RowBuffers:
    """Preallocated rows of one batch, and the count of what was written into them.

    Parameters
    ----------
    architecture : Architecture
    sites : sequence of str
    layers : sequence of int
    positions : int64 tensor [B, P]
    dtype : torch.dtype
    device : torch.device
    """

    def __init__(
        self,
        architecture: Architecture,
        sites: Sequence[str],
        layers: Sequence[int],
        positions: torch.Tensor,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.architecture = architecture
        self.sites = tuple(sites)
        self.layers = tuple(layers)
        self.columns = [column.contiguous() for column in positions.unbind(1)]
        batch = positions.shape[0]
        self.buffers: dict[str, torch.Tensor] = {}
        for site in self.sites:
            width = architecture.site_width(site, self.layers[0])
            self.buffers[site] = torch.empty(
                (len(self.columns), batch, len(self.layers), width), dtype=dtype, device=device
            )
        self.elsewhere: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.fired: dict[tuple[str, int], int] = {(site, layer): 0 for site in self.sites for layer in self.layers}

    def write(self, site: str, layer: int, x: torch.Tensor) -> None:
        """Gather the asked columns of `x` ([B, T, width], or [B*T, width]) into the site's buffer at a layer's slot."""
        with section("taps"):
            slot = self.layers.index(layer)
            buffer = self.buffers[site]
            x = as_sequences(x, buffer.shape[1], f"{site} of layer {layer}")
            if x.device != buffer.device:  # a block on another device: its rows come over once, after the pass
                rows = torch.arange(x.shape[0], device=x.device)
                self.elsewhere += [
                    (buffer[p][:, slot], x[rows, column.to(x.device)]) for p, column in enumerate(self.columns)
                ]
            else:
                for p, column in enumerate(self.columns):
                    gather_rows(x, column, buffer[p], slot)
        self.fired[(site, layer)] += 1

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """The asked columns of `x` [B, T, d] as [B, P, d]."""
        rows = torch.arange(x.shape[0], device=x.device)
        return torch.stack([x[rows, column.to(x.device)] for column in self.columns], 1)

    def scale(self, site: str, tap: Tap) -> None:
        """Apply the family's multiplier of this site, once, after the pass."""
        if tap.multiplier:
            self.buffers[site] *= self.architecture.multipliers[tap.multiplier]

    def result(self) -> dict[str, torch.Tensor]:
        """The rows as [B, P, L, width] (`z`: [B, P, L, H, d_head]), after checking that every tap fired exactly once.

        Raises
        ------
        CaptureError
            If a site fired never, or more than once, at some layer.
        """
        wrong = [(site, layer, n) for (site, layer), n in self.fired.items() if n != 1]
        if wrong:
            site, layer, n = wrong[0]
            raise CaptureError(
                f"site {site} at layer {layer} was reached {n} times in one pass instead of once "
                f"({len(wrong)} of {len(self.fired)} taps are wrong); nothing of this batch was kept. "
                "The model skips or repeats blocks, or another tool bypasses their forward"
            )
        for slot, rows in self.elsewhere:
            slot.copy_(rows)
        self.elsewhere.clear()
        out = {}
        for site, buffer in self.buffers.items():
            self.scale(site, self.architecture.taps[site])
            rows = buffer.transpose(0, 1)
            if site == "z":
                rows = rows.unflatten(-1, (self.architecture.heads, -1))
            out[site] = rows
        return out


@contextmanager
def tapped(buffers: RowBuffers) -> Iterator[RowBuffers]:
    """Hook the model so that one forward pass fills `buffers`; all hooks are gone afterwards, however it ends."""
    handles: list[Any] = []
    try:
        for site in buffers.sites:
            tap = buffers.architecture.taps[site]
            for layer in buffers.layers:
                module = buffers.architecture.module(layer, site)
                if tap.side == "input":
                    handles.append(
                        module.register_forward_pre_hook(_reads_input(buffers, site, layer), with_kwargs=True)
                    )
                else:
                    handles.append(module.register_forward_hook(_reads_output(buffers, site, layer)))
        yield buffers
    finally:
        for handle in handles:
            handle.remove()


def _reads_input(buffers: RowBuffers, site: str, layer: int) -> Callable[..., None]:
    def hook(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        buffers.write(site, layer, first_input(args, kwargs))

    return hook


def _reads_output(buffers: RowBuffers, site: str, layer: int) -> Callable[..., None]:
    def hook(_module: Any, _args: tuple[Any, ...], output: Any) -> None:
        buffers.write(site, layer, first_tensor(output))

    return hook
