"""Tables of a report: numbers for files, text for people, and for every missing value the reason.

Guarantees that a value which is not there is shown as missing with a numbered note that says why, in every format,
and that files hold plain numbers under stable column names.
"""

from __future__ import annotations

from ...analysis.formats import answer_format as kind
from .boundaries import boundaries_table
from .cells import BEFORE, OUTCOMES, change_reason, main_table, option_reason, reasons, shown_cells
from .probes import after_table, calibration_table, curve_table, robustness_table, transfer_table
from .shown import Shown, as_markdown, as_text, shown_frame, shown_values
from .states import dimension_table, options_table, predictors_table, subsampling_table
from .texts import MISSING, Notes, between, care, number

__all__ = [
    "BEFORE",
    "MISSING",
    "OUTCOMES",
    "Notes",
    "Shown",
    "after_table",
    "as_markdown",
    "as_text",
    "between",
    "calibration_table",
    "boundaries_table",
    "care",
    "change_reason",
    "curve_table",
    "dimension_table",
    "kind",
    "main_table",
    "number",
    "option_reason",
    "options_table",
    "predictors_table",
    "reasons",
    "robustness_table",
    "shown_cells",
    "shown_frame",
    "shown_values",
    "subsampling_table",
    "transfer_table",
]
