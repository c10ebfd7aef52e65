"""The backbone compiled with its taps inside.

Guarantees that compiled captures cannot lose their taps: `torch.compile` does not look at hooks again once it has
compiled a module, so the taps live on a twin of the backbone (the same parameters, its own hook tables), are compiled
in place as one graph, and are checked against the uncompiled pass the first time. Whenever the user's model has hooks
of its own, or a pass needs what the graph does not hold (attention rows, a cache), the plain backbone runs instead
and the result says so. Sizes are symbolic, so that batches of other sizes do not compile again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import CaptureError, RequestError
from ...kernels.gather_rows import GATHER_ROWS
from ..architectures import Architecture, context_length
from ..decoding.rotary import length_rule
from ..differences import limits, relative_difference
from ..prompts.boundary import Batch
from ..taps import first_input, first_tensor, foreign_hook
from .protocol import Backend, Request, Rows

LENGTH_MULTIPLE = 8
"""Lengths are padded to a multiple of this, and batches to two rows: sizes of one would be compiled by themselves."""

_REFUSED = tuple(
    getattr(torch._dynamo.exc, name)
    for name in ("TorchDynamoException", "FailOnRecompileLimitHit")
    if hasattr(torch._dynamo.exc, name)
)
_PLAIN = (bool, int, float, str, type(None))


class CompiledBackend:
    """A backend whose plain passes run through `torch.compile`.

    Parameters
    ----------
    inner : Backend
        The Hugging Face backend.
    compiler : str or callable
        A `torch.compile` backend.

    Raises
    ------
    RequestError
        If there is no compiler of this name.
    """

    def __init__(self, inner: Backend, compiler: str | Callable[..., Any] = "inductor") -> None:
        if isinstance(compiler, str) and compiler not in torch._dynamo.list_backends(exclude_tags=()):
            names = ", ".join(torch._dynamo.list_backends())
            raise RequestError(f"compile={compiler!r} is not a compiler of this torch; choose True or one of {names}")
        self.inner = inner
        self.compiler: str = compiler if isinstance(compiler, str) else getattr(compiler, "__name__", "custom")
        self._compiler = compiler
        self.name = inner.name
        self.model = inner.model
        self.architecture: Architecture = inner.architecture
        self._programs: dict[tuple[Any, ...], _Program] = {}

    @property
    def sites(self) -> tuple[str, ...]:
        return self.inner.sites

    @property
    def gives_cache(self) -> bool:
        return self.inner.gives_cache

    @property
    def gives_attention(self) -> bool:
        return self.inner.gives_attention

    def rows(self, batch: Batch, request: Request, cache: Any = None) -> Rows:
        why_not = self._why_not(batch, request, cache)
        if why_not is not None:
            got = self.inner.rows(batch, request, cache)
            got.notes["not_compiled"] = why_not
            return got
        shape = _shape(self.architecture.backbone)
        key = (request.sites, request.layers, request.positions.shape[1])
        program = self._programs.get(key)
        if program is None or program.shape != shape:
            program = _Program(self.architecture, request, shape, self._compiler)
            got = program.rows(batch, request)
            self._check(got, self.inner.rows(batch, request))
            program.shape = _shape(self.architecture.backbone)  # some modules note the length of what they ran
            self._programs[key] = program
            return got
        return program.rows(batch, request)

    def _why_not(self, batch: Batch, request: Request, cache: Any) -> str | None:
        if cache is not None or request.use_cache:
            return "the pass uses a cache"
        if request.attention:
            return "attention rows were asked for"
        if batch.attention_mask is not None:
            return "the batch is padded on the left"
        if length_rule(self.model.config.get_text_config(decoder=True)) is not None:
            return "its rotary embedding depends on the length of the batch"
        backbone = self.architecture.backbone
        named = (name or "the backbone" for name, module in backbone.named_modules() if "forward" in module.__dict__)
        found = foreign_hook(backbone) or next(named, None)
        return None if found is None else f"{found} has a hook or a forward of someone else's"

    def _check(self, got: Rows, expected: Rows) -> None:
        """Compare a compiled pass with the plain one."""
        for name, a, b in [
            *((s, got.sites[s], expected.sites[s]) for s in got.sites),
            ("final_norm", got.final_norm, expected.final_norm),
        ]:
            wrong = relative_difference(a, b)
            allowed = limits(b.dtype).compiled_states
            if not wrong <= allowed:
                raise CaptureError(
                    f"{name} of the compiled backbone differs by {wrong:.3g} from that of the plain one "
                    f"(at most {allowed:g} is explained by {b.dtype}); leave compile out"
                )


class _Program:
    """One compiled pass for one set of taps.

    The hooks read this object's tensors, which are inputs of the graph: they may be replaced from pass to pass.
    """

    def __init__(self, architecture: Architecture, request: Request, shape: tuple[Any, ...], compiler: Any) -> None:
        self.shape = shape
        self.architecture = architecture
        self.most = context_length(getattr(architecture.backbone, "config", None))
        self.columns: tuple[Tensor, ...] = ()
        self.buffers: dict[str, tuple[Tensor, ...]] = {}
        self.form = GATHER_ROWS.choose("auto", request.positions.device, torch.float32).name
        twins: dict[int, nn.Module] = {}
        self.backbone = _twin(architecture.backbone, twins).eval()
        placed = replace(architecture, backbone=self.backbone, blocks=[twins[id(b)] for b in architecture.blocks])
        self.widths = {}
        for site in request.sites:
            self.widths[site] = architecture.site_width(site, request.layers[0])
            tap = placed.taps[site]
            for slot, layer in enumerate(request.layers):
                module = placed.module(layer, site)
                if tap.side == "input":
                    module.register_forward_pre_hook(self._reads_input(site, slot), with_kwargs=True)
                else:
                    module.register_forward_hook(self._reads_output(site, slot))
        backbone = self.backbone

        def run(input_ids: Tensor) -> Tensor:
            return first_tensor(backbone(input_ids=input_ids, use_cache=False)[0])

        # dynamo counts the graphs of a code object: with one for all programs, the ninth would be refused as a recompilation
        own = FunctionType(run.__code__.replace(), run.__globals__, run.__name__, run.__defaults__, run.__closure__)
        self._run: Callable[[Tensor], Tensor] = torch.compile(own, backend=compiler, fullgraph=True)

    def rows(self, batch: Batch, request: Request) -> Rows:
        n, length = batch.input_ids.shape
        more = max(2 - n, 0)
        width = length + -length % LENGTH_MULTIPLE
        if self.most is not None:
            width = max(min(width, self.most), length)  # learnt positions end there
        ids = functional.pad(batch.input_ids, (0, width - length))
        columns = request.positions
        if more:
            ids, columns = torch.cat([ids, ids[:1]]), torch.cat([columns, columns[:1]])
        dtype = torch.float32 if getattr(self._config, "residual_in_fp32", False) else self._dtype
        self.columns = tuple(column.contiguous() for column in columns.unbind(1))
        self.buffers = {}
        for site, width in self.widths.items():
            size = (n + more, len(request.layers), width)
            self.buffers[site] = tuple(
                torch.full(size, float("nan"), dtype=dtype, device=ids.device) for _ in self.columns
            )
        for tensor, dims in [
            (ids, (0, 1)),
            *((c, (0,)) for c in self.columns),
            *((b, (0,)) for own in self.buffers.values() for b in own),
        ]:
            for dim in dims:
                torch._dynamo.mark_dynamic(tensor, dim)
        try:
            with torch.no_grad():
                hidden = self._run(ids)
        except _REFUSED as error:
            raise CaptureError(
                f"the backbone of this {self.architecture.model_type} model could not be compiled as one graph "
                f"({str(error).strip().splitlines()[0]}); leave compile out"
            ) from error
        final = torch.stack([hidden[torch.arange(n, device=hidden.device), c[:n]] for c in self.columns], 1)
        sites = {}
        for site, own in self.buffers.items():
            rows = torch.stack(own, 1)[:n]
            tap = self.architecture.taps[site]
            if tap.multiplier:
                rows = rows * self.architecture.multipliers[tap.multiplier]
            sites[site] = rows.unflatten(-1, (self.architecture.heads, -1)) if site == "z" else rows
        self.buffers, self.columns = {}, ()
        return Rows(sites=sites, final_norm=final)

    @property
    def _dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.backbone.parameters() if p.is_floating_point())

    @property
    def _config(self) -> Any:
        return getattr(self.backbone, "config", None)

    def _gather(self, site: str, slot: int, x: Tensor) -> None:
        for column, buffer in zip(self.columns, self.buffers[site], strict=True):
            if x.ndim == 2:
                x = x.reshape(buffer.shape[0], -1, x.shape[-1])
            torch.ops.precollapse.gather_rows(x, column, buffer, slot, self.form)

    def _reads_input(self, site: str, slot: int) -> Callable[..., None]:
        def hook(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._gather(site, slot, first_input(args, kwargs))

        return hook

    def _reads_output(self, site: str, slot: int) -> Callable[..., None]:
        def hook(_module: Any, _args: tuple[Any, ...], output: Any) -> None:
            self._gather(site, slot, first_tensor(output))

        return hook


def _twin(module: nn.Module, made: dict[int, nn.Module]) -> nn.Module:
    """A copy of a module tree that shares every parameter and buffer, but no table of hooks or of children."""
    if id(module) in made:
        return made[id(module)]
    twin = object.__new__(type(module))
    made[id(module)] = twin
    twin.__dict__ = {
        k: OrderedDict(v) if "hooks" in k and isinstance(v, dict) else v for k, v in module.__dict__.items()
    }
    twin.__dict__["_parameters"] = dict(module._parameters)
    twin.__dict__["_buffers"] = dict(module._buffers)
    twin.__dict__["_modules"] = {
        name: None if child is None else _twin(child, made) for name, child in module._modules.items()
    }
    return twin


def _shape(backbone: nn.Module) -> tuple[Any, ...]:
    """What a graph of a backbone is made from: another answer means that someone replaced a part or set a number."""
    return tuple(
        (
            id(m),
            *(id(p) for p in m._parameters.values()),
            *(id(b) for b in m._buffers.values()),
            *(v for k, v in m.__dict__.items() if k != "training" and isinstance(v, _PLAIN)),
        )
        for m in backbone.modules()
    )
