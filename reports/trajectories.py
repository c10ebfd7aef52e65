"""The report of a trajectory run: every statistic with every choice it hangs on, as Markdown, CSV, JSON and one HTML page.

Guarantees that results stand under both outcome definitions, that what the protocol did to the chains (truncation, caps, merged
units, missing points) comes first, that the digest of the declared hypotheses is the one the run was started with, and that a missing
value is printed as missing with its reason.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from .. import declared
from ..analysis.hypotheses import origin
from ..analysis.trajectories import tables
from ..declared import Declaration
from ..destination import for_results
from ..errors import RequestError
from ..store import Run
from . import page
from . import trajectory_parts as parts
from .document import Document
from .figures import Figure
from .figures.style import require_matplotlib
from .output_folder import write_folder
from .plain import plain, records, to_json
from .study import report_command
from .tables import Shown, as_text
from .tables.frames import as_csv
from .trajectory_chains import chain_drawings
from .trajectory_draft import FIGURES, Draft
from .trajectory_parts import Registered

TITLE = "Entropy trajectories"
_LEADING = ("diagnostics", "_buckets", "_auroc", "_family", "_verdicts")
"""Ends of the names of tables that a terminal shows."""


@dataclass(frozen=True)
class TrajectoryReport:
    """A finished report.

    Attributes
    ----------
    markdown : str
    values : dict
        All numbers as JSON values; missing ones are None.
    tables : dict of str to DataFrame
        By file name.
    files : tuple of Path
        What was written; empty when nothing was.
    figures : tuple of Figure
        Empty when nothing was written.
    leading : tuple of Shown
        Tables for a terminal.
    """

    markdown: str
    values: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame]
    files: tuple[Path, ...] = ()
    figures: tuple[Figure, ...] = field(default=(), repr=False)
    leading: tuple[Shown, ...] = field(default=(), repr=False)

    def to_text(self) -> str:
        """For a terminal: the tables that come first, and the verdicts on declared hypotheses; the report has the others."""
        return "\n".join(as_text(table) for table in self.leading).rstrip() + "\n"

    def to_markdown(self) -> str:
        """The report as Markdown."""
        return self.markdown

    def to_json(self) -> str:
        """All numbers as JSON; those that are not defined are null."""
        return to_json(self.values)

    def written(self) -> str:
        """What was written where, or how to have it written."""
        if not self.files:
            return "--out DIR writes the whole report: Markdown, HTML, CSV, JSON and figures"
        return f"written: {', '.join(str(path) for path in self.files)}"


def trajectory_report(
    run: Run,
    out: str | os.PathLike[str] | None = None,
    *,
    epsilon: float | None = None,
    tie: str | None = None,
    resamples: int = 1000,
    seed: int = 0,
    others: Mapping[str, Run] | None = None,
    hypotheses: Declaration | None = None,
    figures: bool = True,
    command: str | None = None,
) -> TrajectoryReport:
    """Analyse a trajectory run.

    Parameters
    ----------
    run : Run
        Made by `run_trajectories`; it may be unfinished.
    out : path, optional
        Folder for report.md, report.html, report.json, one CSV a table, and PNG, SVG and CSV of every figure. None writes
        nothing, and draws nothing.
    epsilon, tie : optional
        Instead of those the run was started with.
    resamples, seed : int
        Of every interval.
    others : mapping of str to Run, optional
        Runs of the same items (other seeds or segmentations) whose agreement with this one is wanted, by name.
    hypotheses : Declaration, optional
        Hypotheses to test (see `declared.load`); default those that the run recorded when it was started.
    figures : bool
        Whether to draw (needs matplotlib).
    command : str, optional
        The command that made the report, named under every figure.

    Raises
    ------
    RequestError
        When the run holds no trajectories, or none of its chains is committed; when the folder cannot be written, or there is no
        matplotlib to draw with; when no hypothesis of the file is on trajectories.
    """
    tables.check_kind(run)
    if seed < 0:
        raise RequestError(f"the seed must be 0 or more, found {seed}")
    if len(run) == 0:
        raise RequestError(f"{run.path} has no committed chain yet; let `precollapse trajectories` get further")
    folder = None if out is None else for_results(out, "the folder")
    if folder is not None and figures:
        require_matplotlib()
    chosen = run.manifest.get("analysis", {})
    epsilon = chosen.get("epsilon", 0.01) if epsilon is None else epsilon
    tie = chosen.get("tie", "first") if tie is None else tie
    runs = [run, *(others or {}).values()]
    draft = Draft(folder if figures else None, command or report_command(runs, out))
    parts.protocol_part(draft, run, epsilon, tie)
    registered = _registered(run, hypotheses)
    names = list(dict.fromkeys(run.states["benchmark"]))
    for name in names:
        draft.scope = name if len(names) > 1 else ""
        part = run.select(benchmark=name)
        compared = {key: other.select(benchmark=name) for key, other in (others or {}).items()}
        _benchmark(draft, part, epsilon, tie, resamples, seed, registered, compared)
    document = draft.document(TITLE)
    values = plain(draft.values | {"tables": {name: records(table) for name, table in draft.tables.items()}})
    files = () if folder is None else write_folder(folder, _files(draft, document, values))
    leading = tuple(table for name, table in draft.shown.items() if name.endswith(_LEADING))
    return TrajectoryReport(document.to_markdown(), values, draft.tables, files, tuple(draft.figures), leading)


def _benchmark(
    draft: Draft,
    run: Run,
    epsilon: float,
    tie: str,
    resamples: int,
    seed: int,
    registered: Registered | None,
    others: Mapping[str, Run],
) -> None:
    """All parts about one benchmark. Benchmarks are never pooled: they differ in difficulty and in length of chains, so the
    flag would tell them apart instead of right from wrong."""
    parts.diagnostics_part(draft, run)
    arrays = {"sampled": "entropies", "forced": "forced_entropies"}
    measures = [measure for measure, array in arrays.items() if array in run.ragged_arrays]
    chains = {measure: parts.chain_table(run, measure, epsilon, tie) for measure in measures}
    for measure, table in chains.items():
        draft.keep(f"chains_{measure}", table.drop(columns="entropies"))
        parts.measure_part(draft, run, measure, table, epsilon, resamples, seed, registered)
    if "sampled" in chains:
        parts.sampled_sensitivity_part(draft, run, epsilon, tie, seed)
    if "forced" in chains:
        parts.forced_sensitivity_part(draft, run, epsilon, seed)
    if others:
        parts.agreement_part(draft, measures[0], chains[measures[0]], others, epsilon, tie)
    draft.part("Chains")
    draft.say(
        "Hover over a point for the text that ends there and the answers that followed. "
        f"Orange: a step up by more than {epsilon:g} nats."
    )
    for drawing in chain_drawings(run, epsilon):
        draft.add(drawing)


def _registered(run: Run, hypotheses: Declaration | None) -> Registered | None:
    """The hypotheses to test: those that are given, or those that the run recorded; None without any."""
    sha256 = run.config.get(declared.TRAJECTORY_SETTING)
    if hypotheses is not None:
        if not hypotheses.on_trajectories:
            raise RequestError(
                f"No hypothesis of {hypotheses.name} is on trajectories, and {run.path} holds trajectories; "
                "give each an estimate and a criterion, or leave the file out."
            )
        return Registered(hypotheses, f"{origin(hypotheses, [sha256])} {hypotheses.title}")
    declaration = declared.of_manifest(run.manifest)
    if declaration is None:
        return None
    if declaration.sha256 != sha256:
        raise RequestError(
            f"The hypotheses kept in {run.path} are not those it was started with; its manifest was changed."
        )
    said = f"Hypotheses declared before the run, sha256 {declaration.sha256[:16]}: {declaration.title}"
    return Registered(declaration, said)


def _files(draft: Draft, document: Document, values: Mapping[str, Any]) -> dict[str, str | bytes]:
    """Everything that a folder of a report holds, by file name."""
    contents: dict[str, str | bytes] = {
        "report.md": document.to_markdown(),
        "report.html": page.rendered(document),
        "report.json": to_json(values),
    }
    for figure in draft.figures:
        contents |= {f"{FIGURES}/{name}": data for name, data in figure.contents.items()}
    return contents | {f"{name}.csv": as_csv(table) for name, table in draft.tables.items()}
