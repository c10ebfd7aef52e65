"""Put the figures that measuring scripts print into the documents that quote them: `make docs-numbers`.

A document marks the place and the command; everything between the two marks is what that command printed, followed by the machine
that it ran on, so that no quoted number can differ from what a script says:

    <!-- numbers: perf/validity.py --repeats 40 --table shortcuts -->
    ...
    <!-- end of numbers -->

Usage: python perf/docs_numbers.py [DOCUMENT ...] [--list]. Without names, all documents that have marks are measured anew (an hour on
two cores: name one to measure one). A command that fails changes nothing and ends with exit status 1.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from precollapse import atomic

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(<!-- numbers: (?P<command>[^\n]*?) -->\n)(?P<body>.*?)(<!-- end of numbers -->)", re.DOTALL)


def commands(text: str) -> list[str]:
    """Commands that a document's marks name, in order."""
    return [match["command"] for match in BLOCK.finditer(text)]


def filled(text: str, printed: Callable[[str], str], machine: str) -> str:
    """The document with every marked place filled by what `printed(command)` returns, and with the machine's line."""

    def fill(match: re.Match[str]) -> str:
        lines = printed(match["command"]).strip("\n")
        return f"{match[1]}\n{lines}\n\n*{machine}*\n\n{match[4]}"

    return BLOCK.sub(fill, text)


def machine() -> str:
    """Processor, cores, versions and day, as a line."""
    from importlib.metadata import version

    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = re.findall(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        processor = names[0] if names else processor
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "scikit-learn"))
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return f"{processor}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}; {day}"


def run(command: str) -> str:
    """What a script of this repository prints.

    Raises
    ------
    SystemExit
        The script failed.
    """
    words = shlex.split(command)
    print(f"python {command}", file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"python {command} ended with status {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="*", type=Path, help="documents to measure anew (default: all with marks)")
    parser.add_argument("--list", action="store_true", help="print each document's commands and run none")
    arguments = parser.parse_args()
    for document in arguments.documents or sorted((ROOT / "docs").glob("*.md")):
        text = document.read_text()
        if arguments.list:
            for command in commands(text):
                print(f"{document.name}: python {command}")
        elif commands(text):
            atomic.write(document, filled(text, run, machine()))


if __name__ == "__main__":
    main()
