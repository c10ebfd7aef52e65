"""Figures of a report, each drawn from one table of numbers that is saved beside it.

Guarantees colours that the common forms of colour blindness keep apart (Okabe and Ito), a second cue in every figure
(marker, hatch or dash) for print without colour, and that a missing value is drawn as missing with its reason, not as
zero. matplotlib is imported when the first figure is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..errors import RequestError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)), (0, (8, 2)))
_STYLE = {
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


@dataclass(frozen=True)
class Figure:
    """A figure that was written.

    Attributes
    ----------
    name, title, caption : str
    png, svg, csv : Path
    """

    name: str
    title: str
    caption: str
    png: Path
    svg: Path
    csv: Path


@dataclass(frozen=True)
class Plan:
    """What to draw: a table and the function that draws it."""

    name: str
    title: str
    caption: str
    data: pd.DataFrame = field(repr=False)
    draw: Callable[[pd.DataFrame], Canvas] = field(repr=False)


def write(plan: Plan, folder: Path, command: str) -> Figure:
    """Draw a plan into `folder` as PNG and SVG with the numbers as CSV.

    Raises
    ------
    RequestError
        When matplotlib is not installed.
    """
    pyplot = _pyplot()
    folder.mkdir(parents=True, exist_ok=True)
    png, svg, csv = (folder / f"{plan.name}.{kind}" for kind in ("png", "svg", "csv"))
    with pyplot.rc_context(_STYLE):
        canvas = plan.draw(plan.data)
        canvas.draw_without_rendering()
        box = canvas.get_tightbbox().padded(0.08)
        canvas.set_layout_engine("none")  # laid out and measured once, not again for each file
        canvas.savefig(png, bbox_inches=box, metadata={"Software": None})
        canvas.savefig(svg, bbox_inches=box, metadata={"Date": None, "Creator": None})
        pyplot.close(canvas)
    plan.data.to_csv(csv, index=False)
    return Figure(plan.name, plan.title, f"{plan.caption} Made by `{command}` from {plan.name}.csv.", png, svg, csv)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise RequestError("Figures need matplotlib; install it with `pip install precollapse[plots]`.") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


# -- shared pieces ---------------------------------------------------------------------------------------------------


def _groups(data: pd.DataFrame) -> list[str]:
    """Panel of each row: benchmark, with the model where there are several."""
    if data["model"].nunique() > 1:
        return [f"{b}\n{m}" for m, b in zip(data["model"], data["benchmark"], strict=True)]
    return [str(b) for b in data["benchmark"]]


def _regimes(data: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(data["regime"].astype(str)))


def _panels(
    count: int, width: float = 3.2, height: float = 2.8, columns: int = 4, **options: Any
) -> tuple[Canvas, list[Axes]]:
    across = min(count, columns)
    down = math.ceil(count / across)
    canvas, axes = _pyplot().subplots(
        down, across, figsize=(width * across + 0.6, height * down), squeeze=False, layout="constrained", **options
    )
    flat = list(axes.flat)
    for extra in flat[count:]:
        extra.set_axis_off()
    return canvas, flat[:count]


def _ticker() -> Any:
    from matplotlib import ticker

    return ticker


def _nothing(text: str) -> Canvas:
    canvas, axes = _pyplot().subplots(figsize=(5, 1.4))
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", style="italic", color="#444444", wrap=True)
    return canvas


def _bounds(rows: pd.DataFrame, name: str) -> np.ndarray:
    """Distances [2, n] from estimate to bounds, 0 where a bound is missing."""
    value = rows[name].to_numpy(float)
    below, above = value - rows[f"{name}_lower"].to_numpy(float), rows[f"{name}_upper"].to_numpy(float) - value
    return np.clip(np.nan_to_num(np.stack([below, above])), 0, None)


def _legend_below(canvas: Canvas, axes: Axes, count: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=min(count, 6), frameon=False)


_SLOTS = {"baseline": 0, "cot": 1, "babble": 2, "cot-open": 3, "babble-open": 4}


def _slot(regime: str, regimes: Sequence[str]) -> int:
    """Number of a regime's colour, marker and dash: the same in every figure for the built-in regimes."""
    if regime in _SLOTS:
        return _SLOTS[regime]
    others = [r for r in regimes if r not in _SLOTS]
    return (len(_SLOTS) + others.index(regime)) % len(COLOURS)


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


# -- figures ---------------------------------------------------------------------------------------------------------


