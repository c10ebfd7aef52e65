"""What a run holds, cell by cell, at no cost: progress and means, nothing fitted.

Guarantees that a cell which failed or has not begun is in the table, with the reason, and that a mean over no values is
missing and not 0.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

_MEANS = {
    "accuracy": "correct",
    "compliance": "compliant",
    "truncated": "truncated",
    "output_tokens": "output_tokens",
    "entropy_bits": "entropy_bits",
}


def overview(run: Any) -> pd.DataFrame:
    """One row per planned benchmark x regime.

    Parameters
    ----------
    run : store.Run

    Returns
    -------
    DataFrame
        `benchmark`, `regime`, `states` (committed), `planned`, `accuracy`, `compliance`, `truncated` (shares), `output_tokens` and
        `entropy_bits` (means over committed states), `note` ("failed: ...", "not finished", or empty).
    """
    states = run.states
    rows = []
    for cell in run.progress.cells:
        committed = states[(states["benchmark"] == cell.benchmark) & (states["regime"] == cell.regime)]
        note = f"failed: {cell.failed}" if cell.failed else ("" if cell.states == cell.states_total else "not finished")
        means = {name: _mean(committed, column) for name, column in _MEANS.items()}
        rows.append(
            {
                "benchmark": cell.benchmark,
                "regime": cell.regime,
                "states": cell.states,
                "planned": cell.states_total,
                **means,
                "note": note,
            }
        )
    return pd.DataFrame(rows)


def _mean(states: pd.DataFrame, column: str) -> float:
    if column not in states.columns:
        return float("nan")
    values = states[column].dropna()
    return float(values.astype(float).mean()) if len(values) else float("nan")
