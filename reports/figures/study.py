"""Which figures a study's report has, and the table of numbers that each is drawn from.

Guarantees that every figure is about numbers of the report, in the order of its tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pandas as pd

from ...analysis import statistics
from ...analysis.cells import RunAnalysis
from ...analysis.formats import answer_format, entropy_by_format
from ...declared import BASELINE
from ..tables import change_reason
from ..tables.shown import FEW
from . import cells, grids, lines
from .drawing import Plan


class StudyResults(Protocol):
    """What the figures are about: the tables of a study's report."""

    @property
    def table(self) -> pd.DataFrame: ...

    @property
    def options(self) -> pd.DataFrame: ...

    @property
    def dimension(self) -> pd.DataFrame: ...

    @property
    def subsampling(self) -> pd.DataFrame: ...

    @property
    def curves(self) -> pd.DataFrame: ...

    @property
    def transfer(self) -> pd.DataFrame: ...

    @property
    def calibration(self) -> pd.DataFrame: ...

    @property
    def analyses(self) -> Sequence[RunAnalysis]: ...


def figure_plans(report: StudyResults) -> list[Plan]:
    """The figures of a report, in the order shown."""
    table = report.table
    changed = table[table["regime"] != BASELINE]
    shown = ["entropy_change", "entropy_change_lower", "entropy_change_upper", "entropy_change_n"]
    change = changed[["model", "benchmark", "regime", *shown]]
    why = {(c.model, c.benchmark, c.regime): change_reason(c) for a in report.analyses for c in a.cells}
    keys = [tuple(row) for row in change[["model", "benchmark", "regime"]].to_numpy()]
    change = change.assign(reason=[why.get(key, "") for key in keys])
    probe = _forest_data(report)
    by_state = _states(report.analyses)
    plans = [
        Plan(
            "accuracy",
            "Accuracy by regime",
            "Bars: share of correct answers; lines: 95% Wilson interval.",
            table[["model", "benchmark", "regime", "n", "accuracy", "accuracy_lower", "accuracy_upper"]],
            cells.bars("accuracy", "accuracy", 1.0, 0.0, 1.0),
        ),
        Plan(
            "entropy",
            "Entropy at the boundary by regime",
            "One mark per state; thick line: mean; thin lines: one item under its regimes.",
            by_state[["model", "benchmark", "regime", "item_id", "entropy_bits"]],
            cells.entropy,
        ),
        Plan(
            "entropy_change",
            "Change of entropy against the baseline",
            "Mean over items of H(regime) − H(baseline) with the 95% paired bootstrap interval.",
            change,
            cells.forest("entropy_change", "ΔH (bits)", 0.0),
        ),
        Plan(
            "formats",
            "Free response against multiple choice",
            "Mean H over all states of a format with its 95% bootstrap interval.",
            entropy_by_format(by_state, report.analyses[0].settings),
            cells.formats,
        ),
        Plan(
            "auroc",
            "Recoverability of a correct answer",
            "Test AUROC with its 95% interval; black stroke: mean over repeated splits; dashed: chance.",
            probe,
            cells.forest("auroc", "test AUROC", 0.5, (-0.02, 1.02)),
        ),
        Plan(
            "auroc_by_layer",
            "Recoverability by layer",
            "One probe per layer on the same split; band: 95% bootstrap interval. The best layer of a test curve "
            "is an optimistic choice.",
            report.curves,
            lines.by_layer("auroc", "test AUROC", 0.5),
        ),
        Plan(
            "dimension_by_layer",
            "Effective dimensionality by layer",
            "Participation ratio of the states; marked line: plug-in; thin line: unbiased; dotted: the ceiling n − 1.",
            report.dimension,
            lines.by_layer(
                "participation_ratio",
                "participation ratio, log scale (thin: unbiased)",
                "ceiling",
                "participation_ratio_unbiased",
            ),
        ),
        Plan(
            "dimension_by_items",
            "Effective dimensionality by number of items",
            "Random subsets of N' items, the same for every regime: mean and standard deviation; filled: plug-in,"
            " open: unbiased.",
            report.subsampling,
            lines.by_size,
        ),
        Plan(
            "heatmaps",
            "The cells at a glance",
            "Changes are against the baseline of the same benchmark; hatched: fewer than 5 of one outcome in the test part.",
            _heat_data(report),
            grids.heatmaps,
        ),
        Plan(
            "calibration",
            "Reliability of the probe",
            "Predicted probability against the share of correct answers on test items, with 95% Wilson intervals.",
            report.calibration,
            cells.reliability,
        ),
    ]
    if len(report.options):
        plans.append(
            Plan(
                "said",
                "Known before, said after",
                "Share right, with 95% Wilson intervals; dotted: the same states.",
                report.options,
                cells.said,
            )
        )
    for over in ("regimes", "benchmarks"):
        part = report.transfer[report.transfer["over"] == over] if len(report.transfer) else report.transfer
        if len(part):
            title = f"Transfer between {over}"
            plans.append(
                Plan(
                    f"transfer_{over}",
                    title,
                    "Test AUROC of each probe; hatched: fewer than 5 test states of one outcome.",
                    _transferred(part, _scarce(report.analyses)),
                    grids.transfer,
                )
            )
    return plans