def bars(column: str, label: str, scale: float = 1.0, low: float | None = None, high: float | None = None) -> Any:
    """Grouped bars of a column with its bounds, one group per benchmark, one bar per regime."""

    def draw(data: pd.DataFrame) -> Canvas:
        groups, regimes = _groups(data), _regimes(data)
        names = list(dict.fromkeys(groups))
        canvas, axes = _pyplot().subplots(
            figsize=(max(4.2, 1.1 * len(names) * len(regimes) * 0.55 + 1.5), 3.2), layout="constrained"
        )
        wide = 0.8 / len(regimes)
        for k, regime in enumerate(regimes):
            rows = data[data["regime"] == regime]
            at = np.array([names.index(g) for g, r in zip(groups, data["regime"], strict=True) if r == regime], float)
            at += (k - (len(regimes) - 1) / 2) * wide
            value = rows[column].to_numpy(float) * scale
            known = np.isfinite(value)
            axes.bar(
                at[known],
                value[known],
                wide * 0.92,
                color=COLOURS[_slot(regime, regimes)],
                hatch=HATCHES[_slot(regime, regimes)],
                edgecolor="white",
                label=regime,
                yerr=_bounds(rows, column)[:, known] * scale,
                error_kw={"elinewidth": 1, "capsize": 2, "ecolor": "#222222"},
            )
            for x in at[known & (value == 0)]:
                axes.text(x - 0.25 * wide, 0, "0", ha="center", va="bottom", fontsize=7)  # beside the interval
            for x in at[~known]:
                axes.text(
                    x, axes.get_ylim()[0], "n/a", ha="center", va="bottom", rotation=90, color="#555555", fontsize=7
                )
        axes.set_xticks(range(len(names)), names)
        axes.set_ylabel(label)
        axes.grid(axis="x", visible=False)
        if low is not None or high is not None:
            axes.set_ylim(low, high)
        _legend_below(canvas, axes, len(regimes))
        return canvas

    return draw


