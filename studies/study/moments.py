"""Moments of whole cells, merged from the parts that shards committed.

Guarantees that a cell's effective dimensionality is there when its residuals were not kept, and equals what they would have
given: only committed parts are merged, each once, and a cell that is not finished has none. While the run grows, the parts of
each cell are merged into one, whose size is that of a covariance however many states there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ... import schema, store
from ...errors import StoreError
from ...kernels import Moments

BLOB = schema.MOMENTS


def cell_moments(run: store.Run) -> dict[tuple[str, str], Moments]:
    """Merge the committed parts of a run made with `moments=True`.

    Parameters
    ----------
    run : store.Run

    Returns
    -------
    dict of (benchmark, regime) to Moments
        Of resid_post at the run's layers, for finished cells only.

    Raises
    ------
    StoreError
        What is kept of a cell is no moments, or those of another number of states.
    """
    finished = {(c.benchmark, c.regime) for c in run.progress.cells if c.states == c.states_total}
    moments = {}
    for cell, parts in run.parts(BLOB):
        if (cell.benchmark, cell.regime) in finished:
            merged = moments[cell.benchmark, cell.regime] = _merged(parts)
            if merged.count != cell.states:
                raise StoreError(
                    f"The moments of {cell.benchmark}/{cell.regime} in {run.path} are those of {int(merged.count)} states, and "
                    f"the cell has {cell.states}: they belong to another cell. Run `precollapse verify`."
                )
    return moments


def fold(writer: store.Writer, shard: int, width: int) -> None:
    """Merge the parts of a shard's cell as far as whole groups of shards are committed, so that the run stays small.

    A group holds at least as many states as the residual stream is wide: fewer states are smaller than the covariance that they
    would be merged into.
    """
    group = -(-width // writer.plan.cell_of(shard).rows)
    writer.fold(shard, BLOB, group, lambda parts: _merged(parts).to_bytes())


def _merged(parts: Sequence[bytes]) -> Moments:
    try:
        first, *others = parts
        merged = Moments.from_bytes(first)
        for part in others:
            merged.merge(Moments.from_bytes(part))
    except ValueError as error:
        raise StoreError(f"Moments of the run cannot be added up: {error}") from None
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
