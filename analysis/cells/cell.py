"""The results of one cell, from what one pass over the layers gathered.

Guarantees that every interval of a cell has the level, resamples and seed of the settings, and that a number which the run does
not hold is undefined with the reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ...declared import BASELINE
from ...schema import RESID_POST_AFTER
from .. import after, options, regimes, statistics
from ..after import After
from ..probing import probes
from ..probing.probes import Recoverability
from ..probing.rowspace import Layers
from ..probing.splits import Split
from ..statistics import Interval
from .geometry import Geometry, stored_dimension
from .probe import RegimeProbe
from .results import CellResult
from .rows import Rows, column, entropy_by_item
from .settings import Settings
from .source import Source


@dataclass(frozen=True)
class Gathered:
    """What one pass over the layers gathered of one regime."""

    geometry: Geometry
    probe: RegimeProbe


def cell_result(
    source: Source, benchmark: str, regime: str, rows: Rows, gathered: Gathered, split: Split, settings: Settings
) -> CellResult:
    """All results of one benchmark under one regime.

    Parameters
    ----------
    source : Source
    benchmark, regime : str
    rows : Rows
        Of the whole benchmark: a change is against its baseline.
    gathered : Gathered
        Of this regime.
    split : Split
        The one that all regimes share.
    settings : Settings
    """
    states = rows.under(regime)
    resamples, level, seed = settings.resamples, settings.level, settings.seed
    bits = column(states, "entropy_bits")
    finite_bits = bits[np.isfinite(bits)]
    own, base = (entropy_by_item(rows.states, name) for name in (regime, BASELINE))
    change = None
    if regime != BASELINE and base is not None and own is not None:
        change = regimes.entropy_change(own, base, resamples, level, seed)
    probe = gathered.probe.result()
    classes = rows.target.classes
    outcomes = pd.Series(probes.coded(states[settings.target], classes if len(classes) <= 2 else ()), states.index)
    after_boundary = source.layers and source.site == Settings.site
    return CellResult(
        model=source.model,
        benchmark=benchmark,
        regime=regime,
        states=states,
        accuracy=_share(states, "correct", settings),
        compliance=_share(states, "compliant", settings),
        truncated=_share(states, "truncated", settings),
        output_tokens=_mean(states, "output_tokens", "no output was generated", settings),
        entropy=_mean(states, "entropy_bits", "the run holds no entropy", settings),
        entropy_sd=float(finite_bits.std(ddof=1)) if finite_bits.size > 1 else math.nan,
        change=change,
        options=options.summary(states, resamples, level, seed),
        dimension=gathered.geometry.dimension if source.layers else stored_dimension(source, benchmark, regime),
        neighbours=gathered.geometry.neighbours,
        probe=probe,
        repeated=gathered.probe.repeated(),
        curve=gathered.probe.curve,
        predictors=regimes.predictive_power(states, outcomes, resamples, level, seed),
        adequacy=gathered.probe.adequacy(),
        probe_gain=_gain_over_entropy(probe, own, settings),
        after=_after(source, benchmark, regime, states, split, settings) if after_boundary else (),
    )


def _share(states: pd.DataFrame, name: str, settings: Settings) -> Interval:
    """Share of the rows that have a yes/no column whose value is yes."""
    values = column(states, name)
    present = values[np.isfinite(values)]
    if not present.size:
        return statistics.undefined_interval("no output was generated", method="Wilson", level=settings.level)
    share = statistics.wilson(int(present.sum()), present.size, settings.level)
    return replace(share, left_out=values.size - present.size)


def _mean(states: pd.DataFrame, name: str, reason: str, settings: Settings) -> Interval:
    """Mean of a column; undefined for `reason` where no row has it."""
    values = column(states, name)
    if not np.isfinite(values).any():
        return statistics.undefined_interval(reason, level=settings.level)
    return statistics.bootstrap_mean(values, settings.resamples, settings.level, settings.seed)


def _gain_over_entropy(probe: Recoverability, entropy: pd.Series | None, settings: Settings) -> Interval:
    """AUROC of the probe minus AUROC of minus H on the very same test items."""
    if not probe.defined or probe.test_scores.ndim > 1 or entropy is None:
        return statistics.undefined_interval(probe.reason or "no entropy", level=settings.level)
    score = -entropy.reindex(probe.test_items).to_numpy(np.float64)
    return statistics.bootstrap_auroc_difference(
        probe.test_labels, probe.test_scores, score, settings.resamples, settings.level, settings.seed
    )


def _after(
    source: Source, benchmark: str, regime: str, states: pd.DataFrame, split: Split, settings: Settings
) -> tuple[After, ...]:
    """The cell's states after the boundary against those at it, for every place that the run kept."""

    def read(site: str) -> Layers:
        return source.read(len(states), site, benchmark=benchmark, regime=regime)

    return tuple(
        after.compare(
            place if place.isdigit() else source.anchor,
            read(source.site),
            read(f"{RESID_POST_AFTER}{place}"),
            states,
            settings.target,
            split,
            layers=settings.layers,
            probe=settings.probe,
            seed=settings.seed,
            resamples=settings.resamples,
            level=settings.level,
        )
        for place in after.places(list(source.run.sites))
    )
