"""From a plan to a figure: the picture as PNG and SVG, and the numbers that it shows as CSV.

Guarantees that a figure is drawn from one table of numbers and nothing else, that this table stands beside it, and that its
caption names the command and the file of numbers.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ...visible import one_line
from ..tables.frames import as_csv
from . import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True)
class Plan:
    """What to draw: a table and the function that draws it."""

    name: str
    title: str
    caption: str
    data: pd.DataFrame = field(repr=False)
    draw: Callable[[pd.DataFrame], Canvas] = field(repr=False)


@dataclass(frozen=True)
class Figure:
    """A figure and where its files are, or will be.

    Attributes
    ----------
    name, title, caption : str
    png, svg, csv : Path
    contents : dict of str to bytes
        What goes into the files, by file name.
    link : str
        The PNG as seen from the report that shows it.
    """

    name: str
    title: str
    caption: str
    png: Path
    svg: Path
    csv: Path
    contents: dict[str, bytes] = field(repr=False, compare=False, default_factory=dict)
    link: str = ""
    wide: bool = False
    """Whether a page gives it the whole width."""

    @property
    def image(self) -> bytes:
        """The PNG."""
        return self.contents[self.png.name]


def draw(plan: Plan, folder: str | os.PathLike[str], command: str, link: str = "") -> Figure:
    """Draw a plan for `folder`; nothing is written.

    Parameters
    ----------
    plan : Plan
    folder : path
        Where its files will stand.
    command : str
        The command that the caption names.
    link : str
        What stands before the file's name in a link from the report to it, such as "figures/".

    Raises
    ------
    RequestError
        When matplotlib is not installed.
    """
    place = Path(folder)
    png, svg = io.BytesIO(), io.BytesIO()
    with style.applied():
        canvas = plan.draw(drawable(plan.data))
        canvas.draw_without_rendering()
        measured = canvas.get_tightbbox()
        canvas.set_layout_engine("none")  # laid out and measured once, not again for each file
        box = style.inscribed(canvas, measured, drawable_text(plan.title), drawable_text(_note(plan))).padded(0.08)
        canvas.savefig(png, format="png", bbox_inches=box, metadata={"Software": None})
        canvas.savefig(svg, format="svg", bbox_inches=box, metadata={"Date": None, "Creator": None})
    contents = {
        f"{plan.name}.png": png.getvalue(),
        f"{plan.name}.svg": svg.getvalue(),
        f"{plan.name}.csv": as_csv(plan.data).encode(),
    }
    return Figure(
        plan.name,
        plan.title,
        f"{plan.caption} Made by `{command}` from {plan.name}.csv.",
        place / f"{plan.name}.png",
        place / f"{plan.name}.svg",
        place / f"{plan.name}.csv",
        contents,
        f"{link}{plan.name}.png",
        box.width > 1.9 * box.height and box.width > 8,
    )


_COUNTS = (("n", ""), ("auroc_n_test", " test states"), ("n_test", " test states"), ("entropy_change_n", " pairs"))


def _note(plan: Plan) -> str:
    """What the picture says below itself: what its marks and intervals are, and how many cases they rest on."""
    named = next(((name, unit) for name, unit in _COUNTS if name in plan.data), None)
    if named is None:
        return f"{plan.caption} n = {len(plan.data)} states." if "item_id" in plan.data else plan.caption
    counts = pd.to_numeric(plan.data[named[0]], errors="coerce").dropna()
    if not len(counts):
        return plan.caption
    low, high = int(counts.min()), int(counts.max())
    return f"{plan.caption} n = {low if low == high else f'{low} to {high}'}{named[1]}."


def drawable(data: pd.DataFrame) -> pd.DataFrame:
    """The table with texts that a figure shows as they are: no mathematics between dollar signs, no label left out of a legend
    because it begins with a low line, and nothing that steers a terminal that shows the SVG."""
    shown = data.copy()
    for place, kind in enumerate(data.dtypes):
        if not pd.api.types.is_numeric_dtype(kind):
            texts: Any = data.iloc[:, place].map(drawable_text, na_action="ignore")
            shown.isetitem(place, texts)
    return shown


def drawable_text(text: Any) -> Any:
    """One of these texts; what is no text stays."""
    if not isinstance(text, str):
        return text
    lines = "\n".join(map(one_line, text.split("\n"))).replace("\\$", "$").replace("$", "\\$")
    return f" {lines}" if lines.startswith("_") else lines


def write(plan: Plan, folder: str | os.PathLike[str], command: str) -> Figure:
    """Draw a plan into `folder` as PNG and SVG with the numbers as CSV.

    Raises
    ------
    RequestError
        When matplotlib is not installed, or the folder cannot be written.
    """
    from ..output_folder import write_folder

    figure = draw(plan, folder, command)
    write_folder(folder, figure.contents)
    return figure
