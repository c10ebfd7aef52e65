"""From a trajectory run to tables of chains, one row a chain.

Guarantees that sampled and forced trajectories come out in the same columns, under both outcome definitions (the answer at the
last prefix, and the chain's own), so that every statistic can be read under each; and that a chain without a gold answer or
without two points stays in the table, marked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..analysis.statistics import wilson
from ..analysis.trajectories.shapes import first_answers, majority, sampled_entropies, shape
from ..analysis.trajectories.statistics import accuracy_gap, spearman, usable
from ..errors import RequestError
from ..store import Run

OUTCOMES = {"correct_last": "answer at the last prefix", "correct_own": "the chain's own answer"}


def check_kind(run: Run) -> None:
    """Raise RequestError unless a run holds trajectories."""
    kind = run.manifest.get("kind")
    if kind != "trajectories":
        raise RequestError(f"{run.path} is a run of kind {kind!r}; give one made by `precollapse trajectories`")


def sampled_answers(run: Run) -> list[list[list[dict[str, Any]]]]:
    """Per chain, per prefix, the kept continuations: text, tokens, finish, answer, correct."""
    return [json.loads(text) for text in run.states["continuations"]]


def sampled_table(run: Run, epsilon: float = 0.01, tie: str = "first", m: int | None = None) -> pd.DataFrame:
    """Sampled trajectories: the columns `trajectory_statistics` takes, with `entropies`, `answer_last`, `answer_own`, `tied`.

    Parameters
    ----------
    run : Run
    epsilon : float
    tie : str
        See `trajectories.majority`.
    m : int, optional
        Use the first m continuations of every prefix only.
    """
    rows = []
    for state, kept in zip(run.states.itertuples(), sampled_answers(run), strict=True):
        answers = [[c["answer"] for c in prefix] for prefix in kept]
        if m is not None:
            answers = first_answers(answers, m)
        verdict = {c["answer"]: c["correct"] for prefix in kept for c in prefix if c["answer"] is not None}
        entropies = sampled_entropies(answers)
        last = majority(answers[-1], tie)
        known = [row for row, h in zip(answers, entropies, strict=True) if not math.isnan(h)]
        rows.append(
            {
                **_identity(state), **_shape(entropies, epsilon), "confidence": majority(known[-1], tie).share if known else math.nan,
                "length": state.chain_tokens, "answer_last": last.answer, "tied": last.tied,
                "correct_last": _missing_or(state.gold, verdict.get(last.answer, False)),
            }
        )  # fmt: skip
    return _typed(rows)


def forced_table(run: Run, epsilon: float = 0.01, anchor: int = 0, rule: str | None = None) -> pd.DataFrame:
    """Forced trajectories in the same columns.

    Parameters
    ----------
    run : Run
    epsilon : float
    anchor : int
        Which of the run's anchors.
    rule : str, optional
        Which of the rules whose boundaries were in the pass; None takes the one the run was made for.
    """
    rule = rule or forced_rule(run)
    rows = []
    for i, state in enumerate(run.states.itertuples()):
        wanted = np.isin(run.ragged("forced_boundaries", i), json.loads(state.forced_by_rule)[rule])
        entropies = run.ragged("forced_entropies", i)[anchor][wanted]
        logprobs = run.ragged("forced_logprobs", i)[anchor]
        confidence = math.nan
        if logprobs.shape[1] >= 2:
            confidence = float(np.exp(logprobs[-1].max() - np.logaddexp.reduce(logprobs[-1])))
        answer = None if pd.isna(state.forced_answer) else state.forced_answer
        rows.append(
            {
                **_identity(state), **_shape(entropies, epsilon), "confidence": confidence, "length": state.chain_tokens,
                "answer_last": answer, "tied": False, "correct_last": _missing_or(state.gold, state.forced_correct),
            }
        )  # fmt: skip
    return _typed(rows)


def forced_rule(run: Run) -> str:
    """The rule that a run's forced trajectories were made for."""
    return str(run.config.get("forced_rule", "sentence"))


