"""Hypotheses declared before they are tested, and the tests that were not.

Guarantees that a verdict is given only against what a study file declared (its hash is compared with the one that the
run recorded when it started), that a declared family is adjusted as a whole (Holm), members that could not be tested
included, and that every other test is marked exploratory.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .. import strict_yaml
from ..errors import RequestError
from . import statistics
from .cells import BASELINE, Cell, RunAnalysis
from .probing import contrast
from .statistics import Interval, Test

RECORDED = "hypotheses_sha256"  # where a run's manifest holds the hash of the study file
TEXT = "hypotheses"  # and where its text


@dataclass(frozen=True)
class Hypothesis:
    """One declared hypothesis.

    Attributes
    ----------
    id, statement : str
    test : str
        Name in `TESTS`.
    benchmark, regime, against : str
    alternative : str
        Direction of regime minus against (or of the value minus its null): "greater", "less" or "two-sided".
    model : str
        Empty: the only, or every, model.
    family : str
        Hypotheses of one family are adjusted together.
    """

    id: str
    test: str
    benchmark: str
    regime: str
    against: str = BASELINE
    alternative: statistics.Alternative = "two-sided"
    statement: str = ""
    model: str = ""
    family: str = "declared"


@dataclass(frozen=True)
class Family:
    """A study file: hypotheses, level of the tests, the file's SHA-256, name and text."""

    hypotheses: tuple[Hypothesis, ...]
    alpha: float
    sha256: str
    name: str = ""
    text: str = ""


def load(path: str | os.PathLike[str]) -> Family:
    """Read a study file (YAML).

    It holds `hypotheses`, a list of mappings with the fields of `Hypothesis`, and optionally `alpha` (default 0.05).

    Raises
    ------
    RequestError
        The file is missing, is not YAML, or declares something unknown; the message names the hypothesis and the field.
    """
    file = Path(path)
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise RequestError(f"The hypothesis file {file} cannot be read: {error.strerror or error}.") from None
    return parse(raw, file)


_OWN = "recorded by the run"
"""Name of a study file of which only what the run recorded is there."""


def recorded(manifests: Sequence[Mapping[str, Any]]) -> tuple[Family | None, str]:
    """The study file that runs recorded when they were started, and a remark.

    None without a file, or when the runs do not agree on one; the remark then says which runs differ.
    """
    texts = {manifest.get(TEXT) for manifest in manifests}
    if texts <= {None}:
        return None, ""
    if len(texts) > 1:
        return None, (
            "The runs did not record the same hypothesis file, so none was tested as declared; report them apart, or name "
            "the file with --hypotheses."
        )
    try:
        return parse(str(texts.pop()).encode(), Path(_OWN)), ""
    except RequestError as error:  # recorded by a version that read such files less strictly: the states are still good
        return None, f"None was tested as declared: {error}"


