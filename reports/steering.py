"""The report of a steering: the dose response as text, numbers, a page and a figure.

Guarantees that a quantity which does not apply (an option margin of free answers) is shown as missing with the reason, and that
few training states, few held-out items and a probe that rests on few are said before any number.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ..analysis.dose_response import CONTROL, METRICS, POOLED, VECTOR, dose_response, slopes
from ..analysis.statistics import Interval
from . import page
from .document import Document, Section, Strong
from .figures import Figure, draw
from .figures.steering import dose_response_plan
from .figures.style import has_matplotlib
from .findings import steering_findings
from .output_folder import staged, write_folder
from .plain import records, to_json
from .tables import MISSING, Notes, Shown, between, number
from .tables.frames import as_csv

__all__ = ["CONTROL", "METRICS", "POOLED", "SteerReport", "dose_response", "save", "slopes"]

FEW_ITEMS = 20
FEW_STATES = 10


@dataclass(frozen=True)
class SteerReport:
    """What `run_steer` measured.

    Attributes
    ----------
    table : DataFrame
        One row per cell (`benchmark`, `regime`; "all" pools several), `direction` ("vector", "random" for the mean of
        the random directions, "random 0", ...), `scale` and `metric`: `mean`, `unsteered`, `change` with `lower` and
        `upper`, `n` items, and for the vector `beyond_random` (its change minus that of the random directions, paired) with
        `beyond_lower` and `beyond_upper`; `reason` says why something is missing.
    slopes : DataFrame
        Least-squares slope of each metric against the scale, per item and then averaged, with its interval.
    outcomes : DataFrame
        One row per state, direction and scale: the measured values, and the text.
    vector : SteeringVector
        What was put back into the model.
    summary : dict
        Settings, counts, and where everything comes from.
    """

    table: pd.DataFrame
    slopes: pd.DataFrame
    outcomes: pd.DataFrame
    vector: Any
    summary: Mapping[str, Any]

    def document(self, figures: tuple[Figure, ...] = ()) -> Document:
        """The report without a format."""
        s = self.summary
        where = f"{s['site']}" + ("" if s["layer"] is None else f" of layer {s['layer']}")
        cells = self.table.groupby(["benchmark", "regime"], sort=False)
        sections = [
            Section(
                "All cells" if benchmark == POOLED else f"{benchmark}, {regime}",
                (_cell_table(cell, self.slopes, str(benchmark), str(regime)),),
            )
            for (benchmark, regime), cell in cells
        ]
        if figures:
            sections.append(Section("Figures", figures))
        return Document(
            f"Steering {where} of {s['model']}",
            tuple(_lead(self)),
            tuple(sections),
            findings=steering_findings(self.table, {m: name for m, (name, *_) in METRICS.items()}),
        )

    def markdown(self) -> str:
        """The report as text."""
        return self.document().to_markdown()

    def to_json(self) -> str:
        """Summary, table and slopes as JSON; missing numbers are null."""
        return to_json({"summary": self.summary, "table": records(self.table), "slopes": records(self.slopes)})

    def figure(self, path: str | os.PathLike[str]) -> None:
        """Draw the pooled dose response into a PNG; needs matplotlib (`pip install 'precollapse[plots]'`)."""
        target = Path(path)
        write_folder(target.parent, {target.name: _drawn(self, target.parent).image})


def save(report: SteerReport, folder: str | os.PathLike[str]) -> Path:
    """Write steer.md, steer.html, steer.json, table.csv, slopes.csv, outcomes.csv, vector.safetensors and, where matplotlib is,
    steer.png, steer.svg and steer.csv into a folder: all of them, or none.

    Raises
    ------
    RequestError
        If the folder cannot be written.
    """
    figures = (_drawn(report, Path(folder)),) if has_matplotlib() else ()
    document = report.document(figures)
    with staged(folder) as stage:
        (stage / "steer.md").write_text(document.to_markdown(), encoding="utf-8")
        (stage / "steer.html").write_text(page.rendered(document), encoding="utf-8")
        (stage / "steer.json").write_text(report.to_json(), encoding="utf-8")
        for name, table in (("table", report.table), ("slopes", report.slopes), ("outcomes", report.outcomes)):
            (stage / f"{name}.csv").write_text(as_csv(table), encoding="utf-8", newline="")
        report.vector.save(stage / "vector.safetensors")
        for figure in figures:
            for name, data in figure.contents.items():
                (stage / name).write_bytes(data)
    return Path(folder)


def _drawn(report: SteerReport, folder: Path) -> Figure:
    s = report.summary
    title = f"{s['model']}: {s['site']} of layer {s['layer']}, {s['method']} of {s['target']}"
    return draw(dose_response_plan(report.table, title), folder, "precollapse steer")


def _lead(report: SteerReport) -> Iterator[str | Strong]:
    s, provenance = report.summary, report.vector.provenance
    trained, positive = provenance.get("n_train", "?"), provenance.get("n_positive", "?")
    yield (
        f"Direction: {s['method']} of {s['target']}, from {trained} training states ({positive} positive). "
        f"Length {s['vector_norm']:.4g}: a scale of 1 moves a state by that much{_share(s)}. "
        f"Mode {s['mode']}, positions {s['positions']}."
    )
    if isinstance(trained, int) and isinstance(positive, int) and min(positive, trained - positive) < FEW_STATES:
        yield Strong(
            f"The direction rests on {min(positive, trained - positive)} training states of the rarer class: most of "
            "it may be chance."
        )
    yield (
        f"Measured on {s['held_out_states']} states of {s['held_out_items']} items that neither the direction nor the probe "
        f"has seen. Changes are against the same prompts unsteered, with {s['level']:.0%} paired percentile bootstrap "
        f"intervals over items ({s['resamples']} resamples). `random`: mean of {s['controls']} random directions of the same "
        "length."
    )
    yield (
        f"The probe reads resid_post of layer {s['probe_layer']} ({_probe_words(s)}). "
        f"Unsteered entropies are within {s['baseline_entropy_drift_bits']:.2g} bits of the run's."
    )
    reasons = [str(r) for r in dict.fromkeys(report.table["reason"]) if isinstance(r, str) and r]
    if reasons:
        yield f"{MISSING} : not defined ({'; '.join(reasons)})."
    if s["held_out_items"] < FEW_ITEMS:
        items = "1 held-out item is" if s["held_out_items"] == 1 else f"{s['held_out_items']} held-out items are"
        yield Strong(f"{items} few: a percentile interval over so few is too narrow.")


def _probe_words(s: Mapping[str, Any]) -> str:
    if math.isfinite(s["probe_validation_auroc"]):
        note = f"; {s['probe_note']}" if s["probe_note"] else ""
        return f"validation AUROC {s['probe_validation_auroc']:.3f}{note}"
    return f"train AUROC {s['probe_train_auroc']:.3f}; {s['probe_note']}"


def _share(s: Mapping[str, Any]) -> str:
    typical = s.get("median_state_norm")
    return f", {s['vector_norm'] / typical:.1%} of the median state's norm" if typical else ""


def _cell_table(cell: pd.DataFrame, slope_table: pd.DataFrame, benchmark: str, regime: str) -> Shown:
    """Changes of one cell: a row per direction and scale, what the vector does beyond the random ones, and the slopes."""
    metrics = [m for m in METRICS if m in set(cell["metric"]) and cell.loc[cell["metric"] == m, "n"].max() > 0]
    notes = Notes()
    unsteered = [float(cell.loc[cell["metric"] == m, "unsteered"].iloc[0]) for m in metrics]
    rows = [("unsteered (value)", "0", *(number(value, 3) for value in unsteered))]
    entries = {(r["direction"], r["scale"], r["metric"]): r for r in cell.to_dict("records")}

    def changes(direction: str, scale: float, estimate: str, lower: str, upper: str) -> list[str]:
        return [_change(entries[direction, scale, m], estimate, lower, upper, notes) for m in metrics]

    for direction in (VECTOR, CONTROL):
        for scale in sorted({s for d, s, _ in entries if d == direction}):
            rows.append((direction, f"{scale:+g}", *changes(direction, scale, "change", "lower", "upper")))
    if metrics:
        for scale in sorted({s for d, s, _ in entries if d == VECTOR and (CONTROL, s, metrics[0]) in entries}):
            texts = changes(VECTOR, scale, "beyond_random", "beyond_lower", "beyond_upper")
            rows.append(("vector − random", f"{scale:+g}", *texts))
    here = slope_table[(slope_table["benchmark"] == benchmark) & (slope_table["regime"] == regime)]
    for direction in (VECTOR, CONTROL):
        by_metric = {r["metric"]: r for r in here.to_dict("records") if r["direction"] == direction}
        if by_metric:
            texts = [_change(by_metric[m], "slope", "lower", "upper", notes) for m in metrics]
            rows.append((f"{direction}, per unit", "slope", *texts))
    header = ("direction", "scale", *(f"Δ {METRICS[m][0]}" for m in metrics))
    return Shown("", header, tuple(rows), notes.lines())


def _change(entry: Mapping[Any, Any], estimate: str, lower: str, upper: str, notes: Notes) -> str:
    """A change with its interval; missing, or without an interval, it points to the reason."""
    value = Interval(float(entry[estimate]), float(entry[lower]), float(entry[upper]))
    reason = entry["reason"] if isinstance(entry["reason"], str) else ""
    if not value.defined:
        return notes.missing(reason)
    text = between(value, 3, signed=True)
    return text if math.isfinite(value.lower + value.upper) else notes.mark(f"{text} [{MISSING}]", reason)