def _identity(state: Any) -> dict[str, Any]:
    return {
        "chain": state.id, "benchmark": state.benchmark, "problem": f"{state.benchmark}/{state.item_id}",
        "answer_own": None if pd.isna(state.answer) else state.answer, "correct_own": _missing_or(state.gold, state.correct),
    }  # fmt: skip


def _missing_or(gold: Any, value: Any) -> Any:
    return pd.NA if pd.isna(gold) or pd.isna(value) else bool(value)


def _shape(entropies: np.ndarray, epsilon: float) -> dict[str, Any]:
    s = shape(entropies, epsilon)
    return {
        "entropies": [float(h) for h in entropies], "monotone": s.monotone, "violations": s.violations,
        "max_violation": s.max_violation, "coherence": s.coherence, "initial": s.initial, "final": s.final,
        "points": s.points, "excluded": s.reason is not None,
    }  # fmt: skip


def _typed(rows: list[dict[str, Any]]) -> pd.DataFrame:
    table = pd.DataFrame(rows)
    return table.astype(
        {"monotone": "boolean", "violations": "Int64", "correct_own": "boolean", "correct_last": "boolean"}
    )


def protocol_diagnostics(run: Run) -> pd.DataFrame:
    """What the protocol did to the chains, one row a quantity: quantity, value, lower, upper, n, note.

    Truncation, the unit cap, merged units, units under every rule, missing points, boundaries inside tokens, tokens written.
    """
    s = run.states
    rows: list[dict[str, Any]] = []

    def share(name: str, values: pd.Series, note: str = "") -> None:
        known = values.dropna().astype(bool)
        i = wilson(int(known.sum()), len(known))
        rows.append(
            {"quantity": name, "value": i.estimate, "lower": i.lower, "upper": i.upper, "n": len(known), "note": note}
        )

    def mean(name: str, values: pd.Series, note: str = "") -> None:
        known = values.dropna().astype("float64")
        value = float(known.mean()) if len(known) else math.nan
        rows.append(
            {"quantity": name, "value": value, "lower": math.nan, "upper": math.nan, "n": len(known), "note": note}
        )

    mean("tokens per chain", s["chain_tokens"])
    share("chains cut off by the token budget", s["truncated"], "given chains are left out")
    share("chains with an answer", s["compliant"])
    share("chains right by their own answer", s["correct"])
    mean("units per chain", s["units"], f"rule {s['rule'].iloc[0]}, before the cap" if len(s) else "")
    share("chains at the unit cap", s["capped"])
    total = s["units"].astype("float64").sum()
    merged = float(s["units_merged"].astype("float64").sum() / total) if total else math.nan
    rows.append(
        {
            "quantity": "units merged by the cap",
            "value": merged,
            "lower": math.nan,
            "upper": math.nan,
            "n": int(total),
            "note": "share of units",
        }
    )
    if s["rule"].eq("marker").any():
        share("chains where the marker rule fell back", s["rule_applied"].ne(s["rule"]))
    by_rule = pd.DataFrame([json.loads(v) for v in s["units_by_rule"]])
    for rule in by_rule:
        mean(f"units under {rule}", by_rule[rule])
    mean("boundaries moved to a token's end, per chain", s["inside_token"])
    mean("boundaries sharing a token, per chain", s["collapsed"])
    if "entropies" in run.ragged_arrays:
        mean("prefixes without an answer, per chain", s["missing_points"])
        mean("continuation tokens per chain", s["continuation_tokens"])
    if "forced_entropies" in run.ragged_arrays:
        mean(
            "forced boundaries per chain, empty prefix included",
            s["forced_by_rule"].map(lambda v: len(json.loads(v)[forced_rule(run)])),
        )
        mean("tokens run for the forced answers, per chain", s["forced_tokens_run"])
    return pd.DataFrame(rows)


def agreement(table: pd.DataFrame) -> dict[str, float]:
    """How often the two outcome definitions agree, as shares: the same answer (of chains that have one under either), the same
    verdict (of chains with a gold answer); and how many chains there are."""
    known = table["correct_last"].notna() & table["correct_own"].notna()
    verdict = (table["correct_last"] == table["correct_own"])[known]
    return {
        "same_answer": _same_answer(table["answer_last"], table["answer_own"]),
        "same_verdict": float(verdict.mean()) if len(verdict) else math.nan,
        "chains": len(table),
    }


