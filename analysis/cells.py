"""Every number of a run, cell by cell (benchmark x regime), from one pass over its layers.

Guarantees that all cells of a benchmark share one split by item, that the same setting of the analysis applies to
every cell, and that a cell which failed or lacks outcomes stays in the result with the reason. Layers are read one at
a time, so memory holds one layer of one benchmark and the inner products of its rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pandas as pd

from ..declared import BASELINE
from ..errors import RequestError
from ..schema import RESID_POST_AFTER
from . import after, dimension, options, regimes, statistics
from .after import After
from .dimension import Dimensionality
from .options import OptionSummary
from .probing import density, probes, rowspace, splits, transfer
from .probing.density import Adequacy
from .probing.probes import Parts, Recoverability, Repeated, Target
from .probing.rowspace import Block, Layers, Products, Request
from .probing.splits import Split
from .probing.transfer import Transfer
from .regimes import EntropyChange
from .statistics import Interval

Progress = Callable[[float, str], None]
# least and most of each count; more would not end in a day, and changes no digit that is shown
_BOUNDS = (("seed", 0, 2**31), ("resamples", 1, 1_000_000), ("shuffles", 0, 100_000), ("n_splits", 0, 10_000))
_SUBSAMPLED = 400  # items whose inner products are kept for the subsampling table


class RunLike(Protocol):
    """What the analysis needs of a run (see `store.Run`)."""

    @property
    def states(self) -> pd.DataFrame:
        """One row per committed state."""

    @property
    def sites(self) -> Mapping[str, Sequence[int]]:
        """Layers held of each site."""

    @property
    def manifest(self) -> Mapping[str, Any]:
        """How the run came about."""

    def resid(
        self, layer: Any, site: str = ..., regime: Any = ..., benchmark: Any = ..., items: Any = ...
    ) -> np.ndarray:
        """States of one layer [n, d]."""


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
        if not 0 < self.level < 1:
            raise RequestError(f"level must lie between 0 and 1, found {self.level!r}")


@dataclass(frozen=True)
class Cell:
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


@dataclass(frozen=True)
class Benchmark:
    """Cells of one benchmark with what is paired over them."""

    model: str
    name: str
    cells: tuple[Cell, ...]
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
    def cells(self) -> list[Cell]:
        """Cells of all benchmarks, in order."""
        return [cell for benchmark in self.benchmarks for cell in benchmark.cells]


def analyse(
    run: RunLike, settings: Settings | None = None, progress: Progress | None = None, name: str = ""
) -> RunAnalysis:
    """Analyse one run.

    Parameters
    ----------
    run : RunLike
    settings : Settings
    progress : callable (fraction done 0..1, what is being done), optional
    name : str
        Name of the model in tables; default what the manifest says.

    Raises
    ------
    RequestError
        When the run holds no committed state, or lacks the site, a layer, the probe or the target asked for.
    """
    settings = settings or Settings()
    started = time.perf_counter()
    states = run.states
    if len(states) == 0:
        raise RequestError("The run holds no committed state yet; let `precollapse run` finish at least one shard.")
    site = _site(run, settings.site)
    layers = tuple(int(v) for v in run.sites.get(site, ()))
    if settings.target not in states:
        raise RequestError(f"The run has no column {settings.target!r}; it has: {', '.join(map(str, states.columns))}.")
    _check_target(states[settings.target], settings.target)
    probes.get_probe(settings.probe)
    model = name or model_name(run)
    failed = _failed(run)
    names = list(dict.fromkeys([*states["benchmark"].astype(str), *(b for b, _ in failed)]))
    tell = progress or (lambda fraction, what: None)
    across = settings.cross_benchmark and len(names) > 1 and len(layers) > 0
    steps = len(names) * len(layers) + (len(layers) if across else 0)
    done = 0

    def step(what: str) -> None:
        nonlocal done
        done += 1
        tell(min(1.0, done / max(steps, 1)), what)

    found = []
    for benchmark in names:
        found.append(_benchmark(run, benchmark, site, layers, settings, model, failed, step))
    cross = {}
    if across:
        cross = _across(run, site, layers, settings, found, step)
    return RunAnalysis(
        model, tuple(found), cross, settings, site, layers, time.perf_counter() - started, tuple(_notes(run))
    )


# -- one benchmark ---------------------------------------------------------------------------------------------------


def _benchmark(
    run: RunLike,
    name: str,
    site: str,
    layers: tuple[int, ...],
    settings: Settings,
    model: str,
    failed: Mapping[tuple[str, str], str],
    step: Callable[[str], None],
) -> Benchmark:
    states = run.states[run.states["benchmark"].astype(str) == name].reset_index(drop=True)
    lost = [_empty_cell(model, b, r, why) for (b, r), why in failed.items() if b == name]
    items = states["item_id"].astype(str).to_numpy(object)
    split = splits.split_items(items, states[settings.target], seed=settings.seed)
    if len(states) == 0:
        return Benchmark(model, name, tuple(lost), split, None, pd.DataFrame())
    source = _source(run, layers, site, len(states), benchmark=name)
    reading = _Reading(source, states, split, settings)
    for layer in layers:
        reading.take(layer)
        step(f"{name}: layer {layer}")
    base = _by_item(states, BASELINE)
    cells = [_cell(model, name, regime, reading, base, settings, run) for regime in reading.regimes]
    if layers and site == Settings.site:
        cells = [replace(cell, after=_after(run, cell, site, layers, split, settings)) for cell in cells]
    present = set(reading.regimes)
    cells += [cell for cell in lost if cell.regime not in present]
    return Benchmark(model, name, tuple(cells), split, reading.transfer(), reading.subsampling())


class _Reading:
    """What one pass over the layers of a benchmark gathers, and the results drawn from it."""

    def __init__(self, source: Layers, states: pd.DataFrame, split: Split, settings: Settings) -> None:
        self.source, self.states, self.settings, self.split = source, states, settings, split
        self.sets = probes.layer_sets(source, settings.layers)
        self.of_regime = states["regime"].astype(str).to_numpy(object)
        self.items = states["item_id"].astype(str).to_numpy(object)
        self.regimes: list[str] = list(dict.fromkeys(self.of_regime))
        self.finite = source.finite()
        self.target = Target.of(states[settings.target], self.items, source, self.finite)
        self.parts = transfer.parts_by_group(self.target, self.of_regime, split)
        self.own = {r: self.target.subset(self.of_regime[self.target.rows] == r) for r in self.regimes}
        labels = states[settings.target]
        plans = [splits.split_items(self.items, labels, seed=settings.seed + 1 + k) for k in range(settings.n_splits)]
        self.norms = probes.get_probe(settings.probe).norms
        self.plans = {r: [self.own[r].request(plan, self.norms) for plan in plans] for r in self.regimes}
        self.main: dict[str, list[Products | None]] = {r: [None] * len(self.sets) for r in self.regimes}
        self.again: dict[str, list[list[Products | None]]] = {
            r: [[None] * len(self.sets) for _ in plans] for r in self.regimes
        }
        self.spreads: dict[str, list[dimension.LayerSpread]] = {r: [] for r in self.regimes}
        self.near: dict[str, list[dict[str, Any]]] = {r: [] for r in self.regimes}
        self.curves: dict[str, list[dict[str, Any]]] = {r: [] for r in self.regimes}
        self.paired = _paired_rows(self.of_regime, self.items, self.finite, self.regimes, settings.seed)
        self.grams: dict[str, list[np.ndarray]] = {r: [] for r in self.paired}

    def take(self, layer: int) -> None:
        """Read one layer and add it to everything that wants it."""
        block = Block.of(self.source.read(layer), self.finite)
        for regime in self.regimes:
            rows = np.flatnonzero((self.of_regime == regime) & self.finite)
            states = block.x[rows]
            gram = states @ states.T
            self.spreads[regime].append(dimension.spread(dimension.centred(gram)))
            self.near[regime].append(_near(layer, states))
            if regime in self.paired:
                pick = np.searchsorted(rows, self.paired[regime])
                self.grams[regime].append(dimension.centred(gram[np.ix_(pick, pick)]))
            self._probe(layer, block, regime)

    def _probe(self, layer: int, block: Block, regime: str) -> None:
        parts, target, norms = self.parts[regime], self.target, self.norms
        wanted = [i for i, chosen in enumerate(self.sets) if layer in chosen]
        main = [Request(target.rows, target.rows[parts.train], norms)] if parts.train.size else []
        defined = [not self.own[regime].problem(own) for _, own in self.plans[regime]]
        again = [request for (request, _), good in zip(self.plans[regime], defined, strict=True) if good and wanted]
        found = rowspace.many(block, [*main, *again])
        single, others = found[: len(main)], found[len(main) :]
        for products in single:
            _add(self.main[regime], products, wanted)
        result = self._evaluate(single, [(layer,)], target, parts, self.settings.resamples)
        self.curves[regime].append(probes.curve_row(layer, result))
        slots = [slot for slot, good in zip(self.again[regime], defined, strict=True) if good and wanted]
        for slot, products in zip(slots, others, strict=True):
            _add(slot, products, wanted)

    def _evaluate(
        self,
        candidates: Sequence[Products],
        sets: Sequence[tuple[int, ...]],
        target: Target,
        parts: Parts,
        resamples: int,
        shuffles: int = 0,
    ) -> Recoverability:
        s = self.settings
        return probes.evaluate(
            candidates,
            sets,
            target,
            parts,
            probe=s.probe,
            seed=s.seed,
            resamples=resamples,
            shuffles=shuffles,
            level=s.level,
        )

    def result(self, regime: str) -> Recoverability:
        """The probe of a regime on the shared split, with its label-shuffle control."""
        candidates = [p for p in self.main[regime] if p is not None]
        found = self._evaluate(
            candidates, self.sets, self.target, self.parts[regime], self.settings.resamples, self.settings.shuffles
        )
        return replace(found, left_out=int((self.of_regime == regime).sum()) - self.own[regime].rows.size)

    def repeated(self, regime: str) -> Repeated:
        """The probe of a regime over the repeated splits."""
        found = []
        for sums, (_, parts) in zip(self.again[regime], self.plans[regime], strict=True):
            candidates = [p for p in sums if p is not None]
            found.append(self._evaluate(candidates, self.sets, self.own[regime], parts, 1))
        return probes.collect(found)

    def chosen(self, regime: str) -> Products | None:
        """Products of the set of layers that this regime's validation items choose."""
        candidates = [p for p in self.main[regime] if p is not None]
        if len(candidates) < 2 or self.target.problem(self.parts[regime]):
            return candidates[0] if candidates else None
        best = self._evaluate(candidates, self.sets, self.target, self.parts[regime], 1).layers
        return candidates[self.sets.index(best)]

    def adequacy(self, regime: str) -> Adequacy | None:
        """Density score of a regime; None for outcomes of more than two classes."""
        products = self.chosen(regime)
        if products is None or len(self.target.classes) > 2:
            return None
        s = self.settings
        return density.from_products(products, self.target, self.parts[regime], s.seed, s.resamples)

    def transfer(self) -> Transfer | None:
        """Regime x regime; None with one regime, without outcomes or with more than two classes."""
        if len(self.regimes) < 2 or len(self.target.classes) > 2 or not self.target.rows.size:
            return None
        products = {r: p for r in self.regimes if (p := self.chosen(r)) is not None}
        if not products:
            return None
        return _transfer(products, self.target, {r: self.parts[r] for r in self.regimes}, self.settings)

    def subsampling(self) -> pd.DataFrame:
        """Dimensionality of random subsets of the items that every regime has."""
        if not self.source.layers or not self.grams:
            return pd.DataFrame()
        return dimension.subsampling(self.grams, seed=self.settings.seed)

    def dimension(self, regime: str) -> Dimensionality:
        """Effective dimensionality over layers of one regime."""
        found = dimension.combine(self.spreads[regime], int(((self.of_regime == regime) & ~self.finite).sum()))
        return replace(found, layers=self.source.layers)