def entropy(data: pd.DataFrame) -> Canvas:
    """H of every state by regime, with mean and interval."""
    groups = _groups(data)
    names, regimes = list(dict.fromkeys(groups)), _regimes(data)
    canvas, panels = _panels(len(names), sharey=True)
    for axes, name in zip(panels, names, strict=True):
        rows = data[[g == name for g in groups]]
        for k, regime in enumerate(regimes):
            values = rows.loc[rows["regime"] == regime, "entropy_bits"].to_numpy(float)
            values = values[np.isfinite(values)]
            if not values.size:
                axes.text(k, 0, "n/a", ha="center", va="bottom", color="#555555", fontsize=7)
                continue
            spread = np.random.default_rng(k).uniform(-0.18, 0.18, values.size)
            colour, mark = COLOURS[_slot(regime, regimes)], MARKERS[_slot(regime, regimes)]
            axes.scatter(k + spread, values, s=9, color=colour, alpha=0.45, marker=mark, linewidths=0)
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
            return _nothing("no cell to show")
        regimes = _regimes(data)
        canvas, axes = _pyplot().subplots(figsize=(6.4, 0.3 * len(data) + 1.1), layout="constrained")
        value = data[column].to_numpy(float)
        names = [f"{g.replace(chr(10), ' · ')}  {r}" for g, r in zip(_groups(data), data["regime"], strict=True)]
        left = limits[0] if limits else min(0.0, np.nanmin(data[f"{column}_lower"].to_numpy(float), initial=0))
        error = _bounds(data, column)
        for i, (regime, found) in enumerate(zip(data["regime"], value, strict=True)):
            k = _slot(regime, regimes)
            if math.isfinite(found):
                axes.errorbar(
                    found,
                    i,
                    xerr=error[:, i : i + 1],
                    fmt=MARKERS[k % len(MARKERS)],
                    color=COLOURS[k % len(COLOURS)],
                    capsize=2.5,
                    markersize=5,
                    elinewidth=1.3,
                )
                if "splits_mean" in data and math.isfinite(data["splits_mean"].iloc[i]):
                    axes.plot(
                        data["splits_mean"].iloc[i], i, marker="|", color="black", markersize=11, linestyle="none"
                    )
            else:
                why = _shortened(str(data["reason"].iloc[i]), 70)
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
        return _nothing("needs a free-response and a multiple-choice benchmark")
    regimes = _regimes(data)
    canvas, axes = _pyplot().subplots(figsize=(5, 3), layout="constrained")
    models = list(dict.fromkeys(data["model"]))  # never pooled: the same items stand under each
    series = [(model, kind) for model in models for kind in kinds]
    for k, (model, kind) in enumerate(series):
        rows = data[(data["model"] == model) & (data["format"] == kind)].set_index("regime").reindex(regimes)
        at = np.arange(len(regimes)) + (k - (len(series) - 1) / 2) * 0.16
        axes.errorbar(
            at,
            rows["entropy_bits"].to_numpy(float),
            yerr=_bounds(rows, "entropy_bits"),
            fmt=MARKERS[k % len(MARKERS)],
            color=COLOURS[k % len(COLOURS)],
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


def heatmaps(data: pd.DataFrame) -> Canvas:
    """Two by two: change of accuracy and of H against the baseline, accuracy, probe AUROC."""
    groups, regimes = _groups(data), _regimes(data)
    names = list(dict.fromkeys(groups))
    table = data.assign(group=groups)
    panels = (
        ("accuracy_change", "Δ accuracy (points)", 100.0, "PuOr", None),
        ("entropy_change", "Δ H (bits)", 1.0, "PuOr", None),
        ("accuracy", "accuracy (%)", 100.0, "cividis", (0.0, 100.0)),
        ("auroc", "probe AUROC", 1.0, "PuOr", (0.0, 1.0)),
    )
    canvas, axes = _pyplot().subplots(
        2, 2, figsize=(2.2 + 1.7 * len(regimes), 1.6 + 0.95 * len(names)), layout="constrained", squeeze=False
    )
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
    pyplot = _pyplot()
    if limits is None:
        largest = float(np.nanmax(np.abs(grid))) if np.isfinite(grid).any() else 1.0
        limits = (-max(largest, 1e-9), max(largest, 1e-9))
    shade = pyplot.get_cmap(colours)
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
                box = pyplot.Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor="#f2f2f2", hatch="///", edgecolor="#bbbbbb")
                axes.add_patch(box)
                axes.text(j, i, "n/a", ha="center", va="center", color="#333333", fontsize=8)
    axes.set_xticks(range(len(columns)), columns, rotation=25, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.set_title(title)


def by_layer(column: str, label: str, reference: str | float | None = None, second: str | None = None) -> Any:
    """Lines over layers, one panel per benchmark, one line per regime.

    `reference` is a number, or the column that holds one (the ceiling n - 1); `second` is drawn as a thin line of the
    regime's colour, and the axis is then logarithmic.
    """

    def draw(data: pd.DataFrame) -> Canvas:
        if not len(data) or not np.isfinite(data[column].to_numpy(float)).any():
            return _nothing("no layer has a defined value")
        groups = _groups(data)
        names, regimes = list(dict.fromkeys(groups)), _regimes(data)
        canvas, panels = _panels(len(names))
        for axes, name in zip(panels, names, strict=True):
            part = data[[g == name for g in groups]]
            absent = []
            for regime in regimes:
                rows = part[part["regime"] == regime]
                if not np.isfinite(rows[column].to_numpy(float)).any():
                    absent.append(regime)
                    continue
                slot = _slot(regime, regimes)
                look: dict[str, Any] = {"color": COLOURS[slot], "linestyle": DASHES[slot]}
                axes.plot(rows["layer"], rows[column], label=regime, marker=MARKERS[slot], markersize=3, **look)
                if "lower" in rows and second is None:
                    axes.fill_between(
                        rows["layer"], rows["lower"], rows["upper"], color=look["color"], alpha=0.12, linewidth=0
                    )
                if second is not None:
                    axes.plot(rows["layer"], rows[second], linewidth=0.9, alpha=0.8, **look)
            if isinstance(reference, str):
                axes.axhline(float(part[reference].max()), color="#444444", linewidth=1, linestyle=":")
            elif reference is not None:
                axes.axhline(reference, color="#444444", linewidth=1, linestyle=":")
            if absent:
                text = "not defined: " + ", ".join(absent)
                axes.text(0.02, 0.02, text, transform=axes.transAxes, fontsize=7, style="italic", color="#555555")
            if second is not None:  # the unbiased value may be many times the other, and both are to be read
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(_ticker().LogLocator(subs=(1.0, 2.0, 5.0)))
                axes.yaxis.set_major_formatter(_ticker().FormatStrFormatter("%g"))
                axes.yaxis.set_minor_formatter(_ticker().NullFormatter())
            axes.set_xlim(data["layer"].min() - 1, data["layer"].max() + 1)
            axes.set_title(name)
            axes.set_xlabel("layer")
        for axes in panels[::4]:
            axes.set_ylabel(label)
        shown = max(panels, key=lambda one: len(one.get_legend_handles_labels()[1]))
        _legend_below(canvas, shown, len(regimes))
        return canvas

    return draw


def by_size(data: pd.DataFrame) -> Canvas:
    """Dimensionality of random subsets of N' items: mean and standard deviation, plug-in filled, unbiased open."""
    known = data[np.isfinite(data["mean"].to_numpy(float))] if len(data) else data
    if not len(known):
        n = int(data["n"].max()) if len(data) else 0
        shared = f"the smallest N' is 25 and the regimes share {n} items" if n else "no states were stored"
        return _nothing(shared)
    groups = _groups(known)
    names, regimes = list(dict.fromkeys(groups)), _regimes(known)
    canvas, panels = _panels(len(names))
    for axes, name in zip(panels, names, strict=True):
        part = known[[g == name for g in groups]]
        for k, regime in enumerate(regimes):
            rows = part[part["regime"] == regime]
            slot = _slot(regime, regimes)
            colour, mark = COLOURS[slot], MARKERS[slot]
            shift = (k - (len(regimes) - 1) / 2) * 1.6
            at = rows["size"].to_numpy(float) + shift
            sd = np.nan_to_num(rows["sd"].to_numpy(float))
            axes.errorbar(
                at, rows["mean"], yerr=sd, fmt=mark, color=colour, linestyle=DASHES[slot], capsize=2, label=regime
            )
            unbiased, sd = rows["mean_unbiased"].to_numpy(float), np.nan_to_num(rows["sd_unbiased"].to_numpy(float))
            axes.errorbar(
                at, unbiased, yerr=sd, fmt=mark, color=colour, mfc="white", linestyle="none", capsize=2, alpha=0.8
            )
        axes.set_title(name)
        axes.set_xlabel("items drawn, N'")
    for axes in panels[::4]:
        axes.set_ylabel("effective dimensionality")
    _legend_below(canvas, panels[0], len(regimes))
    return canvas


def transfer(data: pd.DataFrame) -> Canvas:
    """One train x test heat map per benchmark (or per regime, over benchmarks)."""
    if not len(data):
        return _nothing("one regime only: nothing to transfer to")
    several = data["model"].nunique() > 1
    keys = list(dict.fromkeys(zip(data["model"], data["within"], strict=True)))
    canvas, panels = _panels(len(keys), width=3.1, height=2.9, columns=3)
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


def reliability(data: pd.DataFrame) -> Canvas:
    """Predicted probability against the share of positives, with Wilson intervals; the number of test rows per bin."""
    if not len(data):
        return _nothing("no probe was scored")
    groups = _groups(data)
    names, regimes = list(dict.fromkeys(groups)), _regimes(data)
    canvas, panels = _panels(len(names), width=2.9, height=3.0)
    for axes, name in zip(panels, names, strict=True):
        part = data[[g == name for g in groups]]
        axes.plot([0, 1], [0, 1], color="#444444", linewidth=1, linestyle=":")
        for k, regime in enumerate(regimes):
            rows = part[part["regime"] == regime].rename(columns={"lower": "observed_lower", "upper": "observed_upper"})
            if len(rows):
                axes.errorbar(
                    rows["predicted"] + (k - (len(regimes) - 1) / 2) * 0.012,
                    rows["observed"],
                    yerr=_bounds(rows, "observed"),
                    fmt=MARKERS[_slot(regime, regimes)],
                    color=COLOURS[_slot(regime, regimes)],
                    capsize=2,
                    elinewidth=0.8,
                    markersize=4,
                    label=regime,
                )
        axes.set(title=name, xlabel="predicted probability", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    for axes in panels[::4]:
        axes.set_ylabel("share correct")
    shown = max(panels, key=lambda one: len(one.get_legend_handles_labels()[1]))
    _legend_below(canvas, shown, len(regimes))
    return canvas


def said(data: pd.DataFrame) -> Canvas:
    """Multiple choice: accuracy of the best option before the first token against that of the emitted answer."""
    if not len(data):
        return _nothing("no multiple-choice cell")
    canvas, axes = _pyplot().subplots(figsize=(6.4, 0.34 * len(data) + 1.4), layout="constrained")
    at = np.arange(len(data))
    for k, (column, label) in enumerate(
        (("choice_accuracy", "best option before the first token"), ("answer_accuracy", "emitted answer"))
    ):
        value = data[column].to_numpy(float) * 100
        axes.errorbar(
            value,
            at + (k - 0.5) * 0.22,
            xerr=_bounds(data, column) * 100,
            fmt=MARKERS[k],
            color=COLOURS[k],
            capsize=2,
            label=label,
            linestyle="none",
        )
    axes.set_yticks(
        at, [f"{g.replace(chr(10), ' · ')}  {r}" for g, r in zip(_groups(data), data["regime"], strict=True)]
    )
    axes.invert_yaxis()
    axes.set(xlabel="accuracy (%)", xlim=(0, 100))
    axes.set_ylim(len(data) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    _legend_below(canvas, axes, 2)
    return canvas
