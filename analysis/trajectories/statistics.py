"""Whether the shape of an entropy trajectory says anything about the answer: every statistic, under one declared protocol.

Guarantees that excluded chains are counted and never filled in, that resampling is by problem (chains of one problem enter or
stay out together), that one- and two-sided tests are both named, and that a statistic which the data do not define is missing
with its reason.

A table has one row a chain: `problem`, `monotone`, `violations`, `max_violation`, `coherence`, `final`, `confidence`,
`length`, `excluded` and one or more outcome columns of booleans (`correct` by default).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats as scipy_stats

from ...declared import CORRELATED, ESTIMATES, LOGISTIC_TERMS, PVALUES, SCORES
from ...errors import RequestError
from .. import selective
from ..statistics import (
    Interval,
    bootstrap_auroc,
    difference_of_proportions,
    fisher,
    holm,
    percentile_interval,
    resample_weights,
    undefined_interval,
    wilson,
)
from .shapes import attainable_steps, early_exit, shape

EPSILONS = (0.0, 0.01, 0.05, 0.10)
_MOST_ANSWERS = 20  # the lattice of attainable steps grows like the square of the partitions of m
COVERAGE = 0.737
_SIGN = {"monotone": 1.0, "violations": -1.0, "final": -1.0, "coherence": 1.0, "confidence": 1.0}
_METHOD = "percentile bootstrap over problems"


@dataclass(frozen=True)
class Gap:
    """Accuracy of monotone chains against the others.

    Attributes
    ----------
    correct_monotone, n_monotone, correct_other, n_other : int
    accuracy_monotone, accuracy_other : Interval
        Wilson intervals.
    points : Interval
        Difference in percentage points.
    odds_ratio : Interval
        Sample odds ratio with Woolf's interval.
    p_two_sided, p_greater : float
        Fisher's exact test; "greater" is the one-sided test that monotone chains are more often right.
    coverage : float
        Share of chains that are monotone.
    """

    correct_monotone: int
    n_monotone: int
    correct_other: int
    n_other: int
    accuracy_monotone: Interval
    accuracy_other: Interval
    points: Interval
    odds_ratio: Interval
    p_two_sided: float
    p_greater: float
    coverage: float


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


@dataclass(frozen=True)
class TrajectoryStatistics:
    """All statistics of one table under one outcome.

    Attributes
    ----------
    outcome : str
    n, excluded, problems : int
        Chains that entered, chains left out (fewer than two points), distinct problems.
    accuracy : Interval
    gap : Gap
    correlations : DataFrame
        Spearman correlations with the outcome, and those with length held fixed: measure, n, rho, p, lower, upper, undefined, reason.
    buckets : DataFrame
        By violation count (0, 1, 2, 3 or more): n, correct, accuracy, lower, upper.
    logistic : DataFrame
        Standardised regression of the outcome on flag, length and final entropy: term, coefficient, lower, upper, odds_ratio, p, reason.
    auroc : DataFrame
        score, auroc, lower, upper, undefined, reason.
    selective : DataFrame
        score, aurc, lower, upper, aurc_truncated, accuracy_at_coverage, with the rows `oracle` and `random`.
    triage : tuple of Triage
    settings : dict
    """

    outcome: str
    n: int
    excluded: int
    problems: int
    accuracy: Interval
    gap: Gap
    correlations: pd.DataFrame
    buckets: pd.DataFrame
    logistic: pd.DataFrame
    auroc: pd.DataFrame
    selective: pd.DataFrame
    triage: tuple[Triage, ...]
    settings: Mapping[str, Any]

    def pvalues(self) -> dict[str, float]:
        """Named p values (`PVALUES`), from which a preregistered family is drawn; NaN where undefined."""
        found = dict.fromkeys(PVALUES, math.nan)
        found |= {"fisher_greater": self.gap.p_greater, "fisher_two_sided": self.gap.p_two_sided}
        found |= {f"spearman_{r.measure}": r.p for r in self.correlations.itertuples()}
        found |= {f"logistic_{r.term}": r.p for r in self.logistic.itertuples()}
        return found

    def estimates(self) -> dict[str, float]:
        """Named estimates (`ESTIMATES`), against which preregistered criteria are held; NaN where undefined."""
        g = self.gap
        found = dict.fromkeys(ESTIMATES, math.nan)
        found |= {
            "gap_points": g.points.estimate, "gap_points_lower": g.points.lower, "odds_ratio": g.odds_ratio.estimate,
            "coverage": g.coverage, "accuracy_monotone": g.accuracy_monotone.estimate,
            "accuracy_other": g.accuracy_other.estimate, "accuracy": self.accuracy.estimate,
        }  # fmt: skip
        found |= {f"spearman_{r.measure}": r.rho for r in self.correlations.itertuples()}
        found |= {f"auroc_{r.score}": r.auroc for r in self.auroc.itertuples()}
        found |= {f"aurc_{r.score}": r.aurc for r in self.selective.itertuples()}
        found |= {f"aurc_truncated_{r.score}": r.aurc_truncated for r in self.selective.itertuples()}
        return found


def gap_from_counts(
    correct_monotone: int, n_monotone: int, correct_other: int, n_other: int, level: float = 0.95
) -> Gap:
    """The accuracy gap of four counts, with Newcombe's interval on the difference.

    Raises
    ------
    RequestError
        When the counts do not fit.
    """
    a, b = wilson(correct_monotone, n_monotone, level), wilson(correct_other, n_other, level)
    difference = difference_of_proportions(correct_monotone, n_monotone, correct_other, n_other, level)
    table = [[correct_monotone, n_monotone - correct_monotone], [correct_other, n_other - correct_other]]
    two, one = fisher(table, "two-sided", level), fisher(table, "greater", level)
    total = n_monotone + n_other
    assert two.effect is not None
    empty = n_monotone == 0 or n_other == 0
    return Gap(
        correct_monotone, n_monotone, correct_other, n_other, a, b, _in_points(difference), two.effect,
        math.nan if empty else two.p_value, math.nan if empty else one.p_value, n_monotone / total if total else math.nan,
    )  # fmt: skip


def _in_points(i: Interval) -> Interval:
    return Interval(
        100 * i.estimate,
        100 * i.lower,
        100 * i.upper,
        i.undefined,
        i.method,
        i.level,
        i.resamples,
        i.n,
        i.left_out,
        i.reason,
    )


def bootstrap_problems(
    statistic: Callable[[np.ndarray], float],
    problems: Sequence[Any] | np.ndarray,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap of any statistic, whole problems at a time.

    Parameters
    ----------
    statistic : callable
        Takes row numbers (with repeats) and returns a float, NaN where undefined.
    problems : [n]
        The problem of each row.
    """
    n = len(problems)
    if n == 0:
        return undefined_interval("no rows", method=_METHOD, level=level)
    rows = np.arange(n)
    estimate = statistic(rows)
    if not math.isfinite(estimate):
        return undefined_interval("the statistic is undefined on these chains", method=_METHOD, level=level, n=n)
    draws = [
        statistic(np.repeat(rows, counts.astype(np.int64)))
        for block in resample_weights(n, resamples, seed, np.asarray(problems, dtype=object))
        for counts in block
    ]
    return percentile_interval(estimate, np.array(draws), level=level, method=_METHOD, n=n)


