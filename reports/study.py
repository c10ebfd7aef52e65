"""The report of one or more runs: tables, figures and a page, all from one analysis.

Guarantees that every format (terminal, Markdown, CSV, JSON, HTML) shows the same numbers, that what is missing is
shown as missing with the reason, and that each figure names the command and the file of numbers it was drawn from.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .. import atomic
from ..analysis import cells, statistics
from ..analysis.cells import RunAnalysis, RunLike, Settings
from ..analysis.hypotheses import Family
from ..errors import RequestError
from ..layers import layer_text
from . import figures, tables
from . import page as pages
from .figures import Figure, Plan
from .output_folder import writable_folder
from .tables import Shown

Progress = Callable[[float, str], None]

READING = (
    "H is the entropy of the whole next-token distribution at the boundary, before any token is chosen. A lower H"
    " says that the next token is more certain, not that the answer is right or known.",
    "A regime is labelled CF (entropy falls) or EC (entropy rises) only when the paired 95% interval of its change "
    "excludes 0, and is unclear otherwise. A label describes these items and prompts; it is no cause.",
    "A prompt that ends by asking for the answer and one that ends by asking for reasoning make the model choose "
    "different kinds of first token. A change of H between them may be due to that alone.",
    "The probe's AUROC says that correctness can be read from the state by a linear rule, on items it never saw. "
    "It does not say that the model uses what the probe reads. Compare it with the shuffled labels, with H and "
    "with the token counts, which may carry the same information.",
    "An interval that holds 0.5 does not show that the state holds nothing; with few test items it cannot. Read the "
    "number of test items beside it, and the spread over repeated splits.",
    "The effective dimensionality of n states cannot be above n - 1. Compare cells at equal n only, and look at the "
    "unbiased value and at the table over N'.",
    "Transfer compares one rule on other prompts. A low value can mean another code for the same information.",
    "Tests that were not declared before the run are exploratory, whatever their p value.",
)


@dataclass(frozen=True)
class Report:
    """A finished report.

    Attributes
    ----------
    table : DataFrame
        One row per model x benchmark x regime (see `tables.main_table`).
    robustness, options, predictors, dimension, subsampling, curves, transfer, after, calibration, hypotheses : DataFrame
    figures : tuple of Figure
        Empty when nothing was written.
    analyses : tuple of RunAnalysis
    out : Path or None
    """

    table: pd.DataFrame
    robustness: pd.DataFrame
    options: pd.DataFrame
    predictors: pd.DataFrame
    dimension: pd.DataFrame
    subsampling: pd.DataFrame
    curves: pd.DataFrame
    transfer: pd.DataFrame
    after: pd.DataFrame
    calibration: pd.DataFrame
    hypotheses: pd.DataFrame
    analyses: tuple[RunAnalysis, ...] = field(repr=False)
    shown: tuple[Shown, ...] = field(repr=False)
    notes: tuple[str, ...] = ()
    command: str = "precollapse report"
    figures: tuple[Figure, ...] = ()
    out: Path | None = None

    def to_text(self, full: bool = False) -> str:
        """The first two tables for a terminal; all of them with `full`."""
        chosen = self.shown if full else self.shown[:2]
        return "\n".join([*(tables.as_text(t) for t in chosen), *self.notes]).rstrip() + "\n"

    def to_markdown(self) -> str:
        """The report as Markdown; figures are linked where they were written."""
        parts = [f"# {self.title()}", "", *(line + "\n" for line in self.lead())]
        parts += [tables.as_markdown(t) for t in self.shown]
        if self.figures:
            parts.append("## Figures\n")
            parts += [f"### {f.title}\n\n![{f.title}](figures/{f.png.name})\n\n{f.caption}\n" for f in self.figures]
        parts.append("## How to read this\n")
        parts += [*(f"- {line}" for line in READING), "", "## How it was made\n"]
        parts += [f"- {name}: {value}" for name, value in self.facts()]
        return "\n".join(parts) + "\n"

    def to_json(self) -> str:
        """All tables as JSON; numbers that are not defined are null."""
        content = {
            "format": 1,
            "command": self.command,
            "settings": _plain(asdict(self.analyses[0].settings)),
            "models": [a.model for a in self.analyses],
            "notes": list(self.notes),
            "table": records(self.table),
            "robustness": records(self.robustness),
            "options": records(self.options),
            "predictors": records(self.predictors),
            "dimension": records(self.dimension),
            "subsampling": records(self.subsampling),
            "curves": records(self.curves),
            "transfer": records(self.transfer),
            "after": records(self.after),
            "calibration": records(self.calibration),
            "hypotheses": records(self.hypotheses),
            "figures": [f"figures/{f.png.name}" for f in self.figures],
        }
        return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1)

    def title(self) -> str:
        """Heading of the report."""
        names = dict.fromkeys(a.model or "a model that the run does not name" for a in self.analyses)
        return "What " + " and ".join(names) + " knew before the first token"

    def lead(self) -> list[str]:
        """Opening paragraphs: how much was analysed, and what is not complete."""
        states = sum(len(c.states) for a in self.analyses for c in a.cells)
        count = sum(len(a.cells) for a in self.analyses)
        cells = "cell" if count == 1 else "cells"
        return [f"{states} states in {count} {cells} (benchmark × regime).", *self.notes]

    def facts(self) -> list[tuple[str, str]]:
        """How the report was made."""
        first = self.analyses[0]
        s = first.settings
        return [
            ("command", self.command),
            ("states", f"{first.site}, layers {layer_text(first.layers, '–')}" if first.layers else "none captured"),
            ("probe", f"{s.probe} on the concatenated layers, target {s.target}"),
            ("splits", f"60/20/20 by item, shared by regimes; {s.n_splits} further splits for the spread"),
            ("intervals", f"{s.level:.0%}, {s.resamples} resamples; accuracy: Wilson"),
            ("label shuffles", str(s.shuffles)),
            ("seed", str(s.seed)),
            ("seconds of analysis", f"{sum(a.seconds for a in self.analyses):.1f}"),
        ]


def write_report(
    runs: Sequence[RunLike] | RunLike,
    out: str | os.PathLike[str] | None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    settings: Settings | None = None,
    hypotheses: Family | None = None,
    command: str | None = None,
    names: Sequence[str] | None = None,
) -> Report:
    """Analyse runs and write report.md, report.csv, report.json, report.html, tables/*.csv and figures/*.

    Parameters
    ----------
    runs : one run or several (one report with all models)
    out : folder, made when missing; None writes nothing
    seed : int
        Used when `settings` is not given.
    progress : callable (fraction done 0..1, what is being done), optional
    settings : Settings, optional
    hypotheses : Family, optional
        Hypotheses declared beforehand (see `hypotheses.load`); default those that the runs recorded when they were started.
    command : str, optional
        The command that made the report, named under every figure.
    names : optional
        A name per run; needed when two runs have the same model name and should be told apart by it.

    Raises
    ------
    RequestError
        No run, a run without states, a site or column it lacks, or a folder that cannot be written.
    """
    listed = list(runs) if isinstance(runs, Sequence) else [runs]
    if not listed:
        raise RequestError("No run was given; name at least one.")
    chosen = settings or Settings(seed=seed)
    labels = _names(listed, names)
    folder = None if out is None else writable_folder(out)
    tell = progress or (lambda fraction, what: None)
    share = 0.9 / len(listed)
    analyses = []
    for i, (run, label) in enumerate(zip(listed, labels, strict=True)):

        def part(fraction: float, what: str, i: int = i) -> None:
            tell((i + fraction) * share, what)

        analyses.append(cells.analyse(run, chosen, part, label))
    report = build(analyses, command or _command(listed, out), hypotheses, listed)
    if folder is None:
        tell(1.0, "done")
        return report
    plans = figure_plans(report)
    drawn = []
    for i, plan in enumerate(plans):
        tell(0.9 + 0.09 * i / len(plans), f"figure: {plan.title}")
        drawn.append(figures.write(plan, folder / "figures", report.command))
    report = _with(report, drawn, folder)
    _save(report, folder)
    tell(1.0, "done")
    return report


def build(
    analyses: Sequence[RunAnalysis],
    command: str = "precollapse report",
    family: Family | None = None,
    runs: Sequence[RunLike] = (),
) -> Report:
    """A report from analyses made beforehand; nothing is written."""
    from ..analysis import hypotheses as declared

    table = tables.main_table(analyses)
    robustness = tables.robustness_table(analyses)
    options = tables.options_table(analyses)
    predictors = tables.predictors_table(analyses)
    dimension = tables.dimension_table(analyses)
    transfer = tables.transfer_table(analyses)
    later = tables.after_table(analyses)
    manifests = [dict(run.manifest) for run in runs]
    recorded, remark = (family, "") if family is not None else declared.recorded(manifests)
    tests, remarks = declared.evaluate(analyses, recorded, manifests)
    remarks += [remark] if remark else []
    shown = [
        tables.shown_cells(
            analyses,
            tables.BEFORE,
            "Before the first token",
            "H: mean ± sd. ΔH: regime minus baseline on the same items. d_eff: plug-in, with its ceiling n − 1; the unbiased "
            "estimate has none, and is noisy where n is small.",
        ),
        tables.shown_cells(analyses, tables.OUTCOMES, "Outcomes and recoverability", _OUTCOME_CAPTION),
        tables.shown_frame(robustness, _ROBUSTNESS, "Robustness of the probe", _ROBUSTNESS_CAPTION),
        tables.shown_frame(predictors, _PREDICTORS, "What else predicts a correct answer", _PREDICTOR_CAPTION),
    ]
    if len(options):
        shown.append(tables.shown_frame(options, _OPTIONS, "Options: known, said", _OPTION_CAPTION))
    if len(transfer):
        shown.append(tables.shown_frame(transfer, _TRANSFER, "Transfer", _TRANSFER_CAPTION))
    if len(later):
        shown.append(tables.shown_frame(later, _AFTER, "Before and after the first tokens", _AFTER_CAPTION))
    if len(tests):
        shown.append(tables.shown_frame(tests, declared.COLUMNS, "Tests", declared.CAPTION))
    notes = [note for a in analyses for note in a.notes] + remarks
    return Report(
        table,
        robustness,
        options,
        predictors,
        dimension,
        tables.subsampling_table(analyses),
        tables.curve_table(analyses),
        transfer,
        later,
        tables.calibration_table(analyses),
        tests,
        tuple(analyses),
        tuple(shown),
        tuple(notes),
        command,
    )


_CELL = (("benchmark", "benchmark", 0), ("regime", "regime", 0))
_OUTCOME_CAPTION = (
    "Accuracy with its Wilson interval. AUROC of a linear probe on held-out items with its 95% interval; a note "
    "names small test parts."
)
_ROBUSTNESS = (
    *_CELL,
    ("test n", "n_test", 0),
    ("positive", "test_positives", 0),
    ("train", "train_auroc", 2),
    ("test", "test_auroc", 2),
    ("gap", "gap", 2),
    ("shuffled", "shuffle_auroc", 2),
    ("p", "shuffle_p", 3),
    ("splits mean", "splits_mean", 2),
    ("sd", "splits_sd", 2),
    ("probe − H", "probe_minus_entropy", 2),
    ("density", "mixture_auroc", 2),
    ("Brier", "brier", 3),
    ("base rate", "brier_base_rate", 3),
)
_ROBUSTNESS_CAPTION = (
    "AUROC on training and test items, percentile bootstrap. Shuffled: mean over refits on permuted training "
    "labels, with the permutation p value. Splits: repeated 60/20/20 splits. Probe − H: paired difference to the "
    "AUROC of −H on the same test items. Density: log-density of a Gaussian mixture fitted without outcomes."
)
_PREDICTORS = (
    *_CELL,
    ("predictor", "predictor", 0),
    ("sign", "sign", 0),
    ("n", "n", 0),
    ("AUROC", "auroc", 2),
    ("Spearman", "spearman", 2),
)
_PREDICTOR_CAPTION = "Single columns against correctness, over all states; the sign was fixed in advance."
_OPTIONS = (
    *_CELL,
    ("n", "n", 0),
    ("option H", "option_entropy_bits", 2),
    ("of log2 K", "option_relative_entropy", 2),
    ("mass", "option_mass", 3),
    ("margin", "option_margin", 2),
    ("agreement", "agreement", 2),
    ("best option right", "choice_accuracy", 2),
    ("answer right", "answer_accuracy", 2),
    ("knew, not said", "knew_not_said", 0),
    ("said, not known", "said_not_knew", 0),
    ("no answer", "unanswered", 0),
    ("right letters", "gold", 0),
    ("letters said", "said", 0),
    ("McNemar p", "mcnemar_p", 3),
    ("shared bits", "information_bits", 2),
    ("p", "information_p", 3),
)
_OPTION_CAPTION = (
    "Option H: entropy renormalised over the options; mass: probability of all options before renormalising; margin: "
    "log-odds of the best option over the second (nats). Best option: argmax before the first token. Shared bits: "
    "its mutual information with the emitted answer (Miller-Madow), permutation p. Letters: how often each is right, and is "
    "said; a model that says one letter whatever the question has the share of that letter as its accuracy."
)
_TRANSFER = (
    ("over", "over", 0),
    ("within", "within", 0),
    ("train", "train", 0),
    ("test", "test", 0),
    ("test n", "n_test", 0),
    ("AUROC", "auroc", 2),
    ("loss to own probe", "degradation", 2),
)
_TRANSFER_CAPTION = "Trained on one regime's (or benchmark's) training items, scored on another's test items."
_AFTER = (
    *_CELL,
    ("after", "place", 0),
    ("reached", "reached", 0),
    ("test n", "n_test", 0),
    ("AUROC before", "before", 2),
    ("AUROC after", "after", 2),
    ("difference", "difference", 2),
    ("bits before", "bits_before", 2),
    ("p before", "bits_before_p", 3),
    ("bits after", "bits_after", 2),
    ("p after", "bits_after_p", 3),
)
_AFTER_CAPTION = (
    "The same probe on the state before the first token and on the state after that many output tokens (or at the "
    "anchor), on the same split; difference with its paired bootstrap interval. Reached: states whose output got there; "
    "the others are left out of both. Bits: mutual information (Miller-Madow) of the answer given with the one that a "
    "probe reads from the state, over test items, with its permutation p."
)


# -- figures ---------------------------------------------------------------------------------------------------------


def figure_plans(report: Report) -> list[Plan]:
    """The figures of a report, in the order shown."""
    table = report.table
    changed = table[table["regime"] != cells.BASELINE]
    change = changed[["model", "benchmark", "regime", "entropy_change", "entropy_change_lower", "entropy_change_upper"]]
    why = {(c.model, c.benchmark, c.regime): tables.change_reason(c) for a in report.analyses for c in a.cells}
    keys = [tuple(row) for row in change[["model", "benchmark", "regime"]].to_numpy()]
    change = change.assign(reason=[why.get(key, "") for key in keys])
    probe = _forest_data(report)
    by_state = _states(report.analyses)
    plans = [
        Plan(
            "accuracy",
            "Accuracy by regime",
            "Bars: share of correct answers; lines: 95% Wilson interval.",
            table[["model", "benchmark", "regime", "n", "accuracy", "accuracy_lower", "accuracy_upper"]],
            figures.bars("accuracy", "accuracy (%)", 100.0, 0.0, 100.0),
        ),
        Plan(
            "entropy",
            "Entropy at the boundary by regime",
            "One mark per state; line: mean.",
            by_state[["model", "benchmark", "regime", "item_id", "entropy_bits"]],
            figures.entropy,
        ),
        Plan(
            "entropy_change",
            "Change of entropy against the baseline",
            "Mean over items of H(regime) − H(baseline) with the 95% paired bootstrap interval.",
            change,
            figures.forest("entropy_change", "ΔH (bits)", 0.0),
        ),
        Plan(
            "formats",
            "Free response against multiple choice",
            "Mean H over all states of a format with its 95% bootstrap interval.",
            _format_data(by_state, report.analyses[0].settings),
            figures.formats,
        ),
        Plan(
            "auroc",
            "Recoverability of a correct answer",
            "Test AUROC with its 95% interval; black stroke: mean over repeated splits; dashed: chance.",
            probe,
            figures.forest("auroc", "test AUROC", 0.5, (-0.02, 1.02)),
        ),
        Plan(
            "auroc_by_layer",
            "Recoverability by layer",
            "One probe per layer on the same split; band: 95% bootstrap interval. The best layer of a test curve "
            "is an optimistic choice.",
            report.curves,
            figures.by_layer("auroc", "test AUROC", 0.5),
        ),
        Plan(
            "dimension_by_layer",
            "Effective dimensionality by layer",
            "Participation ratio of the states; marked line: plug-in; thin line: unbiased; dotted: the ceiling n − 1.",
            report.dimension,
            figures.by_layer(
                "participation_ratio", "participation ratio (thin: unbiased)", "ceiling", "participation_ratio_unbiased"
            ),
        ),
        Plan(
            "dimension_by_items",
            "Effective dimensionality by number of items",
            "Random subsets of N' items, the same for every regime: mean and standard deviation; filled: plug-in,"
            " open: unbiased.",
            report.subsampling,
            figures.by_size,
        ),
        Plan(
            "heatmaps",
            "The cells at a glance",
            "Changes are against the baseline of the same benchmark.",
            _heat_data(report),
            figures.heatmaps,
        ),
        Plan(
            "calibration",
            "Reliability of the probe",
            "Predicted probability against the share of correct answers on test items, with 95% Wilson intervals.",
            report.calibration,
            figures.reliability,
        ),
    ]
    if len(report.options):
        plans.append(Plan("said", "Known before, said after", "95% Wilson intervals.", report.options, figures.said))
    for over in ("regimes", "benchmarks"):
        part = report.transfer[report.transfer["over"] == over] if len(report.transfer) else report.transfer
        if len(part):
            title = f"Transfer between {over}"
            plans.append(Plan(f"transfer_{over}", title, "Test AUROC of each probe.", part, figures.transfer))
    return plans


def _forest_data(report: Report) -> pd.DataFrame:
    columns = ["model", "benchmark", "regime", "auroc", "auroc_lower", "auroc_upper", "auroc_interval", "auroc_n_test"]
    data = report.table[columns].copy()
    found = [c for a in report.analyses for c in a.cells]
    data["splits_mean"] = [c.repeated.mean if c.repeated else math.nan for c in found]
    data["reason"] = [c.reason or (c.probe.reason if c.probe else "") for c in found]
    return data


def _heat_data(report: Report) -> pd.DataFrame:
    columns = ["model", "benchmark", "regime", "accuracy", "entropy_change", "auroc"]
    data = report.table[columns].copy()
    base = data[data["regime"] == cells.BASELINE].set_index(["model", "benchmark"])["accuracy"]
    keys = list(zip(data["model"], data["benchmark"], strict=True))
    change = [row - base.get(key, math.nan) for row, key in zip(data["accuracy"], keys, strict=True)]
    data["accuracy_change"] = np.where(data["regime"] == cells.BASELINE, np.nan, change)
    return data


def _states(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    frames = []
    for cell in (c for a in analyses for c in a.cells if len(c.states)):
        frame = pd.DataFrame({"item_id": cell.states["item_id"].astype(str)})
        known = "entropy_bits" in cell.states
        frame["entropy_bits"] = statistics.as_float(cell.states["entropy_bits"]) if known else np.nan
        kind = tables.kind(cell)
        frames.append(frame.assign(model=cell.model, benchmark=cell.benchmark, regime=cell.regime, format=kind))
    return pd.concat(frames, ignore_index=True)


def _format_data(states: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    rows = []
    for (model, kind, regime), part in states.groupby(["model", "format", "regime"], sort=False):
        found = statistics.bootstrap_mean(part["entropy_bits"], settings.resamples, settings.level, settings.seed)
        rows.append((model, kind, regime, len(part), found.estimate, found.lower, found.upper))
    columns = ["model", "format", "regime", "n", "entropy_bits", "entropy_bits_lower", "entropy_bits_upper"]
    return pd.DataFrame(rows, columns=columns)


# -- files -----------------------------------------------------------------------------------------------------------

_ITEM_COLUMNS = (
    ("model", "model"),
    ("benchmark", "benchmark"),
    ("regime", "regime"),
    ("item_id", "item"),
    ("question", "question"),
    ("correct", "correct"),
    ("compliant", "compliant"),
    ("answer", "answer"),
    ("gold", "gold"),
    ("entropy_bits", "H (bits)"),
    ("option_choice", "best option"),
    ("option_mass", "option mass"),
    ("option_margin", "margin"),
    ("option_entropy_bits", "option H"),
    ("output_tokens", "output tokens"),
    ("prompt_tokens", "prompt tokens"),
    ("truncated", "truncated"),
    ("choices", "choices"),
    ("prompt", "prompt"),
    ("text", "output"),
)
_ITEM_SHOWN = (
    "benchmark",
    "regime",
    "item_id",
    "correct",
    "answer",
    "gold",
    "entropy_bits",
    "option_choice",
    "option_mass",
    "output_tokens",
    "question",
)
_ITEM_FILTERS = ("benchmark", "regime", "correct", "compliant", "truncated")


def item_data(analyses: Sequence[RunAnalysis]) -> dict[str, Any]:
    """Every state for the page's table."""
    rows = []
    for cell in (c for a in analyses for c in a.cells if len(c.states)):
        states = cell.states.assign(model=cell.model)
        columns = [_cells(states[n]) if n in states else [None] * len(states) for n, _ in _ITEM_COLUMNS]
        rows += [list(values) for values in zip(*columns, strict=True)]
    several = len(analyses) > 1
    return {
        "columns": [{"name": n, "label": label} for n, label in _ITEM_COLUMNS],
        "rows": rows,
        "shown": [*(["model"] if several else []), *_ITEM_SHOWN],
        "filters": [*(["model"] if several else []), *_ITEM_FILTERS],
    }


def _cells(values: pd.Series) -> list[Any]:
    return [_plain(v) for v in values.astype(object)]


def _plain(value: Any) -> Any:
    """A value as JSON takes it: missing and infinite numbers are None."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if statistics.missing(value):
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool) else str(value)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a table as JSON takes them."""
    return [{str(k): _plain(v) for k, v in row.items()} for row in frame.to_dict("records")]


def _save(report: Report, folder: Path) -> None:
    page = pages.page(
        report.title(),
        report.lead(),
        report.shown,
        report.figures,
        item_data(report.analyses),
        READING,
        report.facts(),
    )
    atomic.write(folder / "report.html", page)
    atomic.write(folder / "report.md", report.to_markdown())
    atomic.write(folder / "report.csv", report.table.to_csv(index=False))
    atomic.write(folder / "report.json", report.to_json())
    extra = folder / "tables"
    extra.mkdir(exist_ok=True)
    names = ("robustness", "options", "predictors", "dimension", "subsampling", "curves", "transfer", "calibration")
    for name in (*names, "after", "hypotheses"):
        frame: pd.DataFrame = getattr(report, name)
        atomic.write(extra / f"{name}.csv", frame.to_csv(index=False) if len(frame.columns) else "")


def _with(report: Report, drawn: Sequence[Figure], folder: Path) -> Report:
    from dataclasses import replace

    return replace(report, figures=tuple(drawn), out=folder)


def _names(runs: Sequence[RunLike], names: Sequence[str] | None) -> list[str]:
    if names is not None:
        if len(names) != len(runs):
            raise RequestError(f"{len(names)} names for {len(runs)} runs; give one for each.")
        return [str(name) for name in names]
    found = [cells.model_name(run) for run in runs]
    if len(set(found)) == len(found):
        return found
    paths = [Path(str(getattr(run, "path", i))).name for i, run in enumerate(runs)]
    return [f"{name} ({path})" for name, path in zip(found, paths, strict=True)]


def _command(runs: Sequence[RunLike], out: object) -> str:
    parts = ["precollapse", "report", *(Path(str(getattr(run, "path", "run.zarr"))).name for run in runs)]
    return shlex.join([*parts, *(["--out", Path(str(out)).name] if out is not None else [])])
