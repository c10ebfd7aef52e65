"""One benchmark: one pass over its layers, its cells, and what is paired over them.

Guarantees one split by item for all regimes, and that a cell which failed stays in the result with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

from ..probing import probes, splits, transfer
from ..probing.rowspace import Block
from ..probing.transfer import Transfer
from .cell import Gathered, cell_result
from .geometry import Geometry, subsampling
from .probe import RegimeProbe
from .results import Benchmark, CellResult
from .rows import Rows
from .settings import Settings
from .source import Source


def analyse_benchmark(source: Source, name: str, settings: Settings, step: Callable[[str], None]) -> Benchmark:
    """The cells of one benchmark.

    Parameters
    ----------
    source : Source
    name : str
        Of the benchmark.
    settings : Settings
    step : callable (what was done)
        Called once a layer.
    """
    held = source.run.states
    states = held[held["benchmark"].astype(str) == name].reset_index(drop=True)
    lost = [CellResult.empty(source.model, b, r, why) for (b, r), why in source.failed.items() if b == name]
    labels = states[settings.target]
    split = splits.split_items(states["item_id"].astype(str).to_numpy(object), labels, seed=settings.seed)
    if len(states) == 0:
        return Benchmark(source.model, name, tuple(lost), split, None, pd.DataFrame())
    layers = source.read(len(states), benchmark=name)
    sets = probes.layer_sets(layers, settings.layers)
    rows = Rows.of(states, layers, settings.target)
    parts = transfer.parts_by_group(rows.target, rows.regime, split)
    paired = rows.paired(settings.seed)
    repeats = [splits.split_items(rows.item, labels, seed=settings.seed + 1 + k) for k in range(settings.n_splits)]
    gathered = {
        regime: Gathered(
            Geometry(rows, regime, paired.get(regime)),
            RegimeProbe(rows, regime, parts[regime], sets, repeats, settings),
        )
        for regime in rows.regimes
    }
    for layer in layers.layers:
        block = Block.of(layers.read(layer), rows.finite)
        for one in gathered.values():
            one.geometry.take(layer, block)
            one.probe.take(layer, block)
        step(f"{name}: layer {layer}")
    cells = [cell_result(source, name, regime, rows, one, split, settings) for regime, one in gathered.items()]
    cells += [cell for cell in lost if cell.regime not in gathered]
    return Benchmark(
        source.model,
        name,
        tuple(cells),
        split,
        _transfer(rows, {regime: one.probe for regime, one in gathered.items()}, settings),
        subsampling({regime: one.geometry for regime, one in gathered.items()}, settings.seed),
    )


def _transfer(rows: Rows, regime_probes: Mapping[str, RegimeProbe], settings: Settings) -> Transfer | None:
    """Regime x regime; None with one regime, without outcomes or with more than two classes."""
    if len(regime_probes) < 2 or len(rows.target.classes) > 2 or not rows.target.rows.size:
        return None
    products = {r: chosen for r, probe in regime_probes.items() if (chosen := probe.chosen()) is not None}
    if not products:
        return None
    return transfer.from_products(
        products,
        rows.target,
        {regime: probe.parts for regime, probe in regime_probes.items()},
        probe=settings.probe,
        seed=settings.seed,
        resamples=settings.resamples,
        level=settings.level,
    )
