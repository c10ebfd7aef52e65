"""The results of a run: cells, what is paired over the cells of a benchmark, and what is across benchmarks.

Guarantees that results are records which nothing changes afterwards, and that a cell without states says why it has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from .. import statistics
from ..after import After
from ..dimension import Dimensionality
from ..options import OptionSummary
from ..probing.density import Adequacy
from ..probing.probes import Recoverability, Repeated
from ..probing.splits import Split
from ..probing.transfer import Transfer
from ..regimes import EntropyChange
from ..statistics import Interval
from .settings import Settings


@dataclass(frozen=True)
class CellResult:
    """All results of one benchmark under one regime; `reason` says why a cell has no states."""

    model: str
    benchmark: str
    regime: str
    states: pd.DataFrame = field(repr=False)
    accuracy: Interval
    compliance: Interval
    truncated: Interval
    output_tokens: Interval
    entropy: Interval
    entropy_sd: float
    change: EntropyChange | None
    options: OptionSummary | None
    dimension: Dimensionality | None
    neighbours: pd.DataFrame
    probe: Recoverability | None
    repeated: Repeated | None
    curve: pd.DataFrame
    predictors: pd.DataFrame
    adequacy: Adequacy | None
    probe_gain: Interval
    reason: str = ""
    after: tuple[After, ...] = ()

    @classmethod
    def empty(cls, model: str, benchmark: str, regime: str, reason: str) -> CellResult:
        """A cell without states: every number is undefined, for `reason`."""
        nothing = statistics.undefined_interval(reason)
        return cls(
            model=model,
            benchmark=benchmark,
            regime=regime,
            states=pd.DataFrame(),
            accuracy=nothing,
            compliance=nothing,
            truncated=nothing,
            output_tokens=nothing,
            entropy=nothing,
            entropy_sd=math.nan,
            change=None,
            options=None,
            dimension=None,
            neighbours=pd.DataFrame(),
            probe=None,
            repeated=None,
            curve=pd.DataFrame(),
            predictors=pd.DataFrame(),
            adequacy=None,
            probe_gain=nothing,
            reason=reason,
        )


@dataclass(frozen=True)
class Benchmark:
    """Cells of one benchmark with what is paired over them."""

    model: str
    name: str
    cells: tuple[CellResult, ...]
    split: Split
    transfer: Transfer | None
    subsampling: pd.DataFrame


@dataclass(frozen=True)
class RunAnalysis:
    """Results of one run."""

    model: str
    benchmarks: tuple[Benchmark, ...]
    cross: Mapping[str, Transfer]
    settings: Settings
    site: str
    layers: tuple[int, ...]
    seconds: float
    notes: tuple[str, ...]

    @property
    def cells(self) -> list[CellResult]:
        """Cells of all benchmarks, in order."""
        return [cell for benchmark in self.benchmarks for cell in benchmark.cells]
