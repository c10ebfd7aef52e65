"""What a run holds, cell by cell, as text for a terminal.

Guarantees that a mean over no values is shown as missing.
"""

from __future__ import annotations

import pandas as pd

from ..analysis.run_overview import overview
from ..visible import one_line
from .tables import MISSING

__all__ = ["as_text", "overview"]


def as_text(table: pd.DataFrame) -> str:
    """The table in aligned columns, with missing values as an em dash."""
    shown = table.copy()
    shown.columns = [one_line(str(name)) for name in shown.columns]
    for name in shown.columns:
        if pd.api.types.is_float_dtype(shown[name]):
            digits = 1 if name == "output_tokens" else 3
            shown[name] = [f"{value:.{digits}f}" if pd.notna(value) else MISSING for value in shown[name]]
        elif not pd.api.types.is_numeric_dtype(shown[name]):
            shown[name] = [one_line(value) if isinstance(value, str) else value for value in shown[name]]
    return str(shown.to_string(index=False))
