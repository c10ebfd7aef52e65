"""What commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..visible import one_line


def print_run(run: Any, table: Any, unit: str, arguments: argparse.Namespace) -> int:
    """Say what a run holds now and what comes next; 1 when something of it failed or is missing, else 0."""
    from ..reports.overview import as_text

    progress, out = run.progress, str(arguments.out)
    if arguments.json:
        cells = json.loads(table.to_json(orient="records"))
        print_json({"run": out, "cells": cells, "complete": progress.complete})
    else:
        report = f"precollapse report {shlex.quote(out)} --out {shlex.quote(Path(out).stem + '-report')}"
        print(f"{as_text(table)}\n\n{out}: {progress.states} of {progress.states_total} {unit}. Next: {report}")
    return 1 if run.failed_cells or not progress.complete else 0


def progress_bar(label: str) -> Callable[[float, str], None]:
    """A progress callback that draws a bar: called with the share done and what is being done."""
    from tqdm import tqdm

    if not sys.stderr.isatty():  # nothing to draw on: one line at the end says how long it took
        return _told(label)
    bar = tqdm(
        total=100,
        desc=label,
        file=sys.stderr,
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}",
        leave=False,
    )

    def advance(share: float, doing: str) -> None:
        bar.n = min(100, 100 * share)
        bar.set_postfix_str(one_line(doing), refresh=True)
        if share >= 1:
            bar.close()

    return advance


def _told(label: str) -> Callable[[float, str], None]:
    began = time.perf_counter()

    def advance(share: float, doing: str) -> None:
        if share >= 1:
            print(f"{label}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)

    return advance


def print_json(value: Any) -> None:
    """A result as indented JSON; what JSON does not know, as its text."""
    print(json.dumps(value, indent=1, default=str))


def quiet_libraries() -> None:
    """Keep the model libraries' own bars and advice off the terminal; ours says what matters."""
    from ..hooks import loading

    loading.quiet_libraries()
