"""Tests of the hypotheses that were declared, and of the usual ones that were not.

Guarantees that a verdict is given only against what a file declared (its hash is compared with the one that the run
recorded when it started), that a declared family is adjusted as a whole (Holm), members that could not be tested
included, and that every other test is marked exploratory. What a file may declare is `declared`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..declared import (
    BASELINE,
    RECORDED,
    RECORDED_FILE,
    TEXT,
    Declaration,
    StudyHypothesis,
    TrajectoryHypothesis,
    load,
    parse,
    recorded,
)
from . import statistics
from .cells import CellResult, RunAnalysis
from .probing import contrast
from .statistics import Alternative, Interval, Test

__all__ = [
    "CAPTION",
    "COLUMNS",
    "RECORDED",
    "TESTS",
    "TEXT",
    "deviations",
    "evaluate",
    "load",
    "parse",
    "recorded",
    "verdicts",
]

NOT_TESTABLE = "not testable"

# -- tests by name ---------------------------------------------------------------------------------------------------

_Test = Callable[[CellResult, CellResult | None, Alternative, int], Test]


def _paired(cell: CellResult, other: CellResult | None, column: str) -> tuple[np.ndarray, np.ndarray] | str:
    if other is None or column not in cell.states or column not in other.states:
        return "there is no cell to compare with"
    a, b = (
        pd.Series(statistics.as_float(c.states[column]), index=c.states["item_id"].astype(str).to_numpy(object))
        for c in (cell, other)
    )
    left, right = a.align(b, join="outer")
    return left.to_numpy(float), right.to_numpy(float)


def _untested(why: str, alternative: str) -> Test:
    return Test(math.nan, math.nan, "", alternative, None, reason=why)


def _accuracy_change(cell: CellResult, other: CellResult | None, alternative: Alternative, seed: int) -> Test:
    pair = _paired(cell, other, "correct")
    return _untested(pair, alternative) if isinstance(pair, str) else statistics.mcnemar(*pair, alternative)


def _entropy_change(cell: CellResult, other: CellResult | None, alternative: Alternative, seed: int) -> Test:
    pair = _paired(cell, other, "entropy_bits")
    return (
        _untested(pair, alternative) if isinstance(pair, str) else statistics.sign_flip(*pair, alternative, seed=seed)
    )


def _entropy_predicts(cell: CellResult, other: CellResult | None, alternative: Alternative, seed: int) -> Test:
    """AUROC of -H against correctness differs from 0.5 (Mann-Whitney)."""
    from scipy import stats

    if "correct" not in cell.states:
        return _untested("no outcomes", alternative)
    y, score = statistics.as_float(cell.states["correct"]), -statistics.as_float(cell.states["entropy_bits"])
    keep = np.isfinite(y) & np.isfinite(score)
    right, wrong = score[keep & (y == 1)], score[keep & (y == 0)]
    if not right.size or not wrong.size:
        return _untested("one class only", alternative)
    result = stats.mannwhitneyu(right, wrong, alternative=alternative)
    effect = statistics.bootstrap_auroc(y[keep], score[keep], seed=seed)
    return Test(float(result.statistic), float(result.pvalue), "Mann-Whitney", alternative, effect)


def _probe_above_chance(cell: CellResult, other: CellResult | None, alternative: Alternative, seed: int) -> Test:
    """Test AUROC above that of probes refitted on permuted training labels."""
    probe = cell.probe
    if alternative != "greater":
        return _untested("the label-shuffle test is one-sided: declare alternative greater", alternative)
    if probe is None or not probe.defined:
        return _untested(probe.reason if probe else cell.reason, alternative)
    if not probe.shuffle_null.size:
        return _untested("no label shuffles were asked for", alternative)
    return Test(probe.test_auroc, probe.shuffle_p, "label permutation", alternative, probe.shown)


def _probe_change(cell: CellResult, other: CellResult | None, alternative: Alternative, seed: int) -> Test:
    """AUROC of the regime's probe minus that of the other regime's, on the same test items."""
    a, b = cell.probe, other.probe if other is not None else None
    if a is None or b is None or not a.defined or not b.defined:
        why = next((p.reason for p in (a, b) if p is not None and not p.defined), "there is no cell to compare with")
        return _untested(why, alternative)
    pairs = contrast.matched(a, b)
    if not pairs.size:
        return _untested("the test parts share no item", alternative)
    i, j = pairs.T
    return statistics.auroc_difference_test(
        a.test_labels[i], a.test_scores[i], b.test_labels[j], b.test_scores[j], alternative=alternative, seed=seed
    )


def _known_not_said(cell: CellResult, other: CellResult | None, alternative: Alternative, seed: int) -> Test:
    """Accuracy of the best option before the first token minus accuracy of the emitted answer."""
    if cell.options is None:
        return _untested("free response has no options", alternative)
    test = cell.options.test
    if not test.counts:
        return _untested(test.reason, alternative)
    both, first, second, neither = test.counts
    a = np.repeat([1.0, 1.0, 0.0, 0.0], [both, first, second, neither])
    b = np.repeat([1.0, 0.0, 1.0, 0.0], [both, first, second, neither])
    return statistics.mcnemar(a, b, alternative)


TESTS: Mapping[str, _Test] = {
    "accuracy_change": _accuracy_change,
    "entropy_change": _entropy_change,
    "entropy_predicts": _entropy_predicts,
    "probe_above_chance": _probe_above_chance,
    "probe_change": _probe_change,
    "known_not_said": _known_not_said,
}


# -- verdicts --------------------------------------------------------------------------------------------------------

COLUMNS = (
    ("declared", "declared", 0),
    ("id", "id", 0),
    ("test", "test", 0),
    ("benchmark", "benchmark", 0),
    ("regime", "regime", 0),
    ("alternative", "alternative", 0),
    ("effect", "effect", 3),
    ("p", "p", 4),
    ("Holm p", "p_holm", 4),
    ("verdict", "verdict", 0),
)
CAPTION = (
    "Declared hypotheses first, adjusted within their family (Holm). Exploratory tests were not declared; they "
    "are adjusted among themselves and have no verdict."
)
_EXPLORATORY = ("accuracy_change", "entropy_change", "probe_above_chance", "known_not_said")
_TWO_CELLS = ("accuracy_change", "entropy_change", "probe_change")
"""Tests that compare a regime with another."""
_ROW = (
    *(
        "declared",
        "family",
        "id",
        "statement",
        "test",
        "model",
        "benchmark",
        "regime",
        "against",
        "alternative",
        "method",
    ),
    *("effect", "effect_lower", "effect_upper", "p", "p_holm", "verdict", "reason"),
)


def evaluate(
    analyses: Sequence[RunAnalysis],
    declaration: Declaration | None = None,
    manifests: Sequence[Mapping[str, Any]] = (),
    trajectories: tuple[Mapping[str, float], Mapping[str, float]] | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """Test the declared hypotheses, and the usual comparisons of studies as exploratory ones.

    Parameters
    ----------
    analyses : sequence of RunAnalysis
        Of studies.
    declaration : Declaration, optional
    manifests : sequence of mapping
        Of the studies' runs.
    trajectories : (estimates, p values), optional
        Named numbers of a trajectory run (`TrajectoryStatistics.estimates` and `.pvalues`), for the hypotheses on
        trajectories; without them these stay in their families untested.

    Returns
    -------
    DataFrame
        One row per test: declared, family, id, statement, test, model, benchmark, regime, against, alternative,
        method, effect with bounds, p, p_holm, verdict, reason.
    list of str
        Remarks: whether the runs had recorded this very file when they started.
    """
    declared: list[dict[str, Any]] = []
    remarks: list[str] = []
    if declaration is not None:
        for hypothesis in declaration.hypotheses:
            if isinstance(hypothesis, TrajectoryHypothesis):
                declared.append(_trajectory_row(hypothesis, trajectories))
                continue
            about = [a for a in analyses if hypothesis.model in ("", a.model)]
            declared += [_row(hypothesis, a, "yes") for a in about] or [_elsewhere(hypothesis, analyses)]
        remarks.append(origin(declaration, [manifest.get(RECORDED) for manifest in manifests]))
        _adjust_families(declared, declaration.alpha)
        for row in declared:
            row["verdict"] = _verdict(row.pop("met"), row["p"], row["p_holm"], row.pop("needs_p"), declaration.alpha)
    tested = {(row["test"], row["model"], row["benchmark"], row["regime"]) for row in declared}
    explored = [
        _row(hypothesis, analysis, "exploratory")
        for analysis in analyses
        for hypothesis in _usual_comparisons(analysis)
        if (hypothesis.test, analysis.model, hypothesis.benchmark, hypothesis.regime) not in tested
    ]
    adjusted = statistics.holm([row["p"] for row in explored]).adjusted
    for row, p in zip(explored, adjusted, strict=True):
        row["p_holm"] = float(p)
        del row["met"], row["needs_p"]
    rows = [*declared, *explored]
    return pd.DataFrame(rows, columns=_ROW if rows else None), remarks


def _usual_comparisons(analysis: RunAnalysis) -> list[StudyHypothesis]:
    """What is compared in every cell with results, whether declared or not."""
    return [
        StudyHypothesis(
            "",
            test,
            cell.benchmark,
            cell.regime,
            alternative="greater" if test == "probe_above_chance" else "two-sided",
        )
        for cell in analysis.cells
        for test in _EXPLORATORY
        if not cell.reason
        and not (test in _TWO_CELLS and cell.regime == BASELINE)
        and not (test == "known_not_said" and cell.options is None)
    ]


def _elsewhere(hypothesis: StudyHypothesis, analyses: Sequence[RunAnalysis]) -> dict[str, Any]:
    """A hypothesis about a model that is not in this report: it stays in its family, as one that cannot be tested."""
    models = ", ".join(a.model for a in analyses)
    test = _untested(f"the report holds no model {hypothesis.model!r}; it holds {models}", hypothesis.alternative)
    return _record(hypothesis, hypothesis.model, test, "yes")


def _row(hypothesis: StudyHypothesis, analysis: RunAnalysis, declared: str) -> dict[str, Any]:
    cells = {(c.benchmark, c.regime): c for c in analysis.cells}
    cell = cells.get((hypothesis.benchmark, hypothesis.regime))
    other = cells.get((hypothesis.benchmark, hypothesis.against))
    if cell is None or cell.reason:
        test = _untested(cell.reason if cell else "the runs hold no such cell", hypothesis.alternative)
    else:
        test = TESTS[hypothesis.test](cell, other, hypothesis.alternative, analysis.settings.seed)
    return _record(hypothesis, analysis.model, test, declared)


def _record(hypothesis: StudyHypothesis, model: str, test: Test, declared: str) -> dict[str, Any]:
    effect = test.effect or Interval(math.nan, math.nan, math.nan)
    return {
        "declared": declared,
        "family": hypothesis.family if declared == "yes" else "exploratory",
        "id": hypothesis.id,
        "statement": hypothesis.statement,
        "test": hypothesis.test,
        "model": model,
        "benchmark": hypothesis.benchmark,
        "regime": hypothesis.regime,
        "against": hypothesis.against,
        "alternative": hypothesis.alternative,
        "method": test.method,
        "effect": effect.estimate,
        "effect_lower": effect.lower,
        "effect_upper": effect.upper,
        "p": test.p_value,
        "p_holm": math.nan,
        "verdict": "",
        "reason": test.reason or effect.reason,
        "met": True,
        "needs_p": True,
    }


def _trajectory_row(
    hypothesis: TrajectoryHypothesis, results: tuple[Mapping[str, float], Mapping[str, float]] | None
) -> dict[str, Any]:
    """The row of a hypothesis on trajectories among those on studies."""
    estimates, pvalues = results or ({}, {})
    value = estimates.get(hypothesis.estimate, math.nan)
    return {
        **dict.fromkeys(("model", "benchmark", "regime", "against", "alternative", "verdict"), ""),
        **dict.fromkeys(("effect_lower", "effect_upper", "p_holm"), math.nan),
        "declared": "yes",
        "family": hypothesis.family,
        "id": hypothesis.id,
        "statement": hypothesis.statement,
        "test": f"{hypothesis.estimate} {hypothesis.criterion}",
        "method": hypothesis.p or "",
        "effect": value,
        "p": math.nan if hypothesis.p is None else pvalues.get(hypothesis.p, math.nan),
        "reason": "" if results is not None else "it is about trajectories, which are not among these results",
        "met": hypothesis.met(value),
        "needs_p": hypothesis.p is not None,
    }


def _adjust_families(rows: Sequence[dict[str, Any]], alpha: float) -> None:
    """Holm's adjustment of `p` within each `family`, into `p_holm`; rows of no family are left alone."""
    for family in dict.fromkeys(row["family"] for row in rows if row["family"]):
        members = [row for row in rows if row["family"] == family]
        adjusted = statistics.holm([row["p"] for row in members], alpha).adjusted
        for row, p in zip(members, adjusted, strict=True):
            row["p_holm"] = float(p)


