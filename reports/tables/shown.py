"""A table for people: texts, and the notes that its missing values point to.

Guarantees that one table reads the same in a terminal, in Markdown and on a page, and that a missing value points to a
numbered note which says why.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from ...analysis.statistics import Interval
from ...visible import one_line, visible
from . import texts


@dataclass(frozen=True)
class Shown:
    """A table for people.

    Attributes
    ----------
    title : str
        Empty where the section that holds the table says it.
    header : tuple of str
    rows : tuple of tuples of str
    notes : tuple of str
        Numbered; missing values point to them.
    caption : str
    few : set of (row, column)
        Cells whose number rests on fewer than five of a kind; a page shows them grey.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    caption: str = ""
    few: frozenset[tuple[int, int]] = frozenset()


FEW = 5
"""Below so many of a kind a number is shown grey."""


def shown_frame(
    frame: pd.DataFrame,
    columns: Sequence[tuple[str, str, int]],
    title: str,
    caption: str,
    reason: str = "reason",
) -> Shown:
    """A table of numbers as texts; columns are (header, column of the frame, decimals), with bounds where known."""
    notes = texts.Notes()
    rows: list[tuple[str, ...]] = []
    few = set()
    for _, row in frame.iterrows():
        cells: list[str] = []
        scarce = _kinds(row) < FEW
        for _, name, digits in columns:
            value = row[name]
            if scarce and name not in _COUNTS and not isinstance(value, str) and math.isfinite(float(value)):
                few.add((len(rows), len(cells)))
            if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
                cells.append(str(value))
            elif not math.isfinite(float(value)):
                cells.append(notes.missing(str(row.get(reason, "")) or ""))
            elif f"{name}_lower" in frame.columns:
                interval = Interval(float(value), float(row[f"{name}_lower"]), float(row[f"{name}_upper"]))
                care = texts.care(interval, int(row.get(f"{name}_undefined", 0)))
                cells.append(notes.mark(texts.between(interval, digits), care))
            else:
                cells.append(texts.number(float(value), digits))
        rows.append(tuple(cells))
    return Shown(title, tuple(h for h, _, _ in columns), tuple(rows), notes.lines(), caption, frozenset(few))


_COUNTS = frozenset({"n", "n_test", "test_positives", "over", "reached"})


def _kinds(row: pd.Series) -> float:
    """How many cases of the rarer kind a row of numbers rests on; infinite where it does not say."""
    if "test_positives" in row and "n_test" in row:
        return float(min(row["test_positives"], row["n_test"] - row["test_positives"]))
    return next((float(row[name]) for name in ("n_test", "n") if name in row), math.inf)


def shown_values(frame: pd.DataFrame, title: str = "", caption: str = "") -> Shown:
    """All columns of a table of mixed values under their own names, as `texts.value` writes them."""
    rows = tuple(tuple(texts.value(v) for v in row) for row in frame.itertuples(index=False))
    return Shown(title, tuple(map(str, frame.columns)), rows, (), caption)


def as_markdown(table: Shown) -> str:
    """A table in GitHub's Markdown with its notes."""
    lines = [f"### {one_line(table.title)}", ""] if table.title else []
    if table.caption:
        lines += [table.caption, ""]
    lines += ["| " + " | ".join(map(_in_a_cell, table.header)) + " |", "|" + "---|" * len(table.header)]
    lines += ["| " + " | ".join(map(_in_a_cell, row)) + " |" for row in table.rows]
    if table.notes:
        lines += ["", *(f"- {note}" for note in map(one_line, table.notes))]
    return without_html("\n".join(lines) + "\n")


def without_html(text: str) -> str:
    """Markdown of a report with what data put in made harmless: no HTML, no link or picture that would be fetched, nothing that
    steers a terminal."""
    return visible(_HTML.sub("&lt;", text).replace("](", "]\\("))


_HTML = re.compile(r"<(?=[A-Za-z/!?])")


def _in_a_cell(text: str) -> str:
    bar = "&#124;" if "\\|" in text else "\\|"  # behind a backslash, an escaped bar would be a bar again
    return one_line(text).replace("|", bar).replace("`", "\\`")


def as_text(table: Shown) -> str:
    """A table for a terminal: columns padded to their widest text, notes below."""
    header, *rows = ([one_line(text) for text in row] for row in (table.header, *table.rows))
    columns = list(zip(header, *rows, strict=False))
    widths = [max(len(text) for text in column) for column in columns]
    left = [all(not _numeric(text) for text in column[1:]) for column in columns]

    def line(cells: Sequence[str]) -> str:
        padded = (t.ljust(w) if is_left else t.rjust(w) for t, w, is_left in zip(cells, widths, left, strict=True))
        return "  ".join(padded).rstrip()

    out = [table.title, line(header), "  ".join("-" * w for w in widths)]
    out += [line(row) for row in rows]
    out += [f"  {note}" for note in table.notes]
    return "\n".join(out) + "\n"


def _numeric(text: str) -> bool:
    return text[:1].isdigit() or text[:1] in "+-" and text[1:2].isdigit()
