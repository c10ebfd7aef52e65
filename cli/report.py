"""`precollapse report`: one or more finished runs as tables, figures and a page."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from .options import command
from .output import progress_bar


def add_report(commands: Any) -> None:
    p = command(
        commands,
        "report",
        _report,
        "tables and figures of one or more runs, as Markdown, CSV and a self-contained HTML page",
    )
    p.add_argument("runs", nargs="+", metavar="RUN.zarr")
    p.add_argument("--out", metavar="DIR", help="folder for report.md, report.csv, report.html and the figures")
    p.add_argument("--seed", type=int, default=0, help="seed of splits, resamples and shuffles (default: 0)")
    for_studies = p.add_argument_group("studies only")
    for flag, default, text in (
        ("--site", "resid_post", "states that are analysed (default: resid_post)"),
        (
            "--layers",
            "all",
            "layers the probe reads together, such as 5,10-12 or last; of several sets apart by / validation chooses (default: all)",
        ),
        ("--probe", "logistic", "logistic, ridge, linear, mean-difference, knn or mlp (default: logistic)"),
        ("--target", "correct", "column that the probe predicts (default: correct)"),
    ):
        for_studies.add_argument(flag, default=default, help=text)
    for flag, number, text in (
        ("--splits", 20, "repeated splits, for the spread (default: 20)"),
        ("--shuffles", 100, "refits on shuffled training labels (default: 100)"),
        ("--resamples", 1000, "bootstrap resamples (default: 1000)"),
    ):
        for_studies.add_argument(flag, type=int, default=number, help=text)
    for_studies.add_argument(
        "--hypotheses", metavar="FILE.yaml", help="hypotheses to test (default: those that the run recorded)"
    )
    p.add_argument("--quiet", action="store_true", help="no progress bar")


def _report(a: argparse.Namespace) -> int:
    from ..reports.kinds import OPTIONS, ReportRequest, report_kind
    from ..store import open_run

    runs = [open_run(path) for path in a.runs]
    kind = report_kind(runs)
    request = ReportRequest(
        runs,
        Path(a.out) if a.out else None,
        a.seed,
        {name: getattr(a, name) for name in OPTIONS},
        None if a.quiet else progress_bar("report"),
        shlex.join(["precollapse", *a.argv]),
    )
    report = kind.write(request)
    print(report.to_json() if a.json else f"{report.to_text()}\n\n{report.written()}")
    return 0
