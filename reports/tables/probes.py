"""Tables of what probes read from the states: controls, layers, transfer, places after the first tokens, reliability.

Guarantees that files hold plain numbers under stable column names, and that a row without a number says why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ...analysis.cells import RunAnalysis
from .frames import interval_columns, joined


def robustness_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """Probe controls per cell: train, test with interval, shuffled labels, gap, repeated splits, gain over entropy."""
    rows = []
    for cell in (c for a in analyses for c in a.cells if c.probe is not None):
        r = cell.probe
        assert r is not None and cell.repeated is not None
        row: dict[str, Any] = {"model": cell.model, "benchmark": cell.benchmark, "regime": cell.regime}
        row |= {"probe": r.probe, "n_train": r.n_train, "n_validation": r.n_validation, "n_test": r.n_test}
        row |= {"test_positives": r.test_positives, "left_out": r.left_out, "C": r.C}
        row["layers"] = " ".join(map(str, r.layers))
        row |= {"train_auroc": r.train_auroc, "validation_auroc": r.validation_auroc}
        row |= interval_columns("test_auroc", r.interval)
        row["undefined_resamples"] = r.undefined_resamples
        row |= {"small_sample_lower": r.small_sample.lower, "small_sample_upper": r.small_sample.upper}
        row |= {"gap": r.gap, "shuffle_auroc": r.shuffle_auroc, "shuffle_p": r.shuffle_p}
        row["shuffles"] = r.shuffle_null.size
        row |= {"splits_mean": cell.repeated.mean, "splits_sd": cell.repeated.sd}
        row |= {"splits": cell.repeated.auroc.size, "splits_undefined": cell.repeated.undefined}
        row |= interval_columns("probe_minus_entropy", cell.probe_gain)
        brier = r.calibration
        row |= {"brier": brier.brier if brier else math.nan, "brier_base_rate": brier.baseline if brier else math.nan}
        adequacy = cell.adequacy
        row |= interval_columns("mahalanobis_auroc", adequacy.mahalanobis if adequacy else None)
        row |= interval_columns("mixture_auroc", adequacy.mixture if adequacy else None)
        row["reason"] = r.reason
        rows.append(row)
    return pd.DataFrame(rows)


def curve_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """Probe AUROC per layer on the shared split."""
    frames = [
        c.curve.assign(model=c.model, benchmark=c.benchmark, regime=c.regime)
        for a in analyses
        for c in a.cells
        if len(c.curve)
    ]
    return joined(frames, ["model", "benchmark", "regime"])


def transfer_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """All transfer cells: over regimes within a benchmark, and over benchmarks within a regime."""
    rows: list[dict[str, Any]] = []
    for analysis in analyses:
        for benchmark in analysis.benchmarks:
            if benchmark.transfer is not None:
                head = {"model": analysis.model, "over": "regimes", "within": benchmark.name}
                rows += [head | record for record in benchmark.transfer.records()]
        for regime, found in analysis.cross.items():
            head = {"model": analysis.model, "over": "benchmarks", "within": regime}
            rows += [head | record for record in found.records()]
    return pd.DataFrame(rows)


def after_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """One row per cell and place: AUROC before and after, their paired difference, and the shared bits."""
    rows = []
    for cell in (c for a in analyses for c in a.cells):
        for a in cell.after:
            one, two, gain = a.contrast.before, a.contrast.after, a.contrast.difference
            row: dict[str, Any] = {"model": cell.model, "benchmark": cell.benchmark, "regime": cell.regime}
            row |= {"place": a.place, "reached": a.reached, "n_test": one.n_test}
            for name, value in (("before", one.shown), ("after", two.shown), ("difference", gain)):
                row |= {name: value.estimate, f"{name}_lower": value.lower, f"{name}_upper": value.upper}
            for name, shared in (("before", a.before), ("after", a.after)):
                row[f"bits_{name}"] = shared.corrected if shared else math.nan
                row[f"bits_{name}_p"] = shared.p_value if shared else math.nan
            bits = (a.before.reason or a.after.reason) if a.before and a.after else "no options, no answer read"
            row["reason"] = "; ".join(
                dict.fromkeys(part for part in (one.reason or two.reason or gain.reason, bits) if part)
            )
            rows.append(row)
    return pd.DataFrame(rows)


def calibration_table(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    """Reliability curves of the probes on their test items."""
    frames = [
        c.probe.calibration.curve.assign(model=c.model, benchmark=c.benchmark, regime=c.regime)
        for a in analyses
        for c in a.cells
        if c.probe is not None and c.probe.calibration is not None and len(c.probe.calibration.curve)
    ]
    return joined(frames, ["model", "benchmark", "regime"])