def truncation_table(run: Run, budgets: Sequence[int] = (512, 600, 1280, 4096)) -> pd.DataFrame:
    """Share of chains that each token budget would have cut off: budget, n, truncated, lower, upper, note.

    From one generation per chain: a chain is cut off at budget b when it is longer than b. Budgets above the one the
    chains were written under are undefined, since longer chains ended there.
    """
    s = run.states[run.states["truncated"].notna()]
    ceiling = int(run.config.get("chain_tokens", 0) or 600)
    length, cut = s["chain_tokens"].astype(int).to_numpy(), s["truncated"].astype(bool).to_numpy()
    rows = []
    for budget in budgets:
        if budget > ceiling:
            rows.append(
                {
                    "budget": budget,
                    "n": len(s),
                    "truncated": math.nan,
                    "lower": math.nan,
                    "upper": math.nan,
                    "note": f"chains were written under {ceiling}",
                }
            )
            continue
        over = (length > budget) | (cut & (length >= budget))
        i = wilson(int(over.sum()), len(s))
        rows.append(
            {"budget": budget, "n": len(s), "truncated": i.estimate, "lower": i.lower, "upper": i.upper, "note": ""}
        )
    return pd.DataFrame(rows)


def completion_curve(lengths: Sequence[int], finished: Sequence[bool]) -> pd.DataFrame:
    """Share of chains that have ended by themselves after t tokens (product-limit estimate): tokens, completed, at_risk, ended.

    Chains cut off are censored at their length: they count as running until then, and never as ended.

    References
    ----------
    Kaplan and Meier, Nonparametric Estimation from Incomplete Observations, JASA 1958.
    """
    length, done = np.asarray(lengths), np.asarray(finished, dtype=bool)
    surviving, rows = 1.0, []
    for t in np.unique(length):
        at_risk, ended = int((length >= t).sum()), int(((length == t) & done).sum())
        surviving *= 1 - ended / at_risk
        rows.append({"tokens": int(t), "completed": 1 - surviving, "at_risk": at_risk, "ended": ended})
    return pd.DataFrame(rows, columns=["tokens", "completed", "at_risk", "ended"])


def answers_sensitivity(
    run: Run, counts: Sequence[int] = (5, 10, 20), epsilon: float = 0.01, tie: str = "first", seed: int = 0
) -> pd.DataFrame:
    """The gap with the first m continuations of every prefix, for each m that was sampled: m, n, coverage, gap_points, lower,
    upper, odds_ratio, p_greater, flag_agreement and entropy_spearman (against the largest m)."""
    m_max = int(run.config.get("m", 5))
    usable_counts = sorted({m for m in (*counts, m_max) if m <= m_max})
    tables = {m: sampled_table(run, epsilon, tie, m) for m in usable_counts}
    whole = tables[m_max]
    rows = []
    for m, table in tables.items():
        row: dict[str, Any] = {"m": m}
        kept = usable(table, "correct_last")
        if len(kept):
            g = accuracy_gap(
                kept["correct_last"].to_numpy(), kept["monotone"].to_numpy(), kept["problem"].to_numpy(), seed=seed
            )
            row |= {
                "n": len(kept), "coverage": g.coverage, "gap_points": g.points.estimate, "lower": g.points.lower,
                "upper": g.points.upper, "odds_ratio": g.odds_ratio.estimate, "p_greater": g.p_greater,
            }  # fmt: skip
        both = table["monotone"].notna() & whole["monotone"].notna()
        row["flag_agreement"] = float((table["monotone"] == whole["monotone"])[both].mean()) if both.any() else math.nan
        mine, theirs = np.concatenate([*table["entropies"]]), np.concatenate([*whole["entropies"]])
        there = np.isfinite(mine) & np.isfinite(theirs)
        row["entropy_spearman"] = spearman(mine[there], theirs[there])
        rows.append(row)
    return pd.DataFrame(rows)


