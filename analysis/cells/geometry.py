"""The shape of the cloud of states under one regime, gathered layer by layer: dimension, neighbours, subsets.

Guarantees that every estimate of a layer comes from the same finite rows, and that subsets are drawn from the items which
every regime has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from .. import dimension
from ..dimension import Dimensionality
from ..probing.rowspace import Block
from .rows import Rows
from .source import Source

_NEIGHBOURS = 10


class Geometry:
    """Estimates of the states under one regime, from the layers taken so far.

    Parameters
    ----------
    rows : Rows
    regime : str
    paired : [k] int, optional
        Row numbers, under this regime, of the items that every regime has.
    """

    def __init__(self, rows: Rows, regime: str, paired: np.ndarray | None) -> None:
        self._rows = rows.finite_under(regime)
        self._paired = None if paired is None else np.searchsorted(self._rows, paired)
        self._left_out = int(((rows.regime == regime) & ~rows.finite).sum())
        self._layers: list[int] = []
        self._spreads: list[dimension.LayerSpread] = []
        self._neighbours: list[dict[str, Any]] = []
        self._grams: list[np.ndarray] = []

    def take(self, layer: int, block: Block) -> None:
        """Add one layer."""
        states = block.x[self._rows]
        gram = states @ states.T
        self._layers.append(layer)
        self._spreads.append(dimension.spread(dimension.centred(gram)))
        self._neighbours.append(_neighbours(layer, states))
        if self._paired is not None:
            self._grams.append(dimension.centred(gram[np.ix_(self._paired, self._paired)]))

    @property
    def dimension(self) -> Dimensionality:
        """Effective dimensionality over the layers."""
        return replace(dimension.combine(self._spreads, self._left_out), layers=tuple(self._layers))

    @property
    def neighbours(self) -> pd.DataFrame:
        """One row per layer: nearest-neighbour estimates of the intrinsic dimension."""
        return pd.DataFrame(self._neighbours)

    @property
    def grams(self) -> list[np.ndarray]:
        """Per layer, centred inner products [k, k] of the items that every regime has."""
        return self._grams


def subsampling(geometries: Mapping[str, Geometry], seed: int) -> pd.DataFrame:
    """Dimensionality by regime of random subsets of the items that every regime has; empty without such items."""
    grams = {regime: geometry.grams for regime, geometry in geometries.items() if geometry.grams}
    return dimension.subsampling(grams, seed=seed) if grams else pd.DataFrame()


def stored_dimension(source: Source, benchmark: str, regime: str) -> Dimensionality:
    """Effective dimensionality of a run that kept no states, from the streamed moments in its manifest where it has them."""
    kept = (source.run.manifest.get("moments") or {}).get(f"{benchmark}/{regime}")
    if not kept:
        nothing = dimension.combine([])
        streamed = bool(getattr(source.run, "config", {}).get("moments"))
        return replace(nothing, reason="moments are added up once the run is finished") if streamed else nothing
    nan = math.nan
    ratios = [nan if v is None else float(v) for v in kept["participation_ratio"]]
    corrected = [nan if v is None else float(v) for v in kept["participation_ratio_unbiased"]]
    spreads = [
        dimension.LayerSpread(ratio, unbiased, float(trace or 0.0), 0, int(kept["count"]))
        for ratio, unbiased, trace in zip(ratios, corrected, kept["trace"], strict=True)
    ]
    return replace(dimension.combine(spreads), layers=tuple(int(v) for v in kept.get("layers", range(len(ratios)))))


def _neighbours(layer: int, states: np.ndarray) -> dict[str, Any]:
    near = dimension.Neighbours.of(states, _NEIGHBOURS)
    two, levina = near.two_nn(), near.levina_bickel(_NEIGHBOURS)
    return {
        "layer": layer,
        "two_nn": two.value,
        "levina_bickel": levina.value,
        "duplicates": two.duplicates,
        "reason": "; ".join(dict.fromkeys(part for part in (two.reason, levina.reason) if part)),
    }
