"""The report of one or more runs: tables, figures and a page, all from one analysis.

Guarantees that every format (terminal, Markdown, CSV, JSON, HTML) shows the same numbers, that what is missing is
shown as missing with the reason, and that each figure names the command and the file of numbers it was drawn from.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from ..analysis import cells
from ..analysis import hypotheses as testing
from ..analysis.cells import RunAnalysis, RunLike, Settings
from ..declared import Declaration
from ..destination import for_results
from ..errors import RequestError
from ..layers import layer_text
from . import page, tables
from .document import Document
from .figures import Figure, draw
from .figures.study import figure_plans
from .figures.style import require_matplotlib
from .findings import study_findings
from .output_folder import write_folder
from .plain import records, to_json
from .study_items import item_data
from .study_sections import study_sections
from .tables import Shown, as_text
from .tables.frames import as_csv
from .tables.study import TESTS, study_tables

Progress = Callable[[float, str], None]

FRAMES = (
    "table",
    "robustness",
    "options",
    "predictors",
    "dimension",
    "subsampling",
    "curves",
    "transfer",
    "after",
    "calibration",
    "hypotheses",
)
"""Names of the tables of numbers of a report."""

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
    runs: tuple[RunLike, ...] = field(default=(), repr=False)

    def to_text(self, full: bool = False) -> str:
        """The first two tables for a terminal, and the tests of declared hypotheses; all tables with `full`."""
        declared_some = bool(len(self.hypotheses)) and bool((self.hypotheses["declared"] != "exploratory").any())
        tests = tuple(table for table in self.shown[2:] if table.title == TESTS and declared_some)
        chosen = self.shown if full else (*self.shown[:2], *tests)
        return "\n".join([*(as_text(t) for t in chosen), *self.notes]).rstrip() + "\n"

    def document(self) -> Document:
        """The report without a format: results, figures, every state, how to read it, how it was made."""
        return Document(
            _title(self.analyses),
            tuple(_lead(self)),
            study_sections(self.shown, self.figures),
            item_data(self.analyses, self.runs),
            READING,
            tuple(_facts(self)),
            study_findings(self.analyses, self.transfer),
        )

    def to_markdown(self) -> str:
        """The report as Markdown; figures are linked where they were written."""
        return self.document().to_markdown()

    def to_html(self) -> str:
        """The report as one page that opens offline."""
        return page.rendered(self.document())

    def to_json(self) -> str:
        """All tables as JSON; numbers that are not defined are null."""
        content = {
            "format": 1,
            "command": self.command,
            "settings": asdict(self.analyses[0].settings),
            "models": [a.model for a in self.analyses],
            "notes": list(self.notes),
            **{name: records(frame) for name, frame in self.frames().items()},
            "figures": [figure.link for figure in self.figures],
        }
        return to_json(content)

    def frames(self) -> dict[str, pd.DataFrame]:
        """Every table of numbers, by name."""
        return {name: getattr(self, name) for name in FRAMES}

    def written(self) -> str:
        """What was written where, or how to have it written."""
        if self.out is None:
            return "--out DIR writes the whole report: Markdown, HTML, CSV, JSON and figures"
        return f"written: {self.out / 'report.html'}, report.md, report.csv and figures"


def write_report(
    runs: Sequence[RunLike] | RunLike,
    out: str | os.PathLike[str] | None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    settings: Settings | None = None,
    hypotheses: Declaration | None = None,
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
    hypotheses : Declaration, optional
        Hypotheses declared beforehand (see `declared.load`); default those that the runs recorded when they were started.
    command : str, optional
        The command that made the report, named under every figure.
    names : optional
        A name per run; needed when two runs have the same model name and should be told apart by it.

    Raises
    ------
    RequestError
        No run, a run without states, a site or column it lacks, a folder that cannot be written, or no matplotlib to draw with.

    Examples
    --------
    >>> import precollapse as pc
    >>> from precollapse.analysis import report
    >>> made = report.write_report(pc.open_run("run.zarr"), None)  # None writes no files
    >>> sorted(made.table["regime"].unique())
    ['baseline', 'cot']
    """
    listed = list(runs) if isinstance(runs, Sequence) else [runs]
    if not listed:
        raise RequestError("No run was given; name at least one.")
    chosen = settings or Settings(seed=seed)
    labels = _names(listed, names)
    folder = None if out is None else for_results(out, "the folder")
    if folder is not None:
        require_matplotlib()
    tell = progress or (lambda fraction, what: None)
    share = 0.9 / len(listed)
    analyses = []
    for i, (run, label) in enumerate(zip(listed, labels, strict=True)):

        def part(fraction: float, what: str, i: int = i) -> None:
            tell((i + fraction) * share, what)

        analyses.append(cells.analyse(run, chosen, part, label))
    report = build(analyses, command or report_command(listed, out), hypotheses, listed)
    if folder is None:
        tell(1.0, "done")
        return report
    plans = figure_plans(report)
    drawn = []
    for i, plan in enumerate(plans):
        tell(0.9 + 0.09 * i / len(plans), f"figure: {plan.title}")
        drawn.append(draw(plan, folder / "figures", report.command, "figures/"))
    report = replace(report, figures=tuple(drawn), out=folder)
    write_folder(folder, _files(report))
    tell(1.0, "done")
    return report