def rule_sensitivity(run: Run, epsilon: float = 0.01, seed: int = 0) -> pd.DataFrame:
    """The forced gap under each rule whose boundaries were in the pass: rule, points, n, coverage, gap_points, lower, upper,
    odds_ratio, p_greater."""
    rows = []
    for rule in json.loads(run.states["forced_by_rule"].iloc[0]):
        table = forced_table(run, epsilon, rule=rule)
        kept = usable(table, "correct_last")
        row: dict[str, Any] = {"rule": rule, "points": float(table["points"].mean()), "n": len(kept)}
        if len(kept):
            g = accuracy_gap(
                kept["correct_last"].to_numpy(), kept["monotone"].to_numpy(), kept["problem"].to_numpy(), seed=seed
            )
            row |= {
                "coverage": g.coverage, "gap_points": g.points.estimate, "lower": g.points.lower, "upper": g.points.upper,
                "odds_ratio": g.odds_ratio.estimate, "p_greater": g.p_greater,
            }  # fmt: skip
        rows.append(row)
    return pd.DataFrame(rows)


def anchor_sensitivity(run: Run) -> tuple[pd.DataFrame, float]:
    """How much the anchor's wording matters: Spearman's correlation of forced entropies between wordings, over all boundaries.

    Returns
    -------
    DataFrame
        anchor, other, spearman, n; one row a pair. Empty with a single anchor.
    float
        Mean over the pairs; NaN without pairs.
    """
    names = json.loads(run.states["forced_anchors"].iloc[0])
    values = np.concatenate([run.ragged("forced_entropies", i) for i in range(len(run))], axis=1)
    rows = []
    for i in range(len(names)):
        for j in range(i + 1, len(names)):
            there = np.isfinite(values[i]) & np.isfinite(values[j])
            rows.append(
                {
                    "anchor": names[i],
                    "other": names[j],
                    "spearman": spearman(values[i][there], values[j][there]),
                    "n": int(there.sum()),
                }
            )
    pairs = pd.DataFrame(rows, columns=["anchor", "other", "spearman", "n"])
    return pairs, float(pairs["spearman"].mean()) if len(pairs) else math.nan


def run_agreement(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Agreement between runs of the same items (other seeds, or other segmentations), one row a pair of runs.

    Returns
    -------
    DataFrame
        run, other, n (chains in both), same_flag, kappa (Cohen's, of the flag), same_answer (of chains with an answer in either),
        spearman_violations, spearman_final. Undefined values are NaN.
    """
    names = list(tables)
    rows = []
    for i in range(len(names)):
        for j in range(i + 1, len(names)):
            a, b = tables[names[i]].set_index("chain"), tables[names[j]].set_index("chain")
            shared = [c for c in a.index if c in b.index and not a.at[c, "excluded"] and not b.at[c, "excluded"]]
            a, b = a.loc[shared], b.loc[shared]
            x, y = a["monotone"].astype(bool).to_numpy(), b["monotone"].astype(bool).to_numpy()
            rows.append(
                {
                    "run": names[i], "other": names[j], "n": len(shared),
                    "same_flag": float((x == y).mean()) if len(shared) else math.nan, "kappa": _kappa(x, y),
                    "same_answer": _same_answer(a["answer_last"], b["answer_last"]),
                    "spearman_violations": spearman(a["violations"].astype(float).to_numpy(), b["violations"].astype(float).to_numpy()),
                    "spearman_final": spearman(a["final"].to_numpy(), b["final"].to_numpy()),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def _same_answer(a: pd.Series, b: pd.Series) -> float:
    """Share of rows with equal answers, of those that have one on either side; NaN where none has."""
    pairs = [(p, q) for p, q in zip(a, b, strict=True) if not (pd.isna(p) and pd.isna(q))]
    return float(np.mean([not pd.isna(p) and not pd.isna(q) and p == q for p, q in pairs])) if pairs else math.nan


def _kappa(x: np.ndarray, y: np.ndarray) -> float:
    if not len(x):
        return math.nan
    chance = x.mean() * y.mean() + (1 - x.mean()) * (1 - y.mean())
    return float(((x == y).mean() - chance) / (1 - chance)) if chance < 1 else math.nan
