"""Figures of entropy trajectories.

Guarantees that what is missing is drawn as missing: a censored completion curve ends in a hollow mark, and a step of a mean
trajectory says how many chains it rests on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ...analysis.trajectories import curves
from ...analysis.trajectories.statistics import SCORES
from . import style
from .drawing import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

SCORE_COLOURS = (style.BLUE, style.RED, style.GREEN, style.PINK, style.ORANGE)
SCORE_NAMES = {
    "monotone": "monotone flag", "violations": "few violations", "final": "low final entropy",
    "coherence": "entropy drop", "confidence": "final confidence",
}  # fmt: skip
SIZE = (6.0, 3.8)
LEAST_COVERAGE = 0.05
"""Gains are drawn from this coverage on: below it a single chain decides."""


def mean_trajectory(curve: pd.DataFrame, start: str = "no reasoning") -> Canvas:
    """Mean entropy along the chain, right against wrong answers; bands are the standard error over chains.

    `curve` is what `analysis.trajectories.curves.mean_trajectory` gives; `start` says what the first point of a chain is.
    """
    canvas, axes = style.subplots(figsize=SIZE)
    for right, colour, name in ((True, style.RIGHT, "right"), (False, style.WRONG, "wrong")):
        rows = curve[curve["right"] == right]
        if not len(rows):
            continue
        position, mean = rows["position"].to_numpy(float), rows["mean"].to_numpy(float)
        n, error = int(rows["n"].iloc[0]), rows["standard_error"].to_numpy(float)
        dash = "-" if right else "--"
        axes.plot(position, mean, color=colour, linestyle=dash, marker="o", markersize=4, label=f"{name} (n = {n})")
        if n > 1:
            axes.fill_between(position, mean - error, mean + error, color=colour, alpha=0.18, linewidth=0)
    axes.set(
        xlabel=f"position in the chain (0: {start}, 1: whole chain)", ylabel="answer entropy (nats)", ylim=(0, None)
    )
    if axes.lines:
        axes.legend(frameon=False)
    return canvas


def violation_buckets(buckets: pd.DataFrame, accuracy: float) -> Canvas:
    """Accuracy by number of violations, with Wilson intervals and counts; the dashed line is the overall accuracy."""
    canvas, axes = style.subplots(figsize=(4.8, 3.8))
    filled = buckets[buckets["n"] > 0]
    x = [list(buckets["bucket"]).index(b) for b in filled["bucket"]]
    error = [filled["accuracy"] - filled["lower"], filled["upper"] - filled["accuracy"]]
    axes.bar(x, filled["accuracy"], color=style.RIGHT, width=0.6)
    axes.errorbar(x, filled["accuracy"], yerr=error, fmt="none", color="black", capsize=3, linewidth=1)
    axes.axhline(accuracy, color=style.NEUTRAL, linestyle="--", linewidth=1)
    labels = [f"{b.replace('>=', '≥ ')}\nn = {n}" for b, n in zip(buckets["bucket"], buckets["n"], strict=True)]
    axes.set_xticks(range(len(buckets)), labels)
    axes.grid(axis="x", visible=False)
    axes.set(xlabel="upward steps (violations)", ylabel="accuracy", ylim=(0, 1))
    return canvas


def risk_coverage(curve: pd.DataFrame, accuracy: float) -> Canvas:
    """Error rate among the accepted against the share accepted, for every score, with the oracle."""
    canvas, axes = style.subplots(figsize=SIZE)
    for name, colour in zip(SCORES, SCORE_COLOURS, strict=True):
        rows = curve[curve["score"] == name]
        axes.plot(rows["coverage"], rows["risk"], color=colour, linestyle=_dash(name), label=SCORE_NAMES[name])
    oracle = curve[curve["score"] == "oracle"]
    axes.plot(oracle["coverage"], oracle["risk"], color=style.NEUTRAL, linestyle=":", label="oracle")
    axes.axhline(1 - accuracy, color=style.NEUTRAL, linestyle="--", linewidth=1, label="accept at random")
    axes.set(
        xlabel="coverage (share accepted)", ylabel="risk (share wrong among accepted)", xlim=(0, 1.01), ylim=(0, None)
    )
    axes.legend(frameon=False)
    return canvas


def coverage(curve: pd.DataFrame) -> Canvas:
    """Accuracy gained over accepting everything, in points, against coverage, for every score."""
    canvas, axes = style.subplots(figsize=SIZE)
    chains = int((curve["score"] == "oracle").sum())
    shown = curve[curve["accepted"] >= max(1, np.ceil(LEAST_COVERAGE * chains))]
    for name, colour in zip(SCORES, SCORE_COLOURS, strict=True):
        rows = shown[shown["score"] == name]
        axes.plot(rows["coverage"], rows["gain"], color=colour, linestyle=_dash(name), label=SCORE_NAMES[name])
    axes.axhline(0, color=style.NEUTRAL, linestyle="--", linewidth=1)
    axes.set(xlabel="coverage (share accepted)", ylabel="gain in accuracy (points)", xlim=(0, 1.01))
    axes.legend(frameon=False)
    return canvas


def _dash(score: str) -> str:
    return "--" if score == "confidence" else "-"


def completion(curve: pd.DataFrame, ceiling: int | None) -> Canvas:
    """Share of chains that ended by themselves, by token count; a hollow mark where the token budget cut the rest off."""
    canvas, axes = style.subplots(figsize=SIZE)
    tokens, completed = [0, *curve["tokens"]], [0.0, *curve["completed"]]
    axes.step(tokens, completed, where="post", color=style.RIGHT)
    last = curve.iloc[-1] if len(curve) else None
    if ceiling is not None and last is not None and last["completed"] < 1:
        place = (max(ceiling, last["tokens"]), last["completed"])
        axes.plot(
            *([value] for value in place),
            marker="o",
            markersize=8,
            markerfacecolor="white",
            color=style.RIGHT,
            linestyle="none",
        )
        axes.annotate("token budget", place, xytext=(-8, 10), textcoords="offset points", ha="right")
    axes.set(xlabel="tokens", ylabel="chains that have ended", ylim=(0, 1.02), xlim=(0, None))
    return canvas


def completion_plan(curve: pd.DataFrame, ceiling: int | None, prefix: str = "") -> Plan:
    """The plan of `completion`."""
    return Plan(
        f"{prefix}completion",
        "Chains that have ended",
        "Chains that have ended by token count; hollow: the budget.",
        curve,
        lambda data: completion(data, ceiling),
    )


def plans(
    table: pd.DataFrame,
    outcome: str,
    buckets: pd.DataFrame,
    accuracy: float,
    seed: int = 0,
    start: str = "no reasoning",
    prefix: str = "",
) -> tuple[Plan, ...]:
    """The figures of one table of chains under one outcome.

    Parameters
    ----------
    table : DataFrame
        One row a chain.
    outcome : str
        Column of the outcome.
    buckets : DataFrame
        Accuracy by number of violations.
    accuracy : float
        Of all chains.
    seed : int
        Breaks ties of the scores.
    start : str
        What the first point of a chain is, in words.
    prefix : str
        Goes before the names.
    """
    selective = curves.risk_coverage_curves(table, outcome, seed)
    return (
        Plan(
            f"{prefix}mean_trajectory",
            "Entropy along the chain",
            "Mean entropy along the chain for right and wrong answers; bands are standard errors over chains.",
            curves.mean_trajectory(table, outcome),
            lambda data: mean_trajectory(data, start),
        ),
        Plan(
            f"{prefix}violation_buckets",
            "Accuracy by upward steps",
            "Accuracy by number of upward steps, with Wilson intervals; dashed: all chains.",
            buckets,
            lambda data: violation_buckets(data, accuracy),
        ),
        Plan(
            f"{prefix}risk_coverage",
            "Risk against coverage",
            "Share wrong among the accepted, for each score; ties broken at random, averaged over shared draws.",
            selective,
            lambda data: risk_coverage(data, accuracy),
        ),
        Plan(
            f"{prefix}coverage",
            "Gain against coverage",
            "Points of accuracy gained over accepting every chain.",
            selective,
            coverage,
        ),
    )


def all_figures(
    table: pd.DataFrame,
    outcome: str,
    buckets: pd.DataFrame,
    accuracy: float,
    seed: int = 0,
    start: str = "no reasoning",
) -> Mapping[str, Canvas]:
    """The figures of `plans`, drawn, by name."""
    with style.applied():
        return {plan.name: plan.draw(plan.data) for plan in plans(table, outcome, buckets, accuracy, seed, start)}
