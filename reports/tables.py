"""Tables of a report: numbers for files, text for people, and for every missing value the reason.

Guarantees that a value which is not there is shown as missing with a numbered note that says why, in every format,
and that files hold plain numbers under stable column names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..analysis import regimes
from ..analysis.cells import Cell, RunAnalysis
from ..analysis.statistics import Interval

MISSING = "—"


@dataclass(frozen=True)
class Shown:
    """A table for people: texts, and the notes that its missing values point to."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    caption: str = ""


# -- numbers for files -----------------------------------------------------------------------------------------------


def main_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """One row per model x benchmark x regime with every number of the report's first table; missing ones are NaN.

    `missing` says, as "column: reason" parts, why a number is not there.
    """
    return pd.DataFrame([_row(cell) for analysis in analyses for cell in analysis.cells])


def _row(cell: Cell) -> dict[str, Any]:
    change = cell.change
    row: dict[str, Any] = {
        "model": cell.model,
        "benchmark": cell.benchmark,
        "regime": cell.regime,
        "format": kind(cell),
        "n": len(cell.states),
    }
    row |= _interval("accuracy", cell.accuracy)
    row["compliance"] = cell.compliance.estimate
    row["truncated"] = cell.truncated.estimate
    row["output_tokens"] = cell.output_tokens.estimate
    row["entropy_bits"] = cell.entropy.estimate
    row["entropy_sd"] = cell.entropy_sd
    row |= _interval("entropy_change", change.change if change else None)
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
    row |= _interval("auroc", probe.shown if probe else None)
    row["auroc_interval"] = probe.shown.method if probe and probe.defined else ""
    row["auroc_n_test"] = probe.n_test if probe else 0
    row["missing"] = "; ".join(f"{name}: {why}" for name, why in reasons(cell).items())
    return row


def reasons(cell: Cell) -> dict[str, str]:
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
    if cell.dimension is not None and cell.dimension.reason:
        out["dimension"] = cell.dimension.reason
    if cell.probe is not None and not cell.probe.defined:
        out["auroc"] = cell.probe.reason
    return out


def change_reason(cell: Cell) -> str:
    """Why a cell has no ΔH; empty when it has one with an interval."""
    if cell.regime == "baseline":
        return "the baseline itself"
    if cell.change is None:
        return "no baseline to compare with"
    return "" if cell.change.label else cell.change.change.reason


def option_reason(cell: Cell) -> str:
    """Why a cell has no option diagnostics."""
    return "free response has no options" if kind(cell) == "free" else "no option probabilities were captured"


def robustness_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """Probe controls per cell: train, test with interval, shuffled labels, gap, repeated splits, gain over entropy."""
    rows = []
    for cell in (c for a in analyses for c in a.cells if c.probe is not None):
        r = cell.probe
        assert r is not None and cell.repeated is not None
        row: dict[str, Any] = {"model": cell.model, "benchmark": cell.benchmark, "regime": cell.regime}
        row |= {"probe": r.probe, "n_train": r.n_train, "n_validation": r.n_validation, "n_test": r.n_test}
        row |= {"test_positives": r.test_positives, "left_out": r.left_out, "C": r.C}
        row["layers"] = " ".join(map(str, r.layers))
        row |= {"train_auroc": r.train_auroc, "validation_auroc": r.validation_auroc}
        row |= _interval("test_auroc", r.interval)
        row["undefined_resamples"] = r.undefined_resamples
        row |= {"small_sample_lower": r.small_sample.lower, "small_sample_upper": r.small_sample.upper}
        row |= {"gap": r.gap, "shuffle_auroc": r.shuffle_auroc, "shuffle_p": r.shuffle_p}
        row["shuffles"] = r.shuffle_null.size
        row |= {"splits_mean": cell.repeated.mean, "splits_sd": cell.repeated.sd}
        row |= {"splits": cell.repeated.auroc.size, "splits_undefined": cell.repeated.undefined}
        row |= _interval("probe_minus_entropy", cell.probe_gain)
        brier = r.calibration
        row |= {"brier": brier.brier if brier else math.nan, "brier_base_rate": brier.baseline if brier else math.nan}
        adequacy = cell.adequacy
        row |= _interval("mahalanobis_auroc", adequacy.mahalanobis if adequacy else None)
        row |= _interval("mixture_auroc", adequacy.mixture if adequacy else None)
        row["reason"] = r.reason
        rows.append(row)
    return pd.DataFrame(rows)


