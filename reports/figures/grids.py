"""Heat maps: the cells at a glance, and every pair of a transfer.

Guarantees that a missing cell says n/a, that every cell names its n and one that rests on few is hatched, and that scales of accuracy
and of AUROC are the same in every report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..tables.shown import FEW
from . import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


def heatmaps(data: pd.DataFrame) -> Canvas:
    """Two by two: change of accuracy and of H against the baseline, accuracy, probe AUROC."""
    groups, regimes = style.groups(data), style.regime_names(data)
    names = list(dict.fromkeys(groups))
    table = data.assign(group=groups)
    panels = (
        ("accuracy_change", "n", "Δ accuracy (points)", 100.0, "PuOr", (-50.0, 50.0)),
        ("entropy_change", "entropy_change_n", "Δ H (bits)", 1.0, "PuOr", None),
        ("accuracy", "n", "accuracy", 1.0, "cividis", (0.0, 1.0)),
        ("auroc", "auroc_n_test", "probe AUROC", 1.0, "PuOr", (0.0, 1.0)),
    )
    canvas, axes = style.subplots(2, 2, figsize=(3.4 + 1.9 * len(regimes), 2.2 + 1.2 * len(names)), squeeze=False)
    for panel, (column, counted, title, scale, colours, limits) in zip(axes.flat, panels, strict=True):
        grid = np.full((len(names), len(regimes)), np.nan)
        counts, weak = np.zeros(grid.shape, int), np.zeros(grid.shape, bool)
        for _, row in table.iterrows():
            place = names.index(row["group"]), regimes.index(row["regime"])
            grid[place], counts[place] = float(row[column]) * scale, int(row[counted])
            weak[place] = bool(row["auroc_few"]) if column == "auroc" else counts[place] < FEW
        heat(panel, grid, names, regimes, title, colours, limits, 2 if scale == 1.0 else 0, counts, weak)
    return canvas


def heat(
    axes: Axes,
    grid: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    colours: str,
    limits: tuple[float, float] | None,
    digits: int,
    counts: np.ndarray | None = None,
    weak: np.ndarray | None = None,
) -> None:
    """One heat map with its numbers and their n written in, and a bar; missing cells are grey and say n/a, `weak` ones are hatched.
    Without limits, centred on 0."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    if limits is None:
        largest = float(np.nanmax(np.abs(grid))) if np.isfinite(grid).any() else 1.0
        limits = (-max(largest, 1e-9), max(largest, 1e-9))
    shade = colormaps[colours].resampled(49)  # so few steps that the bar is drawn as areas, not as a bitmap
    filled = np.clip(np.where(np.isfinite(grid), grid, np.mean(limits)), *limits)
    edges = [np.arange(size + 1) - 0.5 for size in grid.shape]
    mesh = axes.pcolormesh(edges[1], edges[0], filled, cmap=shade, vmin=limits[0], vmax=limits[1])
    axes.set_ylim(grid.shape[0] - 0.5, -0.5)
    bar = axes.figure.colorbar(mesh, ax=axes, fraction=0.06, pad=0.03)
    bar.ax.tick_params(labelsize=7)
    bar.ax.grid(visible=False)
    for i in range(grid.shape[0]):
        for j in range(grid.shape[1]):
            value = grid[i, j]
            if math.isfinite(value):
                red, green, blue, _ = shade((filled[i, j] - limits[0]) / (limits[1] - limits[0]))
                dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
                ink = "white" if dark else "black"
                if weak is not None and weak[i, j]:
                    look: dict[str, Any] = {
                        "fill": False,
                        "hatch": "////",
                        "edgecolor": "#bbbbbb" if dark else "#666666",
                    }
                    axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, linewidth=0, **look))
                text = f"{value:.{digits}f}" + (f"\nn={counts[i, j]}" if counts is not None else "")
                back = {"facecolor": (red, green, blue), "edgecolor": "none", "pad": 1.0}
                axes.text(j, i, text, ha="center", va="center", color=ink, fontsize=8, bbox=back)
            else:
                box = Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor="#f2f2f2", edgecolor="#bbbbbb")
                axes.add_patch(box)
                axes.text(j, i, "n/a", ha="center", va="center", color="#333333", fontsize=8)
    axes.set_xticks(range(len(columns)), columns, rotation=25, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.set_title(title)


def transfer(data: pd.DataFrame) -> Canvas:
    """One train x test heat map per benchmark (or per regime, over benchmarks)."""
    if not len(data):
        return style.nothing("one regime only: nothing to transfer to")
    several = data["model"].nunique() > 1
    keys = list(dict.fromkeys(zip(data["model"], data["within"], strict=True)))
    canvas, panels = style.panels(len(keys), width=3.9, height=3.1, columns=2)
    for axes, (model, within) in zip(panels, keys, strict=True):
        part = data[(data["model"] == model) & (data["within"] == within)]
        rows, columns = list(dict.fromkeys(part["train"])), list(dict.fromkeys(part["test"]))
        grid = np.full((len(rows), len(columns)), np.nan)
        counts, weak = np.zeros(grid.shape, int), np.zeros(grid.shape, bool)
        for _, row in part.iterrows():
            place = rows.index(row["train"]), columns.index(row["test"])
            grid[place], counts[place], weak[place] = row["auroc"], row["n_test"], row["few"]
        title = f"{within} · {model}" if several else str(within)
        heat(axes, grid, rows, columns, title, "PuOr", (0.0, 1.0), 2, counts, weak)
        axes.set_xlabel("tested on")
    for axes in panels[::2]:
        axes.set_ylabel("trained on")
    return canvas
