"""Lines over layers and over numbers of items, one panel per benchmark, one line per regime.

Guarantees that a regime without a defined value is named as such, and that the ceiling of a plug-in estimate stands beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from . import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


def by_layer(column: str, label: str, reference: str | float | None = None, second: str | None = None) -> Any:
    """Lines over layers, one panel per benchmark, one line per regime.

    `reference` is a number, or the column that holds one (the ceiling n - 1); `second` is drawn as a thin line of the
    regime's colour, and the axis is then logarithmic.
    """

    def draw(data: pd.DataFrame) -> Canvas:
        if not len(data) or not np.isfinite(data[column].to_numpy(float)).any():
            return style.nothing("no layer has a defined value")
        groups = style.groups(data)
        names, regimes = list(dict.fromkeys(groups)), style.regime_names(data)
        canvas, panels = style.panels(len(names), sharey=True)
        for axes, name in zip(panels, names, strict=True):
            part = data[[g == name for g in groups]]
            absent = []
            for regime in regimes:
                rows = part[part["regime"] == regime]
                if not np.isfinite(rows[column].to_numpy(float)).any():
                    absent.append(regime)
                    continue
                slot = style.slot(regime, regimes)
                look: dict[str, Any] = {"color": style.COLOURS[slot], "linestyle": style.DASHES[slot]}
                axes.plot(rows["layer"], rows[column], label=regime, marker=style.MARKERS[slot], markersize=3, **look)
                if "lower" in rows and second is None:
                    lower, upper = rows["lower"].to_numpy(float), rows["upper"].to_numpy(float)
                    real = upper > lower  # where every resample gave one value there is no interval
                    axes.fill_between(
                        rows["layer"], lower, upper, where=real, color=look["color"], alpha=0.1, linewidth=0
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
                _logarithmic(axes)
            if column == "auroc":
                axes.set_ylim(-0.02, 1.02)
            axes.set_xlim(data["layer"].min() - 1, data["layer"].max() + 1)
            axes.set_title(name)
            axes.set_xlabel("layer")
        for axes in panels[::4]:
            axes.set_ylabel(label)
        shown = style.most_labelled(panels)
        style.legend_below(canvas, shown, len(regimes))
        return canvas

    return draw


def _logarithmic(axes: Axes) -> None:
    from matplotlib import ticker

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())


def by_size(data: pd.DataFrame) -> Canvas:
    """Dimensionality of random subsets of N' items: mean and standard deviation, plug-in filled, unbiased open."""
    defined = data[np.isfinite(data["mean"].to_numpy(float))] if len(data) else data
    if not len(defined):
        n = int(data["n"].max()) if len(data) else 0
        shared = f"the smallest N' is 25 and the regimes share {n} items" if n else "no states were stored"
        return style.nothing(shared)
    groups = style.groups(defined)
    names, regimes = list(dict.fromkeys(groups)), style.regime_names(defined)
    sizes = sorted(set(defined["size"]))
    canvas, panels = style.panels(len(names), sharey=True)
    for axes, name in zip(panels, names, strict=True):
        part = defined[[g == name for g in groups]]
        for k, regime in enumerate(regimes):
            rows = part[part["regime"] == regime]
            slot = style.slot(regime, regimes)
            colour, mark = style.COLOURS[slot], style.MARKERS[slot]
            places = [sizes.index(size) for size in rows["size"]]  # a place for each N', regimes side by side
            at = np.array(places, float) + (k - (len(regimes) - 1) / 2) * 0.7 / max(len(regimes), 2)
            sd = np.nan_to_num(rows["sd"].to_numpy(float))
            axes.errorbar(
                at, rows["mean"], yerr=sd, fmt=mark, color=colour, linestyle=style.DASHES[slot], capsize=2, label=regime
            )
            unbiased, sd = rows["mean_unbiased"].to_numpy(float), np.nan_to_num(rows["sd_unbiased"].to_numpy(float))
            axes.errorbar(
                at, unbiased, yerr=sd, fmt=mark, color=colour, mfc="white", linestyle="none", capsize=2, alpha=0.8
            )
        axes.set_title(name)
        axes.set_xticks(range(len(sizes)), [f"{size:g}" for size in sizes])
        axes.set_xlim(-0.6, len(sizes) - 0.4)
        axes.grid(axis="x", visible=False)
        axes.set_xlabel("items drawn, N' (a place for each)")
    for axes in panels[::4]:
        axes.set_ylabel("effective dimensionality")
    style.legend_below(canvas, panels[0], len(regimes))
    return canvas
