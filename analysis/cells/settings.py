"""What is declared before a run is analysed.

Guarantees that a count no machine would end with, a level that is no share, or a probe that does not exist is refused before anything is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import RequestError
from ..probing.kinds import get_probe

# least and most of each count; more would not end in a day, and changes no digit that is shown
_BOUNDS = (("seed", 0, 2**31), ("resamples", 1, 1_000_000), ("shuffles", 0, 100_000), ("n_splits", 0, 10_000))


@dataclass(frozen=True)
class Settings:
    """What is declared before a run is analysed.

    Attributes
    ----------
    site : str
        Where the states come from.
    layers : optional
        Layers to concatenate for the probe (default all captured ones), or several sets of which validation chooses
        one.
    probe, target : str
        Name in `probes.PROBES`; column of the states that the probe predicts.
    seed, resamples, shuffles, n_splits, level
        Shuffles of the label control, and number of repeated splits.
    cross_benchmark : bool
        Also transfer between benchmarks under each regime (with the first set of layers).
    """

    site: str = "resid_post"
    layers: Sequence[int] | Sequence[Sequence[int]] | None = None
    probe: str = "logistic"
    target: str = "correct"
    seed: int = 0
    resamples: int = 1000
    shuffles: int = 100
    n_splits: int = 20
    level: float = 0.95
    cross_benchmark: bool = True

    def __post_init__(self) -> None:
        for name, least, most in _BOUNDS:
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or not least <= value <= most:
                shown = name.removeprefix("n_")
                raise RequestError(f"{shown} must be a whole number from {least} to {most}, found {value!r}")
        get_probe(self.probe)
        if not 0 < self.level < 1:
            raise RequestError(f"level must lie between 0 and 1, found {self.level!r}")
