"""A report as one HTML file that opens offline.

Guarantees that nothing is fetched (styles, script, figures and data stand in the file) and that text written by a
model or found in a benchmark is shown as text: the template escapes every value, so that it is never parsed as markup, whatever it
holds.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .document import Document, Drawing, Section, Strong
from .figures import Figure
from .tables import Shown


@cache
def environment() -> Environment:
    """Templates of this package: every value is escaped, and a name that is not there is an error."""
    package = __name__.rpartition(".")[0]
    made = Environment(
        loader=PackageLoader(package), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    made.filters["inline"] = _inline
    for name, kind in (("drawing", Drawing), ("figure", Figure), ("strong", Strong), ("table", Shown)):
        made.tests[name] = lambda value, kind=kind: isinstance(value, kind)
    return made


def rendered(document: Document) -> str:
    """The whole file."""
    items = document.items
    labels = {column["name"]: column["label"] for column in items["columns"]} if items else {}
    template = environment().get_template("page.html.j2")
    return template.render(document=document, labels=labels, embedded=_embedded(items))


def page(
    title: str,
    lead: Sequence[str],
    tables: Sequence[Shown],
    figures: Sequence[Figure],
    items: Mapping[str, Any] | None,
    closing: Sequence[str],
    facts: Sequence[tuple[str, str]],
) -> str:
    """A page of results: tables, figures, single items.

    Parameters
    ----------
    title : str
    lead, closing : paragraphs before and after the results
    tables, figures
        Shown in this order, tables first.
    items : dict
        columns (name, label), rows, shown (column names of the table), filters (column names with a choice box).
    facts : (name, value) pairs of how the report was made
    """
    sections = (Section("Results", tuple(tables)), Section("Figures", tuple(figures)))
    filled = tuple(section for section in sections if section.blocks)
    return rendered(Document(title, tuple(lead), filled, items, tuple(closing), tuple(facts)))


_NAMED = re.compile(r'\b(id="|url\(#|xlink:href="#|href="#)')


def _inline(figure: Figure) -> Markup:
    """A figure's SVG as an element of the page, under names of its own; its PNG where there is no SVG."""
    text = figure.contents.get(figure.svg.name, b"").decode()
    start = text.find("<svg")
    label = Markup("{}: {}").format(figure.title, figure.caption)
    if start < 0:
        data = base64.b64encode(figure.image).decode()
        return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(label, data)
    prefix = re.sub(r"\W", "-", figure.name) + "-"
    text = re.sub(r"<metadata>.*?</metadata>", "", text[start:], flags=re.DOTALL)
    body = _NAMED.sub(lambda found: found[1] + prefix, text)
    seen: Counter[str] = Counter()

    def once(
        found: re.Match[str],
    ) -> str:  # matplotlib names what is drawn twice by its content: the first is pointed to
        seen[found[1]] += 1
        return found[0] if seen[found[1]] == 1 else f'id="{found[1]}-{seen[found[1]]}"'

    body = re.sub(r'\bid="([^"]*)"', once, body)
    return Markup(body.replace("<svg", Markup('<svg role="img" aria-label="{}"').format(label), 1))


def _embedded(value: Any) -> Markup:
    """JSON that cannot close its script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
