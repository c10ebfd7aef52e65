"""`precollapse grade`: texts made elsewhere, graded by the rules of runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path

from ..destination import for_results, local, outside_runs
from ..errors import RequestError
from ..visible import one_line, visible
from . import options
from .command import Command, Option
from .output import print_json, progress_bar
from .values import PLACE, WHOLE

_TAIL = 300  # characters of a text that an audit prints


def _grade(arguments: argparse.Namespace) -> int:
    from ..studies import graded_files

    audit = getattr(arguments, "audit", 0)
    if audit < 0:
        raise RequestError(f"--audit takes a number of texts, 0 or more, got {audit}")
    out = None
    if getattr(arguments, "out", None):
        file = Path(str(arguments.out)).suffix in (".jsonl", ".csv")
        out = outside_runs(local(arguments.out)) if file else for_results(arguments.out)
    given = {name: getattr(arguments, name) for name in ("text", "gold", "choices") if name in arguments}
    graded = graded_files.grade_file(
        arguments.file,
        getattr(arguments, "benchmark", None),
        **given,
        progress=None if arguments.quiet else _advance,
    )
    counted, doubtful = graded_files.counts(graded), graded_files.least_certain(graded, audit)
    if out is not None:
        try:
            graded_files.save(graded, out)
        except OSError as error:
            raise RequestError(f"--out {out} cannot be written: {error.strerror or error}") from None
        print(f"written: {out}", file=sys.stderr)
    if arguments.json:
        shown = doubtful if audit else graded
        print_json(
            {
                "benchmarks": [asdict(c) for c in counted],
                "audit" if audit else "grades": [row.as_row() for row in shown],
            }
        )
        return 0
    for c in counted:
        print(
            f"{one_line(c.benchmark)}: {c.correct} of {c.texts} correct, {c.compliant} with an answer, {c.doubtful} with a reason to look again"
        )
    for row in doubtful:
        print(f"\n{one_line(row.line)} (id {one_line(row.id)}), gold {one_line(row.gold)!r}")
        print(visible(str(row.why)))
        print("text ends: " + one_line(row.text[-_TAIL:]))
    return 0


@cache
def _bar() -> Callable[[float, str], None]:
    return progress_bar("grading")


def _advance(share: float, doing: str) -> None:
    """Draw the bar once there is something to tell: what is refused before has none."""
    _bar()(share, doing)
    if share >= 1:
        _bar.cache_clear()


COMMAND = Command(
    "grade",
    "grade texts made elsewhere, from a JSON Lines file, by the rules that runs are graded by",
    _grade,
    {
        "": (
            Option("file", "rows with an output, a gold answer and, for multiple choice, choices", PLACE, "FILE.jsonl"),
            options.CONFIG,
            options.JSON,
            options.QUIET,
            Option("--out", "write the grades: a .jsonl or .csv file, or a folder", PLACE, "PATH", absent=None),
        ),
        "the rows": (
            Option(
                "--benchmark",
                "what to grade them as: gsm8k, math500, arc_challenge, aqua_rat, mmlu, or a name of your own",
                default="the column benchmark, else by what the gold answer is",
            ),
            Option(
                "--text", "column of the output", metavar="COLUMN", default="text, output, response, completion, ..."
            ),
            Option("--gold", "column of the gold answer", metavar="COLUMN", default="gold, answer, target, ..."),
            Option(
                "--choices", "column of the options", metavar="COLUMN", default="choices or options, where there is one"
            ),
        ),
        "a person's check": (
            Option(
                "--audit",
                "print this many readings that give most reason to doubt, with the rule that read each",
                WHOLE,
                default="0",
            ),
        ),
    },
    examples=(
        (
            "outputs with the columns text and gold",
            "precollapse grade outputs.jsonl --benchmark gsm8k --out grades.jsonl",
        ),
        (
            "other columns, and the twenty readings to look at",
            "precollapse grade outputs.jsonl --benchmark mmlu --text response --gold answer --audit 20",
        ),
    ),
    source="studies.graded_files:grade_file",
)