def parse(raw: bytes, file: Path) -> Family:
    """A study file from its bytes; `file` is its name in messages. Raises as `load` does."""
    content, text = strict_yaml.parse(raw, f"The hypothesis file {file}")
    if not isinstance(content, Mapping) or not isinstance(content.get("hypotheses"), list):
        raise RequestError(f"The hypothesis file {file} needs a list under `hypotheses`.")
    unknown = sorted(map(str, set(content) - {"alpha", "hypotheses"}))
    if unknown:
        raise RequestError(f"The hypothesis file {file} has an unknown field {unknown[0]!r}; known: alpha, hypotheses.")
    alpha = content.get("alpha", 0.05)
    if not isinstance(alpha, int | float) or not 0 < alpha < 1:
        raise RequestError(f"{file}: alpha is {alpha!r}; give a number between 0 and 1.")
    if not content["hypotheses"]:
        raise RequestError(
            f"The hypothesis file {file} declares no hypothesis; list at least one, or leave the file out."
        )
    found = tuple(_hypothesis(entry, i, file) for i, entry in enumerate(content["hypotheses"]))
    names = [h.id for h in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RequestError(f"{file}: the id {twice[0]!r} is declared twice.")
    return Family(found, float(alpha), hashlib.sha256(raw).hexdigest(), file.name, text)


def _hypothesis(entry: Any, i: int, file: Path) -> Hypothesis:
    where = f"{file}: hypothesis {i + 1}"
    if not isinstance(entry, Mapping):
        raise RequestError(f"{where} is not a mapping of fields.")
    known = set(Hypothesis.__dataclass_fields__)
    unknown = sorted(str(name) for name in entry if name not in known)
    if unknown:
        raise RequestError(f"{where} has an unknown field {unknown[0]!r}; known: {', '.join(sorted(known))}.")
    entry = {name: value for name, value in entry.items() if value is not None and value != ""}
    missing = [name for name in ("id", "test", "benchmark", "regime") if name not in entry]
    if missing:
        raise RequestError(f"{where} lacks {missing[0]!r}.")
    for name, value in entry.items():
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise RequestError(
                f"{where}: {name} is {value!r}; give one name or text (in quotes where YAML reads it otherwise)."
            )
    if entry["test"] not in TESTS:
        raise RequestError(f"{where} asks for the test {entry['test']!r}; choose one of {', '.join(TESTS)}.")
    if entry.get("alternative", "two-sided") not in ("two-sided", "greater", "less"):
        raise RequestError(f"{where}: alternative is {entry['alternative']!r}; choose two-sided, greater or less.")
    given = {str(k): str(v) for k, v in entry.items()}
    if entry["test"] == "probe_above_chance" and given.setdefault("alternative", "greater") != "greater":
        raise RequestError(
            f"{where}: probe_above_chance compares with shuffled labels in one direction only, found alternative "
            f"{given['alternative']!r}; write greater, or leave it out."
        )
    return Hypothesis(**given)  # type: ignore[arg-type]


# -- tests by name ---------------------------------------------------------------------------------------------------

_Test = Callable[[Cell, Cell | None, statistics.Alternative, int], Test]


def _paired(cell: Cell, other: Cell | None, column: str) -> tuple[np.ndarray, np.ndarray] | str:
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


def _accuracy_change(cell: Cell, other: Cell | None, alternative: statistics.Alternative, seed: int) -> Test:
    pair = _paired(cell, other, "correct")
    return _untested(pair, alternative) if isinstance(pair, str) else statistics.mcnemar(*pair, alternative)


def _entropy_change(cell: Cell, other: Cell | None, alternative: statistics.Alternative, seed: int) -> Test:
    pair = _paired(cell, other, "entropy_bits")
    return (
        _untested(pair, alternative) if isinstance(pair, str) else statistics.sign_flip(*pair, alternative, seed=seed)
    )


def _entropy_predicts(cell: Cell, other: Cell | None, alternative: statistics.Alternative, seed: int) -> Test:
    """AUROC of -H against correctness differs from 0.5 (Mann-Whitney)."""
    from scipy import stats

    if "correct" not in cell.states:
        return _untested("no outcomes", alternative)
    y, score = statistics.as_float(cell.states["correct"]), -statistics.as_float(cell.states["entropy_bits"])
    keep = np.isfinite(y) & np.isfinite(score)
    right, wrong = score[keep & (y == 1)], score[keep & (y == 0)]
    if not right.size or not wrong.size:
        return _untested("one class only", alternative)
    found = stats.mannwhitneyu(right, wrong, alternative=alternative)
    effect = statistics.bootstrap_auroc(y[keep], score[keep], seed=seed)
    return Test(float(found.statistic), float(found.pvalue), "Mann-Whitney", alternative, effect)


def _probe_above_chance(cell: Cell, other: Cell | None, alternative: statistics.Alternative, seed: int) -> Test:
    """Test AUROC above that of probes refitted on permuted training labels."""
    probe = cell.probe
    if alternative != "greater":
        return _untested("the label-shuffle test is one-sided: declare alternative greater", alternative)
    if probe is None or not probe.defined:
        return _untested(probe.reason if probe else cell.reason, alternative)
    if not probe.shuffle_null.size:
        return _untested("no label shuffles were asked for", alternative)
    return Test(probe.test_auroc, probe.shuffle_p, "label permutation", alternative, probe.shown)


def _probe_change(cell: Cell, other: Cell | None, alternative: statistics.Alternative, seed: int) -> Test:
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


def _known_not_said(cell: Cell, other: Cell | None, alternative: statistics.Alternative, seed: int) -> Test:
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


def evaluate(
    analyses: Sequence[RunAnalysis], family: Family | None = None, manifests: Sequence[Mapping[str, Any]] = ()
) -> tuple[pd.DataFrame, list[str]]:
    """Test the declared hypotheses, and the usual comparisons as exploratory ones.

    Returns
    -------
    DataFrame
        One row per test: declared, family, id, statement, test, model, benchmark, regime, against, alternative,
        method, effect with bounds, p, p_holm, verdict, reason.
    list of str
        Remarks: whether the runs had recorded this very file when they started.
    """
    rows: list[dict[str, Any]] = []
    remarks: list[str] = []
    asked: set[tuple[str, str, str, str]] = set()
    if family is not None:
        for hypothesis in family.hypotheses:
            about = [a for a in analyses if hypothesis.model in ("", a.model)]
            rows += [_row(hypothesis, a, "yes") for a in about] or [_elsewhere(hypothesis, analyses)]
            asked |= {(hypothesis.test, a.model, hypothesis.benchmark, hypothesis.regime) for a in about}
        remarks.append(_recorded(family, manifests))
    declared = list(rows)
    for key in dict.fromkeys(row["family"] for row in declared):
        _adjust([row for row in declared if row["family"] == key], family.alpha if family else 0.05, verdicts=True)
    explored = []
    for analysis in analyses:
        for cell in analysis.cells:
            for name in _EXPLORATORY:
                against = name in ("accuracy_change", "entropy_change", "probe_change")
                if (name, analysis.model, cell.benchmark, cell.regime) in asked or cell.reason:
                    continue
                if (against and cell.regime == BASELINE) or (name == "known_not_said" and cell.options is None):
                    continue
                one_sided = name == "probe_above_chance"
                hypothesis = Hypothesis(
                    "", name, cell.benchmark, cell.regime, alternative="greater" if one_sided else "two-sided"
                )
                explored.append(_row(hypothesis, analysis, "exploratory"))
    _adjust(explored, 0.05, verdicts=False)
    return pd.DataFrame([*declared, *explored]), remarks


def _elsewhere(hypothesis: Hypothesis, analyses: Sequence[RunAnalysis]) -> dict[str, Any]:
    """A hypothesis about a model that is not in this report: it stays in its family, as one that cannot be tested."""
    known = ", ".join(a.model for a in analyses)
    found = _untested(f"the report holds no model {hypothesis.model!r}; it holds {known}", hypothesis.alternative)
    return _record(hypothesis, hypothesis.model, found, "yes")


def _row(hypothesis: Hypothesis, analysis: RunAnalysis, declared: str) -> dict[str, Any]:
    cells = {(c.benchmark, c.regime): c for c in analysis.cells}
    cell = cells.get((hypothesis.benchmark, hypothesis.regime))
    other = cells.get((hypothesis.benchmark, hypothesis.against))
    if cell is None or cell.reason:
        found = _untested(cell.reason if cell else "the runs hold no such cell", hypothesis.alternative)
    else:
        found = TESTS[hypothesis.test](cell, other, hypothesis.alternative, analysis.settings.seed)
    return _record(hypothesis, analysis.model, found, declared)


def _record(hypothesis: Hypothesis, model: str, found: Test, declared: str) -> dict[str, Any]:
    effect = found.effect or Interval(math.nan, math.nan, math.nan)
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
        "method": found.method,
        "effect": effect.estimate,
        "effect_lower": effect.lower,
        "effect_upper": effect.upper,
        "p": found.p_value,
        "p_holm": math.nan,
        "verdict": "",
        "reason": found.reason or effect.reason,
    }


def _adjust(rows: list[dict[str, Any]], alpha: float, *, verdicts: bool) -> None:
    adjusted = statistics.holm([row["p"] for row in rows], alpha)
    for row, p, rejected in zip(rows, adjusted.adjusted, adjusted.rejected, strict=True):
        row["p_holm"] = float(p)
        if verdicts:
            row["verdict"] = "not testable" if math.isnan(p) else ("supported" if rejected else "not supported")


def _recorded(family: Family, manifests: Sequence[Mapping[str, Any]]) -> str:
    seen = [manifest.get(RECORDED) for manifest in manifests]
    name = f"{family.name} (sha256 {family.sha256[:12]}…)"
    if seen and all(value == family.sha256 for value in seen):
        named = "" if family.name == _OWN else f"{family.name}, "
        return f"Hypotheses: {named}recorded by the run before it started (sha256 {family.sha256[:12]}…)."
    if any(seen):
        return f"Hypotheses: {name} is not the file that the run recorded when it started: treat them as not declared."
    return f"Hypotheses: {name}; the run recorded no hypothesis file, so when they were declared is not known."
