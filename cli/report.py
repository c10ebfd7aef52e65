"""`precollapse report`: one or more finished runs as tables, figures and a page."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from ..errors import RequestError
from ..layers import held_layers
from .options import command
from .output import print_json, progress_bar


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


def _analysis_settings(a: argparse.Namespace, runs: list[Any]) -> Any:
    """The settings of an analysis that the arguments describe; layers are counted as the runs hold them."""
    from ..analysis.cells import Settings

    layers = None
    if a.layers != "all":
        held = [run.sites.get(a.site, ()) for run in runs]
        if len({tuple(one) for one in held}) > 1:
            raise RequestError(f"the runs hold different layers of {a.site}; report them apart to choose --layers")
        layers = [held_layers(text, held[0], "--layers") for text in a.layers.split("/")]
    return Settings(
        site=a.site,
        layers=layers,
        probe=a.probe,
        target=a.target,
        seed=a.seed,
        resamples=a.resamples,
        shuffles=a.shuffles,
        n_splits=a.splits,
    )


def _report(a: argparse.Namespace) -> int:
    from ..analysis import hypotheses
    from ..reports import study as report
    from ..store import open_run

    runs = [open_run(path) for path in a.runs]
    kinds = {run.manifest.get("kind", "study") for run in runs}
    if kinds == {"trajectories"}:
        for name, plain in (
            ("site", "resid_post"),
            ("layers", "all"),
            ("probe", "logistic"),
            ("target", "correct"),
            ("hypotheses", None),
        ):
            if getattr(a, name) != plain:
                raise RequestError(f"--{name} is for studies, and {', '.join(a.runs)} holds trajectories; leave it out")
        return _trajectory_report(a, runs)
    if len(kinds) > 1:
        raise RequestError(
            f"the runs are of different kinds ({', '.join(sorted(kinds))}); report studies and trajectories apart"
        )
    made = report.write_report(
        runs,
        Path(a.out) if a.out else None,
        settings=_analysis_settings(a, runs),
        hypotheses=None if a.hypotheses is None else hypotheses.load(a.hypotheses),
        progress=None if a.quiet else progress_bar("report"),
        command=shlex.join(["precollapse", *a.argv]),
    )
    if a.json:
        print(made.to_json())
    else:
        print(made.to_text())
        if a.out:
            print(f"\nwritten: {Path(a.out) / 'report.html'}, report.md, report.csv and figures")
        else:
            print("\n--out DIR writes the whole report: Markdown, HTML, CSV, JSON and figures")
    return 0


def _trajectory_report(a: argparse.Namespace, runs: list[Any]) -> int:
    from ..reports.trajectories import trajectory_report

    others = {Path(path).stem: run for path, run in zip(a.runs[1:], runs[1:], strict=True)}
    made = trajectory_report(runs[0], a.out, seed=a.seed, others=others or None)
    if a.json:
        print_json(made.values)
    else:
        print(made.markdown)
        if a.out:
            print(f"\nwritten: {', '.join(str(path) for path in made.files)}")
    return 0