def options_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """Multiple-choice cells: option entropy, mass, margin, and the argmax option against the emitted answer."""
    rows = []
    for cell in (c for a in analyses for c in a.cells if c.options is not None):
        o = cell.options
        assert o is not None
        row: dict[str, Any] = {"model": cell.model, "benchmark": cell.benchmark, "regime": cell.regime, "n": o.n}
        for name in ("entropy_bits", "relative_entropy", "mass", "margin"):
            row |= _interval(f"option_{name}", getattr(o, name))
        row |= _interval("agreement", o.agreement)
        row |= _interval("choice_accuracy", o.choice_accuracy) | _interval("answer_accuracy", o.answer_accuracy)
        row |= {"knew_not_said": o.knew_not_said, "said_not_knew": o.said_not_knew, "unanswered": o.unanswered}
        row |= {"mcnemar_p": o.test.p_value}
        row |= _interval("information_bits", o.information.interval) | {"information_p": o.information.p_value}
        row |= {"gold": _counts(cell.states, "gold"), "said": _counts(cell.states, "answer")}
        row["reason"] = o.agreement.reason or o.test.reason or o.information.reason
        rows.append(row)
    return pd.DataFrame(rows)


def _counts(states: pd.DataFrame, column: str) -> str:
    """How often each option occurs in a column, as text: a model that always says one letter is seen here."""
    if column not in states:
        return ""
    counts = states[column].dropna().astype(str).value_counts().sort_index()
    return " ".join(f"{label}:{count}" for label, count in counts.items())


def predictors_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """What H and the plain baselines predict, over all states of a cell (nothing is fitted)."""
    rows = []
    for cell in (c for a in analyses for c in a.cells):
        for _, found in cell.predictors.iterrows():
            row: dict[str, Any] = {"model": cell.model, "benchmark": cell.benchmark, "regime": cell.regime}
            row |= {"predictor": found["predictor"], "sign": found["sign"], "n": found["auroc"].n}
            for name in ("auroc", "spearman"):
                row |= _interval(name, found[name]) | {f"{name}_undefined": found[name].undefined}
            row["reason"] = found["auroc"].reason or found["spearman"].reason
            rows.append(row)
    return pd.DataFrame(rows)


_NO_NEIGHBOURS = {
    "two_nn": math.nan,
    "levina_bickel": math.nan,
    "duplicates": math.nan,
    "reason": "no states were kept",
}


def dimension_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """Participation ratios, weight, 90% count, ceiling and neighbour estimates per cell and layer."""
    rows = []
    for analysis in analyses:
        for cell in analysis.cells:
            d = cell.dimension
            if d is None:
                continue
            for i, layer in enumerate(d.layers):
                near = cell.neighbours.iloc[i] if i < len(cell.neighbours) else _NO_NEIGHBOURS
                row: dict[str, Any] = {"model": cell.model, "benchmark": cell.benchmark, "regime": cell.regime}
                row |= {"layer": layer, "n": d.n, "ceiling": d.ceiling, "participation_ratio": d.per_layer[i]}
                row |= {"participation_ratio_unbiased": d.unbiased[i], "weight": d.weights[i]}
                row |= {"components_90": d.ninety[i] or math.nan, "two_nn": near["two_nn"]}
                row |= {"levina_bickel": near["levina_bickel"], "duplicates": near["duplicates"]}
                row["reason"] = d.reason or near["reason"]
                rows.append(row)
    return pd.DataFrame(rows)


def subsampling_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """Aggregate dimensionality of random subsets of N' items, paired over regimes."""
    frames = [
        b.subsampling.assign(model=b.model, benchmark=b.name)
        for a in analyses
        for b in a.benchmarks
        if len(b.subsampling)
    ]
    if not frames:
        return pd.DataFrame()
    table = pd.concat(frames, ignore_index=True)
    first = ["model", "benchmark"]
    return table[first + [c for c in table.columns if c not in first]]


def curve_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """Probe AUROC per layer on the shared split."""
    frames = [
        c.curve.assign(model=c.model, benchmark=c.benchmark, regime=c.regime)
        for a in analyses
        for c in a.cells
        if len(c.curve)
    ]
    if not frames:
        return pd.DataFrame()
    table = pd.concat(frames, ignore_index=True)
    first = ["model", "benchmark", "regime"]
    return table[first + [c for c in table.columns if c not in first]]


def transfer_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """All transfer cells: over regimes within a benchmark, and over benchmarks within a regime."""
    rows: list[dict[str, Any]] = []
    for analysis in analyses:
        for benchmark in analysis.benchmarks:
            if benchmark.transfer is not None:
                head = {"model": analysis.model, "over": "regimes", "within": benchmark.name}
                rows += [head | record for record in benchmark.transfer.records()]
        for regime, found in analysis.cross.items():
            head = {"model": analysis.model, "over": "benchmarks", "within": regime}
            rows += [head | record for record in found.records()]
    return pd.DataFrame(rows)


