"""The table of a selection of states: what the plan says of each, and every column.

Guarantees that a missing value is missing and never a value of the column's type, also where a column was added after some shards were
written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import StoreError
from ...schema import BENCHMARK, ID, ITEM_ID, REGIME, SHARD
from ..formats import tables
from .selection import Selection

if TYPE_CHECKING:
    import pandas as pd


def states_table(selection: Selection) -> pd.DataFrame:
    """One row per state: the keys of the plan, its shard, and every column."""
    import pandas as pd

    plan = selection.plan
    cells = selection.cells().tolist()
    rows = selection.rows.tolist()
    frame = {
        ID: [plan.ids[row] for row in rows],
        BENCHMARK: [plan.cells[c].benchmark for c in cells],
        REGIME: [plan.cells[c].regime for c in cells],
        ITEM_ID: [plan.item_ids[row] for row in rows],
        SHARD: selection.shards(),
    }
    return pd.DataFrame({**frame, **_columns(selection)})


def _columns(selection: Selection) -> dict[str, Any]:
    snapshot, plan = selection.snapshot, selection.plan
    kinds = dict(snapshot.run.columns)
    groups = list(selection.groups())
    loaded = []
    for values, own_kinds in snapshot.tables([shard for shard, _, _ in groups]):
        for name, kind in own_kinds.items():
            if {kinds.setdefault(name, kind), kind} == {"int64", "float64"}:
                kinds[name] = "float64"
            elif kinds[name] != kind:
                raise StoreError(
                    f"Column {name!r} of {snapshot.files.path} is {kinds[name]} in some shards, {kind} in others."
                )
        loaded.append({key: value.copy() for key, value in values.items() if key.startswith("column.")})
    order = np.concatenate([positions for _, _, positions in groups]) if groups else np.zeros(0, np.int64)
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    columns = {}
    for name, kind in kinds.items():
        parts = []
        for (shard, local, _), values in zip(groups, loaded, strict=True):
            start, stop = plan.bounds(shard)
            data, mask = tables.decode_column(values, name, kind, stop - start)
            picked = [data[i] for i in local] if isinstance(data, list) else data[local]
            parts.append((picked, mask[local]))
        columns[name] = tables.series(kind, parts)[back]
    return columns
