"""Intervals and tests against statsmodels, SciPy, scikit-learn, simulation and published counts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score
from statsmodels.stats.contingency_tables import mcnemar as peer_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint

from precollapse.analysis import statistics
from precollapse.errors import RequestError


@pytest.mark.parametrize(("k", "n"), [(0, 5), (5, 5), (8, 10), (198, 426), (1, 1)])
def test_wilson_equals_statsmodels(k, n):
    got = statistics.wilson(k, n)
    low, high = proportion_confint(k, n, method="wilson")
    assert (got.estimate, got.lower, got.upper) == pytest.approx((k / n, low, high), abs=1e-12)
    assert "Wilson" in got.method and got.level == 0.95


def test_wilson_of_nothing_is_undefined_and_of_nonsense_refused():
    got = statistics.wilson(0, 0)
    assert np.isnan([got.estimate, got.lower, got.upper]).all() and got.reason == "no rows"
    with pytest.raises(RequestError, match="11 successes of 10"):
        statistics.wilson(11, 10)


def test_difference_of_proportions_equals_statsmodels():
    got = statistics.difference_of_proportions(54, 73, 198, 426)
    low, high = confint_proportions_2indep(54, 73, 198, 426, method="newcomb", compare="diff")
    assert (got.lower, got.upper) == pytest.approx((low, high), abs=1e-9)


@given(
    st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=40).filter(
        lambda rows: len({y for y, _ in rows}) == 2
    )
)
@settings(max_examples=80, deadline=None)
def test_auroc_equals_scikit_learn_with_ties(rows):
    y, score = np.array([r[0] for r in rows]), np.array([r[1] for r in rows], float)
    assert statistics.auroc(y, score) == pytest.approx(roc_auc_score(y, score), abs=1e-12)


def test_bootstrap_auroc_equals_resampling_by_hand():
    """The weights form gives the same values as scoring each resample with scikit-learn."""
    rng = np.random.default_rng(0)
    y, score = rng.random(30) < 0.4, np.round(rng.standard_normal(30), 1)
    (weights,) = statistics.resample_weights(30, 50, seed=3)
    by_hand = [roc_auc_score(np.repeat(y, w.astype(int)), np.repeat(score, w.astype(int))) for w in weights]
    got = statistics.bootstrap_auroc(y, score, resamples=50, seed=3)
    assert (got.lower, got.upper) == pytest.approx(tuple(np.quantile(by_hand, [0.025, 0.975])), abs=1e-12)
    assert got.estimate == pytest.approx(roc_auc_score(y, score))


def test_bootstrap_counts_undefined_resamples():
    y = np.array([1, 0, 0, 0, 0, 0])
    got = statistics.bootstrap_auroc(y, np.arange(6.0), resamples=4000, seed=1)
    expected = 4000 * ((5 / 6) ** 6 + (1 / 6) ** 6)
    assert got.undefined == pytest.approx(expected, abs=4 * np.sqrt(expected))
    assert "undefined" in got.reason and got.resamples == 4000


@pytest.mark.parametrize("y", [[1, 1, 1], [0, 0], []])
def test_one_class_is_undefined_never_a_number(y):
    got = statistics.bootstrap_auroc(np.array(y, float), np.arange(float(len(y))))
    assert not got.defined and np.isnan(got.lower) and got.reason
    assert np.isnan(statistics.auroc(np.array(y, float), np.arange(float(len(y)))))


def test_missing_values_are_left_out_and_counted():
    y = pd.Series([True, False, None, True, False], dtype="boolean")
    score = np.array([0.9, 0.1, 0.5, np.nan, 0.3])
    got = statistics.bootstrap_auroc(y, score, resamples=10)
    assert (got.n, got.left_out, got.estimate) == (3, 2, 1.0)


def test_groups_enter_or_stay_out_together():
    groups = np.array(["a", "a", "b", "b", "c"], object)
    for block in statistics.resample_weights(5, 40, 0, groups):
        assert (block[:, 0] == block[:, 1]).all() and (block[:, 2] == block[:, 3]).all()
        assert (block[:, [0, 2, 4]].sum(axis=1) == 3).all()


def test_seed_decides_everything():
    rng = np.random.default_rng(0)
    y, score = rng.random(60) < 0.5, rng.standard_normal(60)
    one, same, other = (statistics.bootstrap_auroc(y, score, seed=s) for s in (5, 5, 6))
    assert one == same
    assert (one.lower, one.upper) != (other.lower, other.upper)


def test_interval_covers_a_known_auroc():
    """Binormal scores with AUROC Phi(1 / sqrt 2) = 0.760: 93-97% of 500 intervals hold it."""
    rng = np.random.default_rng(11)
    truth = stats.norm.cdf(1 / np.sqrt(2))
    held = 0
    for repetition in range(500):
        y = rng.random(200) < 0.5
        got = statistics.bootstrap_auroc(y, rng.standard_normal(200) + y, resamples=300, seed=repetition)
        held += got.lower <= truth <= got.upper
    assert 0.93 <= held / 500 <= 0.97, held


def test_paired_interval_covers_a_known_difference():
    """Two scores that share noise, with AUROC 0.760 and 0.638."""
    rng = np.random.default_rng(12)
    truth = stats.norm.cdf(1 / np.sqrt(2)) - stats.norm.cdf(0.5 / np.sqrt(2))
    held = 0
    for repetition in range(500):
        y = rng.random(120) < 0.5
        shared = rng.standard_normal(120) * 0.8
        a, b = (shared + rng.standard_normal(120) * 0.6 + shift * y for shift in (1.0, 0.5))
        got = statistics.bootstrap_auroc_difference(y, a, b, resamples=300, seed=repetition)
        held += got.lower <= truth <= got.upper
    assert 0.93 <= held / 500 <= 0.97, held


def test_mean_difference_interval_covers():
    rng = np.random.default_rng(13)
    held = 0
    for repetition in range(500):
        a = rng.exponential(1.0, 100)
        got = statistics.paired_difference(a, rng.exponential(0.5, 100), resamples=300, seed=repetition)
        held += got.lower <= 0.5 <= got.upper
    assert 0.93 <= held / 500 <= 0.97, held


def test_small_sample_interval_keeps_a_width_and_covers():
    """6 + 6 rows with AUROC 0.921: the bootstrap collapses when they separate, Newcombe's interval does not."""
    perfect = statistics.newcombe_auroc(1.0, 3, 3)
    assert perfect.upper == 1.0 and 0.3 < perfect.lower < 0.7
    rng = np.random.default_rng(14)
    truth = stats.norm.cdf(2 / np.sqrt(2))
    y = np.repeat([0, 1], 6)
    closed = boot = 0
    for repetition in range(400):
        score = rng.standard_normal(12) + 2 * y
        got = statistics.bootstrap_auroc(y, score, resamples=200, seed=repetition)
        boot += got.lower <= truth <= got.upper
        small = statistics.newcombe_auroc(got.estimate, 6, 6)
        closed += small.lower <= truth <= small.upper
    assert closed / 400 >= 0.93
    assert boot < closed


