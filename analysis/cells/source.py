"""A run as the analysis reads it: its states, the layers of one site, and what the manifest says.

Guarantees that a site or a column which the run does not hold is refused before a layer is read, naming what it holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd

from ...errors import RequestError
from ..probing.rowspace import Layers
from .settings import Settings


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
class Source:
    """One run, read at one site.

    Attributes
    ----------
    run : RunLike
    model : str
        Name in tables.
    site : str
    layers : tuple of int
        Held of the site; none where the run kept no states.
    """

    run: RunLike
    model: str
    site: str
    layers: tuple[int, ...]

    @classmethod
    def of(cls, run: RunLike, settings: Settings, name: str = "") -> Source:
        """The run at the site that the settings name.

        Raises
        ------
        RequestError
            When the run holds no committed state, or lacks the site or the target.
        """
        states = run.states
        if len(states) == 0:
            raise RequestError("The run holds no committed state yet; let `precollapse run` finish at least one shard.")
        site = _held_site(run, settings.site)
        if settings.target not in states:
            held = ", ".join(map(str, states.columns))
            raise RequestError(f"The run has no column {settings.target!r}; it has: {held}.")
        _check_target(states[settings.target], settings.target)
        return cls(run, name or model_name(run), site, tuple(int(v) for v in run.sites.get(site, ())))

    def read(self, n: int, site: str | None = None, **chosen: str) -> Layers:
        """The chosen states (n of them) by layer, [n, d]; what a site keeps by head (`z`) stands side by side."""

        def read(layer: int) -> np.ndarray:
            rows = self.run.resid(layer, site=site or self.site, **chosen)
            return rows.reshape(len(rows), math.prod(rows.shape[1:]))

        return Layers(self.layers, read, n)

    @property
    def failed(self) -> dict[tuple[str, str], str]:
        """Why a cell (benchmark, regime) has no states, for those that failed."""
        cells = getattr(self.run, "failed_cells", {})
        return {(str(b), str(r)): f"the cell failed: {why}" for (b, r), why in cells.items()}

    @property
    def anchor(self) -> str:
        """Text after which states were kept beside the boundary's; "anchor" where the run names none."""
        places = getattr(self.run, "config", {}).get("after") or []
        return next((str(text) for text in places if not (str(text).isascii() and str(text).isdigit())), "anchor")

    def notes(self) -> list[str]:
        """What a reader should know of the run as a whole."""
        progress = getattr(self.run, "progress", None)
        if progress is not None and not progress.complete:
            return [
                f"The run is not complete: {progress.states} of {progress.states_total} states are committed; "
                "numbers are over these."
            ]
        return []


def model_name(run: RunLike) -> str:
    """Name of the model in tables, from the manifest or the settings of the run."""
    for source in (run.manifest, getattr(run, "config", {})):
        value = source.get("model")
        if isinstance(value, Mapping):
            value = value.get("name") or value.get("id")
        if value:
            return str(value)
    return "model"


def _held_site(run: RunLike, site: str) -> str:
    if site in run.sites or site == Settings.site:
        return site  # a run that did not keep it still has entropies and outcomes
    held = ", ".join(run.sites) or "none with layers"
    raise RequestError(f"The run holds no site {site!r}; it holds: {held}.")


def _check_target(values: pd.Series, name: str) -> None:
    if pd.api.types.is_numeric_dtype(values) and not values.dropna().isin((0, 1)).all():
        raise RequestError(f"The column {name!r} holds numbers; a target is yes or no, or a label such as an option.")