def _stored_dimension(run: RunLike, benchmark: str, regime: str) -> Dimensionality:
    """Effective dimensionality of a run that kept no states, from the streamed moments in its manifest where it has them."""
    kept = (run.manifest.get("moments") or {}).get(f"{benchmark}/{regime}")
    if not kept:
        nothing = dimension.combine([])
        streamed = bool(getattr(run, "config", {}).get("moments"))
        return replace(nothing, reason="moments are added up once the run is finished") if streamed else nothing
    nan = math.nan
    ratios = [nan if v is None else float(v) for v in kept["participation_ratio"]]
    corrected = [nan if v is None else float(v) for v in kept["participation_ratio_unbiased"]]
    spreads = [
        dimension.LayerSpread(ratio, unbiased, float(trace or 0.0), 0, int(kept["count"]))
        for ratio, unbiased, trace in zip(ratios, corrected, kept["trace"], strict=True)
    ]
    return replace(dimension.combine(spreads), layers=tuple(int(v) for v in kept.get("layers", range(len(ratios)))))


def _cell(
    model: str,
    benchmark: str,
    regime: str,
    reading: _Reading,
    base: pd.Series | None,
    settings: Settings,
    run: RunLike,
) -> Cell:
    states = reading.states[reading.of_regime == regime].reset_index(drop=True)
    resamples, level, seed = settings.resamples, settings.level, settings.seed

    def share(column: str) -> Interval:
        values = _column(states, column)
        known = values[np.isfinite(values)]
        if not known.size:
            return statistics.undefined_interval("no output was generated", method="Wilson", level=level)
        return replace(statistics.wilson(int(known.sum()), known.size, level), left_out=values.size - known.size)

    def mean(column: str, why: str) -> Interval:
        values = _column(states, column)
        if not np.isfinite(values).any():
            return statistics.undefined_interval(why, level=level)
        return statistics.bootstrap_mean(values, resamples, level, seed)

    entropy = _column(states, "entropy_bits")
    known = entropy[np.isfinite(entropy)]
    change = None
    mine = _by_item(reading.states, regime)
    if regime != BASELINE and base is not None and mine is not None:
        change = regimes.entropy_change(mine, base, resamples, level, seed)
    probe = reading.result(regime)
    classes = reading.target.classes
    outcomes = pd.Series(probes.coded(states[settings.target], classes if len(classes) <= 2 else ()), states.index)
    return Cell(
        model=model,
        benchmark=benchmark,
        regime=regime,
        states=states,
        accuracy=share("correct"),
        compliance=share("compliant"),
        truncated=share("truncated"),
        output_tokens=mean("output_tokens", "no output was generated"),
        entropy=mean("entropy_bits", "the run holds no entropy"),
        entropy_sd=float(known.std(ddof=1)) if known.size > 1 else math.nan,
        change=change,
        options=options.summary(states, resamples, level, seed),
        dimension=reading.dimension(regime) if reading.source.layers else _stored_dimension(run, benchmark, regime),
        neighbours=pd.DataFrame(reading.near[regime]),
        probe=probe,
        repeated=reading.repeated(regime),
        curve=pd.DataFrame(reading.curves[regime]),
        predictors=regimes.predictive_power(states, outcomes, resamples, level, seed),
        adequacy=reading.adequacy(regime),
        probe_gain=_gain_over_entropy(probe, mine, settings),
    )


