"""Figures with one mark or bar per cell (benchmark × regime): accuracy, entropy, estimates with intervals.

Guarantees that a value which is missing is drawn as missing with its reason, not as zero.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from . import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def bars(column: str, label: str, scale: float = 1.0, low: float | None = None, high: float | None = None) -> Any:
    """Grouped bars of a column with its bounds, one group per benchmark, one bar per regime."""

    def draw(data: pd.DataFrame) -> Canvas:
        groups, regimes = style.groups(data), style.regime_names(data)
        names = list(dict.fromkeys(groups))
        canvas, axes = style.subplots(figsize=(max(4.2, 1.1 * len(names) * len(regimes) * 0.55 + 1.5), 3.2))
        wide = 0.8 / len(regimes)
        for k, regime in enumerate(regimes):
            rows = data[data["regime"] == regime]
            at = np.array([names.index(g) for g, r in zip(groups, data["regime"], strict=True) if r == regime], float)
            at += (k - (len(regimes) - 1) / 2) * wide
            value = rows[column].to_numpy(float) * scale
            defined = np.isfinite(value)
            axes.bar(
                at[defined],
                value[defined],
                wide * 0.92,
                color=style.COLOURS[style.slot(regime, regimes)],
                hatch=style.HATCHES[style.slot(regime, regimes)],
                edgecolor="white",
                label=regime,
                yerr=style.bounds(rows, column)[:, defined] * scale,
                error_kw={"elinewidth": 1, "capsize": 2, "ecolor": "#222222"},
            )
            for x in at[defined & (value == 0)]:
                axes.text(x - 0.25 * wide, 0, "0", ha="center", va="bottom", fontsize=7)  # beside the interval
            for x in at[~defined]:
                axes.text(
                    x, axes.get_ylim()[0], "n/a", ha="center", va="bottom", rotation=90, color="#555555", fontsize=7
                )
        axes.set_xticks(range(len(names)), names)
        axes.set_ylabel(label)
        axes.grid(axis="x", visible=False)
        if low is not None or high is not None:
            axes.set_ylim(low, high)
        style.legend_below(canvas, axes, len(regimes))
        return canvas

    return draw


def entropy(data: pd.DataFrame) -> Canvas:
    """H of every state by regime, with mean and interval."""
    groups = style.groups(data)
    names, regimes = list(dict.fromkeys(groups)), style.regime_names(data)
    canvas, panels = style.panels(len(names), sharey=True)
    for axes, name in zip(panels, names, strict=True):
        rows = data[[g == name for g in groups]]
        items = list(dict.fromkeys(rows["item_id"]))
        spread = dict(zip(items, np.random.default_rng(0).uniform(-0.18, 0.18, len(items)), strict=True))
        paths = rows.assign(place=[regimes.index(r) for r in rows["regime"]]).sort_values("place")
        for item, path in paths.groupby("item_id", sort=False):  # one item under its regimes
            axes.plot(
                path["place"] + spread[item], path["entropy_bits"], color="#888888", alpha=0.25, linewidth=0.5, zorder=1
            )
        for k, regime in enumerate(regimes):
            here = rows[(rows["regime"] == regime) & np.isfinite(rows["entropy_bits"].to_numpy(float))]
            values = here["entropy_bits"].to_numpy(float)
            if not values.size:
                axes.text(k, 0, "n/a", ha="center", va="bottom", color="#555555", fontsize=7)
                continue
            colour, mark = style.COLOURS[style.slot(regime, regimes)], style.MARKERS[style.slot(regime, regimes)]
            at = k + here["item_id"].map(spread).to_numpy(float)
            axes.scatter(at, values, s=9, color=colour, alpha=0.45, marker=mark, linewidths=0)
            axes.plot([k - 0.27, k + 0.27], [values.mean()] * 2, color="black", linewidth=1.6)
        axes.set_xticks(range(len(regimes)), regimes, rotation=25, ha="right")
        axes.set_xlim(-0.6, len(regimes) - 0.4)
        axes.grid(axis="x", visible=False)
        axes.set_title(name)
    for axes in panels[::4]:
        axes.set_ylabel("H (bits)")
    panels[0].set_ylim(bottom=0)
    return canvas


def forest(column: str, label: str, reference: float, limits: tuple[float, float] | None = None) -> Any:
    """Estimates with intervals, one line per cell; a missing one is drawn as its reason."""

    def draw(data: pd.DataFrame) -> Canvas:
        if not len(data):
            return style.nothing("no cell to show")
        regimes = style.regime_names(data)
        canvas, axes = style.subplots(figsize=(6.4, 0.3 * len(data) + 1.1))
        value = data[column].to_numpy(float)
        names = style.row_names(data)
        left = limits[0] if limits else min(0.0, np.nanmin(data[f"{column}_lower"].to_numpy(float), initial=0))
        error = style.bounds(data, column)
        for i, (regime, estimate) in enumerate(zip(data["regime"], value, strict=True)):
            k = style.slot(regime, regimes)
            if math.isfinite(estimate):
                axes.errorbar(
                    estimate,
                    i,
                    xerr=error[:, i : i + 1],
                    fmt=style.MARKERS[k % len(style.MARKERS)],
                    color=style.COLOURS[k % len(style.COLOURS)],
                    capsize=2.5,
                    markersize=5,
                    elinewidth=1.3,
                )
                if "splits_mean" in data and math.isfinite(data["splits_mean"].iloc[i]):
                    axes.plot(
                        data["splits_mean"].iloc[i], i, marker="|", color="black", markersize=11, linestyle="none"
                    )
            else:
                why = style.shortened(str(data["reason"].iloc[i]), 70)
                plain: dict[str, Any] = {
                    "color": "#555555",
                    "fontsize": 7,
                    "style": "italic",
                    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.5},
                }
                axes.text(left, i, f"  not defined: {why}", va="center", **plain)
        axes.axvline(reference, color="#444444", linewidth=1, linestyle="--")
        axes.set_yticks(range(len(data)), names)
        axes.set_ylim(len(data) - 0.5, -0.5)
        axes.set_xlabel(label)
        axes.grid(axis="y", visible=False)
        if limits:
            axes.set_xlim(*limits)
        return canvas

    return draw


def formats(data: pd.DataFrame) -> Canvas:
    """H by regime: free response against multiple choice, states pooled over the benchmarks of a format."""
    kinds = [k for k in ("free", "choice") if (data["format"] == k).any()]
    if len(kinds) < 2:
        return style.nothing("needs a free-response and a multiple-choice benchmark")
    regimes = style.regime_names(data)
    canvas, axes = style.subplots(figsize=(5, 3))
    models = list(dict.fromkeys(data["model"]))  # never pooled: the same items stand under each
    series = [(model, kind) for model in models for kind in kinds]
    for k, (model, kind) in enumerate(series):
        rows = data[(data["model"] == model) & (data["format"] == kind)].set_index("regime").reindex(regimes)
        at = np.arange(len(regimes)) + (k - (len(series) - 1) / 2) * 0.16
        axes.errorbar(
            at,
            rows["entropy_bits"].to_numpy(float),
            yerr=style.bounds(rows, "entropy_bits"),
            fmt=style.MARKERS[k % len(style.MARKERS)],
            color=style.COLOURS[k % len(style.COLOURS)],
            capsize=3,
            linestyle="none",
            label={"free": "free response", "choice": "multiple choice"}[kind] + f", {model}" * (len(models) > 1),
        )
        for x, value in zip(at, rows["entropy_bits"].to_numpy(float), strict=True):
            if not math.isfinite(value):
                axes.text(x, 0, "n/a", ha="center", va="bottom", color="#555555", fontsize=7, rotation=90)
    axes.set_xticks(range(len(regimes)), regimes)
    axes.set_ylabel("H (bits)")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return canvas


def reliability(data: pd.DataFrame) -> Canvas:
    """Predicted probability against the share of positives, with Wilson intervals; the number of test rows per bin."""
    if not len(data):
        return style.nothing("no probe was scored")
    groups = style.groups(data)
    names, regimes = list(dict.fromkeys(groups)), style.regime_names(data)
    canvas, panels = style.panels(len(names), width=2.9, height=3.0)
    for axes, name in zip(panels, names, strict=True):
        part = data[[g == name for g in groups]]
        axes.plot([0, 1], [0, 1], color="#444444", linewidth=1, linestyle=":")
        for regime in regimes:
            rows = part[part["regime"] == regime].rename(columns={"lower": "observed_lower", "upper": "observed_upper"})
            if len(rows):
                axes.errorbar(
                    rows["predicted"],
                    rows["observed"],
                    yerr=style.bounds(rows, "observed"),
                    fmt=style.MARKERS[style.slot(regime, regimes)],
                    color=style.COLOURS[style.slot(regime, regimes)],
                    capsize=2,
                    elinewidth=0.8,
                    markersize=4,
                    label=regime,
                )
        axes.set(title=name, xlabel="predicted probability", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    for axes in panels[::4]:
        axes.set_ylabel("share correct")
    shown = style.most_labelled(panels)
    style.legend_below(canvas, shown, len(regimes))
    return canvas


def said(data: pd.DataFrame) -> Canvas:
    """Multiple choice: accuracy of the best option before the first token against that of the emitted answer."""
    if not len(data):
        return style.nothing("no multiple-choice cell")
    canvas, axes = style.subplots(figsize=(6.4, 0.34 * len(data) + 1.4))
    at = np.arange(len(data))
    known, given = (data[name].to_numpy(float) for name in ("choice_accuracy", "answer_accuracy"))
    for i, (x0, x1) in enumerate(zip(known, given, strict=True)):  # the same states, before and after
        axes.plot([x0, x1], [i - 0.11, i + 0.11], color="#777777", linewidth=1, linestyle=":")
    for k, (column, label) in enumerate(
        (("choice_accuracy", "best option before the first token"), ("answer_accuracy", "emitted answer"))
    ):
        value = data[column].to_numpy(float)
        axes.errorbar(
            value,
            at + (k - 0.5) * 0.22,
            xerr=style.bounds(data, column),
            fmt=style.MARKERS[k],
            color=style.COLOURS[k],
            capsize=2,
            label=label,
            linestyle="none",
        )
    axes.set_yticks(at, style.row_names(data))
    axes.invert_yaxis()
    axes.set(xlabel="accuracy", xlim=(-0.02, 1.02))
    axes.set_ylim(len(data) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    style.legend_below(canvas, axes, 2)
    return canvas
