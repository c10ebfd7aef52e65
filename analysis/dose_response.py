"""The dose response of a steering: what each direction changed at each scale, and by how much per unit of scale.

Guarantees that every change is measured pair by pair against the same prompts unsteered and carries its interval and its number
of items, and that a quantity which does not apply (an option margin of free answers) is missing with the reason, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from . import statistics

METRICS: Mapping[str, tuple[str, str]] = {
    "entropy_bits": ("H (bits)", "entropy of the first-token distribution"),
    "option_margin": ("option margin (nats)", "log-probability of the best option minus that of the second"),
    "gold_margin": ("gold margin (nats)", "log-probability of the right option minus that of the best other"),
    "accuracy": ("accuracy", "share of right answers"),
    "compliance": ("compliance", "share of answers in the asked form"),
    "output_tokens": ("output tokens", "length of the answer"),
    "probe_logit": ("probe logit", "score of a logistic probe fitted on unsteered training states"),
}
"""What is measured: column of the outcomes to (short name, meaning)."""

POOLED = "all"
"""Benchmark and regime of the rows that pool several cells."""
CONTROL = "random"
"""Direction of the rows that hold the mean of the random directions; each of them is "random 0", "random 1", ..."""
UNSTEERED = "unsteered"
VECTOR = "vector"


def dose_response(outcomes: pd.DataFrame, *, resamples: int, level: float, seed: int) -> pd.DataFrame:
    """What each direction changed at each scale, against the same prompts unsteered.

    Intervals are percentile bootstraps over items of the paired change; where a cell pools several states of one item,
    they are averaged first.

    Parameters
    ----------
    outcomes : DataFrame
        One row per state, direction and scale: `benchmark`, `regime`, `item`, `direction` ("unsteered" at scale 0, "vector",
        "random 0", ...), `scale`, and any of the columns that `METRICS` names.
    resamples, level, seed
        Of the bootstrap.

    Returns
    -------
    DataFrame
        `benchmark`, `regime`, `direction`, `scale`, `metric`, `mean`, `unsteered`, `change` with `lower` and `upper`, `n` items,
        `reason`, and for the vector `beyond_random` with `beyond_lower` and `beyond_upper`: its change minus that of the
        random directions, paired.
    """
    rows: list[dict[str, Any]] = []
    for (benchmark, regime), cell in _cells(outcomes):
        for metric in _measured(outcomes):
            values = _by_item(cell, metric)
            base = values[(UNSTEERED, 0.0)]
            for direction, scale in [key for key in values if key[0] != UNSTEERED]:
                steered = values[direction, scale]
                change = statistics.paired_difference(steered.to_numpy(), base.to_numpy(), resamples, level, seed)
                row: dict[str, Any] = {
                    "benchmark": benchmark,
                    "regime": regime,
                    "direction": direction,
                    "scale": scale,
                    "metric": metric,
                    "mean": float(steered.mean()),
                    "unsteered": float(base.mean()),
                    **_bounds(change, "change", "lower", "upper"),
                    "n": change.n,
                    "reason": change.reason,
                }
                control = values.get((CONTROL, scale))
                if direction == VECTOR and control is not None:
                    beyond = statistics.paired_difference(
                        steered.to_numpy(), control.to_numpy(), resamples, level, seed
                    )
                    row |= _bounds(beyond, "beyond_random", "beyond_lower", "beyond_upper")
                rows.append(row)
    return pd.DataFrame(rows)


def slopes(outcomes: pd.DataFrame, *, resamples: int, level: float, seed: int) -> pd.DataFrame:
    """Change of each metric per unit of scale: per item by least squares over all scales (0 among them), then averaged.

    Parameters
    ----------
    outcomes, resamples, level, seed
        As in `dose_response`.

    Returns
    -------
    DataFrame
        `benchmark`, `regime`, `direction`, `metric`, `slope` with `lower` and `upper`, `n` items, `reason`.
    """
    rows: list[dict[str, Any]] = []
    for (benchmark, regime), cell in _cells(outcomes):
        for metric in _measured(outcomes):
            values = _by_item(cell, metric)
            for direction in dict.fromkeys(name for name, _ in values if name != UNSTEERED):
                doses = {0.0: values[UNSTEERED, 0.0]} | {s: v for (name, s), v in values.items() if name == direction}
                x = np.array(list(doses))
                y = np.stack([v.to_numpy() for v in doses.values()])  # [scales, items]
                centred = x - x.mean()
                slope = statistics.bootstrap_mean(centred @ y / (centred @ centred), resamples, level, seed)
                rows.append(
                    {
                        "benchmark": benchmark,
                        "regime": regime,
                        "direction": direction,
                        "metric": metric,
                        **_bounds(slope, "slope", "lower", "upper"),
                        "n": slope.n,
                        "reason": slope.reason,
                    }
                )
    return pd.DataFrame(rows)


def _cells(outcomes: pd.DataFrame) -> Iterator[tuple[tuple[str, str], pd.DataFrame]]:
    """Each (benchmark, regime), and all together where there are several."""
    cells = list(outcomes.groupby(["benchmark", "regime"], sort=False))
    for (benchmark, regime), cell in cells:
        yield (str(benchmark), str(regime)), cell
    if len(cells) > 1:
        yield (POOLED, POOLED), outcomes


def _measured(outcomes: pd.DataFrame) -> list[str]:
    return [metric for metric in METRICS if metric in outcomes.columns]


def _by_item(cell: pd.DataFrame, metric: str) -> dict[tuple[str, float], pd.Series]:
    """Values by item for each (direction, scale), all over the same items; and the mean of the random directions."""
    items = list(dict.fromkeys(cell["item"]))
    means: dict[tuple[str, float], pd.Series] = {}
    key: Any  # (direction, scale)
    for key, part in cell.groupby(["direction", "scale"], sort=False):
        values: dict[Any, list[float]] = {item: [] for item in items}
        for item, value in zip(part["item"], part[metric], strict=True):
            values[item].append(float(value) if value is not None else math.nan)
        means[str(key[0]), float(key[1])] = pd.Series(
            [float(np.nanmean(v)) if v and not np.isnan(v).all() else math.nan for v in values.values()]
        )
    for scale in dict.fromkeys(s for name, s in means if name.startswith(f"{CONTROL} ")):
        controls = [v for (name, s), v in means.items() if name.startswith(f"{CONTROL} ") and s == scale]
        means[CONTROL, scale] = pd.concat(controls, axis=1).mean(axis=1, skipna=False)
    return means


def _bounds(value: statistics.Interval, estimate: str, lower: str, upper: str) -> dict[str, float]:
    return {estimate: value.estimate, lower: value.lower, upper: value.upper}
