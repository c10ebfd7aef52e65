"""The dose response of a steering: tables, slopes, text and a figure.

Guarantees: every change is measured pair by pair against the same prompts unsteered and carries its interval and its number
of items; a quantity that does not apply (an option margin of free answers) is missing with the reason, never 0.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..analysis import statistics
from ..errors import RequestError

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
CONTROL = "random"
FEW_ITEMS = 20
FEW_STATES = 10


@dataclass(frozen=True)
class SteerReport:
    """What `run_steer` found.

    Attributes
    ----------
    table : DataFrame
        One row per cell (`benchmark`, `regime`; "all" pools several), `direction` ("vector", "random" for the mean of
        the random directions, "random 0", ...), `scale` and `metric`: `mean`, `unsteered`, `change` with `lower` and
        `upper`, `n` items, and for the vector `beyond_random` (its change minus that of the random directions, paired) with
        `beyond_lower` and `beyond_upper`; `reason` says why something is missing.
    slopes : DataFrame
        Least-squares slope of each metric against the scale, per item and then averaged, with its interval.
    outcomes : DataFrame
        One row per state, direction and scale: the measured values, and the text.
    vector : SteeringVector
        What was put back into the model.
    summary : dict
        Settings, counts, and where everything comes from.
    """

    table: pd.DataFrame
    slopes: pd.DataFrame
    outcomes: pd.DataFrame
    vector: Any
    summary: Mapping[str, Any]

    def markdown(self) -> str:
        """The report as text."""
        return "\n".join(_markdown(self)) + "\n"

    def to_json(self) -> str:
        """Summary, table and slopes as JSON; missing numbers are null."""
        content = {
            "summary": _plain(dict(self.summary)),
            "table": _plain(self.table.to_dict("records")),
            "slopes": _plain(self.slopes.to_dict("records")),
        }
        return json.dumps(content, indent=1, ensure_ascii=False)

    def figure(self, path: str | os.PathLike[str]) -> None:
        """Draw the pooled dose response into a file; needs matplotlib (`pip install 'precollapse[plots]'`)."""
        _draw(self, path)


def dose_response(outcomes: pd.DataFrame, *, resamples: int, level: float, seed: int) -> pd.DataFrame:
    """The table of `SteerReport` from its outcomes.

    Intervals are percentile bootstraps over items of the paired change; where a cell pools several states of one item,
    they are averaged first.
    """
    rows: list[dict[str, Any]] = []
    for (benchmark, regime), cell in _cells(outcomes):
        for metric in _present(outcomes):
            values = _by_item(cell, metric)
            base = values[("unsteered", 0.0)]
            for direction, scale in [k for k in values if k[0] != "unsteered"]:
                own = values[direction, scale]
                change = statistics.paired_difference(own.to_numpy(), base.to_numpy(), resamples, level, seed)
                row: dict[str, Any] = {
                    "benchmark": benchmark,
                    "regime": regime,
                    "direction": direction,
                    "scale": scale,
                    "metric": metric,
                    "mean": float(own.mean()),
                    "unsteered": float(base.mean()),
                    **_interval(change, "change", "lower", "upper"),
                    "n": change.n,
                    "reason": change.reason,
                }
                control = values.get((CONTROL, scale))
                if direction == "vector" and control is not None:
                    beyond = statistics.paired_difference(own.to_numpy(), control.to_numpy(), resamples, level, seed)
                    row |= _interval(beyond, "beyond_random", "beyond_lower", "beyond_upper")
                rows.append(row)
    return pd.DataFrame(rows)


def slopes(outcomes: pd.DataFrame, *, resamples: int, level: float, seed: int) -> pd.DataFrame:
    """Change of each metric per unit of scale: per item by least squares over all scales (0 among them), then averaged."""
    rows: list[dict[str, Any]] = []
    for (benchmark, regime), cell in _cells(outcomes):
        for metric in _present(outcomes):
            values = _by_item(cell, metric)
            for direction in dict.fromkeys(name for name, _ in values if name != "unsteered"):
                doses = {0.0: values["unsteered", 0.0]} | {s: v for (name, s), v in values.items() if name == direction}
                x = np.array(list(doses))
                y = np.stack([v.to_numpy() for v in doses.values()])  # [scales, items]
                centred = x - x.mean()
                found = statistics.bootstrap_mean(centred @ y / (centred @ centred), resamples, level, seed)
                rows.append(
                    {
                        "benchmark": benchmark,
                        "regime": regime,
                        "direction": direction,
                        "metric": metric,
                        **_interval(found, "slope", "lower", "upper"),
                        "n": found.n,
                        "reason": found.reason,
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


def _present(outcomes: pd.DataFrame) -> list[str]:
    return [metric for metric in METRICS if metric in outcomes.columns]


def _by_item(cell: pd.DataFrame, metric: str) -> dict[tuple[str, float], pd.Series]:
    """Values by item for each (direction, scale), all over the same items; and the mean of the random directions."""
    items = list(dict.fromkeys(cell["item"]))
    found: dict[tuple[str, float], pd.Series] = {}
    for (direction, scale), part in cell.groupby(["direction", "scale"], sort=False):
        values: dict[Any, list[float]] = {item: [] for item in items}
        for item, value in zip(part["item"], part[metric], strict=True):
            values[item].append(float(value) if value is not None else math.nan)
        means = [float(np.nanmean(v)) if v and not np.isnan(v).all() else math.nan for v in values.values()]
        found[str(direction), float(scale)] = pd.Series(means)
    for scale in dict.fromkeys(s for name, s in found if name.startswith(f"{CONTROL} ")):
        own = [v for (name, s), v in found.items() if name.startswith(f"{CONTROL} ") and s == scale]
        found[CONTROL, scale] = pd.concat(own, axis=1).mean(axis=1, skipna=False)
    return found


def _interval(found: statistics.Interval, estimate: str, lower: str, upper: str) -> dict[str, float]:
    return {estimate: found.estimate, lower: found.lower, upper: found.upper}


def _markdown(report: SteerReport) -> Iterator[str]:
    s, level = report.summary, f"{report.summary['level']:.0%}"
    where = f"{s['site']}" + ("" if s["layer"] is None else f" of layer {s['layer']}")
    yield f"# Steering {where} of {s['model']}"
    yield ""
    yield (
        f"Direction: {s['method']} of {s['target']}, from {report.vector.provenance.get('n_train', '?')} training states "
        f"({report.vector.provenance.get('n_positive', '?')} positive). Length {s['vector_norm']:.4g}: a scale of 1 moves a "
        f"state by that much" + _share(s) + f". Mode {s['mode']}, positions {s['positions']}."
    )
    trained, positive = (report.vector.provenance.get(k) for k in ("n_train", "n_positive"))
    if isinstance(trained, int) and isinstance(positive, int) and min(positive, trained - positive) < FEW_STATES:
        yield ""
        yield (
            f"**The direction rests on {min(positive, trained - positive)} training states of the rarer class: most of "
            "it may be chance.**"
        )
    yield ""
    yield (
        f"Measured on {s['held_out_states']} states of {s['held_out_items']} items that neither the direction nor the probe "
        f"has seen. Changes are against the same prompts unsteered, with {level} paired percentile bootstrap intervals over "
        f"items ({s['resamples']} resamples). `random`: mean of {s['controls']} random directions of the same length."
    )
    yield ""
    yield (
        f"The probe reads resid_post of layer {s['probe_layer']} ({_probe_words(s)}). "
        f"Unsteered entropies are within {s['baseline_entropy_drift_bits']:.2g} bits of the run's."
    )
    reasons = [str(r) for r in dict.fromkeys(report.table["reason"]) if isinstance(r, str) and r]
    if reasons:
        yield ""
        yield f"— : not defined ({'; '.join(reasons)})."
    if s["held_out_items"] < FEW_ITEMS:
        yield ""
        items = "1 held-out item is" if s["held_out_items"] == 1 else f"{s['held_out_items']} held-out items are"
        yield f"**{items} few: a percentile interval over so few is too narrow.**"
    for (benchmark, regime), cell in report.table.groupby(["benchmark", "regime"], sort=False):
        yield ""
        yield "## " + ("All cells" if benchmark == POOLED else f"{benchmark}, {regime}")
        yield ""
        yield from _cell_lines(cell, report.slopes, str(benchmark), str(regime))


def _probe_words(s: Mapping[str, Any]) -> str:
    if math.isfinite(s["probe_validation_auroc"]):
        note = f"; {s['probe_note']}" if s["probe_note"] else ""
        return f"validation AUROC {s['probe_validation_auroc']:.3f}{note}"
    return f"train AUROC {s['probe_train_auroc']:.3f}; {s['probe_note']}"


def _share(s: Mapping[str, Any]) -> str:
    typical = s.get("median_state_norm")
    return f", {s['vector_norm'] / typical:.1%} of the median state's norm" if typical else ""


def _cell_lines(cell: pd.DataFrame, slope_table: pd.DataFrame, benchmark: str, regime: str) -> Iterator[str]:
    metrics = [m for m in METRICS if m in set(cell["metric"]) and cell.loc[cell["metric"] == m, "n"].max() > 0]
    unsteered = {m: cell.loc[cell["metric"] == m, "unsteered"].iloc[0] for m in metrics}
    yield "| direction | scale | " + " | ".join(f"Δ {METRICS[m][0]}" for m in metrics) + " |"
    yield "|---|---:|" + "---:|" * len(metrics)
    yield "| unsteered (value) | 0 | " + " | ".join(f"{unsteered[m]:.3f}" for m in metrics) + " |"
    keyed = {(r["direction"], r["scale"], r["metric"]): r for r in cell.to_dict("records")}
    for direction in ("vector", CONTROL):
        for scale in sorted({s for d, s, _ in keyed if d == direction}):
            own = [keyed[direction, scale, m] for m in metrics]
            cells = [_with_interval(r["change"], r["lower"], r["upper"]) for r in own]
            yield f"| {direction} | {scale:+g} | " + " | ".join(cells) + " |"
    for scale in sorted({s for d, s, _ in keyed if d == "vector" and (CONTROL, s, metrics[0]) in keyed}):
        own = [keyed["vector", scale, m] for m in metrics]
        cells = [_with_interval(r["beyond_random"], r["beyond_lower"], r["beyond_upper"]) for r in own]
        yield f"| vector − random | {scale:+g} | " + " | ".join(cells) + " |"
    slopes_here = slope_table[(slope_table["benchmark"] == benchmark) & (slope_table["regime"] == regime)]
    for direction in ("vector", CONTROL):
        own_slopes = {r["metric"]: r for r in slopes_here.to_dict("records") if r["direction"] == direction}
        if own_slopes:
            cells = [
                _with_interval(own_slopes[m]["slope"], own_slopes[m]["lower"], own_slopes[m]["upper"]) for m in metrics
            ]
            yield f"| {direction}, per unit | slope | " + " | ".join(cells) + " |"


def _with_interval(value: float, lower: float, upper: float) -> str:
    if not math.isfinite(value):
        return "—"
    return f"{value:+.3f} " + (f"[{lower:+.3f}, {upper:+.3f}]" if math.isfinite(lower + upper) else "[—]")


def _plain(value: Any) -> Any:
    """JSON values; NaN becomes null."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _draw(report: SteerReport, path: str | os.PathLike[str]) -> None:
    try:
        import matplotlib

        matplotlib.use("Agg", force=False)
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RequestError("the figure needs matplotlib; pip install 'precollapse[plots]'") from error
    cells = list(dict.fromkeys(zip(report.table["benchmark"], report.table["regime"], strict=True)))
    table = report.table[(report.table["benchmark"] == cells[-1][0]) & (report.table["regime"] == cells[-1][1])]
    shown = ("entropy_bits", "option_margin", "gold_margin", "accuracy", "probe_logit")
    metrics = [m for m in shown if (table["metric"] == m).any() and table.loc[table["metric"] == m, "n"].max() > 0]
    figure = Figure(figsize=(3.1 * len(metrics), 3.0), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(metrics)))
    for axis, metric in zip(axes, metrics, strict=True):
        _panel(axis, table[table["metric"] == metric], metric)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)
    s = report.summary
    figure.suptitle(f"{s['model']}: {s['site']} of layer {s['layer']}, {s['method']} of {s['target']}", fontsize=9)
    figure.savefig(os.fspath(path), dpi=150)


