"""What steering a run is to do, checked before anything is read.

Guarantees that settings that contradict each other (what is written is steered, but nothing is to be written) are refused in one
sentence.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ... import checks
from ...analysis.directions import METHODS
from ...errors import RequestError
from ...hooks.steering import MODES


@dataclass(frozen=True)
class SteerConfig:
    """What `run_steer` does.

    Above the usual length because it has one field per setting: flags, files and hashes name them one by one.

    Attributes
    ----------
    run : path
        A finished study with `resid_post` (or the asked site) stored.
    layer : int, optional
        Where to steer; negative from the last captured layer. May be left out with `vector`, whose own layer is taken.
    scales : sequence of float
        Multiples of the vector's own length. Vectors made here are as long as the two classes' mean states are apart, so
        a scale of 1 moves a state by one class difference; the report also says how much of a typical state's norm
        that is. For the modes other than "add" a scale is the share of the change that is made. 0 is always run.
    target, positive, negative, method, site
        What the vector is made from: see `hooks.steering_vector`. The probe that scores the steered states reads `target`.
    vector : path, optional
        A file that `SteeringVector.save` wrote, instead of a vector made here; the items it has seen are left out.
    mode : {"add", "ablate", "project", "replace"}
    positions : str or sequence of int
        As in `Steering`. "response" steers the boundary, where the direction was measured, and every generated token.
    benchmarks, regimes : sequence of str, optional
        Use these cells of the run only.
    n : int, optional
        Most held-out items per benchmark, a seeded sample; None takes all.
    controls : int
        Random directions of the vector's length.
    generate : bool
        Whether to let the model answer at each dose, and grade it; a run made without generating cannot.
    max_new_tokens : int, optional
        Cap on output tokens; None takes the run's own caps.
    probe_layer : int, optional
        Where the probe reads `resid_post`; None takes the last captured layer.
    seed : int
        Seeds the split, the sample, the random directions and the bootstrap.
    resamples : int
    level : float
    model, revision, dtype, device, batch_tokens : optional
        In place of the run's own. A model given by another name must still be the run's: its sizes and its tokenizer are
        compared, its revision where both have one of the same kind, and the entropies of the unsteered prompts.
    """

    run: str | os.PathLike[str]
    layer: int | None = None
    scales: Sequence[float] = (-8.0, -4.0, 0.0, 4.0, 8.0)
    target: str = "correct"
    positive: Any = None
    negative: Any = None
    method: str = "mean-difference"
    site: str = "resid_post"
    vector: str | os.PathLike[str] | None = None
    mode: str = "add"
    positions: str | Sequence[int] = "response"
    benchmarks: Sequence[str] | None = None
    regimes: Sequence[str] | None = None
    n: int | None = None
    controls: int = 3
    generate: bool = True
    max_new_tokens: int | None = None
    probe_layer: int | None = None
    seed: int = 0
    resamples: int = 1000
    level: float = 0.95
    model: str | None = None
    revision: str | None = None
    dtype: str | None = None
    device: str | None = None
    batch_tokens: int | None = None

    def __post_init__(self) -> None:
        try:
            scales = tuple(sorted({float(s) for s in self.scales}))
        except (TypeError, ValueError) as error:
            raise RequestError(f"scales must be numbers such as -8,-4,0,4,8, found {self.scales!r}") from error
        if not any(scales) or not all(map(math.isfinite, scales)):
            raise RequestError(f"scales must be finite numbers, one of them not 0, found {list(scales)}")
        object.__setattr__(self, "scales", scales)
        for name, allowed in (("mode", MODES), ("method", METHODS)):
            checks.choice(name, getattr(self, name), allowed)
        for name, least in (("n", 1), ("controls", 0), ("max_new_tokens", 1), ("resamples", 1)):
            object.__setattr__(self, name, checks.optional_whole(name, getattr(self, name), least))
        for name in ("layer", "probe_layer", "seed"):
            object.__setattr__(self, name, checks.optional_whole(name, getattr(self, name)))
        checks.inside("level", self.level, 0, 1)
        if self.positions == "generated" and not self.generate:
            raise RequestError(
                "positions='generated' steers what the model writes, and nothing is to be generated; choose other "
                "positions, or generate"
            )
        if self.max_new_tokens is not None and not self.generate:
            raise RequestError(
                "max_new_tokens caps what the model writes, and nothing is to be generated; leave one out"
            )
        if self.layer is None and self.vector is None:
            raise RequestError("say where to steer: give a layer, or a saved vector")
