"""The rows of one benchmark: whose state each is, under which regime, and what the target says of it.

Guarantees that a row whose state is not finite is in no probe and no dimension, and that what is paired over regimes is
about the items that every regime has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from .. import statistics
from ..probing.rowspace import Layers
from ..probing.targets import Target

PAIRED = 400
"""Most items whose inner products are kept for the subsampling table."""


@dataclass(frozen=True)
class Rows:
    """The states of one benchmark, row by row.

    Attributes
    ----------
    states : DataFrame
        One row per state.
    regime, item : [n] object
    finite : [n] bool
        Rows without a NaN or infinity in any layer.
    target : Target
        What the probe predicts, over the finite rows that have it.
    """

    states: pd.DataFrame
    regime: np.ndarray
    item: np.ndarray
    finite: np.ndarray
    target: Target

    @classmethod
    def of(cls, states: pd.DataFrame, source: Layers, target: str) -> Rows:
        """The rows of a benchmark's states, which `source` reads by layer; `target` names a column."""
        item = states["item_id"].astype(str).to_numpy(object)
        finite = source.finite()
        regime = states["regime"].astype(str).to_numpy(object)
        return cls(states, regime, item, finite, Target.of(states[target], item, source, finite))

    @property
    def regimes(self) -> list[str]:
        """Regimes in the order in which they appear."""
        return list(dict.fromkeys(self.regime))

    def under(self, regime: str) -> pd.DataFrame:
        """The states under a regime."""
        rows: pd.DataFrame = self.states[self.regime == regime].reset_index(drop=True)
        return rows

    def finite_under(self, regime: str) -> np.ndarray:
        """Numbers of the finite rows under a regime."""
        return np.flatnonzero((self.regime == regime) & self.finite)

    def target_under(self, regime: str) -> Target:
        """The target on the rows under a regime."""
        return self.target.subset(self.regime[self.target.rows] == regime)

    def paired(self, seed: int) -> dict[str, np.ndarray]:
        """Row numbers by regime of the items that all regimes have, in one order; at most `PAIRED` items."""
        regimes = self.regimes
        rows = {r: {self.item[i]: i for i in self.finite_under(r)} for r in regimes}
        common = [item for item in rows[regimes[0]] if all(item in rows[r] for r in regimes)]
        if len(common) > PAIRED:
            pick = np.random.default_rng(seed).choice(len(common), PAIRED, replace=False)
            common = [common[i] for i in np.sort(pick)]
        return {r: np.array([rows[r][item] for item in common], dtype=int) for r in regimes} if common else {}


def column(states: pd.DataFrame, name: str) -> np.ndarray:
    """[n] float64: a column as numbers; NaN throughout where the states do not have it."""
    return statistics.as_float(states[name]) if name in states else np.full(len(states), np.nan)


def entropy_by_item(states: pd.DataFrame, regime: str) -> pd.Series | None:
    """Entropy (bits) of the states under a regime, by item; None where there is none."""
    rows = states[states["regime"].astype(str) == regime]
    if len(rows) == 0 or "entropy_bits" not in rows:
        return None
    return pd.Series(column(rows, "entropy_bits"), index=rows["item_id"].astype(str).to_numpy(object))
