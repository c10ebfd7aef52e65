"""One look for every figure: colours, marks, dashes, type sizes, and the pieces that figures share.

Guarantees colours that the common forms of colour blindness keep apart (Okabe and Ito) with a second cue for print without
colour, and that drawing leaves no trace: the caller's matplotlib backend, its settings and its open figures stay as they
were. matplotlib is imported when the first figure is drawn.
"""

from __future__ import annotations

import importlib.util
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...errors import RequestError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

BLUE, ORANGE, GREEN, PINK, RED, SKY, BLACK = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000"
COLOURS = (BLUE, ORANGE, GREEN, PINK, RED, SKY, BLACK)
RIGHT, WRONG, NEUTRAL = BLUE, RED, "#555555"
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)), (0, (8, 2)))
SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "svg.hashsalt": "precollapse",
    "hatch.linewidth": 0.6,
}
"""matplotlib's settings while a figure is drawn."""


def has_matplotlib() -> bool:
    """Whether figures can be drawn here."""
    return importlib.util.find_spec("matplotlib") is not None


def require_matplotlib() -> None:
    """Raise RequestError where figures cannot be drawn."""
    if not has_matplotlib():
        raise RequestError("Figures need matplotlib; install it with `pip install precollapse[plots]`.")


@contextmanager
def applied() -> Iterator[None]:
    """The package's settings inside, the caller's again afterwards."""
    require_matplotlib()
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        yield


def subplots(
    rows: int = 1,
    columns: int = 1,
    *,
    figsize: tuple[float, float],
    layout: Any = "constrained",
    squeeze: bool = True,
    sharey: bool = False,
) -> tuple[Canvas, Any]:
    """A figure with its axes that no window system and no list of open figures knows of."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(figsize=figsize, layout=layout)
    FigureCanvasAgg(canvas)
    return canvas, canvas.subplots(rows, columns, squeeze=squeeze, sharey=sharey)


def panels(
    count: int, width: float = 3.2, height: float = 2.8, columns: int = 4, sharey: bool = False
) -> tuple[Canvas, list[Axes]]:
    """As many axes as asked for, in rows of at most `columns`."""
    across = min(count, columns)
    down = math.ceil(count / across)
    canvas, axes = subplots(down, across, figsize=(width * across + 0.6, height * down), squeeze=False, sharey=sharey)
    flat = list(axes.flat)
    for extra in flat[count:]:
        extra.set_axis_off()
    return canvas, flat[:count]


def nothing(text: str) -> Canvas:
    """A figure that says why there is nothing to draw."""
    canvas, axes = subplots(figsize=(5, 1.4), layout=None)
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", style="italic", color="#444444", wrap=True)
    return canvas


def inscribed(canvas: Canvas, box: Any, title: str, note: str) -> Any:
    """Write the title above and the note below `box` (inches), which a laid-out figure fills; returns the box of it all."""
    from matplotlib.transforms import Bbox

    width, height = canvas.get_size_inches()
    whole = [box.frozen()]
    renderer = canvas.canvas.get_renderer()  # type: ignore[attr-defined]
    for legend in canvas.legends:  # where it is, whatever part of the figure is saved
        place = legend.get_window_extent(renderer).transformed(canvas.transFigure.inverted())
        legend.set_loc("center")
        legend.set_bbox_to_anchor(((place.x0 + place.x1) / 2, (place.y0 + place.y1) / 2), transform=canvas.transFigure)
    for text, size, up in ((title, 10.5, True), (note, 7.5, False)):
        if not text:
            continue
        broken = "\n".join(textwrap.wrap(text, max(24, int(box.width * 72 / (size * 0.56)))))
        at = (box.y1 + 0.1) / height if up else (box.y0 - 0.1) / height
        look: dict[str, Any] = {"weight": "bold"} if up else {"color": "#444444"}
        written = canvas.text(
            box.x0 / width, at, broken, fontsize=size, ha="left", va="bottom" if up else "top", **look
        )
        extent = written.get_window_extent(renderer)
        whole.append(extent.transformed(canvas.dpi_scale_trans.inverted()))
    return Bbox.union(whole)


def legend_below(canvas: Canvas, axes: Axes, count: int) -> None:
    """The legend of `axes` under the whole figure."""
    handles, labels = axes.get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=min(count, 6), frameon=False)


def most_labelled(all_axes: Sequence[Axes]) -> Axes:
    """The axes whose legend names most."""
    return max(all_axes, key=lambda axes: len(axes.get_legend_handles_labels()[1]))


def groups(data: pd.DataFrame) -> list[str]:
    """Panel of each row: benchmark, with the model where there are several."""
    if data["model"].nunique() > 1:
        return [f"{b}\n{m}" for m, b in zip(data["model"], data["benchmark"], strict=True)]
    return [str(b) for b in data["benchmark"]]


def row_names(data: pd.DataFrame) -> list[str]:
    """Name of each row on one line: its panel and its regime."""
    return [f"{g.replace(chr(10), ' · ')}  {r}" for g, r in zip(groups(data), data["regime"], strict=True)]


def regime_names(data: pd.DataFrame) -> list[str]:
    """Regimes in the order of the rows."""
    return list(dict.fromkeys(data["regime"].astype(str)))


_SLOTS = {"baseline": 0, "cot": 1, "babble": 2, "cot-open": 3, "babble-open": 4}


def slot(regime: str, regimes: Sequence[str]) -> int:
    """Number of a regime's colour, marker and dash: the same in every figure for the built-in regimes."""
    if regime in _SLOTS:
        return _SLOTS[regime]
    others = [r for r in regimes if r not in _SLOTS]
    return (len(_SLOTS) + others.index(regime)) % len(COLOURS)


def bounds(rows: pd.DataFrame, name: str) -> np.ndarray:
    """Distances [2, n] from estimate to bounds, 0 where a bound is missing."""
    value = rows[name].to_numpy(float)
    below, above = value - rows[f"{name}_lower"].to_numpy(float), rows[f"{name}_upper"].to_numpy(float) - value
    return np.clip(np.nan_to_num(np.stack([below, above])), 0, None)


def shortened(text: str, width: int) -> str:
    """A text of at most `width` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"
