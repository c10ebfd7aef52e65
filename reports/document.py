"""A report before it has a format: titled sections of paragraphs, tables and figures.

Guarantees that Markdown and the page say the same in the same order, since both are written from one document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from ..visible import one_line
from .figures import Figure
from .tables import Shown, as_markdown
from .tables.shown import without_html


@dataclass(frozen=True)
class Drawing:
    """Markup that only a page can show, made by a template."""

    markup: Markup


@dataclass(frozen=True)
class Strong:
    """A paragraph that must not be overlooked."""

    text: str


Block = str | Strong | Shown | Figure | Drawing
"""What a section holds; a str is a paragraph."""


@dataclass(frozen=True)
class Section:
    """A titled part of a report."""

    title: str
    blocks: tuple[Block, ...]
    open: bool = True
    """Whether a page shows its blocks before it is asked to."""


@dataclass(frozen=True)
class Document:
    """A report.

    Attributes
    ----------
    title : str
    lead : tuple of str or Strong
        Opening paragraphs.
    sections : tuple of Section
    items : mapping, optional
        The page's table of single rows: columns (name, label), rows, shown (column names of the table), filters (column
        names with a choice box). Markdown leaves it out.
    reading : tuple of str
        How to read the results.
    facts : tuple of (name, value)
        How the report was made.
    findings : tuple of str
        What the numbers say, each sentence with its number, interval and n; shown first.
    """

    title: str
    lead: tuple[str | Strong, ...]
    sections: tuple[Section, ...]
    items: Mapping[str, Any] | None = None
    reading: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = field(default=())
    findings: tuple[str, ...] = ()

    def to_markdown(self) -> str:
        """The report as Markdown; figures are linked, and what only a page can show is left to it."""
        parts = [f"# {_heading(self.title)}\n"]
        if self.findings:
            parts += ["## Findings\n", *(_paragraph(text) for text in self.findings)]
        parts += [_paragraph(text) for text in self.lead]
        for section in self.sections:
            parts += [
                f"## {_heading(section.title)}\n",
                *(_markdown(b) for b in section.blocks if not isinstance(b, Drawing)),
            ]
            if any(isinstance(b, Drawing) for b in section.blocks):
                parts.append("The drawings are in report.html.\n")
        if self.reading:
            parts += ["## How to read this\n", "\n".join(f"- {_heading(line)}" for line in self.reading) + "\n"]
        if self.facts:
            parts += [
                "## How it was made\n",
                "\n".join(f"- {name}: {_heading(value)}" for name, value in self.facts) + "\n",
            ]
        return "\n".join(parts)


def _paragraph(text: str | Strong) -> str:
    return without_html(f"**{text.text}**\n" if isinstance(text, Strong) else f"{text}\n")


def _heading(text: str) -> str:
    return without_html(one_line(text))


def _markdown(block: Block) -> str:
    if isinstance(block, Shown):
        return as_markdown(block)
    if isinstance(block, Figure):
        title = _heading(block.title)
        return f"### {title}\n\n![{title}]({block.link})\n\n{without_html(block.caption)}\n"
    assert isinstance(block, str | Strong)
    return _paragraph(block)