def usable(table: pd.DataFrame, outcome: str = "correct") -> pd.DataFrame:
    """The chains that enter: not excluded, with a known outcome; columns as plain floats and booleans.

    Raises
    ------
    RequestError
        When a column is missing.
    """
    needed = [
        "problem",
        "monotone",
        "violations",
        "max_violation",
        "coherence",
        "final",
        "confidence",
        "length",
        outcome,
    ]
    missing = [c for c in (*needed, "excluded") if c not in table.columns]
    if missing:
        raise RequestError(f"the table of chains lacks {', '.join(missing)}; make it with shape_table or chain_table")
    kept = table[~table["excluded"].astype(bool) & table[outcome].notna()][needed].reset_index(drop=True)
    numbers = ["violations", "max_violation", "coherence", "final", "confidence", "length"]
    kept[numbers] = kept[numbers].astype("float64")
    kept[["monotone", outcome]] = kept[["monotone", outcome]].astype(bool)
    return kept


def trajectory_statistics(
    table: pd.DataFrame,
    outcome: str = "correct",
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    coverage: float = COVERAGE,
    triage_coverages: Sequence[float] = (0.5, COVERAGE, 0.9),
) -> TrajectoryStatistics:
    """Every statistic of a table of chains.

    Parameters
    ----------
    table : DataFrame
        See the module's text.
    outcome : str
        Column of booleans.
    resamples, level, seed
        Of every bootstrap interval.
    coverage : float
        Where AURC is truncated and selective accuracy is read.
    triage_coverages : sequence of float
        Coverages of the learned filter.

    Raises
    ------
    RequestError
        When a column is missing or no chain is left.
    """
    kept = usable(table, outcome)
    if kept.empty:
        raise RequestError(f"no chain of {len(table)} has two points and a known outcome; nothing can be compared")
    y, problems = kept[outcome].to_numpy(), kept["problem"].to_numpy()
    how: dict[str, Any] = {"resamples": resamples, "level": level, "seed": seed}
    return TrajectoryStatistics(
        outcome=outcome,
        n=len(kept),
        excluded=int(len(table) - len(kept)),
        problems=int(kept["problem"].nunique()),
        accuracy=wilson(int(y.sum()), len(y), level),
        gap=accuracy_gap(y, kept["monotone"].to_numpy(), problems, **how),
        correlations=_correlations(kept, y, problems, **how),
        buckets=violation_buckets(y, kept["violations"].to_numpy(), level),
        logistic=_logistic(kept, y, problems, level),
        auroc=_aurocs(kept, y, problems, **how),
        selective=_selective(kept, y, problems, coverage, **how),
        triage=tuple(triage(kept, y, c, **how) for c in triage_coverages),
        settings={**how, "coverage": coverage, "resampled_by": "problem"},
    )


