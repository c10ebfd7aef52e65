"""Steering: change a site of a running model along a vector, in capture and in generation.

Guarantees: the change is exactly the one asked for, at the positions asked for, whatever the padding, the batching or
the cache; several steerings nest, and what is captured is the changed state; the hooks are gone afterwards, however
the block ends, and nobody else's are touched. A steering that changed nothing raises, so that a wrong layer, a pass
that bypassed the hook, or a vector lost in rounding is never reported as "no effect".
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import CaptureError, RequestError
from ..layers import resolve_layers
from .architectures import SITES, Architecture, Tap
from .boundary import boundary_index
from .decoding import passes
from .decoding.steps import cache_in
from .selection import resolve_sites
from .taps import as_sequences, first_input, first_tensor, is_idle

MODES = ("add", "ablate", "project", "replace")
POSITIONS = ("all", "prompt", "boundary", "generated", "response")


@dataclass(frozen=True, eq=False)
class Steering:
    """A change to one site of one layer. `with steering.on(extractor):` puts it in place.

    With h the site's value, v the vector, u = v / |v| and s the scale:

    * `add`: h + s v
    * `ablate`: h - s (h . u) u; s = 1 removes the component along v
    * `project`: h + s ((h . u) u - h); s = 1 keeps nothing but the component along v
    * `replace`: h + s (v - h); s = 1 puts v in its place

    Parameters
    ----------
    site : str
        A layer site that the model has, or "final_norm".
    layer : int or None
        Block number, negative from the end; None for final_norm.
    vector : array [d]
        Width of the residual stream; for `z`, [H * d_head] or [H, d_head]. One vector for all prompts, or one per
        prompt: [n, d] (`z`: [n, H, d_head]).
    scale : float or array [n]
        One for all prompts, or one per prompt of the call, in the caller's order.
    positions : str or sequence of int
        "all": every token, prompt and generated. "prompt": prompt tokens. "boundary": the last prompt token.
        "generated": tokens that the model wrote and reads again; the first of them is therefore still chosen by the
        unsteered boundary. "response": the boundary and the generated tokens, so that every written token is chosen
        under steering. Or numbers of prompt tokens, counted from the prompt's own first (0) or from its end (-1 is the
        boundary).
    mode : {"add", "ablate", "project", "replace"}

    Raises
    ------
    RequestError
        If a name is unknown, or the vector or a scale is empty, not finite or, where a direction is needed, zero.

    Notes
    -----
    The arithmetic is in float32 (float64 for float64 models) and rounded once to the model's dtype. Inner steerings
    act after outer ones. The model's own `generate` works inside the block too; there, a scale or vector per prompt
    needs one row per prompt, and positions other than "all" need a key/value cache, by which prompt and output are told
    apart.
    """

    site: str
    layer: int | None
    vector: Any
    scale: Any = 1.0
    positions: str | Sequence[int] = "all"
    mode: str = "add"

    def __post_init__(self) -> None:
        if self.site not in SITES:
            raise RequestError(f"site {self.site!r} is unknown; choose from {', '.join(SITES)}")
        if self.mode not in MODES:
            raise RequestError(f"steering mode {self.mode!r} is unknown; choose from {', '.join(MODES)}")
        if self.site == "final_norm" and self.layer is not None:
            raise RequestError(f"final_norm stands after the last layer; give layer=None, found {self.layer!r}")
        if self.site != "final_norm" and (isinstance(self.layer, bool) or not isinstance(self.layer, int | np.integer)):
            raise RequestError(f"a steering of {self.site} needs one block number as its layer, found {self.layer!r}")
        object.__setattr__(self, "positions", _checked_positions(self.positions))
        object.__setattr__(self, "vector", _checked_vector(self.vector, self.site, self.mode))
        object.__setattr__(self, "scale", _checked_scale(self.scale))
        counts = {n for n in (self._scales, self._vectors) if n is not None}
        if len(counts) == 2:
            raise RequestError(
                f"{self._scales} scales were given for {self._vectors} vectors; give one of each per prompt"
            )

    @property
    def per_item(self) -> int | None:
        """How many prompts the scales or vectors are for; None when one serves all."""
        return self._scales if self._scales is not None else self._vectors

    @property
    def idle(self) -> bool:
        """Whether every scale is 0, so that nothing is to change."""
        return bool((torch.as_tensor(self.scale) == 0).all())

    @property
    def _scales(self) -> int | None:
        return None if isinstance(self.scale, float) else len(self.scale)

    @property
    def _vectors(self) -> int | None:
        return None if self.vector.ndim == 1 else len(self.vector)

    def describe(self) -> dict[str, Any]:
        """Plain values that identify this steering in a manifest."""
        norms = torch.linalg.vector_norm(self.vector.double(), dim=-1)
        return {
            "site": self.site,
            "layer": None if self.layer is None else int(self.layer),
            "mode": self.mode,
            "positions": self.positions if isinstance(self.positions, str) else list(self.positions),
            "scale": self.scale if isinstance(self.scale, float) else self.scale.tolist(),
            "vector_norm": norms.tolist(),
            "vector_sha256": hashlib.sha256(self.vector.double().numpy().tobytes()).hexdigest()[:16],
        }

    def check_prompts(self, lengths: Sequence[int]) -> None:
        """Raise RequestError when this steering does not fit a call's prompts, whose token counts are given."""
        if self.per_item is not None and self.per_item != len(lengths):
            raise RequestError(
                f"the steering has scales or vectors for {self.per_item} prompts, but {len(lengths)} were given"
            )
        if not isinstance(self.positions, str):
            for i, length in enumerate(lengths):
                outside = [p for p in self.positions if not -length <= p < length]
                if outside:
                    raise RequestError(
                        f"the steering's position {outside[0]} is outside prompt {i}, which has {length} tokens"
                    )

    def check_model(self, extractor: Any) -> None:
        """Raise RequestError when an extractor's model cannot take this steering; nothing is put in place."""
        _Applied(self, extractor)

    @contextmanager
    def on(self, extractor: Any) -> Iterator[Steering]:
        """Steer every pass of an extractor's model inside the block: captures, generation, and the model's own calls.

        Parameters
        ----------
        extractor : Extractor

        Raises
        ------
        RequestError
            On entry, if the model lacks the site or layer, the vector has another width, or the backend cannot be
            steered.
        CaptureError
            If a pass did not go through the steered module; and at the end of the block, if values were made that are
            not finite, or nothing was changed although a scale is not 0.
        """
        applied = _Applied(self, extractor)
        handles: list[Any] = []
        try:
            extractor.steerings.append(self)
            applied.attach(handles)
            yield self
            applied.finish()
        finally:
            for handle in handles:
                handle.remove()
            extractor.steerings[:] = [s for s in extractor.steerings if s is not self]


