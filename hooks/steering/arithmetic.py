"""The arithmetic of each steering mode, on a site's values h, a vector v and a scale s that broadcast against each other.

Guarantees that the direction modes use v / |v| whatever the vector's length, and that the sum is the one that `Steering` writes down.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


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


CHANGES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": _add,
    "ablate": _ablate,
    "project": _project,
    "replace": _replace,
}
"""By mode."""
