"""How measures of a chain go with its outcome: rank correlations and a logistic regression.

Guarantees that a measure which does not vary, or an outcome that is separated perfectly, has no number but a reason.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import pandas as pd
from scipy import stats as scipy_stats

from ...declared import CORRELATED, LOGISTIC_TERMS
from .gap import bootstrap_problems


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


def correlations(
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


def logistic(kept: pd.DataFrame, y: np.ndarray, problems: np.ndarray, level: float) -> pd.DataFrame:
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