def _forest_data(report: StudyResults) -> pd.DataFrame:
    columns = ["model", "benchmark", "regime", "auroc", "auroc_lower", "auroc_upper", "auroc_interval", "auroc_n_test"]
    data = report.table[columns].copy()
    analysed = [c for a in report.analyses for c in a.cells]
    data["splits_mean"] = [c.repeated.mean if c.repeated else math.nan for c in analysed]
    data["reason"] = [c.reason or (c.probe.reason if c.probe else "") for c in analysed]
    return data


def _heat_data(report: StudyResults) -> pd.DataFrame:
    columns = [
        "model",
        "benchmark",
        "regime",
        "n",
        "accuracy",
        "entropy_change",
        "entropy_change_n",
        "auroc",
        "auroc_n_test",
    ]
    data = report.table[columns].copy()
    scarce = _scarce(report.analyses)
    data["auroc_few"] = [key in scarce for key in zip(data["model"], data["benchmark"], data["regime"], strict=True)]
    base = data[data["regime"] == BASELINE].set_index(["model", "benchmark"])["accuracy"]
    keys = list(zip(data["model"], data["benchmark"], strict=True))
    change = [row - base.get(key, math.nan) for row, key in zip(data["accuracy"], keys, strict=True)]
    data["accuracy_change"] = np.where(data["regime"] == BASELINE, np.nan, change)
    return data


def _scarce(analyses: Sequence[RunAnalysis]) -> set[tuple[str, str, str]]:
    """Cells whose test part holds few of one outcome."""
    probed = ((c, c.probe) for a in analyses for c in a.cells if c.probe is not None)
    return {
        (c.model, c.benchmark, c.regime) for c, p in probed if min(p.test_positives, p.n_test - p.test_positives) < FEW
    }


def _transferred(part: pd.DataFrame, scarce: set[tuple[str, str, str]]) -> pd.DataFrame:
    """Pairs of a transfer, each with whether its test part holds few of one outcome."""
    within, tested = part["within"], part["test"]
    cells_of = (within, tested) if (part["over"] == "regimes").all() else (tested, within)
    return part.assign(few=[key in scarce for key in zip(part["model"], *cells_of, strict=True)])


def _states(analyses: Sequence[RunAnalysis]) -> pd.DataFrame:
    frames = []
    for cell in (c for a in analyses for c in a.cells if len(c.states)):
        frame = pd.DataFrame({"item_id": cell.states["item_id"].astype(str)})
        measured = "entropy_bits" in cell.states
        frame["entropy_bits"] = statistics.as_float(cell.states["entropy_bits"]) if measured else np.nan
        kind = answer_format(cell)
        frames.append(frame.assign(model=cell.model, benchmark=cell.benchmark, regime=cell.regime, format=kind))
    return pd.concat(frames, ignore_index=True)
