"""What the protocol of a trajectory run did to its chains: cut-off, capped, merged, missing.

Guarantees that chains cut off by the token budget are counted as censored and never as ended, and that a share which the run
cannot know (a budget above the one its chains were written under) is missing with the reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ....store import Run
from ...statistics import wilson
from .chains import forced_rule


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
