"""Moments of whole cells, merged from the parts that shards committed.

Guarantees that a cell's effective dimensionality is there when its residuals were not kept, and equals what they would have
given: only committed parts are merged, each once, and a cell that is not finished has none.
"""

from __future__ import annotations

import math
from typing import Any

from .. import store
from ..kernels import Moments

BLOB = "moments"


def cell_moments(run: store.Run) -> dict[tuple[str, str], Moments]:
    """Merge the committed parts of a run made with `moments=True`.

    Parameters
    ----------
    run : store.Run

    Returns
    -------
    dict of (benchmark, regime) to Moments
        Of resid_post at the run's layers, for finished cells only.
    """
    finished = {(c.benchmark, c.regime) for c in run.progress.cells if c.states == c.states_total}
    merged: dict[tuple[str, str], Moments] = {}
    for shard, data in run.blobs(BLOB):
        cell = (shard.benchmark, shard.regime)
        if cell in finished:
            part = Moments.from_bytes(data)
            merged[cell] = merged[cell].merge(part) if cell in merged else part
    return merged


def summary(run: store.Run, layers: tuple[int, ...]) -> dict[str, Any]:
    """What the manifest keeps of each finished cell, so that a report needs neither torch nor the residuals.

    Returns
    -------
    dict
        "benchmark/regime" to `count`, `layers`, `trace`, `participation_ratio`, `participation_ratio_unbiased` (one value per
        layer; None where undefined).
    """
    return {
        f"{benchmark}/{regime}": {
            "count": int(moments.count),
            "layers": list(layers),
            "trace": _values(moments.trace()),
            "participation_ratio": _values(moments.participation_ratio()),
            "participation_ratio_unbiased": _values(moments.participation_ratio(unbiased=True)),
        }
        for (benchmark, regime), moments in cell_moments(run).items()
    }


def _values(x: Any) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in x.tolist()]
