"""The report of trajectories as it is put together: titled parts, each of paragraphs, tables and figures.

Guarantees that every table that is shown is also written to a file of its name, and that with several benchmarks every title
and every name says which one it is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ..visible import file_name
from .document import Block, Document, Section
from .figures import Figure, Plan, draw
from .tables import Shown, shown_values

FIGURES = "figures"
"""Folder of the figures within that of a report."""


@dataclass
class Draft:
    """Parts in the order shown, and everything that goes into files.

    Attributes
    ----------
    folder : Path or None
        Where the figures will stand; None draws none.
    command : str
        Named under every figure.
    parts : list of (title, blocks)
    tables : dict of str to DataFrame
        By file name.
    values : dict of str to Any
        What the JSON says beside the tables.
    figures : list of Figure
    shown : dict of str to Shown
        Tables that are shown, by file name.
    scope : str
        Benchmark that is written about; its name goes before titles and names. Empty for a run of one benchmark.
    """

    folder: Path | None
    command: str
    parts: list[tuple[str, list[Block]]] = field(default_factory=list)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    scope: str = ""
    shown: dict[str, Shown] = field(default_factory=dict)

    def named(self, name: str) -> str:
        """A name with the benchmark before it, where there are several."""
        return f"{file_name(self.scope)}_{name}" if self.scope else name

    def part(self, title: str) -> None:
        """Begin a part."""
        self.parts.append((f"{self.scope}: {title}" if self.scope else title, []))

    def say(self, text: str) -> None:
        """Add a paragraph."""
        self.add(text)

    def add(self, block: Block) -> None:
        """Add a block to the part that was begun last."""
        self.parts[-1][1].append(block)

    def value(self, name: str, value: Any) -> None:
        """Keep a value for the JSON."""
        self.values[self.named(name)] = value

    def keep(self, name: str, table: pd.DataFrame) -> None:
        """Write a table to a file without showing it."""
        self.tables[self.named(name)] = table

    def table(self, name: str, table: pd.DataFrame) -> None:
        """Show a table, and write it to a file."""
        self.keep(name, table)
        shown = self.shown[self.named(name)] = shown_values(table, self.named(name))
        self.add(shown)

    def draw(self, plans: Sequence[Plan]) -> None:
        """Draw figures; their names say the benchmark already."""
        if self.folder is None:
            return
        for plan in plans:
            figure = draw(plan, self.folder / FIGURES, self.command, f"{FIGURES}/")
            self.figures.append(figure)
            self.add(figure)

    def document(self, title: str) -> Document:
        """The report without a format."""
        sections = tuple(Section(name, tuple(blocks)) for name, blocks in self.parts)
        return Document(title, (), sections)