def _verdict(
    met: bool | None, p: float, p_holm: float, needs_p: bool, alpha: float, undefined: str = NOT_TESTABLE
) -> str:
    judged = p if math.isnan(p_holm) else p_holm
    if met is None or (needs_p and not math.isfinite(judged)):
        return undefined
    return "supported" if met and (not needs_p or judged <= alpha) else "not supported"


def origin(declaration: Declaration, recorded: Sequence[str | None]) -> str:
    """Where a file of hypotheses comes from: the one that every run recorded when it started, or another.

    `recorded` is the sha256 of each run's own file; None for a run without one.
    """
    name = f"{declaration.name} (sha256 {declaration.sha256[:12]}…)"
    if recorded and all(value == declaration.sha256 for value in recorded):
        named = "" if declaration.name == RECORDED_FILE else f"{declaration.name}, "
        return f"Hypotheses: {named}recorded by the run before it started (sha256 {declaration.sha256[:12]}…)."
    if any(recorded):
        return f"Hypotheses: {name} is not the file that the run recorded when it started: treat them as not declared."
    return f"Hypotheses: {name}; the run recorded no hypothesis file, so when they were declared is not known."


# -- trajectories ----------------------------------------------------------------------------------------------------


def verdicts(
    declaration: Declaration,
    estimates: Mapping[str, float],
    pvalues: Mapping[str, float],
    study_pvalues: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Each hypothesis on trajectories against the results.

    Parameters
    ----------
    declaration : Declaration
    estimates, pvalues : mapping of str to float
        See `TrajectoryStatistics.estimates` and `.pvalues`.
    study_pvalues : mapping of str to float, optional
        p values, by id, of the hypotheses on studies that share a family with those on trajectories. One that is not
        given stays in its family untested, as p = 1.

    Returns
    -------
    DataFrame
        name, text, estimate, value, criterion, p, p_holm, verdict: "supported", "not supported" or "undefined".
    """
    rows: list[dict[str, Any]] = []
    for hypothesis in declaration.on_trajectories:
        rows.append(
            {
                "name": hypothesis.id, "text": hypothesis.statement, "estimate": hypothesis.estimate,
                "value": estimates[hypothesis.estimate], "criterion": hypothesis.criterion,
                "p": math.nan if hypothesis.p is None else pvalues[hypothesis.p], "p_holm": math.nan,
                "family": hypothesis.family,
            }
        )  # fmt: skip
    given = study_pvalues or {}
    others = [{"p": given.get(h.id, math.nan), "family": h.family} for h in declaration.on_studies]
    _adjust_families([*rows, *others], declaration.alpha)
    for row, hypothesis in zip(rows, declaration.on_trajectories, strict=True):
        del row["family"]
        row["verdict"] = _verdict(
            hypothesis.met(row["value"]),
            row["p"],
            row["p_holm"],
            hypothesis.p is not None,
            declaration.alpha,
            "undefined",
        )
    return pd.DataFrame(rows)


def deviations(declaration: Declaration, settings: Mapping[str, Any]) -> list[str]:
    """One line for each declared protocol setting that the run did not follow, or does not know."""
    lines = []
    for name, wanted in declaration.protocol.items():
        if name not in settings:
            lines.append(f"{name}: declared {wanted!r}, but the run has no such setting")
        elif settings[name] != wanted and [settings[name]] != wanted:
            lines.append(f"{name}: declared {wanted!r}, run with {settings[name]!r}")
    return lines
