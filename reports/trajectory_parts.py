"""The parts of a report of trajectories: protocol, diagnostics, statistics under both outcomes, sensitivities, agreement.

Guarantees that a statistic which is not defined is printed as undefined with its reason, and that verdicts on declared
hypotheses are told apart from exploratory results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from .. import declared
from ..analysis.hypotheses import deviations, verdicts
from ..analysis.trajectories import tables
from ..analysis.trajectories.statistics import (
    EPSILONS,
    TrajectoryStatistics,
    Triage,
    early_exit_table,
    epsilon_table,
    family,
    trajectory_statistics,
    usable,
)
from ..declared import OUTCOMES, Declaration
from ..store import Run
from .figures.trajectories import completion_plan, plans
from .tables.texts import between, p_value, percent
from .trajectory_draft import Draft

DEFAULT_FAMILY = ("fisher_two_sided", "spearman_violations", "spearman_coherence", "logistic_monotone")
BUDGETS = (512, 600, 1280, 4096)


def protocol_part(draft: Draft, run: Run, epsilon: float, tie: str) -> None:
    """The settings of the run, and what the results below hang on."""
    draft.part("Protocol")
    c, p = run.config, run.progress
    manifest = run.manifest
    rows = [
        ("model", manifest.get("capture", {}).get("model", c.get("model"))),
        ("benchmarks", ", ".join(c.get("benchmarks", []))),
        ("chains committed", f"{p.states} of {p.states_total}"),
        ("chain", f"temperature {c['chain_temperature']}, at most {c['chain_tokens']} tokens"),
    ]
    if "sampled" in c["measures"]:
        rows.append(("segmentation", f"{c['rule']}, cap {c['cap'] if c['cap'] is not None else 'none'}"))
        rows.append(
            (
                "continuations",
                f"m = {c['m']}, temperature {c['temperature']}, at most {c['continuation_tokens']} tokens, graded on {c['graded']}",
            )
        )
        rows.append(("sampling method", _method(manifest.get("sampling_method"))))
    if "forced" in c["measures"]:
        cap = "no cap" if c["forced_cap"] is None else f"cap {c['forced_cap']}"
        rows.append(("forced answers", f"at {c['forced_rule']} boundaries, {cap}, anchor {c['anchors'][0]!r}"))
        rows.append(("forced method", _method(manifest.get("forced_method"))))
    rows += [
        ("monotone", f"H[k+1] <= H[k] + {epsilon:g} nats for every k"),
        ("excluded", "chains with fewer than two points; nothing else, and nothing is imputed"),
        (
            "outcome",
            f"the answer at the last prefix (ties: {tie}) and the chain's own answer; results stand under both",
        ),
        ("seed", c["seed"]),
        ("hypotheses", c.get(declared.TRAJECTORY_SETTING) or "none"),
    ]
    failed = run.failed_cells
    rows += [("failed", f"{benchmark}: {reason}") for (benchmark, _), reason in failed.items()]
    draft.table("protocol", pd.DataFrame(rows, columns=["setting", "value"]).astype(str))
    draft.value("protocol", {name: str(value) for name, value in rows})


def _method(entry: Mapping[str, Any] | None) -> str:
    names = {
        "tree": "all boundaries of a chain in one pass", "shared": "prefixes and samples share one cache",
        "cache": "cache reuse, one boundary at a time", "copies": "copies of the cache, one row at a time",
        "separate": "every prefix anew",
    }  # fmt: skip
    if not entry:
        return "not recorded"
    return names.get(entry["name"], entry["name"]) + (f" ({entry['reason']})" if entry["reason"] else "")


def diagnostics_part(draft: Draft, run: Run) -> None:
    """What the protocol did to the chains, before any result."""
    draft.part("What the protocol did to the chains")
    draft.table("diagnostics", tables.protocol_diagnostics(run))
    states = run.states
    written = states[states["truncated"].notna()]
    if len(written):
        draft.table("truncation", tables.truncation_table(run, BUDGETS))
        curve = tables.completion_curve(
            written["chain_tokens"].astype(int).tolist(), (~written["truncated"].astype(bool)).tolist()
        )
        draft.keep("completion", curve)
        draft.draw([completion_plan(curve, run.config["chain_tokens"], draft.named(""))])


@dataclass(frozen=True)
class Registered:
    """Hypotheses that a report tests, and a sentence on when they were declared."""

    declaration: Declaration
    origin: str


def measure_part(
    draft: Draft,
    run: Run,
    measure: str,
    table: pd.DataFrame,
    epsilon: float,
    resamples: int,
    seed: int,
    registered: Registered | None,
) -> None:
    """Every statistic of one measure (sampled or forced), under both outcomes."""
    same = tables.agreement(table)
    for outcome, meaning in tables.OUTCOMES.items():
        draft.part(f"{measure.capitalize()} entropy, outcome: {meaning}")
        if usable(table, outcome).empty:
            draft.say("No chain has two points and a gold answer, so no statistic is defined.")
            continue
        if outcome == "correct_last":
            draft.say(
                f"The two outcomes give the same answer for {percent(same['same_answer'])} of the chains that have one under either, and the same verdict for {percent(same['same_verdict'])} of all."
            )
            draft.value(f"{measure}_outcome_agreement", same)
        statistics = trajectory_statistics(table, outcome, resamples=resamples, seed=seed)
        name = f"{measure}_{outcome}"
        draft.value(name, _numbers(statistics))
        draft.say(_gap_sentence(statistics))
        draft.table(f"{name}_buckets", statistics.buckets)
        draft.table(f"{name}_correlations", statistics.correlations)
        draft.table(f"{name}_logistic", statistics.logistic)
        draft.table(f"{name}_auroc", statistics.auroc)
        draft.table(f"{name}_selective", statistics.selective)
        draft.table(f"{name}_triage", pd.DataFrame([_triage_row(t) for t in statistics.triage]))
        kept = table[~table["excluded"].astype(bool) & table[outcome].notna()]
        h, y = kept["entropies"].tolist(), kept[outcome].astype(bool).tolist()
        m = int(run.config["m"]) if measure == "sampled" else None
        draft.table(f"{name}_epsilon", epsilon_table(h, y, sorted({*EPSILONS, epsilon}), m))
        draft.table(f"{name}_early_exit", early_exit_table(h, y, epsilon))
        pvalues = statistics.pvalues()
        if registered is None:
            draft.say("Holm's adjustment over a default family (nothing was declared):")
            draft.table(f"{name}_family", family(pvalues, [n for n in DEFAULT_FAMILY if n in pvalues]))
        else:
            declaration = registered.declaration
            differing = deviations(declaration, {**run.config, "epsilon": epsilon, **_planned(run)})
            draft.say(registered.origin)
            if outcome != OUTCOMES[declaration.outcome]:
                meant = tables.OUTCOMES[OUTCOMES[declaration.outcome]]
                draft.say(f"Exploratory: the file is about the other outcome, {meant}; these are not its verdicts.")
            draft.table(f"{name}_verdicts", verdicts(declaration, statistics.estimates(), pvalues))
            draft.say("Deviations: " + ("; ".join(differing) if differing else "none.") + _early(run))
            draft.value(f"{name}_deviations", differing)
        if draft.folder is not None:
            prefix = draft.named(f"{name}_")
            draft.draw(plans(table, outcome, statistics.buckets, statistics.accuracy.estimate, seed, prefix=prefix))


def _planned(run: Run) -> dict[str, Any]:
    return {
        "n": run.config.get("n") or run.progress.states_total,
        "benchmark": ",".join(run.config.get("benchmarks", [])),
    }


def _early(run: Run) -> str:
    p = run.progress
    return (
        ""
        if p.complete
        else f" The run is not finished ({p.states} of {p.states_total} chains): these are no final verdicts."
    )


def _gap_sentence(statistics: TrajectoryStatistics) -> str:
    gap = statistics.gap
    undefined = f" The gap is undefined: {gap.points.reason}."
    return (
        f"{statistics.n} chains of {statistics.problems} problems entered, {statistics.excluded} were left out; "
        f"accuracy {between(statistics.accuracy, scale=100)} %. "
        f"Monotone: {gap.correct_monotone}/{gap.n_monotone} right; others: {gap.correct_other}/{gap.n_other}. "
        f"Gap {between(gap.points)} points ({gap.points.method or 'no interval'}), odds ratio {between(gap.odds_ratio)}, "
        f"Fisher two-sided p = {p_value(gap.p_two_sided)}, one-sided (monotone better) p = {p_value(gap.p_greater)}, "
        f"coverage {percent(gap.coverage)}."
        + (undefined if gap.points.reason and not math.isfinite(gap.points.estimate) else "")
    )


def _triage_row(t: Triage) -> dict[str, Any]:
    return {
        "coverage": t.coverage, "accepted": t.accepted, "test": t.test, "false_positives": t.false_positives,
        "at_random": t.at_random, "reduction": t.reduction.estimate, "lower": t.reduction.lower, "upper": t.reduction.upper,
        "by_confidence": t.by_confidence, "reduction_to_confidence": t.reduction_to_confidence.estimate,
        "accuracy": t.accuracy, "reason": t.reason,
    }  # fmt: skip


def sampled_sensitivity_part(draft: Draft, run: Run, epsilon: float, tie: str, seed: int) -> None:
    """How far the sampled result hangs on the number of continuations."""
    draft.part("Sensitivity of the sampled trajectories to m")
    draft.table("sensitivity_m", tables.answers_sensitivity(run, epsilon=epsilon, tie=tie, seed=seed))


def forced_sensitivity_part(draft: Draft, run: Run, epsilon: float, seed: int) -> None:
    """How far the forced result hangs on the anchor's wording and on the segmentation rule."""
    draft.part("Sensitivity of the forced trajectories")
    pairs, mean = tables.anchor_sensitivity(run)
    if len(pairs):
        draft.say(
            f"Wording of the anchor: mean pairwise Spearman correlation of the entropies {mean:.3f} over {len(pairs)} pairs."
        )
        draft.table("sensitivity_anchor", pairs)
        draft.value("anchor_mean_spearman", mean)
    else:
        draft.say("One anchor was used, so its wording's effect was not measured.")
    draft.table("sensitivity_rule", tables.rule_sensitivity(run, epsilon, seed))


def agreement_part(
    draft: Draft, measure: str, table: pd.DataFrame, others: Mapping[str, Run], epsilon: float, tie: str
) -> None:
    """How far other runs of the same items agree with this one."""
    draft.part("Agreement between runs")
    compared = {"this run": table}
    for name, other in others.items():
        tables.check_kind(other)
        compared[name] = chain_table(other, measure, epsilon, tie)
    draft.table("run_agreement", tables.run_agreement(compared))


def chain_table(run: Run, measure: str, epsilon: float, tie: str) -> pd.DataFrame:
    """One row a chain, of one measure."""
    if measure == "sampled":
        return tables.sampled_table(run, epsilon, tie)
    return tables.forced_table(run, epsilon)


def _numbers(statistics: TrajectoryStatistics) -> dict[str, Any]:
    return {
        "n": statistics.n, "excluded": statistics.excluded, "problems": statistics.problems, "accuracy": asdict(statistics.accuracy),
        "gap": asdict(statistics.gap), "estimates": statistics.estimates(), "p": statistics.pvalues(),
        "triage": [asdict(t) for t in statistics.triage], "settings": dict(statistics.settings),
    }  # fmt: skip
