"""Figures of entropy trajectories.

Guarantees that what is missing is drawn as missing: a censored completion curve ends in a hollow mark, a step of a mean
trajectory says how many chains it rests on, and a chain's points without an answer are left open. matplotlib is imported only
here, when a figure is drawn.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..analysis import selective
from ..analysis.trajectories.statistics import SCORES, signed_scores, usable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RIGHT, WRONG, NEUTRAL = "#0072B2", "#D55E00", "#555555"
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
NAMES = {
    "monotone": "monotone flag", "violations": "few violations", "final": "low final entropy",
    "coherence": "entropy drop", "confidence": "final confidence",
}  # fmt: skip


def _axes(width: float = 6.0, height: float = 3.8) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def mean_trajectory(table: pd.DataFrame, outcome: str, points: int = 11, start: str = "no reasoning") -> Figure:
    """Mean entropy along the chain, right against wrong answers, over the relative position in the chain.

    Each chain is read at `points` evenly spaced positions by linear interpolation between its own points; bands are the
    standard error over chains. `start` says what the first point of a chain is.
    """
    figure, axes = _axes()
    grid = np.linspace(0, 1, points)
    known = table[table[outcome].notna() & ~table["excluded"].astype(bool)]
    for right, colour, name in ((True, RIGHT, "right"), (False, WRONG, "wrong")):
        rows = []
        for h in known[known[outcome].astype(bool) == right]["entropies"]:
            values = np.array([v for v in h if not math.isnan(v)])
            rows.append(np.interp(grid, np.linspace(0, 1, len(values)), values))
        if not rows:
            continue
        stacked = np.stack(rows)
        mean = stacked.mean(axis=0)
        axes.plot(grid, mean, color=colour, marker="o", markersize=4, label=f"{name} (n = {len(rows)})")
        if len(rows) > 1:
            error = stacked.std(axis=0, ddof=1) / math.sqrt(len(rows))
            axes.fill_between(grid, mean - error, mean + error, color=colour, alpha=0.18, linewidth=0)
    axes.set(
        xlabel=f"position in the chain (0: {start}, 1: whole chain)", ylabel="answer entropy (nats)", ylim=(0, None)
    )
    if axes.lines:
        axes.legend(frameon=False)
    return figure


def violation_buckets(buckets: pd.DataFrame, accuracy: float) -> Figure:
    """Accuracy by number of violations, with Wilson intervals and counts; the dashed line is the overall accuracy."""
    figure, axes = _axes(4.8, 3.8)
    known = buckets[buckets["n"] > 0]
    x = [list(buckets["bucket"]).index(b) for b in known["bucket"]]
    error = [known["accuracy"] - known["lower"], known["upper"] - known["accuracy"]]
    axes.bar(x, known["accuracy"], color=RIGHT, width=0.6)
    axes.errorbar(x, known["accuracy"], yerr=error, fmt="none", color="black", capsize=3, linewidth=1)
    axes.axhline(accuracy, color=NEUTRAL, linestyle="--", linewidth=1)
    labels = [f"{b.replace('>=', '≥ ')}\nn = {n}" for b, n in zip(buckets["bucket"], buckets["n"], strict=True)]
    axes.set_xticks(range(len(buckets)), labels)
    axes.set(xlabel="upward steps (violations)", ylabel="accuracy", ylim=(0, 1))
    return figure


def risk_coverage_curves(table: pd.DataFrame, outcome: str, seed: int = 0) -> Figure:
    """Error rate among the accepted against the share accepted, for every score, with the oracle."""
    figure, axes = _axes()
    y, scores = _scored(table, outcome)
    for name, colour in zip(SCORES, PALETTE, strict=True):
        known = np.isfinite(scores[name])
        curve = selective.risk_coverage(y[known], scores[name][known], seed=seed)
        style = "--" if name == "confidence" else "-"
        axes.plot(curve.coverage, curve.risk, color=colour, linestyle=style, label=NAMES[name], linewidth=1.6)
    best = np.cumsum(1 - np.sort(y.astype(float))[::-1]) / np.arange(1, len(y) + 1)
    axes.plot(np.arange(1, len(y) + 1) / len(y), best, color=NEUTRAL, linestyle=":", label="oracle")
    axes.axhline(1 - y.mean(), color=NEUTRAL, linestyle="--", linewidth=1, label="accept at random")
    axes.set(
        xlabel="coverage (share accepted)", ylabel="risk (share wrong among accepted)", xlim=(0, 1.01), ylim=(0, None)
    )
    axes.legend(frameon=False, fontsize="small")
    return figure


def coverage_curves(table: pd.DataFrame, outcome: str, seed: int = 0) -> Figure:
    """Accuracy gained over accepting everything, in points, against coverage, for every score."""
    figure, axes = _axes()
    y, scores = _scored(table, outcome)
    smallest = max(1, math.ceil(0.05 * len(y)))
    for name, colour in zip(SCORES, PALETTE, strict=True):
        known = np.isfinite(scores[name])
        curve = selective.risk_coverage(y[known], scores[name][known], seed=seed)
        gain = 100 * ((1 - curve.risk) - y[known].mean())
        axes.plot(
            curve.coverage[smallest - 1 :],
            gain[smallest - 1 :],
            color=colour,
            linestyle="--" if name == "confidence" else "-",
            label=NAMES[name],
            linewidth=1.6,
        )
    axes.axhline(0, color=NEUTRAL, linestyle="--", linewidth=1)
    axes.set(xlabel="coverage (share accepted)", ylabel="gain in accuracy (points)", xlim=(0, 1.01))
    axes.legend(frameon=False, fontsize="small")
    return figure


def _scored(table: pd.DataFrame, outcome: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    kept = usable(table, outcome)
    return kept[outcome].to_numpy(), signed_scores(kept)


def completion(curve: pd.DataFrame, ceiling: int | None) -> Figure:
    """Share of chains that ended by themselves, by token count; a hollow mark where the token budget cut the rest off."""
    figure, axes = _axes()
    tokens, completed = [0, *curve["tokens"]], [0.0, *curve["completed"]]
    axes.step(tokens, completed, where="post", color=RIGHT)
    last = curve.iloc[-1] if len(curve) else None
    if ceiling is not None and last is not None and last["completed"] < 1:
        axes.plot(
            [max(ceiling, last["tokens"])],
            [last["completed"]],
            marker="o",
            markersize=8,
            markerfacecolor="white",
            color=RIGHT,
            linestyle="none",
        )
        axes.annotate(
            "token budget",
            (max(ceiling, last["tokens"]), last["completed"]),
            xytext=(-8, 10),
            textcoords="offset points",
            ha="right",
        )
    axes.set(xlabel="tokens", ylabel="chains that have ended", ylim=(0, 1.02), xlim=(0, None))
    return figure


def chain_svg(
    entropies: Sequence[float],
    texts: Sequence[str],
    notes: Sequence[str],
    width: int = 560,
    height: int = 170,
    epsilon: float = 0.01,
) -> str:
    """One chain's trajectory as inline SVG: hovering a point shows the text added there and what was measured.

    Parameters
    ----------
    entropies : sequence of float
        Nats per prefix; NaN is drawn as an open mark on the axis.
    texts, notes : sequence of str
        Per prefix: the unit that ends there (empty for the empty prefix), and a line on the answers.
    epsilon : float
        A point that lies above the one before it by more than this (nats) is drawn in the second colour.
    """
    left, right, top, bottom = 44, 12, 10, 26
    known = [h for h in entropies if not math.isnan(h)]
    ceiling = max([*known, 0.1]) * 1.05
    span = max(len(entropies) - 1, 1)

    def x(k: int) -> float:
        return left + (width - left - right) * k / span

    def y(h: float) -> float:
        return top + (height - top - bottom) * (1 - h / ceiling)

    parts = [
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" class="chain">',
        f'<line x1="{left}" y1="{y(0):.1f}" x2="{width - right}" y2="{y(0):.1f}" stroke="#999"/>',
        f'<line x1="{left}" y1="{top}" x2="{left}" y2="{y(0):.1f}" stroke="#999"/>',
        f'<text x="{left - 6}" y="{y(0) + 4:.1f}" text-anchor="end">0</text>',
        f'<text x="{left - 6}" y="{top + 8}" text-anchor="end">{ceiling:.2f}</text>',
        f'<text x="{width - right}" y="{height - 6}" text-anchor="end">prefix</text>',
        f'<text x="{left}" y="{height - 6}">nats</text>',
    ]
    line = " ".join(f"{x(k):.1f},{y(h):.1f}" for k, h in enumerate(entropies) if not math.isnan(h))
    parts.append(f'<polyline points="{line}" fill="none" stroke="{RIGHT}" stroke-width="1.5"/>')
    before = math.nan
    for k, h in enumerate(entropies):
        missing = math.isnan(h)
        rises = not missing and not math.isnan(before) and h > before + epsilon
        colour = WRONG if rises else RIGHT
        value = "no answer could be read" if missing else f"{h:.3f} nats"
        title = html.escape(_printable(f"prefix {k}: {value}\n{notes[k]}\n\n{texts[k]}".strip()))
        fill = "white" if missing else colour
        parts.append(
            f'<circle cx="{x(k):.1f}" cy="{y(0 if missing else h):.1f}" r="4.5" fill="{fill}" stroke="{colour}" '
            f'stroke-width="1.5"><title>{title}</title></circle>'
        )
        before = before if missing else h
    return "".join([*parts, "</svg>"])


def _printable(text: str) -> str:
    """Text with every control character but line breaks replaced: a model may write any byte."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)


def all_figures(
    table: pd.DataFrame,
    outcome: str,
    buckets: pd.DataFrame,
    accuracy: float,
    seed: int = 0,
    start: str = "no reasoning",
) -> Mapping[str, Figure]:
    """The figures of one table under one outcome, by file name."""
    return {
        "mean_trajectory": mean_trajectory(table, outcome, start=start),
        "violation_buckets": violation_buckets(buckets, accuracy),
        "risk_coverage": risk_coverage_curves(table, outcome, seed),
        "coverage": coverage_curves(table, outcome, seed),
    }
