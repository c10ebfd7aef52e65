"""`precollapse tasks list | fit | report`: public tasks for methods that read chains of thought."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from pathlib import Path

from ..destination import for_results
from ..errors import RequestError
from . import options
from .command import Command, Option
from .output import print_json, progress_bar
from .values import NAMES, PLACE, WHOLE

_RELEASE = Option("release", "the release: a clone, its folder, or .tar.gz files of it", PLACE, "PATH")
_TASK = Option("--task", "comma list of task numbers, 1 to 9", NAMES, "NUMBERS", default="all that are there")


def _numbers(arguments: argparse.Namespace) -> tuple[int, ...] | None:
    if "task" not in arguments:
        return None
    for entry in arguments.task:
        if entry not in map(str, range(1, 10)):
            raise RequestError(f"--task takes numbers from 1 to 9, got {entry!r}")
    return tuple(int(entry) for entry in arguments.task)


def _list(arguments: argparse.Namespace) -> int:
    from ..reports.tasks import counts_text
    from ..studies.tasks import count, load_all

    loaded = load_all(arguments.release, _numbers(arguments))
    counts = [count(data) for data in loaded]
    faults = [fault for data in loaded for fault in data.faults]
    if arguments.json:
        print_json(
            {"tasks": [asdict(one) for one in counts], "left_out": [asdict(fault) for fault in dict.fromkeys(faults)]}
        )
    else:
        print(counts_text(counts))
        for fault in dict.fromkeys(faults):
            print(f"left out: {fault.file}: {fault.reason}", file=sys.stderr)
    return 0


def _fit(arguments: argparse.Namespace) -> int:
    from ..reports.tasks import scores_text
    from ..studies.tasks.fitting import FitConfig, fit_all

    out = for_results(arguments.out)
    given = {name: getattr(arguments, name) for name in ("seed", "resamples", "methods") if name in arguments}
    config = FitConfig(release=arguments.release, out=Path(out), tasks=_numbers(arguments), **given)
    found = fit_all(config, progress=None if arguments.quiet else progress_bar("tasks"))
    if arguments.json:
        print_json(found)
    else:
        print(scores_text(found))
        print(f"\n{out}: {len(found)} results. Next: precollapse tasks report {out} --out {out}-report")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from ..reports.tasks import scores_text, write
    from ..studies.tasks.protocol import results

    found = results(Path(arguments.results))
    out = for_results(arguments.out) if arguments.out else None
    published = getattr(arguments, "published", None)
    if arguments.json:
        print_json(found)
    else:
        print(scores_text(found, published))
    if out is not None:
        print(f"written: {write(found, out, published)}", file=sys.stderr)
    return 0


COMMAND = Command(
    "tasks",
    "nine public tasks with objective labels for methods that read chains of thought",
    None,
    {},
    examples=(
        ("what a release holds, and how it differs from its description", "precollapse tasks list cot-proxy-tasks"),
        (
            "what the wording of a chain gives, beside length and other confounds",
            "precollapse tasks fit cot-proxy-tasks --task 3,4,5,6,7 --methods tfidf --out fits",
        ),
    ),
    parts=(
        Command(
            "list",
            "rows by task, split and class, and whatever differs from the published description",
            _list,
            {"": (_RELEASE, _TASK, options.JSON)},
            examples=(
                ("all tasks of a clone", "precollapse tasks list cot-proxy-tasks"),
                ("two tasks of one archive, as JSON", "precollapse tasks list part.tar.gz --task 7,8 --json"),
            ),
        ),
        Command(
            "fit",
            "fit methods on tasks under one protocol, with the confounds beside them",
            _fit,
            {
                "": (
                    _RELEASE,
                    options.CONFIG,
                    options.JSON,
                    options.QUIET,
                    replace(
                        options.OUT_FOLDER, text="folder for the results, or to go on with (required)", required=True
                    ),
                    _TASK,
                    Option("--methods", "comma list of methods; the confounds are always there", NAMES, "NAMES"),
                    replace(options.SEED, text="seed of methods and resamples"),
                    Option("--resamples", "bootstrap resamples of questions", WHOLE),
                ),
            },
            examples=(
                (
                    "what the wording of a chain gives, beside length and other confounds",
                    "precollapse tasks fit cot-proxy-tasks --task 3,4,5,6,7 --methods tfidf --out fits",
                ),
                ("the confounds alone", "precollapse tasks fit cot-proxy-tasks --out confounds"),
            ),
            source="studies.tasks.fitting:FitConfig",
        ),
        Command(
            "report",
            "one page: methods by tasks, within and out of distribution, beside confounds and published values",
            _report,
            {
                "": (
                    Option("results", "the folder that `tasks fit` wrote", PLACE, "DIR"),
                    options.JSON,
                    replace(options.OUT_FOLDER, text="folder for the page and its figures"),
                    Option("--published", "the release's own scores, shown as grey marks", PLACE, "FILE.csv"),
                ),
            },
            examples=(
                ("a page", "precollapse tasks report fits --out fits-report"),
                (
                    "beside published scores",
                    "precollapse tasks report fits --published scores.csv --out fits-report",
                ),
            ),
        ),
    ),
)
