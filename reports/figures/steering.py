"""The dose response of a steering as curves over the scale.

Guarantees that every random direction is drawn behind their mean, so that the vector is seen against what chance does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...analysis.dose_response import CONTROL, METRICS, VECTOR
from . import style
from .drawing import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

SHOWN = ("entropy_bits", "option_margin", "gold_margin", "accuracy", "probe_logit")
"""Metrics that are drawn, where any item has them."""
MEAN, EACH = "#595959", "#bfbfbf"


def dose_response_plan(table: pd.DataFrame, title: str) -> Plan:
    """The plan of a figure of the last cell of a dose response: the one that pools all, where there are several."""
    cells = list(dict.fromkeys(zip(table["benchmark"], table["regime"], strict=True)))
    rows = table[(table["benchmark"] == cells[-1][0]) & (table["regime"] == cells[-1][1])]
    metrics = [m for m in SHOWN if (rows["metric"] == m).any() and rows.loc[rows["metric"] == m, "n"].max() > 0]

    def draw(data: pd.DataFrame) -> Canvas:
        if not metrics:
            return style.nothing("no metric is defined")
        canvas, axes = style.subplots(1, len(metrics), figsize=(3.1 * len(metrics), 3.0), squeeze=False)
        for panel, metric in zip(axes.flat, metrics, strict=True):
            _panel(panel, data[data["metric"] == metric], metric)
        style.legend_below(canvas, axes.flat[0], 2)
        return canvas

    caption = (
        "Mean of each measure by scale; bands: paired intervals of the change, about the unsteered mean (dotted). Thin grey "
        "lines: each random direction."
    )
    return Plan("steer", f"Dose response: {title}", caption, rows[rows["metric"].isin(metrics)], draw)


def _panel(axes: Axes, rows: pd.DataFrame, metric: str) -> None:
    base = float(rows["unsteered"].iloc[0])
    for direction in [d for d in dict.fromkeys(rows["direction"]) if d.startswith(f"{CONTROL} ")]:
        x, y, _, _ = _curve(rows[rows["direction"] == direction], base)
        axes.plot(x, y, color=EACH, linewidth=0.8, zorder=1)
    looks: tuple[tuple[str, str, str, Any], ...] = (
        (CONTROL, MEAN, "random, mean", "--"),
        (VECTOR, style.BLUE, "vector", "-"),
    )
    for direction, colour, name, dash in looks:
        steered = rows[rows["direction"] == direction]
        if steered.empty:
            continue
        x, y, lower, upper = _curve(steered, base)
        axes.fill_between(x, lower, upper, color=colour, alpha=0.18, linewidth=0, zorder=2)
        axes.plot(x, y, color=colour, linestyle=dash, marker="o", markersize=3.5, linewidth=1.5, label=name, zorder=3)
    axes.axhline(base, color=style.NEUTRAL, linewidth=0.7, linestyle=":", zorder=0)
    axes.set_title(METRICS[metric][0])
    axes.set_xlabel("scale")


def _curve(rows: pd.DataFrame, base: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Scales with 0 among them, and the mean with its interval (that of the paired change, about the unsteered mean)."""
    ordered = rows.sort_values("scale")
    x = ordered["scale"].to_numpy(float)
    place = int(np.searchsorted(x, 0.0))
    values = [base + ordered[name].to_numpy(float) for name in ("change", "lower", "upper")]
    y, lower, upper = (np.insert(v, place, base) for v in values)
    return np.insert(x, place, 0.0), y, lower, upper