def _panel(axis: Any, rows: pd.DataFrame, metric: str) -> None:
    base = float(rows["unsteered"].iloc[0])
    for direction in [d for d in dict.fromkeys(rows["direction"]) if d.startswith(f"{CONTROL} ")]:
        x, y, _, _ = _curve(rows[rows["direction"] == direction], base)
        axis.plot(x, y, color="0.75", lw=0.8, zorder=1)
    for direction, colour, name in ((CONTROL, "0.35", "random, mean"), ("vector", "#0b62a4", "vector")):
        own = rows[rows["direction"] == direction]
        if own.empty:
            continue
        x, y, lower, upper = _curve(own, base)
        axis.fill_between(x, lower, upper, color=colour, alpha=0.18, lw=0, zorder=2)
        axis.plot(x, y, color=colour, marker="o", ms=3.5, lw=1.5, label=name, zorder=3)
    axis.axhline(base, color="0.5", lw=0.7, ls=":", zorder=0)
    axis.set_title(METRICS[metric][0], fontsize=9)
    axis.set_xlabel("scale", fontsize=8)
    axis.tick_params(labelsize=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _curve(rows: pd.DataFrame, base: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Scales with 0 among them, and the mean with its interval (that of the paired change, about the unsteered mean)."""
    own = rows.sort_values("scale")
    x = own["scale"].to_numpy(float)
    place = int(np.searchsorted(x, 0.0))
    values = [base + own[name].to_numpy(float) for name in ("change", "lower", "upper")]
    y, lower, upper = (np.insert(v, place, base) for v in values)
    return np.insert(x, place, 0.0), y, lower, upper