def after_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """One row per cell and place: AUROC before and after, their paired difference, and the shared bits."""
    rows = []
    for cell in (c for a in analyses for c in a.cells):
        for a in cell.after:
            one, two, gain = a.contrast.before, a.contrast.after, a.contrast.difference
            row: dict[str, Any] = {"model": cell.model, "benchmark": cell.benchmark, "regime": cell.regime}
            row |= {"place": a.place, "reached": a.reached, "n_test": one.n_test}
            for name, value in (("before", one.shown), ("after", two.shown), ("difference", gain)):
                row |= {name: value.estimate, f"{name}_lower": value.lower, f"{name}_upper": value.upper}
            for name, shared in (("before", a.before), ("after", a.after)):
                row[f"bits_{name}"] = shared.corrected if shared else math.nan
                row[f"bits_{name}_p"] = shared.p_value if shared else math.nan
            bits = (a.before.reason or a.after.reason) if a.before and a.after else "no options, no answer read"
            row["reason"] = "; ".join(
                dict.fromkeys(part for part in (one.reason or two.reason or gain.reason, bits) if part)
            )
            rows.append(row)
    return pd.DataFrame(rows)


def calibration_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """Reliability curves of the probes on their test items."""
    frames = [
        c.probe.calibration.curve.assign(model=c.model, benchmark=c.benchmark, regime=c.regime)
        for a in analyses
        for c in a.cells
        if c.probe is not None and c.probe.calibration is not None and len(c.probe.calibration.curve)
    ]
    if not frames:
        return pd.DataFrame()
    table = pd.concat(frames, ignore_index=True)
    first = ["model", "benchmark", "regime"]
    return table[first + [c for c in table.columns if c not in first]]


def _interval(name: str, value: Interval | None) -> dict[str, float]:
    nan = math.nan
    if value is None:
        return {name: nan, f"{name}_lower": nan, f"{name}_upper": nan}
    return {name: value.estimate, f"{name}_lower": value.lower, f"{name}_upper": value.upper}


def kind(cell: Cell) -> str:
    """Format of a cell's answers: free or choice."""
    if "format" in cell.states and len(cell.states) and cell.states["format"].notna().any():
        return str(cell.states["format"].dropna().iloc[0])
    return "choice" if cell.options is not None else "free"


# -- texts for people ------------------------------------------------------------------------------------------------


