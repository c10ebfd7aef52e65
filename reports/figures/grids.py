"""Heat maps: the cells at a glance, and every pair of a transfer.

Guarantees that a missing cell is hatched and says n/a, and that changes have a scale centred on 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

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
        ("accuracy_change", "Δ accuracy (points)", 100.0, "PuOr", None),
        ("entropy_change", "Δ H (bits)", 1.0, "PuOr", None),
        ("accuracy", "accuracy (%)", 100.0, "cividis", (0.0, 100.0)),
        ("auroc", "probe AUROC", 1.0, "PuOr", (0.0, 1.0)),
    )
    canvas, axes = style.subplots(2, 2, figsize=(2.2 + 1.7 * len(regimes), 1.6 + 0.95 * len(names)), squeeze=False)
    for panel, (column, title, scale, colours, limits) in zip(axes.flat, panels, strict=True):
        grid = np.full((len(names), len(regimes)), np.nan)
        for _, row in table.iterrows():
            grid[names.index(row["group"]), regimes.index(row["regime"])] = float(row[column]) * scale
        heat(panel, grid, names, regimes, title, colours, limits, 2 if scale == 1.0 else 0)
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
) -> None:
    """One heat map with its numbers written in; missing cells are hatched and say n/a. Without limits, centred on 0."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    if limits is None:
        largest = float(np.nanmax(np.abs(grid))) if np.isfinite(grid).any() else 1.0
        limits = (-max(largest, 1e-9), max(largest, 1e-9))
    shade = colormaps[colours]
    axes.imshow(
        np.where(np.isfinite(grid), grid, np.mean(limits)), cmap=shade, vmin=limits[0], vmax=limits[1], aspect="auto"
    )
    for i in range(grid.shape[0]):
        for j in range(grid.shape[1]):
            value = grid[i, j]
            if math.isfinite(value):
                red, green, blue, _ = shade((value - limits[0]) / (limits[1] - limits[0]))
                dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
                axes.text(j, i, f"{value:.{digits}f}", ha="center", va="center", color="white" if dark else "black")
            else:
                box = Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor="#f2f2f2", hatch="///", edgecolor="#bbbbbb")
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
    canvas, panels = style.panels(len(keys), width=3.1, height=2.9, columns=3)
    for axes, (model, within) in zip(panels, keys, strict=True):
        part = data[(data["model"] == model) & (data["within"] == within)]
        rows, columns = list(dict.fromkeys(part["train"])), list(dict.fromkeys(part["test"]))
        grid = np.full((len(rows), len(columns)), np.nan)
        for _, row in part.iterrows():
            grid[rows.index(row["train"]), columns.index(row["test"])] = row["auroc"]
        heat(axes, grid, rows, columns, f"{within} · {model}" if several else str(within), "PuOr", (0.0, 1.0), 2)
        axes.set_xlabel("tested on")
    for axes in panels[::3]:
        axes.set_ylabel("trained on")
    return canvas
