"""`precollapse report`: one or more finished runs as tables, figures and a page; which report they have, their kind says."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace

from ..destination import for_results
from . import options
from .command import Command, Option, settings
from .output import progress_bar
from .values import LAYERS, PATHS, WHOLE


def _report(arguments: argparse.Namespace) -> int:
    from ..reports.kinds import OPTIONS, ReportRequest, report_kind
    from ..store import open_run

    out = for_results(arguments.out) if arguments.out else None
    runs = [open_run(path) for path in arguments.runs]
    kind = report_kind(runs)
    given = settings(arguments, ReportRequest) | {
        "runs": runs,
        "out": out,
        "options": {name: getattr(arguments, name) for name in OPTIONS if name in arguments},
        "progress": None if arguments.quiet else progress_bar("report"),
        "command": shlex.join(["precollapse", *arguments.argv]),
    }
    report = kind.write(ReportRequest(**given))
    print(report.to_json() if arguments.json else f"{report.to_text()}\n\n{report.written()}")
    return 0


COMMAND = Command(
    "report",
    "tables and figures of one or more runs, as Markdown, CSV and a self-contained HTML page",
    _report,
    {
        "": (
            replace(options.RUN, flag="runs", value=PATHS),
            options.CONFIG,
            options.JSON,
            options.QUIET,
            replace(options.OUT_FOLDER, text="folder for report.md, report.csv, report.html and the figures"),
            replace(options.SEED, text="seed of splits, resamples and shuffles"),
        ),
        "studies only": (
            Option("--site", "states that are analysed"),
            Option(
                "--layers",
                "layers the probe reads together, such as 5,10-12 or last; of several sets apart by / validation chooses",
                LAYERS,
                default="all",
            ),
            Option("--probe", "logistic, ridge, linear, mean-difference, knn or mlp"),
            Option("--target", "column that the probe predicts"),
            Option("--splits", "repeated splits, for the spread", WHOLE, default="{n_splits}"),
            Option("--shuffles", "refits on shuffled training labels", WHOLE),
            Option("--resamples", "bootstrap resamples", WHOLE),
            replace(options.HYPOTHESES, text="hypotheses to test", default="those that the run recorded"),
        ),
    },
    examples=(
        ("everything about one run: a page, tables and figures", "precollapse report run.zarr --out run-report"),
        (
            "two models side by side; validation chooses between early and late layers",
            "precollapse report small.zarr large.zarr --layers 0-9/10-19 --seed 1 --out both-report",
        ),
    ),
    source="analysis.cells:Settings",
)