def signed_scores(kept: pd.DataFrame) -> dict[str, np.ndarray]:
    """The compared scores as float64 [n], each so that higher means more trusted, by name (`SCORES`)."""
    return {score: _SIGN[score] * kept[score].astype("float64").to_numpy() for score in SCORES}


def accuracy_gap(
    correct: np.ndarray,
    monotone: np.ndarray,
    problems: np.ndarray,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Gap:
    """`gap_from_counts` of chains, with the difference's interval resampled by problem.

    Parameters
    ----------
    correct, monotone : bool [n]
    problems : [n]
    """
    plain = gap_from_counts(
        int((correct & monotone).sum()),
        int(monotone.sum()),
        int((correct & ~monotone).sum()),
        int((~monotone).sum()),
        level,
    )

    def difference(rows: np.ndarray) -> float:
        y, flag = correct[rows], monotone[rows]
        return 100 * (y[flag].mean() - y[~flag].mean()) if 0 < flag.sum() < len(flag) else math.nan

    interval = bootstrap_problems(difference, problems, resamples, level, seed)
    return Gap(**{**plain.__dict__, "points": interval})


def violation_buckets(correct: np.ndarray, violations: np.ndarray, level: float = 0.95) -> pd.DataFrame:
    """Accuracy by violation count 0, 1, 2 and 3 or more, with Wilson intervals: bucket, n, correct, accuracy, lower, upper."""
    rows = []
    for name, inside in (
        ("0", violations == 0),
        ("1", violations == 1),
        ("2", violations == 2),
        (">=3", violations >= 3),
    ):
        i = wilson(int(correct[inside].sum()), int(inside.sum()), level)
        rows.append({"bucket": name, "n": int(inside.sum()), "correct": int(correct[inside].sum()), **_accuracy(i)})
    return pd.DataFrame(rows)


def _accuracy(i: Interval) -> dict[str, float]:
    return {"accuracy": i.estimate, "lower": i.lower, "upper": i.upper}


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's correlation with average ranks; NaN for fewer than three pairs or a constant variable."""
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    return float(np.corrcoef(scipy_stats.rankdata(a), scipy_stats.rankdata(b))[0, 1])


def partial_spearman(a: np.ndarray, b: np.ndarray, control: np.ndarray) -> float:
    """Spearman's correlation of a and b with one control held fixed: (r_ab - r_ac r_bc) / sqrt((1 - r_ac^2)(1 - r_bc^2))."""
    ab, ac, bc = spearman(a, b), spearman(a, control), spearman(b, control)
    left = (1 - ac * ac) * (1 - bc * bc)
    return (ab - ac * bc) / math.sqrt(left) if left > 1e-12 else math.nan


def _t_test(rho: float, n: int, controls: int) -> float:
    freedom = n - 2 - controls
    if not math.isfinite(rho) or freedom < 1:
        return math.nan
    if abs(rho) >= 1:
        return 0.0
    return float(2 * scipy_stats.t.sf(abs(rho) * math.sqrt(freedom / (1 - rho * rho)), freedom))


def _correlations(
    kept: pd.DataFrame, y: np.ndarray, problems: np.ndarray, resamples: int, level: float, seed: int
) -> pd.DataFrame:
    outcome, length = y.astype(np.float64), kept["length"].to_numpy()
    rows = []
    for measure, held in CORRELATED.items():
        values = kept[measure].to_numpy()
        known = np.flatnonzero(np.isfinite(values))
        for controls in held:

            def statistic(
                picked: np.ndarray, values: np.ndarray = values, known: np.ndarray = known, controls: int = controls
            ) -> float:
                r = known[picked]
                if controls:
                    return partial_spearman(values[r], outcome[r], length[r])
                return spearman(values[r], outcome[r])

            i = bootstrap_problems(statistic, problems[known], resamples, level, seed)
            rows.append(
                {
                    "measure": f"{measure}_given_length" if controls else measure, "n": len(known), "rho": i.estimate,
                    "p": _t_test(i.estimate, len(known), controls), "lower": i.lower, "upper": i.upper,
                    "undefined": i.undefined, "reason": i.reason,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def _logistic(kept: pd.DataFrame, y: np.ndarray, problems: np.ndarray, level: float) -> pd.DataFrame:
    """Outcome on flag, length and final entropy, each in standard deviations; errors clustered by problem where they repeat."""
    import statsmodels.api as sm

    terms = list(LOGISTIC_TERMS)
    x = kept[terms].astype("float64").to_numpy()
    spread = x.std(axis=0)
    usable_terms = [t for t, s in zip(terms, spread, strict=True) if s > 0]
    reason = ""
    if y.all() or not y.any():
        reason = "one outcome only"
    elif len(y) <= len(terms) + 1:
        reason = f"{len(y)} chains are too few for {len(terms)} terms"
    result = None
    if not reason:
        columns = [terms.index(t) for t in usable_terms]
        z = (x[:, columns] - x[:, columns].mean(axis=0)) / spread[columns]
        codes = pd.factorize(problems)[0]
        repeated = len(np.unique(codes)) < len(codes)
        how = {"cov_type": "cluster", "cov_kwds": {"groups": codes}} if repeated else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result = sm.Logit(y.astype(float), sm.add_constant(z)).fit(disp=0, maxiter=200, **how)
            except np.linalg.LinAlgError:
                reason = "the outcome is separated perfectly"
        if result is not None and not (
            result.mle_retvals["converged"] and np.isfinite(result.bse).all() and result.bse.max() < 1e3
        ):
            result, reason = None, "the outcome is separated perfectly"
    half = scipy_stats.norm.ppf(0.5 + level / 2)
    rows = []
    for term in terms:
        if result is None or term not in usable_terms:
            why = reason or f"{term} does not vary"
            rows.append(
                {
                    "term": term,
                    **dict.fromkeys(("coefficient", "lower", "upper", "odds_ratio", "p"), math.nan),
                    "reason": why,
                }
            )
            continue
        j = 1 + usable_terms.index(term)
        b, se = float(result.params[j]), float(result.bse[j])
        rows.append(
            {
                "term": term, "coefficient": b, "lower": b - half * se, "upper": b + half * se, "odds_ratio": math.exp(b),
                "p": float(result.pvalues[j]), "reason": "",
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def _aurocs(
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


def _selective(
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
    undefined = undefined_interval("", method=_METHOD, level=level)
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


def epsilon_table(
    entropies: Sequence[Sequence[float | None]],
    correct: Sequence[bool],
    epsilons: Sequence[float] = EPSILONS,
    answers: int | None = None,
) -> pd.DataFrame:
    """The gap under each epsilon: epsilon, n, monotone, coverage, gap_points, odds_ratio, p_two_sided, p_greater, allowed_steps.

    `allowed_steps` counts the upward steps that `answers` sampled answers can make and this epsilon lets pass (missing when
    entropies are not sampled, or more than 20 were): epsilons with the same count are the same rule.
    """
    y = np.asarray(correct, dtype=bool)
    steps = None if answers is None or answers > _MOST_ANSWERS else attainable_steps(answers)
    rows = []
    for epsilon in epsilons:
        shapes = [shape(h, epsilon) for h in entropies]
        row = _gap_row(np.array([s.monotone is True for s in shapes]), np.array([s.reason is None for s in shapes]), y)
        allowed = None if steps is None else int((steps <= epsilon + 1e-12).sum())
        rows.append({"epsilon": epsilon, **row, "allowed_steps": allowed})
    return pd.DataFrame(rows)


def early_exit_table(
    entropies: Sequence[Sequence[float | None]], correct: Sequence[bool], epsilon: float = 0.01, longest: int = 8
) -> pd.DataFrame:
    """The gap of a flag that looks at the first k transitions only: k and the columns of `epsilon_table`; chains with fewer
    than k transitions are left out."""
    y = np.asarray(correct, dtype=bool)
    flags = [early_exit(h, epsilon) for h in entropies]
    rows = []
    for k in range(1, min(longest, max(map(len, flags), default=0)) + 1):
        there = np.array([len(f) >= k for f in flags])
        rows.append({"transitions": k, **_gap_row(np.array([len(f) >= k and f[k - 1] for f in flags]), there, y)})
    return pd.DataFrame(rows)


def _gap_row(flag: np.ndarray, there: np.ndarray, y: np.ndarray) -> dict[str, float]:
    flag, y = flag[there], y[there]
    g = gap_from_counts(int((y & flag).sum()), int(flag.sum()), int((y & ~flag).sum()), int((~flag).sum()))
    return {
        "n": int(there.sum()), "monotone": g.n_monotone, "coverage": g.coverage, "gap_points": g.points.estimate,
        "odds_ratio": g.odds_ratio.estimate, "p_two_sided": g.p_two_sided, "p_greater": g.p_greater,
    }  # fmt: skip


def family(pvalues: Mapping[str, float], names: Sequence[str], alpha: float = 0.05) -> pd.DataFrame:
    """Holm's adjustment over a declared family: name, p, p_holm, rejected.

    Raises
    ------
    RequestError
        When a name is not among the p values.
    """
    unknown = [n for n in names if n not in pvalues]
    if unknown:
        raise RequestError(f"no p value is called {', '.join(unknown)}; there are {', '.join(sorted(pvalues))}")
    p = np.array([pvalues[n] for n in names], dtype=np.float64)
    adjusted = holm(p, alpha)
    return pd.DataFrame({"name": list(names), "p": p, "p_holm": adjusted.adjusted, "rejected": adjusted.rejected})