class _Applied:
    """A steering in place on one model, and what it has done so far."""

    def __init__(self, steering: Steering, extractor: Any) -> None:
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
        self.where: torch.Tensor | str = "none"
        self.batch = 0
        self.rows: tuple[int, ...] | None = None
        self.delta: torch.Tensor | None = None
        self.running = False
        self.passes = self.fired = self.selected = 0
        self.changed = False
        self.finite: torch.Tensor | None = None
        self.seen: torch.Tensor | None = None

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
                _before_readers(module)
            if site == "resid_mid":
                # what is read at resid_mid also bypasses the MLP: the change must reach the block's output that way too
                block = self.architecture.blocks[self.layer]
                handles.append(block.register_forward_hook(self._carry, prepend=True))
                _before_readers(block)
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
        self.batch, self.fired, self.delta, self.running = int(tokens.shape[0]), 0, None, True
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
        self.where = self._columns(declared or self._guessed(given, tokens), tokens)
        self.passes += 1

    def _columns(self, what: passes.Pass | None, tokens: torch.Tensor) -> torch.Tensor | str:
        """Which columns of the pass are to change: "all", "none", or int64 [B, P].

        Padding is changed along with "all" of a prompt: nothing real can see it.
        """
        positions = self.steering.positions
        if positions == "all" or what is None:
            return "all"
        if what.start is None or what.end is None:
            return "all" if positions in ("generated", "response") else "none"
        if what.written and positions in ("prompt", "generated", "response"):
            first, last = int(what.start[0]), int(what.end[0])
            beyond = last + what.written
            low, high = {"prompt": (first, last), "generated": (last + 1, beyond), "response": (last, beyond)}[
                positions
            ]
            return torch.arange(low, high + 1, device=what.end.device).expand(self.batch, -1)
        if positions in ("prompt", "generated"):
            return "all" if positions == "prompt" else "none"
        if isinstance(positions, str):
            return what.end[:, None]
        index = torch.as_tensor(positions, device=what.end.device)[None]
        columns = torch.where(index < 0, what.end[:, None] + 1 + index, what.start[:, None] + index)
        if bool(((columns < what.start[:, None]) | (columns > what.end[:, None])).any()):
            raise CaptureError(
                f"one of the steering's positions {list(positions)} is outside a prompt of this pass of "
                f"{tokens.shape[1]} columns"
            )
        return columns

    def _guessed(self, given: Mapping[str, Any], tokens: torch.Tensor) -> passes.Pass | None:
        """What an undeclared pass (the model's own call or `generate`) holds; None where it makes no difference."""
        if self.steering.positions == "all":
            return None
        rows, width = tuple(range(self.batch)), int(tokens.shape[1])
        mask = given.get("attention_mask")
        filled = _filled(cache_in(given))
        if filled and width == 1 and not self._cropped(cache_in(given)):
            return passes.Pass(rows)
        repeated = (
            cache_in(given) is None
            and self.seen is not None
            and self.seen.shape[0] == self.batch
            and width > self.seen.shape[1]
            and torch.equal(tokens[:, : self.seen.shape[1]], self.seen)
        )
        if filled is not False or repeated or (mask is not None and getattr(mask, "ndim", 0) != 2):
            raise CaptureError(
                f"prompt and output cannot be told apart in a pass of {width} columns (of a model called "
                "directly); generate with a cache, without chunks and without candidate tokens (assisted or "
                "prompt-lookup decoding), or steer positions='all'"
            )
        self.seen = tokens
        if mask is None:
            end = torch.full((self.batch,), width - 1, device=tokens.device)
            return passes.Pass(rows, torch.zeros_like(end), end)
        return passes.Pass(rows, mask.to(torch.int64).argmax(1), boundary_index(mask))

    def _cropped(self, cache: Any) -> bool:
        """Whether a cache holds less than the prompt was taken to be: candidates ran along with it and were dropped."""
        try:
            return self.seen is not None and int(cache.get_seq_length()) < self.seen.shape[1]
        except (AttributeError, ValueError, TypeError):  # a kind that does not count
            return False

    def _input(
        self, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        x = first_input(args, kwargs)
        new = self._steered(x)
        if new is None:
            return None
        if self.steering.site == "resid_mid":
            self.delta = new - x
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
        return None if new is None else _with_first(output, new)

    def _carry(self, _module: Any, _args: tuple[Any, ...], output: Any) -> Any:
        if self.delta is None:
            return None
        x, delta, self.delta = first_tensor(output), self.delta, None
        return _with_first(output, x + delta.reshape(x.shape))

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
        new = _CHANGES[self.steering.mode](h, v, s)
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


def _add(h: torch.Tensor, v: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return h + s * v


def _along(h: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    u = v / torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return (h * u).sum(-1, keepdim=True) * u


def _ablate(h: torch.Tensor, v: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return h - s * _along(h, v)


def _project(h: torch.Tensor, v: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return torch.lerp(h, _along(h, v), s.expand_as(h))


def _replace(h: torch.Tensor, v: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return torch.lerp(h, v.expand_as(h), s.expand_as(h))


_CHANGES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": _add,
    "ablate": _ablate,
    "project": _project,
    "replace": _replace,
}


def _before_readers(module: Any) -> None:
    """Put what transformers left to read hidden states behind the steering, so that it shows what goes on from here."""
    for number, hook in list(module._forward_hooks.items()):
        if is_idle(hook):
            module._forward_hooks.move_to_end(number)


def _with_first(output: Any, new: torch.Tensor) -> Any:
    """A module's output with its hidden states replaced."""
    if isinstance(output, tuple):
        return (new, *output[1:])
    if isinstance(output, list):
        return [new, *output[1:]]
    return new


def _filled(cache: Any) -> bool | None:
    """Whether a cache holds anything yet; None when that cannot be told."""
    if cache is None:
        return False
    for ask in ("get_seq_length", "has_previous_state"):
        try:
            return bool(getattr(cache, ask)())
        except (AttributeError, ValueError):  # each kind of cache answers one of the two
            continue
    return None


def _checked_positions(positions: Any) -> str | tuple[int, ...]:
    if isinstance(positions, str):
        if positions not in POSITIONS:
            raise RequestError(
                f"steering positions {positions!r} are unknown; choose from {', '.join(POSITIONS)}, or give "
                "token numbers"
            )
        return positions
    try:
        positions = tuple(positions)
        numbers = tuple(int(p) for p in positions if not isinstance(p, bool | str | float))
    except TypeError as error:
        raise RequestError(
            f"steering positions must be one of {', '.join(POSITIONS)} or token numbers, found {positions!r}"
        ) from error
    if not numbers or len(numbers) != len(positions) or len(set(numbers)) != len(numbers):
        raise RequestError(f"steering positions must be different whole numbers, at least one, found {list(positions)}")
    return numbers


def _checked_vector(vector: Any, site: str, mode: str) -> torch.Tensor:
    try:
        given = getattr(vector, "vector", vector)
        has_dtype = isinstance(given, torch.Tensor | np.ndarray)  # plain numbers must not take torch's default dtype
        v = torch.as_tensor(given, dtype=None if has_dtype else torch.float64).detach().cpu()
        if v.is_complex():
            raise TypeError("complex values")
        v = v.clone() if v.dtype == torch.float64 else v.to(torch.float32, copy=True)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RequestError(f"the steering vector is no array of numbers ({error})") from error
    one = 2 if site == "z" and v.ndim in (2, 3) else 1
    if v.ndim not in (one, one + 1) or 0 in v.shape:
        raise RequestError(f"the steering vector has shape {list(v.shape)}; give [d], or [n, d] with one per prompt")
    v = v.flatten(-2) if one == 2 else v
    if not bool(torch.isfinite(v).all()):
        raise RequestError(
            f"the steering vector has {int((~torch.isfinite(v)).sum())} values that are NaN or infinite; "
            "remake it from finite states"
        )
    if mode != "replace" and bool((v == 0).all(-1).any()):
        raise RequestError(f"the steering vector is all zeros, which is no direction to {mode}")
    return v


def _checked_scale(scale: Any) -> float | torch.Tensor:
    if isinstance(scale, bool | str):
        raise RequestError(f"the steering scale must be a number or one per prompt, found {scale!r}")
    try:
        s = torch.as_tensor(scale, dtype=torch.float64).detach().cpu().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise RequestError(f"the steering scale must be a number or one per prompt, found {scale!r}") from error
    if s.ndim > 1 or s.numel() == 0 or not bool(torch.isfinite(s).all()):
        raise RequestError(
            f"the steering scale must be a finite number, or a list of them with one per prompt, found {scale!r}"
        )
    return float(s) if s.ndim == 0 else s
