"""Accepting some chains and not others: rankings by a score, and a learned filter on held-out problems.

Guarantees that exactly the asked share is accepted, that ties are broken by seeded draws, and that a filter is judged on problems
that it never saw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ...declared import SCORES
from .. import selective
from ..statistics import Interval, bootstrap_auroc, undefined_interval
from .gap import METHOD, bootstrap_problems

_SIGN = {"monotone": 1.0, "violations": -1.0, "final": -1.0, "coherence": 1.0, "confidence": 1.0}


@dataclass(frozen=True)
class Triage:
    """A learned filter at one coverage, judged on held-out problems.

    Attributes
    ----------
    coverage : float
    accepted : int
        Exactly round(coverage * n) of the n test chains.
    train, test : int
        Chains on each side of the split.
    false_positives : float
        Wrong answers among the accepted, averaged over tie-breaking draws.
    at_random, by_confidence : float
        The same when accepting as many at random, or by confidence alone.
    reduction, reduction_to_confidence : Interval
        1 - false positives / those of each comparison; intervals resample test problems.
    accuracy : float
        Share of right answers among the accepted.
    coefficients : dict of str to float
        Per standard deviation of each feature, on the log-odds scale.
    reason : str
        Why it is undefined; empty otherwise.
    """

    coverage: float
    accepted: int
    train: int
    test: int
    false_positives: float
    at_random: float
    by_confidence: float
    reduction: Interval
    reduction_to_confidence: Interval
    accuracy: float
    coefficients: Mapping[str, float]
    reason: str = ""


def signed_scores(kept: pd.DataFrame) -> dict[str, np.ndarray]:
    """The compared scores as float64 [n], each so that higher means more trusted, by name (`SCORES`)."""
    return {score: _SIGN[score] * kept[score].astype("float64").to_numpy() for score in SCORES}


def aurocs(
    kept: pd.DataFrame, y: np.ndarray, problems: np.ndarray, resamples: int, level: float, seed: int
) -> pd.DataFrame:
    rows = []
    for score, values in signed_scores(kept).items():
        i = bootstrap_auroc(y, values, resamples, level, seed, problems)
        rows.append(
            {
                "score": score,
                "auroc": i.estimate,
                "lower": i.lower,
                "upper": i.upper,
                "undefined": i.undefined,
                "reason": i.reason,
            }
        )
    return pd.DataFrame(rows)


def selective_prediction(
    kept: pd.DataFrame, y: np.ndarray, problems: np.ndarray, coverage: float, resamples: int, level: float, seed: int
) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for score, c in signed_scores(kept).items():
        known = np.flatnonzero(np.isfinite(c))
        if len(known) == 0:
            continue

        def exact(picked: np.ndarray, c: np.ndarray = c, known: np.ndarray = known) -> float:
            return selective.area(selective.expected_risk(y[known[picked]], c[known[picked]]))

        curve = selective.risk_coverage(y[known], c[known], seed=seed).risk
        i = bootstrap_problems(exact, problems[known], resamples, level, seed)
        rows.append(
            {
                "score": score, "aurc": selective.area(curve), "lower": i.lower, "upper": i.upper,
                "aurc_truncated": selective.area(curve, coverage),
                "accuracy_at_coverage": 1 - curve[selective.accepted_count(coverage, len(known)) - 1],
            }
        )  # fmt: skip
    k, right = selective.accepted_count(coverage, len(y)), int(y.sum())
    oracle, oracle_part = selective.oracle_aurc(y), selective.oracle_aurc(y, coverage)
    blank = {"lower": math.nan, "upper": math.nan}
    rows.append(
        {
            "score": "oracle",
            "aurc": oracle,
            **blank,
            "aurc_truncated": oracle_part,
            "accuracy_at_coverage": min(right, k) / k,
        }
    )
    error = 1 - float(y.mean())
    rows.append({"score": "random", "aurc": error, **blank, "aurc_truncated": error, "accuracy_at_coverage": 1 - error})
    return pd.DataFrame(rows)


def triage(
    kept: pd.DataFrame,
    y: np.ndarray,
    coverage: float,
    *,
    draws: int = 100,
    train_share: float = 0.6,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Triage:
    """A logistic filter on violation count and confidence, fitted on 60% of the problems and judged on the rest.

    Problems are split in strata of their majority outcome. Exactly round(coverage * n) of the test chains are accepted; ties
    are broken by seeded uniforms over `draws` draws, and by their exact expectation inside the intervals.
    """
    from sklearn.linear_model import LogisticRegression

    nan = math.nan
    known = kept["confidence"].notna().to_numpy()
    kept, y = kept[known], y[known]
    problems = kept["problem"].to_numpy()
    train = _split(problems, y, train_share, seed)
    undefined = undefined_interval("", method=METHOD, level=level)
    sizes = (int(train.sum()), int((~train).sum()))
    reason = ""
    if min(sizes) == 0:
        reason = "too few problems to split"
    elif y[train].all() or not y[train].any():
        reason = "the training problems hold one outcome only"
    if reason:
        return Triage(coverage, 0, *sizes, nan, nan, nan, undefined, undefined, nan, {}, reason)
    features = kept[["violations", "confidence"]].astype("float64").to_numpy()
    mean, spread = features[train].mean(axis=0), features[train].std(axis=0)
    z = (features - mean) / np.where(spread > 0, spread, 1.0)
    fitted = LogisticRegression(C=1e6, max_iter=1000).fit(z[train], y[train])
    score, confidence = fitted.decision_function(z[~train]), features[~train, 1]
    outcome, of_problem = y[~train], problems[~train]
    k = selective.accepted_count(coverage, len(outcome))

    def accepted_wrong(risk: np.ndarray, n: int) -> float:
        return float(risk[n - 1] * n)

    def reduction(rows: np.ndarray, against: str) -> float:
        picked = outcome[rows]
        n = selective.accepted_count(coverage, len(rows))
        mine = accepted_wrong(selective.expected_risk(picked, score[rows]), n)
        other = (
            n * (1 - picked.mean()) if against == "random"
            else accepted_wrong(selective.expected_risk(picked, confidence[rows]), n)
        )  # fmt: skip
        return 1 - mine / other if other > 0 else nan

    mine = accepted_wrong(selective.risk_coverage(outcome, score, draws, seed).risk, k)
    return Triage(
        coverage, k, *sizes, mine, k * (1 - float(outcome.mean())),
        accepted_wrong(selective.risk_coverage(outcome, confidence, draws, seed).risk, k),
        bootstrap_problems(lambda rows: reduction(rows, "random"), of_problem, resamples, level, seed),
        bootstrap_problems(lambda rows: reduction(rows, "confidence"), of_problem, resamples, level, seed),
        1 - mine / k, dict(zip(("violations", "confidence"), fitted.coef_[0].tolist(), strict=True)),
    )  # fmt: skip


def _split(problems: np.ndarray, y: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Mask [n] of training rows: round(share * problems) of the problems within each majority outcome."""
    rng = np.random.default_rng(seed)
    by_problem = pd.Series(y.astype(float)).groupby(problems).mean() >= 0.5
    chosen: set[Any] = set()
    for outcome in (False, True):
        names = sorted(by_problem.index[by_problem.to_numpy() == outcome], key=str)
        rng.shuffle(names)
        chosen |= set(names[: round(share * len(names))])
    return np.array([p in chosen for p in problems], dtype=bool)
