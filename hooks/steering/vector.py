"""A steering vector and its file: a direction at one site and layer, what it was made from, and how it is applied.

Guarantees that a saved vector says what it was made from and which items it has seen, and is written whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ... import atomic
from ...errors import RequestError
from .steering import Steering

_METADATA = "precollapse_steering_vector"


@dataclass(frozen=True, eq=False)
class SteeringVector:
    """A direction at one site and layer, as long as the two classes' means are apart.

    Attributes
    ----------
    vector : float32 tensor [d]
        Points from the negative class to the positive one.
    site : str
    layer : int
    method : {"mean-difference", "probe"} or "random"
    target : str
        What the classes are, in words.
    provenance : dict
        The run, the model, the classes' counts, the split and the settings.
    train_items, validation_items : tuple of (str, str)
        Items (benchmark, item_id) that the direction has seen; all others are held out.
    """

    vector: torch.Tensor
    site: str
    layer: int
    method: str
    target: str
    provenance: Mapping[str, Any] = field(default_factory=dict)
    train_items: tuple[tuple[str, str], ...] = ()
    validation_items: tuple[tuple[str, str], ...] = ()

    @property
    def norm(self) -> float:
        """Euclidean length: what a scale of 1 moves a state by."""
        return float(torch.linalg.vector_norm(self.vector.double()))

    def steering(self, scale: Any = 1.0, positions: str | Sequence[int] = "all", mode: str = "add") -> Steering:
        """A `Steering` along this vector, at the site and layer that it was made from."""
        return Steering(self.site, self.layer, self.vector, scale, positions, mode)

    def random(self, seed: int) -> SteeringVector:
        """A control: a uniformly random direction of the same length."""
        draw = np.random.default_rng(seed).standard_normal(self.vector.numel())
        vector = torch.as_tensor(draw / np.linalg.norm(draw) * self.norm, dtype=torch.float32)
        note = {"control_of": dict(self.provenance), "seed": seed}
        target = f"random direction, seed {seed}"
        return SteeringVector(vector.reshape(self.vector.shape), self.site, self.layer, "random", target, note)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file: the tensor "vector", and all else as JSON in its metadata."""
        from safetensors.torch import save

        words = {
            "site": self.site,
            "layer": self.layer,
            "method": self.method,
            "target": self.target,
            "provenance": dict(self.provenance),
            "train_items": list(self.train_items),
            "validation_items": list(self.validation_items),
        }
        try:
            note = json.dumps(words, default=_plain)
        except (TypeError, ValueError) as error:
            raise RequestError(
                f"the vector's provenance cannot be written as JSON ({error}); give plain values"
            ) from error
        data = save({"vector": self.vector.contiguous()}, metadata={_METADATA: note})
        place = Path(path)
        try:
            atomic.write(place, data)
        except OSError as error:
            raise RequestError(f"{place} cannot be written ({error.strerror or error}); give another place") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SteeringVector:
        """Read a file that `save` wrote.

        Raises
        ------
        RequestError
            If there is no such file, or it is not a steering vector.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(os.fspath(path), framework="pt") as file:
                words = json.loads((file.metadata() or {})[_METADATA])
                vector = file.get_tensor("vector")
            train, validation = (
                tuple((str(b), str(i)) for b, i in words[name]) for name in ("train_items", "validation_items")
            )
            site, layer, method, target = (words[name] for name in ("site", "layer", "method", "target"))
            return cls(vector, site, layer, method, target, dict(words["provenance"]), train, validation)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise RequestError(
                f"{path} cannot be read as a steering vector ({type(error).__name__}: {error}); give a file that "
                "SteeringVector.save wrote"
            ) from error


def _plain(value: Any) -> Any:
    """A number or array of NumPy or torch as JSON has them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {value!r}")