def test_newcombe_bounds_solve_their_equation():
    value, m, n = 0.8, 20, 35
    got = statistics.newcombe_auroc(value, m, n)
    for theta in (got.lower, got.upper):
        half = (m + n) / 2 - 1
        variance = theta * (1 - theta) / (m * n) * (1 + half * ((1 - theta) / (2 - theta) + theta / (1 + theta)))
        assert abs(value - theta) == pytest.approx(stats.norm.ppf(0.975) * np.sqrt(variance), rel=1e-6)
    mirrored = statistics.newcombe_auroc(1 - value, m, n)
    assert (1 - mirrored.upper, 1 - mirrored.lower) == pytest.approx((got.lower, got.upper), abs=1e-8)


def test_published_counts_have_one_solution_and_give_the_published_comparison():
    """730/419/113/34 problems with 88.8/84.2/69.9/47.1% correct: no violation against any."""
    sizes, percents = (730, 419, 113, 34), (88.8, 84.2, 69.9, 47.1)
    counts = [statistics.counts_from_percent(n, p) for n, p in zip(sizes, percents, strict=True)]
    assert counts == [[648], [353], [79], [16]]
    right, rest = 648, 353 + 79 + 16
    n, others = 730, 419 + 113 + 34
    gap = statistics.difference_of_proportions(right, n, rest, others)
    assert gap.estimate * 100 == pytest.approx(88.767 - 79.152, abs=1e-2)
    assert n / (n + others) == pytest.approx(0.5633, abs=1e-4)
    test = statistics.fisher([[right, n - right], [rest, others - rest]], "greater")
    assert test.odds_ratio == pytest.approx(648 * 118 / (82 * 448), rel=1e-12)
    tail = stats.hypergeom.sf(right - 1, n + others, right + rest, n)
    assert test.p_value == pytest.approx(tail, rel=1e-9)


@pytest.mark.parametrize(
    ("table", "gap", "odds", "p"),
    [([[54, 19], [198, 228]], 27.494, 3.273, 9.17e-06), ([[152, 69], [37, 42]], 21.94, 2.5006, None)],
)
def test_fisher_gives_published_values(table, gap, odds, p):
    test = statistics.fisher(table, "greater")
    (a, b), (c, d) = table
    assert 100 * (a / (a + b) - c / (c + d)) == pytest.approx(gap, abs=5e-3)
    assert test.odds_ratio == pytest.approx(odds, abs=5e-4)
    assert test.p_value == pytest.approx(p if p else stats.fisher_exact(table, "greater").pvalue, rel=1e-3)
    assert test.effect.lower < odds < test.effect.upper