def build(
    analyses: Sequence[RunAnalysis],
    command: str = "precollapse report",
    declaration: Declaration | None = None,
    runs: Sequence[RunLike] = (),
) -> Report:
    """A report from analyses made beforehand; nothing is written."""
    manifests = [dict(run.manifest) for run in runs]
    recorded, remark = (declaration, "") if declaration is not None else testing.recorded(manifests)
    tests, remarks = testing.evaluate(analyses, recorded, manifests)
    remarks += [remark] if remark else []
    robustness = tables.robustness_table(analyses)
    predictors = tables.predictors_table(analyses)
    options = tables.options_table(analyses)
    transfer = tables.transfer_table(analyses)
    after = tables.after_table(analyses)
    boundaries = tables.boundaries_table(analyses)
    return Report(
        table=tables.main_table(analyses),
        robustness=robustness,
        options=options,
        predictors=predictors,
        dimension=tables.dimension_table(analyses),
        subsampling=tables.subsampling_table(analyses),
        curves=tables.curve_table(analyses),
        transfer=transfer,
        after=after,
        calibration=tables.calibration_table(analyses),
        hypotheses=tests,
        analyses=tuple(analyses),
        shown=study_tables(analyses, robustness, predictors, options, transfer, after, boundaries, tests),
        notes=tuple(note for a in analyses for note in a.notes) + tuple(remarks),
        command=command,
        runs=tuple(runs),
    )


def _title(analyses: Sequence[RunAnalysis]) -> str:
    """Heading of the report."""
    names = dict.fromkeys(a.model or "a model that the run does not name" for a in analyses)
    return "What " + " and ".join(names) + " knew before the first token"


def _lead(report: Report) -> list[str]:
    """Opening paragraphs: how much was analysed, and what is not complete."""
    states = sum(len(c.states) for a in report.analyses for c in a.cells)
    count = sum(len(a.cells) for a in report.analyses)
    cells = "cell" if count == 1 else "cells"
    return [f"{states} states in {count} {cells} (benchmark × regime).", *report.notes]


def _facts(report: Report) -> list[tuple[str, str]]:
    """How the report was made."""
    first = report.analyses[0]
    s = first.settings
    return [
        ("command", report.command),
        ("states", f"{first.site}, layers {layer_text(first.layers, '–')}" if first.layers else "none captured"),
        ("probe", f"{s.probe} on the concatenated layers, target {s.target}"),
        ("splits", f"60/20/20 by item, shared by regimes; {s.n_splits} further splits for the spread"),
        ("intervals", f"{s.level:.0%}, {s.resamples} resamples; accuracy: Wilson"),
        ("label shuffles", str(s.shuffles)),
        ("seed", str(s.seed)),
        ("seconds of analysis", f"{sum(a.seconds for a in report.analyses):.1f}"),
    ]


def _files(report: Report) -> dict[str, str | bytes]:
    """Everything that a folder of a report holds, by file name."""
    contents: dict[str, str | bytes] = {
        "report.html": report.to_html(),
        "report.md": report.to_markdown(),
        "report.csv": as_csv(report.table),
        "report.json": report.to_json(),
    }
    for name, frame in report.frames().items():
        if name != "table":
            contents[f"tables/{name}.csv"] = as_csv(frame) if len(frame.columns) else ""
    for figure in report.figures:
        contents |= {f"figures/{name}": data for name, data in figure.contents.items()}
    return contents


def _names(runs: Sequence[RunLike], names: Sequence[str] | None) -> list[str]:
    if names is not None:
        if len(names) != len(runs):
            raise RequestError(f"{len(names)} names for {len(runs)} runs; give one for each.")
        return [str(name) for name in names]
    models = [cells.model_name(run) for run in runs]
    if len(set(models)) == len(models):
        return models
    paths = [Path(str(getattr(run, "path", i))).name for i, run in enumerate(runs)]
    return [f"{name} ({path})" for name, path in zip(models, paths, strict=True)]


def report_command(runs: Sequence[Any], out: object) -> str:
    """The command line that makes a report of these runs with the defaults."""
    parts = ["precollapse", "report", *(Path(str(getattr(run, "path", "run.zarr"))).name for run in runs)]
    return shlex.join([*parts, *(["--out", Path(str(out)).name] if out is not None else [])])
