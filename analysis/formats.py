"""Answer formats of cells (free response, multiple choice), and entropy by format.

Guarantees that models are never pooled: the same items stand under each, and an interval over both would be too narrow.
"""

from __future__ import annotations

import pandas as pd

from . import statistics
from .cells import CellResult, Settings

FREE, CHOICE = "free", "choice"


def answer_format(cell: CellResult) -> str:
    """Format of a cell's answers: free or choice."""
    if "format" in cell.states and len(cell.states) and cell.states["format"].notna().any():
        return str(cell.states["format"].dropna().iloc[0])
    return CHOICE if cell.options is not None else FREE


def entropy_by_format(states: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """Mean entropy over all states of a model, a format and a regime, with its bootstrap interval.

    Parameters
    ----------
    states : DataFrame
        One row per state: `model`, `format`, `regime`, `entropy_bits`.
    settings : Settings
        Of the bootstrap.

    Returns
    -------
    DataFrame
        model, format, regime, n, entropy_bits, entropy_bits_lower, entropy_bits_upper.
    """
    rows = []
    for (model, kind, regime), part in states.groupby(["model", "format", "regime"], sort=False):
        mean = statistics.bootstrap_mean(
            part["entropy_bits"].to_numpy(float), settings.resamples, settings.level, settings.seed
        )
        rows.append((model, kind, regime, len(part), mean.estimate, mean.lower, mean.upper))
    columns = ["model", "format", "regime", "n", "entropy_bits", "entropy_bits_lower", "entropy_bits_upper"]
    return pd.DataFrame(rows, columns=columns)