def _after(
    run: RunLike, cell: Cell, site: str, layers: tuple[int, ...], split: Split, settings: Settings
) -> tuple[After, ...]:
    """The cell's states after the boundary against those at it, for every place that the run kept."""

    def source(name: str) -> Layers:
        return _source(run, layers, name, len(cell.states), benchmark=cell.benchmark, regime=cell.regime)

    asked = getattr(run, "config", {}).get("after") or []
    anchor = next((str(text) for text in asked if not (str(text).isascii() and str(text).isdigit())), "anchor")
    return tuple(
        after.compare(
            place if place.isdigit() else anchor,
            source(site),
            source(f"{RESID_POST_AFTER}{place}"),
            cell.states,
            settings.target,
            split,
            layers=settings.layers,
            probe=settings.probe,
            seed=settings.seed,
            resamples=settings.resamples,
            level=settings.level,
        )
        for place in after.places(list(run.sites))
    )


def _gain_over_entropy(probe: Recoverability, entropy: pd.Series | None, settings: Settings) -> Interval:
    """AUROC of the probe minus AUROC of minus H on the very same test items."""
    if not probe.defined or probe.test_scores.ndim > 1 or entropy is None:
        return statistics.undefined_interval(probe.reason or "no entropy", level=settings.level)
    score = -entropy.reindex(probe.test_items).to_numpy(np.float64)
    return statistics.bootstrap_auroc_difference(
        probe.test_labels, probe.test_scores, score, settings.resamples, settings.level, settings.seed
    )


