"""Transfer of a probe from one benchmark to another under the same regime.

Guarantees that an item keeps the part (training, validation, test) that it has in its own benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..probing import probes, rowspace, transfer
from ..probing.probes import Parts, Target
from ..probing.rowspace import Block, Layers, Request, SetProducts
from ..probing.splits import Split
from ..probing.transfer import Transfer
from .results import Benchmark
from .settings import Settings
from .source import Source


@dataclass(frozen=True)
class _Regime:
    """One regime that several benchmarks have: its rows over all of them, and what has been added up of each."""

    layers: Layers
    finite: np.ndarray
    target: Target
    parts: Mapping[str, Parts]
    products: Mapping[str, SetProducts]

    def take(self, layer: int, norms: bool) -> None:
        """Add one layer to every benchmark that has training items."""
        block = Block.of(self.layers.read(layer), self.finite)
        rows = self.target.rows
        usable = [name for name, part in self.parts.items() if part.train.size]
        requests = [Request(rows, rows[self.parts[name].train], norms) for name in usable]
        for name, products in zip(usable, rowspace.many(block, requests), strict=True):
            self.products[name].add(layer, products)


def across_benchmarks(
    source: Source, benchmarks: Sequence[Benchmark], settings: Settings, step: Callable[[str], None]
) -> dict[str, Transfer]:
    """Benchmark x benchmark transfer under each regime that several benchmarks have (first set of layers)."""
    split = Split({(b.name, i): part for b in benchmarks for i, part in b.split.part.items()}, settings.seed, True)
    first = probes.layer_sets(Layers(source.layers, lambda layer: np.empty((0, 0)), 0), settings.layers)[0]
    names = dict.fromkeys(source.run.states["regime"].astype(str))
    regimes = {name: one for name in names if (one := _regime(source, name, split, first, settings.target))}
    norms = probes.get_probe(settings.probe).norms
    for layer in source.layers:
        for regime in regimes.values():
            if layer in first:
                regime.take(layer, norms)
        step(f"between benchmarks: layer {layer}")
    return {name: _transfer(regime, settings) for name, regime in regimes.items()}


def _regime(source: Source, regime: str, split: Split, layers: tuple[int, ...], target: str) -> _Regime | None:
    """The rows of a regime; None where one benchmark has it, or no outcome of two classes is there."""
    states = source.run.states
    rows = states[states["regime"].astype(str) == regime]
    groups = rows["benchmark"].astype(str).to_numpy(object)
    if len(set(groups)) < 2:
        return None
    by_layer = source.read(len(rows), regime=regime)
    items = np.empty(len(rows), dtype=object)
    items[:] = list(zip(groups, rows["item_id"].astype(str), strict=True))
    finite = by_layer.finite()
    outcome = Target.of(rows[target], items, by_layer, finite)
    if not outcome.rows.size or len(outcome.classes) > 2:
        return None
    parts = transfer.parts_by_group(outcome, groups, split)
    return _Regime(by_layer, finite, outcome, parts, {name: SetProducts([layers]) for name in parts})


def _transfer(regime: _Regime, settings: Settings) -> Transfer:
    return transfer.from_products(
        {name: products for name, sums in regime.products.items() for products in sums.totals},
        regime.target,
        regime.parts,
        probe=settings.probe,
        seed=settings.seed,
        resamples=settings.resamples,
        level=settings.level,
    )
