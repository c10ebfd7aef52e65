"""Numbers in documents are put there by the scripts that print them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from precollapse.perf import docs_numbers

ROOT = Path(__file__).parents[1]


def test_marked_places_are_filled_and_nothing_else_changes():
    text = "before\n<!-- numbers: perf/a.py --x 1 -->\nold\n<!-- end of numbers -->\nbetween\n<!-- numbers: perf/b.py -->\n<!-- end of numbers -->\nafter\n"
    once = docs_numbers.filled(text, lambda command: f"\n| {command} |\n", "a machine")
    assert once.startswith("before\n") and once.endswith("after\n") and "between" in once and "old" not in once
    assert "| perf/a.py --x 1 |\n\n*a machine*" in once and "| perf/b.py |" in once
    assert docs_numbers.filled(once, lambda command: f"\n| {command} |\n", "a machine") == once


def test_a_script_that_fails_is_told_and_writes_nothing(tmp_path):
    document = tmp_path / "page.md"
    document.write_text("<!-- numbers: perf/no_such_script.py -->\nold\n<!-- end of numbers -->\n")
    done = subprocess.run(
        [sys.executable, str(ROOT / "perf" / "docs_numbers.py"), str(document)], capture_output=True, text=True
    )
    assert done.returncode == 1 and "no_such_script" in done.stderr
    assert "old" in document.read_text()


def test_every_mark_names_a_script_that_is_there_and_flags_that_it_has():
    marked = [c for page in sorted((ROOT / "docs").glob("*.md")) for c in docs_numbers.commands(page.read_text())]
    assert len(marked) >= 4
    for command in marked:
        script, *flags = command.split()
        source = (ROOT / script).read_text()
        for flag in flags:
            if flag.startswith("--"):
                assert f'"{flag}"' in source, f"{script} has no {flag}"


def test_marks_are_closed():
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = page.read_text()
        assert len(re.findall("<!-- numbers: ", text)) == len(docs_numbers.commands(text)), page.name


@pytest.mark.parametrize("table", ["dimension"])
def test_a_table_printed_alone_is_a_table_and_no_more(table):
    done = subprocess.run(
        [sys.executable, str(ROOT / "perf" / "validity.py"), "--repeats", "2", "--table", table],
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(line.startswith("|") for line in done.stdout.strip().splitlines())
