"""From a trajectory run to tables of chains, one row a chain.

Guarantees that sampled and forced trajectories come out in the same columns, under both outcome definitions (the answer at the
last prefix, and the chain's own), so that every statistic can be read under each; and that a chain without a gold answer or
without two points stays in the table, marked.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd

from ....errors import RequestError
from ....store import Run
from ..shapes import first_answers, majority, sampled_entropies, shape

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
        known = [row for row, h in zip(answers, entropies, strict=True) if not math.isnan(h)]
        last = majority(known[-1] if known else (), tie)  # of the last prefix that bears an answer
        rows.append(
            {
                **_identity(state), **_shape(entropies, epsilon), "confidence": last.share if known else math.nan,
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
    state: Any
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
