"""What can be read before the first token against what can be read once the answer has begun, in every cell of a run.

Guarantees one split and the same test items for both states, and that a row whose output never reached the later place
is left out of both and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ..schema import RESID_POST_AFTER
from . import information
from .information import Information
from .probing import contrast, probes
from .probing.contrast import Contrast
from .probing.rowspace import Layers
from .probing.splits import Split


@dataclass(frozen=True)
class After:
    """A place after the boundary, in one cell.

    Attributes
    ----------
    place : str
        Number of output tokens, or the anchor.
    contrast : Contrast
        The probe of the outcome on both states.
    before, after : Information, optional
        Multiple choice: mutual information of the emitted answer with the one a probe reads from the state, over test items.
    reached : int
        States whose output reached the place.
    """

    place: str
    contrast: Contrast
    before: Information | None
    after: Information | None
    reached: int


def places(sites: Sequence[str]) -> list[str]:
    """The places of which a run holds states, by its sites."""
    found = [site.removeprefix(RESID_POST_AFTER) for site in sites if site.startswith(RESID_POST_AFTER)]
    return sorted(found, key=lambda place: (not place.isdigit(), int(place) if place.isdigit() else 0))


def compare(
    place: str,
    first: Layers,
    second: Layers,
    states: pd.DataFrame,
    target: str,
    split: Split,
    *,
    layers: Any,
    probe: str,
    seed: int,
    resamples: int,
    level: float,
) -> After:
    """Compare the states of one cell at the boundary with those at a later place.

    Parameters
    ----------
    place : str
    first, second : Layers
        Rows of the cell at the boundary and at the place, in the order of `states`.
    states : DataFrame
        The cell's table: `item_id`, the target, and for multiple choice `answer` and `option_mass`.
    target : str
    split : Split
        The benchmark's.
    layers, probe, seed, resamples, level
        As in `probes.recoverability`.
    """
    items = states["item_id"].astype(str).to_numpy(object)
    reached = first.finite() & second.finite()
    found = contrast.before_after(
        first, second, states[target], items, layers, seed, resamples, 0, probe=probe, split=split, level=level
    )
    said = None
    if "option_mass" in states and states["option_mass"].notna().any() and "answer" in states:
        said = [answer if good else None for answer, good in zip(states["answer"], reached, strict=True)]
    before, after = (
        None if said is None else _read(source, said, items, layers, probe, split, seed, resamples, level)
        for source in (first, second)
    )
    return After(place, found, before, after, int(reached.sum()))


def _read(
    source: Layers,
    said: Sequence[Any],
    items: np.ndarray,
    layers: Any,
    probe: str,
    split: Split,
    seed: int,
    resamples: int,
    level: float,
) -> Information:
    """Information between the answer that was said and the one a probe of it reads, over the test items."""
    r = probes.recoverability(source, said, items, layers, seed, 1, 0, probe=probe, split=split, level=level)
    if not r.defined:
        nothing = information.mutual_information([], [])
        return replace(nothing, reason=r.reason or nothing.reason)
    return information.mutual_information(r.test_read, r.test_labels, resamples, resamples, level, seed)