def _empty_cell(model: str, benchmark: str, regime: str, why: str) -> Cell:
    nothing = statistics.undefined_interval(why)
    frame = pd.DataFrame()
    return Cell(
        model,
        benchmark,
        regime,
        frame,
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        math.nan,
        None,
        None,
        None,
        frame,
        None,
        None,
        frame,
        frame,
        None,
        nothing,
        why,
    )


# -- across benchmarks -----------------------------------------------------------------------------------------------


def _across(
    run: RunLike,
    site: str,
    layers: tuple[int, ...],
    settings: Settings,
    benchmarks: Sequence[Benchmark],
    step: Callable[[str], None],
) -> dict[str, Transfer]:
    """Benchmark x benchmark transfer under each regime that several benchmarks have (first set of layers)."""
    sources: dict[str, tuple[Target, dict[str, Parts], Layers, np.ndarray]] = {}
    split = Split({(b.name, i): part for b in benchmarks for i, part in b.split.part.items()}, settings.seed, True)
    states = run.states
    regime_of = states["regime"].astype(str)
    for regime in dict.fromkeys(regime_of):
        rows = states[regime_of == regime]
        groups = rows["benchmark"].astype(str).to_numpy(object)
        if len(set(groups)) < 2:
            continue
        source = _source(run, layers, site, len(rows), regime=regime)
        items = np.empty(len(rows), dtype=object)
        items[:] = list(zip(groups, rows["item_id"].astype(str), strict=True))
        finite = source.finite()
        target = Target.of(rows[settings.target], items, source, finite)
        if target.rows.size and len(target.classes) <= 2:
            sources[regime] = (target, transfer.parts_by_group(target, groups, split), source, finite)
    first = probes.layer_sets(Layers(layers, lambda layer: np.empty((0, 0)), 0), settings.layers)[0]
    sums: dict[str, dict[str, Products]] = {regime: {} for regime in sources}
    for layer in layers:
        for regime, (target, parts, source, finite) in sources.items():
            if layer not in first:
                continue
            block = Block.of(source.read(layer), finite)
            norms = probes.get_probe(settings.probe).norms
            usable = [name for name, part in parts.items() if part.train.size]
            requests = [Request(target.rows, target.rows[parts[name].train], norms) for name in usable]
            for name, found in zip(usable, rowspace.many(block, requests), strict=True):
                total = sums[regime].get(name)
                sums[regime][name] = found if total is None else total + found
        step(f"between benchmarks: layer {layer}")
    return {regime: _transfer(sums[regime], target, parts, settings) for regime, (target, parts, *_) in sources.items()}