def test_fisher_with_an_empty_cell_has_no_interval_and_refuses_nonsense():
    test = statistics.fisher([[5, 0], [3, 4]])
    assert np.isinf(test.odds_ratio) and np.isnan(test.effect.lower) and "empty cell" in test.effect.reason
    with pytest.raises(RequestError, match="2x2"):
        statistics.fisher([[1, 2, 3]])
    with pytest.raises(RequestError, match="sideways"):
        statistics.fisher([[1, 2], [3, 4]], "sideways")


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_mcnemar_equals_statsmodels(pairs):
    a, b = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    test = statistics.mcnemar(a, b)
    table = [[(a & b).sum(), (a & ~b).sum()], [(~a & b).sum(), (~a & ~b).sum()]]
    assert test.counts == tuple(int(v) for v in np.ravel(table))
    assert test.p_value == pytest.approx(min(1.0, peer_mcnemar(table, exact=True).pvalue), abs=1e-12)
    assert test.effect.estimate == pytest.approx(a.mean() - b.mean())


def test_mcnemar_leaves_missing_pairs_out():
    assert statistics.mcnemar([1, 0, np.nan], [0, 0, 1]).counts == (0, 1, 0, 1)
    empty = statistics.mcnemar([np.nan], [1])
    assert np.isnan(empty.p_value) and empty.reason


@pytest.mark.parametrize("seed", range(20))
def test_holm_equals_statsmodels(seed):
    rng = np.random.default_rng(seed)
    p = np.round(rng.random(rng.integers(1, 30)) ** 2, 2)
    got = statistics.holm(p)
    rejected, adjusted, _, _ = multipletests(p, 0.05, "holm")
    np.testing.assert_allclose(got.adjusted, adjusted, atol=1e-12)
    assert (got.rejected == rejected).all()


def test_holm_keeps_an_untestable_member_in_the_family():
    got = statistics.holm([0.01, np.nan, 0.04])
    np.testing.assert_allclose(got.adjusted, [0.03, np.nan, 0.08])
    assert got.undefined == 1 and got.rejected.tolist() == [True, False, False]


def test_sign_flip_equals_scipy():
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal(10) + 0.5, rng.standard_normal(10)
    for alternative in ("two-sided", "greater", "less"):
        peer = stats.permutation_test(
            (a - b,), np.mean, permutation_type="samples", n_resamples=np.inf, alternative=alternative
        )
        got = statistics.sign_flip(a, b, alternative)
        assert got.p_value == pytest.approx(peer.pvalue, abs=1e-12) and "exact" in got.method
    many = statistics.sign_flip(np.r_[a, a], np.r_[b, b])
    assert 0 < many.p_value < 1 and many.p_value == pytest.approx(
        stats.permutation_test((np.r_[a, a] - np.r_[b, b],), np.mean, permutation_type="samples", rng=0).pvalue,
        abs=0.02,
    )


def test_spearman_equals_scipy_and_says_when_it_is_undefined():
    rng = np.random.default_rng(3)
    x, y = np.round(rng.standard_normal(40), 1), rng.integers(0, 2, 40)
    got = statistics.bootstrap_spearman(x, y, resamples=200)
    assert got.estimate == pytest.approx(stats.spearmanr(x, y).statistic)
    assert got.lower < got.estimate < got.upper
    assert "constant" in statistics.bootstrap_spearman(x, np.ones(40)).reason


def test_difference_test_is_calibrated_and_directed():
    rng = np.random.default_rng(4)
    y = rng.random(200) < 0.5
    good, poor = rng.standard_normal(200) + 2 * y, rng.standard_normal(200)
    up = statistics.auroc_difference_test(y, good, y, poor, alternative="greater")
    down = statistics.auroc_difference_test(y, good, y, poor, alternative="less")
    assert up.p_value < 0.01 and down.p_value > 0.9 and up.effect.estimate > 0.2
    same = statistics.auroc_difference_test(y, good, y, good)
    assert same.p_value == 1.0


def test_stratified_auroc_ignores_a_shift_between_folds():
    rng = np.random.default_rng(5)
    y, fold = rng.random(300) < 0.5, np.arange(300) % 3
    score = rng.standard_normal(300) + y
    base = statistics.bootstrap_stratified_auroc(y, score, fold, resamples=50)
    moved = statistics.bootstrap_stratified_auroc(y, score + 100 * fold, fold, resamples=50)
    assert base.estimate == pytest.approx(moved.estimate) and base.lower == pytest.approx(moved.lower)
    per_fold = [roc_auc_score(y[fold == f], score[fold == f]) for f in range(3)]
    pairs = [y[fold == f].sum() * (~y[fold == f]).sum() for f in range(3)]
    assert base.estimate == pytest.approx(np.average(per_fold, weights=pairs))


def test_permutation_p_is_never_zero():
    assert statistics.permutation_p(0.9, np.full(99, 0.5)) == pytest.approx(0.01)
    assert np.isnan(statistics.permutation_p(np.nan, np.ones(9)))


def test_effect_sizes():
    assert statistics.cohen_dz(np.array([1.0, 2, 3]), np.zeros(3)) == pytest.approx(2.0)
    assert np.isnan(statistics.cohen_dz(np.ones(3), np.zeros(3)))
    assert statistics.cohen_h(0.5, 0.0) == pytest.approx(np.pi / 2)
    assert statistics.cliffs_delta(np.array([0, 0, 1, 1]), np.array([1.0, 2, 3, 4])) == 1.0
