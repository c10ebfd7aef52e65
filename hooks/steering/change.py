"""What a steering is to change: checked when it is made, before any model is at hand.

Guarantees that a change names a site, a way and positions that exist, and holds a vector and scales that are finite and, where a direction
is needed, not zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...errors import RequestError
from ..architectures import SITES

MODES = ("add", "ablate", "project", "replace")
POSITIONS = ("all", "prompt", "boundary", "generated", "response")


@dataclass(frozen=True, eq=False)
class Change:
    """A change to one site of one layer, in itself; see `Steering`, which puts it in place, for its fields."""

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
