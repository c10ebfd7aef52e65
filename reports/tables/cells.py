"""The main table: one row per cell (model × benchmark × regime), as numbers for files and as texts for people.

Guarantees that a value which is not there is shown as missing with a numbered note that says why, in every format,
and that files hold plain numbers under stable column names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from ...analysis import regimes
from ...analysis.cells import CellResult, RunAnalysis
from ...analysis.formats import answer_format
from ...analysis.statistics import Interval
from .frames import interval_columns
from .shown import FEW, Shown
from .texts import Notes, between, number


def main_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """One row per model x benchmark x regime with every number of the report's first table; missing ones are NaN.

    `missing` says, as "column: reason" parts, why a number is not there.
    """
    return pd.DataFrame([_row(cell) for analysis in analyses for cell in analysis.cells])


def _row(cell: CellResult) -> dict[str, Any]:
    change = cell.change
    row: dict[str, Any] = {
        "model": cell.model,
        "benchmark": cell.benchmark,
        "regime": cell.regime,
        "format": answer_format(cell),
        "n": len(cell.states),
    }
    row |= interval_columns("accuracy", cell.accuracy)
    row["compliance"] = cell.compliance.estimate
    row["truncated"] = cell.truncated.estimate
    row["output_tokens"] = cell.output_tokens.estimate
    row["entropy_bits"] = cell.entropy.estimate
    row["entropy_sd"] = cell.entropy_sd
    row |= interval_columns("entropy_change", change.change if change else None)
    row["entropy_change_n"] = change.change.n if change else 0
    row["entropy_change_dz"] = change.effect if change else math.nan
    row["label"] = change.label if change else ""
    row["option_entropy_bits"] = cell.options.entropy_bits.estimate if cell.options else math.nan
    row["option_mass"] = cell.options.mass.estimate if cell.options else math.nan
    row["option_margin"] = cell.options.margin.estimate if cell.options else math.nan
    row["dimension"] = cell.dimension.aggregate if cell.dimension else math.nan
    row["dimension_unbiased"] = cell.dimension.aggregate_unbiased if cell.dimension else math.nan
    row["dimension_ceiling"] = cell.dimension.ceiling if cell.dimension else math.nan
    probe = cell.probe
    row |= interval_columns("auroc", probe.shown if probe else None)
    row["auroc_interval"] = probe.shown.method if probe and probe.defined else ""
    row["auroc_n_test"] = probe.n_test if probe else 0
    row["missing"] = "; ".join(f"{name}: {why}" for name, why in reasons(cell).items())
    return row


def reasons(cell: CellResult) -> dict[str, str]:
    """Why numbers of a cell are missing, by column of the main table."""
    if cell.reason:
        return {"all": cell.reason}
    out = {}
    if not cell.accuracy.defined:
        out["accuracy"] = cell.accuracy.reason
    if not cell.entropy.defined:
        out["entropy_bits"] = cell.entropy.reason
    change = change_reason(cell)
    if change:
        out["entropy_change"] = change
    if cell.options is None:
        out["option_entropy_bits"] = option_reason(cell)
    elif not cell.options.entropy_bits.defined:
        out["option_entropy_bits"] = cell.options.entropy_bits.reason
    if cell.dimension is not None and cell.dimension.reason:
        out["dimension"] = cell.dimension.reason
    if cell.probe is not None and not cell.probe.defined:
        out["auroc"] = cell.probe.reason
    return out


def change_reason(cell: CellResult) -> str:
    """Why a cell has no ΔH; empty when it has one with an interval."""
    if cell.regime == "baseline":
        return "the baseline itself"
    if cell.change is None:
        return "no baseline to compare with"
    return "" if cell.change.label else cell.change.change.reason


def option_reason(cell: CellResult) -> str:
    """Why a cell has no option diagnostics."""
    if cell.options is not None:
        return ""
    return "free response has no options" if answer_format(cell) == "free" else "no option probabilities were captured"


_Column = tuple[str, Callable[[CellResult, Notes], str]]


def _value(
    pick: Callable[[CellResult], Interval | None],
    why: Callable[[CellResult], str],
    digits: int,
    scale: float = 1.0,
    signed: bool = False,
) -> Callable[[CellResult, Notes], str]:
    def text(cell: CellResult, notes: Notes) -> str:
        value = pick(cell)
        if value is None or not value.defined:
            return notes.missing(cell.reason or why(cell) or (value.reason if value else ""))
        return between(value, digits, scale, signed)

    return text


def _mean(
    pick: Callable[[CellResult], Interval | None], why: Callable[[CellResult], str], digits: int, scale: float = 1.0
) -> Any:
    def text(cell: CellResult, notes: Notes) -> str:
        value = pick(cell)
        if value is None or not value.defined:
            return notes.missing(cell.reason or why(cell) or (value.reason if value else ""))
        return number(value.estimate * scale, digits)

    return text


def _nothing(cell: CellResult) -> str:
    return ""


def _entropy_text(cell: CellResult, notes: Notes) -> str:
    if not cell.entropy.defined:
        return notes.missing(cell.reason or cell.entropy.reason)
    return f"{cell.entropy.estimate:.2f} ± {number(cell.entropy_sd)}"


def _label_text(cell: CellResult, notes: Notes) -> str:
    if cell.change is not None and cell.change.label:
        pairs = cell.change.change.n
        few = 0 < pairs < regimes.FEWEST_PAIRS
        return notes.mark(cell.change.label, f"{pairs} pairs are too few for a label" if few else "")
    return notes.missing(cell.reason or change_reason(cell))


def _dimension_text(cell: CellResult, notes: Notes) -> str:
    d = cell.dimension
    if d is None or not math.isfinite(d.aggregate):
        return notes.missing(cell.reason or (d.reason if d else ""))
    return f"{d.aggregate:.1f} (≤ {d.ceiling}) / {number(d.aggregate_unbiased, 1)}"


def _auroc_text(cell: CellResult, notes: Notes) -> str:
    probe = cell.probe
    if probe is None or not probe.defined:
        return notes.missing(cell.reason or (probe.reason if probe else ""))
    return notes.mark(between(probe.shown), probe.reason)


_FIRST: tuple[_Column, ...] = (
    ("benchmark", lambda c, _: c.benchmark),
    ("regime", lambda c, _: c.regime),
    ("n", lambda c, _: str(len(c.states))),
)
OUTCOMES: tuple[_Column, ...] = (
    *_FIRST,
    ("accuracy %", _value(lambda c: c.accuracy, _nothing, 1, 100)),
    ("compliant %", _mean(lambda c: c.compliance, _nothing, 0, 100)),
    ("truncated %", _mean(lambda c: c.truncated, _nothing, 0, 100)),
    ("output tokens", _mean(lambda c: c.output_tokens, _nothing, 0)),
    ("probe AUROC", _auroc_text),
)
BEFORE: tuple[_Column, ...] = (
    *_FIRST,
    ("H bits", _entropy_text),
    ("ΔH", _value(lambda c: c.change.change if c.change else None, change_reason, 2, signed=True)),
    ("label", _label_text),
    ("option H", _mean(lambda c: c.options.entropy_bits if c.options else None, option_reason, 2)),
    ("option mass", _mean(lambda c: c.options.mass if c.options else None, option_reason, 3)),
    ("margin", _mean(lambda c: c.options.margin if c.options else None, option_reason, 2)),
    ("d_eff / unbiased", _dimension_text),
)


def shown_cells(analyses: Sequence[RunAnalysis], columns: Sequence[_Column], title: str, caption: str) -> Shown:
    """Cells as texts; the model is a column when there are several."""
    notes = Notes()
    several = len(analyses) > 1
    header = (("model",) if several else ()) + tuple(name for name, _ in columns)
    rows: list[tuple[str, ...]] = []
    few = set()
    for cell in (c for a in analyses for c in a.cells):
        texts = tuple(make(cell, notes) for _, make in columns)
        scarce = (
            {name for name, _ in columns if name not in ("benchmark", "regime", "n")}
            if len(cell.states) < FEW
            else set()
        )
        if (
            cell.probe is not None
            and min(cell.probe.test_positives, cell.probe.n_test - cell.probe.test_positives) < FEW
        ):
            scarce |= {"probe AUROC"}
        few |= {(len(rows), place) for place, name in enumerate(header) if name in scarce}
        rows.append(((cell.model,) if several else ()) + texts)
    return Shown(title, header, tuple(rows), notes.lines(), caption, frozenset(few))