class Notes:
    """Numbers the reasons of missing values as they come up."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def missing(self, reason: str) -> str:
        """Text of a missing value that points to its reason."""
        number = self._seen.setdefault(reason or "not computed", len(self._seen) + 1)
        return f"{MISSING} ({number})"

    def mark(self, text: str, reason: str) -> str:
        """A value that is there, with a pointer to what to read with care; unchanged without a reason."""
        return text if not reason else f"{text} ({self._seen.setdefault(reason, len(self._seen) + 1)})"

    def lines(self) -> tuple[str, ...]:
        """The notes, numbered."""
        return tuple(f"({number}) {reason}" for reason, number in self._seen.items())


def number(value: float, digits: int = 2) -> str:
    """A number with fixed decimals, "<0.001" for a positive one that would round to 0, the sign for a missing one."""
    if 0 < value < 0.5 * 10.0**-digits:
        return f"<{10.0**-digits:.{digits}f}"
    return f"{value:.{digits}f}" if math.isfinite(value) else MISSING


def between(value: Interval, digits: int = 2, scale: float = 1.0, signed: bool = False) -> str:
    """An estimate with its bounds."""
    sign = "+" if signed else ""
    text = f"{value.estimate * scale:{sign}.{digits}f}"
    if not (math.isfinite(value.lower) and math.isfinite(value.upper)):
        return text
    return f"{text} [{value.lower * scale:.{digits}f}, {value.upper * scale:.{digits}f}]"


def care(value: Interval, undefined: int = 0) -> str:
    """What to know of a bootstrap interval before believing it; empty where nothing speaks against it."""
    why = []
    if value.lower == value.upper:
        why.append("every resample gave this value, so the interval has no width")
    elif math.isfinite(value.lower) and not value.lower <= value.estimate <= value.upper:
        why.append("the estimate lies outside its percentile interval")
    if undefined:
        why.append(f"{undefined} resamples were undefined")
    return f"{'; '.join(why)}: too few cases of one kind" if why else ""


_Column = tuple[str, Callable[[Cell, Notes], str]]


def _value(
    pick: Callable[[Cell], Interval | None],
    why: Callable[[Cell], str],
    digits: int,
    scale: float = 1.0,
    signed: bool = False,
) -> Callable[[Cell, Notes], str]:
    def text(cell: Cell, notes: Notes) -> str:
        value = pick(cell)
        if value is None or not value.defined:
            return notes.missing(cell.reason or why(cell) or (value.reason if value else ""))
        return between(value, digits, scale, signed)

    return text


def _mean(pick: Callable[[Cell], Interval | None], why: Callable[[Cell], str], digits: int, scale: float = 1.0) -> Any:
    def text(cell: Cell, notes: Notes) -> str:
        value = pick(cell)
        if value is None or not value.defined:
            return notes.missing(cell.reason or why(cell) or (value.reason if value else ""))
        return number(value.estimate * scale, digits)

    return text


def _nothing(cell: Cell) -> str:
    return ""


def _entropy_text(cell: Cell, notes: Notes) -> str:
    if not cell.entropy.defined:
        return notes.missing(cell.reason or cell.entropy.reason)
    return f"{cell.entropy.estimate:.2f} ± {number(cell.entropy_sd)}"


def _label_text(cell: Cell, notes: Notes) -> str:
    if cell.change is not None and cell.change.label:
        pairs = cell.change.change.n
        few = 0 < pairs < regimes.FEWEST_PAIRS
        return notes.mark(cell.change.label, f"{pairs} pairs are too few for a label" if few else "")
    return notes.missing(cell.reason or change_reason(cell))


def _dimension_text(cell: Cell, notes: Notes) -> str:
    d = cell.dimension
    if d is None or not math.isfinite(d.aggregate):
        return notes.missing(cell.reason or (d.reason if d else ""))
    return f"{d.aggregate:.1f} (≤ {d.ceiling}) / {number(d.aggregate_unbiased, 1)}"


def _auroc_text(cell: Cell, notes: Notes) -> str:
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
    rows = []
    for cell in (c for a in analyses for c in a.cells):
        texts = tuple(make(cell, notes) for _, make in columns)
        rows.append(((cell.model,) if several else ()) + texts)
    return Shown(title, header, tuple(rows), notes.lines(), caption)


def shown_frame(
    frame: pd.DataFrame,
    columns: Sequence[tuple[str, str, int]],
    title: str,
    caption: str,
    reason: str = "reason",
) -> Shown:
    """A table of numbers as texts; columns are (header, column of the frame, decimals), with bounds where known."""
    notes = Notes()
    rows = []
    for _, row in frame.iterrows():
        texts = []
        for _, name, digits in columns:
            value = row[name]
            if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
                texts.append(str(value))
            elif not math.isfinite(float(value)):
                texts.append(notes.missing(str(row.get(reason, "")) or ""))
            elif f"{name}_lower" in frame.columns:
                interval = Interval(float(value), float(row[f"{name}_lower"]), float(row[f"{name}_upper"]))
                texts.append(
                    notes.mark(between(interval, digits), care(interval, int(row.get(f"{name}_undefined", 0))))
                )
            else:
                texts.append(number(float(value), digits))
        rows.append(tuple(texts))
    return Shown(title, tuple(h for h, _, _ in columns), tuple(rows), notes.lines(), caption)


def as_markdown(table: Shown) -> str:
    """A table in GitHub's Markdown with its notes."""
    lines = [f"### {table.title}", ""]
    if table.caption:
        lines += [table.caption, ""]
    lines += ["| " + " | ".join(table.header) + " |", "|" + "---|" * len(table.header)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table.rows]
    if table.notes:
        lines += ["", *(f"- {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def as_text(table: Shown) -> str:
    """A table for a terminal: columns padded to their widest text, notes below."""
    columns = list(zip(table.header, *table.rows, strict=False))
    widths = [max(len(text) for text in column) for column in columns]
    left = [all(not _numeric(text) for text in column[1:]) for column in columns]

    def line(texts: Sequence[str]) -> str:
        padded = (t.ljust(w) if is_left else t.rjust(w) for t, w, is_left in zip(texts, widths, left, strict=True))
        return "  ".join(padded).rstrip()

    out = [table.title, line(table.header), "  ".join("-" * w for w in widths)]
    out += [line(row) for row in table.rows]
    out += [f"  {note}" for note in table.notes]
    return "\n".join(out) + "\n"


def _numeric(text: str) -> bool:
    return text[:1].isdigit() or text[:1] in "+-" and text[1:2].isdigit()