def _source(run: RunLike, layers: tuple[int, ...], site: str, n: int, **chosen: str) -> Layers:
    """The chosen states of a run by layer, [n, d]; what a site keeps by head (`z`) stands side by side."""

    def read(layer: int) -> np.ndarray:
        rows = run.resid(layer, site=site, **chosen)
        return rows.reshape(len(rows), math.prod(rows.shape[1:]))

    return Layers(layers, read, n)


def _transfer(
    products: Mapping[str, Products], target: Target, parts: Mapping[str, Parts], settings: Settings
) -> Transfer:
    return transfer.from_products(
        products,
        target,
        parts,
        probe=settings.probe,
        seed=settings.seed,
        resamples=settings.resamples,
        level=settings.level,
    )


# -- reading a run ---------------------------------------------------------------------------------------------------


def model_name(run: RunLike) -> str:
    """Name of the model in tables, from the manifest or the settings of the run."""
    for source in (run.manifest, getattr(run, "config", {})):
        value = source.get("model")
        if isinstance(value, Mapping):
            value = value.get("name") or value.get("id")
        if value:
            return str(value)
    return "model"


def _check_target(values: pd.Series, name: str) -> None:
    if pd.api.types.is_numeric_dtype(values) and not values.dropna().isin((0, 1)).all():
        raise RequestError(f"The column {name!r} holds numbers; a target is yes or no, or a label such as an option.")


