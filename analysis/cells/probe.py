"""The probe of one regime: on the split that all regimes share, on repeated splits, and layer by layer.

Guarantees that one reading of a layer serves every split, and that a split on which no probe can be fitted asks for nothing
and is counted as undefined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from ..probing import density, probes, rowspace
from ..probing.density import Adequacy
from ..probing.probes import Parts, Recoverability, Repeated, Target
from ..probing.rowspace import Block, Products, Request, SetProducts
from ..probing.splits import Split
from .rows import Rows
from .settings import Settings


@dataclass(frozen=True)
class _Repeat:
    """One of the repeated splits: what it asks of a layer, its parts, and what has been added up for it."""

    request: Request
    parts: Parts
    products: SetProducts
    defined: bool


class RegimeProbe:
    """The probe of one regime, from the layers taken so far.

    Parameters
    ----------
    rows : Rows
        Of the whole benchmark.
    regime : str
    parts : Parts
        Of this regime, on the split that all regimes share.
    sets : sequence of tuple of int
        Candidate sets of layers.
    splits : sequence of Split
        The repeated ones.
    settings : Settings
    """

    def __init__(
        self,
        rows: Rows,
        regime: str,
        parts: Parts,
        sets: Sequence[tuple[int, ...]],
        splits: Sequence[Split],
        settings: Settings,
    ) -> None:
        self.parts = parts
        self._target, self._own = rows.target, rows.target_under(regime)
        self._left_out = int((rows.regime == regime).sum()) - self._own.rows.size
        self._settings = settings
        norms = probes.get_probe(settings.probe).norms
        train = parts.train
        self._requests = [Request(self._target.rows, self._target.rows[train], norms)] if train.size else []
        self._products = SetProducts(sets)
        self._repeats = [self._repeat(split, norms, sets) for split in splits]
        self._curve: list[dict[str, Any]] = []

    def _repeat(self, split: Split, norms: bool, sets: Sequence[tuple[int, ...]]) -> _Repeat:
        request, parts = self._own.request(split, norms)
        return _Repeat(request, parts, SetProducts(sets), not self._own.problem(parts))

    def take(self, layer: int, block: Block) -> None:
        """Add one layer: to the candidate sets that hold it, and to the curve over layers."""
        wanted = any(layer in chosen for chosen in self._products.sets)
        repeats = [repeat for repeat in self._repeats if repeat.defined and wanted]
        products = rowspace.many(block, [*self._requests, *(repeat.request for repeat in repeats)])
        single, others = products[: len(self._requests)], products[len(self._requests) :]
        for one in single:
            self._products.add(layer, one)
        for repeat, one in zip(repeats, others, strict=True):
            repeat.products.add(layer, one)
        result = self._evaluate(single, [(layer,)], self._target, self.parts, self._settings.resamples)
        self._curve.append(probes.curve_row(layer, result))

    @property
    def curve(self) -> pd.DataFrame:
        """One row per layer: the probe on that layer alone."""
        return pd.DataFrame(self._curve)

    def result(self) -> Recoverability:
        """The probe on the shared split, with its label-shuffle control."""
        s = self._settings
        result = self._evaluate(
            self._products.totals, self._products.sets, self._target, self.parts, s.resamples, s.shuffles
        )
        return replace(result, left_out=self._left_out)

    def repeated(self) -> Repeated:
        """The probe over the repeated splits."""
        return probes.collect(
            [
                self._evaluate(repeat.products.totals, repeat.products.sets, self._own, repeat.parts, 1)
                for repeat in self._repeats
            ]
        )

    def chosen(self) -> Products | None:
        """Products of the set of layers that this regime's validation items choose; None without training items."""
        candidates, sets = self._products.totals, self._products.sets
        if len(candidates) < 2 or self._target.problem(self.parts):
            return candidates[0] if candidates else None
        return candidates[sets.index(self._evaluate(candidates, sets, self._target, self.parts, 1).layers)]

    def adequacy(self) -> Adequacy | None:
        """Density score; None for outcomes of more than two classes."""
        products = self.chosen()
        if products is None or len(self._target.classes) > 2:
            return None
        s = self._settings
        return density.from_products(products, self._target, self.parts, s.seed, s.resamples)

    def _evaluate(
        self,
        candidates: Sequence[Products],
        sets: Sequence[tuple[int, ...]],
        target: Target,
        parts: Parts,
        resamples: int,
        shuffles: int = 0,
    ) -> Recoverability:
        s = self._settings
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
