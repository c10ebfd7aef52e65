"""A steering in place on one model: the hooks that change its site, and the account of what they have done.

Guarantees that a pass which did not go through the steered module, or went twice, raises; that values which are not finite are
refused; and that a steering which changed nothing is an error and never "no effect".
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from ...errors import CaptureError, RequestError
from ...layers import resolve_layers
from ..architectures import Architecture, Tap
from ..decoding import passes
from ..selection import resolve_sites
from ..taps import as_sequences, first_input, first_tensor
from .arithmetic import CHANGES
from .bypass import Bypass, before_readers, with_first
from .change import Change
from .columns import Columns


class Applied:
    """A steering in place on one model, and what it has done so far."""

    def __init__(self, steering: Change, extractor: Any) -> None:
        backend = extractor.backend
        if backend.name != "hf":
            raise RequestError(
                f"steering works through backend 'hf'; this extractor uses {backend.name!r}, so load the "
                "model with backend='hf'"
            )
        if any(s is steering for s in extractor.steerings):
            raise RequestError(
                "this very steering is already in place on the extractor; make a second Steering to apply it twice"
            )
        self.steering = steering
        self.architecture: Architecture = backend.architecture
        resolve_sites(steering.site, self.architecture, backend.sites, backend.name)
        self.layer = None if steering.layer is None else resolve_layers(int(steering.layer), extractor.n_layers)[0]
        self.tap = self.architecture.taps.get(steering.site, Tap("", "output"))
        self.multiplier = self.architecture.multipliers.get(self.tap.multiplier or "", 1.0)
        width = self.architecture.site_width(steering.site, self.layer or 0)
        if steering.vector.shape[-1] != width:
            raise RequestError(
                f"the steering vector has {steering.vector.shape[-1]} values, but {steering.site} of this "
                f"{self.architecture.model_type} model has {width}"
            )
        self.names = list(inspect.signature(self.architecture.stack.forward).parameters)
        self.columns = Columns(steering.positions)
        self.where: torch.Tensor | str = "none"
        self.batch = 0
        self.rows: tuple[int, ...] | None = None
        self.bypass = Bypass(self.architecture, self.layer) if steering.site == "resid_mid" else None
        self.running = False
        self.passes = self.fired = self.selected = 0
        self.changed = False
        self.finite: torch.Tensor | None = None

    # -- hooks -------------------------------------------------------------------------------------------------------

    def attach(self, handles: list[Any]) -> None:
        """Register the hooks, appending each handle at once so that none is lost to an interrupt."""
        # not the backbone: a model may call its stack of blocks directly, as OPT does when it generates
        stack, site = self.architecture.stack, self.steering.site
        handles.append(stack.register_forward_pre_hook(self._begin, with_kwargs=True))
        if site == "final_norm":
            handles.append(stack.register_forward_hook(self._output))
        else:
            assert self.layer is not None
            module = self.architecture.module(self.layer, site)
            if self.tap.side == "input":
                handles.append(module.register_forward_pre_hook(self._input, with_kwargs=True))
            else:
                handles.append(module.register_forward_hook(self._output))
                before_readers(module)
            if self.bypass is not None:
                self.bypass.attach(handles)
        handles.append(stack.register_forward_hook(self._end))

    def _begin(self, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        tokens = given.get("input_ids")
        if tokens is None:
            tokens = given.get("inputs_embeds")
        if tokens is None:
            raise CaptureError(
                f"a pass began with neither input_ids nor inputs_embeds (it has {', '.join(sorted(given)) or 'nothing'}), "
                "so its prompts cannot be placed; this way of running the model cannot be steered"
            )
        self.batch, self.fired, self.running = int(tokens.shape[0]), 0, True
        declared = passes.current()
        if declared is not None and len(declared.rows) != self.batch:
            raise CaptureError(
                f"a pass of {self.batch} rows ran where one of {len(declared.rows)} prompts was declared; "
                "this way of running the model cannot be steered"
            )
        self.rows = None if declared is None else declared.rows
        if declared is None and self.steering.per_item not in (None, self.batch):
            raise CaptureError(
                f"a pass of {self.batch} rows ran under a steering with scales or vectors for "
                f"{self.steering.per_item} prompts; run one row per prompt, in order"
            )
        if self.rows is not None and self.steering.per_item is not None and max(self.rows) >= self.steering.per_item:
            raise CaptureError(
                f"prompt {max(self.rows)} has no scale or vector: the steering has them for "
                f"{self.steering.per_item} prompts"
            )
        self.where = self.columns.chosen(declared, given, tokens)
        self.passes += 1

    def _input(
        self, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        x = first_input(args, kwargs)
        new = self._steered(x)
        if new is None:
            return None
        if self.bypass is not None:
            self.bypass.changed = x, new
        if args:
            return (new, *args[1:]), kwargs
        name = next(name for name, value in kwargs.items() if value is x)
        return args, {**kwargs, name: new}

    def _output(self, _module: Any, _args: tuple[Any, ...], output: Any) -> Any:
        if self.steering.site == "final_norm" and isinstance(output, Mapping):
            old = output["last_hidden_state"]
            new = self._steered(old)
            if new is not None:
                shown = output.get("hidden_states")
                if shown and shown[-1].shape == old.shape and torch.equal(shown[-1], old):
                    output["hidden_states"] = (*shown[:-1], new)  # type: ignore[index]
                output["last_hidden_state"] = new  # type: ignore[index]
            return output
        new = self._steered(first_tensor(output))
        return None if new is None else with_first(output, new)

    def _end(self, _module: Any, _args: tuple[Any, ...], _output: Any) -> None:
        self.running = False
        if self.fired != 1:
            raise CaptureError(
                f"the steered site {self.steering.site} at layer {self.layer} was reached {self.fired} times "
                "in one pass instead of once; "
                "the model skips or repeats this block, or another tool bypasses its forward"
            )

    # -- arithmetic --------------------------------------------------------------------------------------------------

    def _steered(self, x: torch.Tensor) -> torch.Tensor | None:
        """The site's tensor with the chosen columns changed; None when none is chosen."""
        if not self.running:
            raise CaptureError(
                f"the steered site {self.steering.site} at layer {self.layer} ran in a pass that did not go through "
                f"{type(self.architecture.stack).__name__}, so its positions are unknown; call the model itself"
            )
        self.fired += 1
        if self.steering.idle or isinstance(self.where, str) and self.where == "none":
            return None
        self.selected += 1
        block = as_sequences(x, self.batch, f"the steered {self.steering.site}")
        if isinstance(self.where, str):
            picked = block
        else:
            columns = self.where.to(x.device)
            rows = torch.arange(self.batch, device=x.device)[:, None]
            picked = block[rows, columns]
        new = self._changed(picked)
        if not self.changed:  # one look suffices, and each costs a wait for the device
            self.changed = bool(((new != picked) & ~picked.isnan()).any())
        fine = (torch.isfinite(new) | ~torch.isfinite(picked)).all()  # padding may have been NaN before
        self.finite = fine if self.finite is None else self.finite.to(fine.device) & fine
        if isinstance(self.where, str):
            return new.reshape(x.shape)
        out = block.clone()
        out[rows, columns] = new
        return out.reshape(x.shape)

    def _changed(self, x: torch.Tensor) -> torch.Tensor:
        """New values of the picked columns [B, P, width]."""
        kind = torch.float64 if x.dtype == torch.float64 else torch.float32
        v, s = self._per_row(self.steering.vector, x.device, kind), self._per_row(self.steering.scale, x.device, kind)
        h = x.to(kind) * self.multiplier if self.multiplier != 1.0 else x.to(kind)
        new = CHANGES[self.steering.mode](h, v, s)
        if self.multiplier != 1.0:
            new = x.to(kind) + (new - h) / self.multiplier
        return new.to(x.dtype)

    def _per_row(self, value: Any, device: torch.device, kind: torch.dtype) -> torch.Tensor:
        """A vector as [1 or B, 1, width], a scale as [1 or B, 1, 1]."""
        own = torch.as_tensor(value, dtype=kind).to(device)
        is_scale = value is self.steering.scale
        shared = own.ndim == (0 if is_scale else 1)
        own = own.reshape(1) if is_scale and shared else own[None] if shared else own
        if not shared and self.rows is not None:
            own = own[torch.as_tensor(self.rows, device=device)]
        return own[:, None, None] if is_scale else own[:, None]

    def finish(self) -> None:
        """Refuse a steering that did nothing, or made values that are not finite."""
        what = f"the steering of {self.steering.site}" + ("" if self.layer is None else f" at layer {self.layer}")
        if self.finite is not None and not bool(self.finite):
            raise CaptureError(
                f"{what} made values that are not finite in {self.architecture.backbone.dtype}; use a "
                "smaller scale, or load the model in bfloat16 or float32"
            )
        if self.steering.idle or self.changed:
            return
        if self.passes == 0:
            raise CaptureError(f"{what} changed nothing: no pass of this extractor's model ran inside its block")
        if self.selected == 0:
            raise CaptureError(
                f"{what} changed nothing: none of {self.passes} passes held a position of "
                f"positions={self.steering.positions!r}"
            )
        raise CaptureError(
            f"{what} changed nothing: every value rounded back to what it was; use a larger scale, or a "
            f"wider dtype than {self.architecture.backbone.dtype}"
        )