def _site(run: RunLike, asked: str) -> str:
    if asked in run.sites or asked == Settings.site:
        return asked  # a run that did not keep it still has entropies and outcomes
    known = ", ".join(run.sites) or "none with layers"
    raise RequestError(f"The run holds no site {asked!r}; it holds: {known}.")


def _failed(run: RunLike) -> dict[tuple[str, str], str]:
    return {(str(b), str(r)): f"the cell failed: {why}" for (b, r), why in getattr(run, "failed_cells", {}).items()}


def _notes(run: RunLike) -> list[str]:
    progress = getattr(run, "progress", None)
    if progress is not None and not progress.complete:
        return [
            f"The run is not complete: {progress.states} of {progress.states_total} states are committed; "
            "numbers are over these."
        ]
    return []


def _column(states: pd.DataFrame, name: str) -> np.ndarray:
    return statistics.as_float(states[name]) if name in states else np.full(len(states), np.nan)


def _by_item(states: pd.DataFrame, regime: str) -> pd.Series | None:
    rows = states[states["regime"].astype(str) == regime]
    if len(rows) == 0 or "entropy_bits" not in rows:
        return None
    return pd.Series(_column(rows, "entropy_bits"), index=rows["item_id"].astype(str).to_numpy(object))


def _near(layer: int, states: np.ndarray) -> dict[str, Any]:
    neighbours = dimension.Neighbours.of(states, 10)
    two, levina = neighbours.two_nn(), neighbours.levina_bickel(10)
    return {
        "layer": layer,
        "two_nn": two.value,
        "levina_bickel": levina.value,
        "duplicates": two.duplicates,
        "reason": "; ".join(dict.fromkeys(part for part in (two.reason, levina.reason) if part)),
    }


def _paired_rows(
    of_regime: np.ndarray, items: np.ndarray, finite: np.ndarray, present: Sequence[str], seed: int
) -> dict[str, np.ndarray]:
    """Rows of each regime for the items that all regimes have, in one order; at most `_SUBSAMPLED` items."""
    rows = {r: {items[i]: i for i in np.flatnonzero((of_regime == r) & finite)} for r in present}
    common = [item for item in rows[present[0]] if all(item in rows[r] for r in present)]
    if len(common) > _SUBSAMPLED:
        pick = np.random.default_rng(seed).choice(len(common), _SUBSAMPLED, replace=False)
        common = [common[i] for i in np.sort(pick)]
    return {r: np.array([rows[r][item] for item in common], dtype=int) for r in present} if common else {}


def _add(sums: list[Products | None], found: Products, wanted: Sequence[int]) -> None:
    for i in wanted:
        total = sums[i]
        sums[i] = found if total is None else total + found
