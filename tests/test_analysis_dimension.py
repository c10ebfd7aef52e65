"""Participation ratios and neighbour dimensions against closed forms, brute force and scikit-dimension."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest

from precollapse.analysis import dimension
from precollapse.analysis.probing import splits
from precollapse.errors import RequestError


def _with_spectrum(values, n=64):
    """n rows whose sample covariance has exactly these eigenvalues."""
    rng = np.random.default_rng(0)
    d = len(values)
    x = rng.standard_normal((n, d))
    q, _ = np.linalg.qr(x - x.mean(axis=0))
    turn, _ = np.linalg.qr(rng.standard_normal((d, d)))
    return q * np.sqrt(np.array(values) * (n - 1)) @ turn + 5.0


def test_equal_eigenvalues_give_their_number():
    assert dimension.participation_ratio(_with_spectrum([3.0] * 7)) == pytest.approx(7)


def test_geometric_eigenvalues_give_the_closed_form():
    """For eigenvalues r^i the ratio is (1 + r)(1 - r^d) / ((1 - r)(1 + r^d))."""
    r, d = 0.6, 12
    expected = (1 + r) * (1 - r**d) / ((1 - r) * (1 + r**d))
    assert dimension.participation_ratio(_with_spectrum(r ** np.arange(d))) == pytest.approx(expected)


def test_isotropic_plug_in_is_biased_as_theory_says_and_unbiased_is_not():
    """Plug-in: about n d / (n + d) for n rows of d isotropic Gaussian features; the truth is d."""
    rng = np.random.default_rng(1)
    n, d = 50, 400
    draws = [rng.standard_normal((n, d)) for _ in range(40)]
    plug_in = np.mean([dimension.participation_ratio(x) for x in draws])
    corrected = [dimension.participation_ratio(x, unbiased=True) for x in draws]
    assert plug_in == pytest.approx((n - 1) * d / (n - 1 + d), rel=0.02)
    assert np.mean(corrected) == pytest.approx(d, abs=4 * np.std(corrected) / np.sqrt(40) + 0.02 * d)


def test_unbiased_traces_equal_their_u_statistics():
    """Over ordered quadruples of distinct rows: ((xi - xj).(xk - xl))^2 / 4 and |xi - xj|^2 |xk - xl|^2 / 4."""
    x = np.random.default_rng(2).exponential(size=(7, 3))
    top = bottom = 0.0
    for i, j, k, m in permutations(range(7), 4):
        a, b = x[i] - x[j], x[k] - x[m]
        bottom += (a @ b) ** 2
        top += (a @ a) * (b @ b)
    assert dimension.participation_ratio(x, unbiased=True) == pytest.approx(top / bottom, rel=1e-10)


def test_gram_and_covariance_forms_agree():
    x = np.random.default_rng(3).standard_normal((30, 9)) * np.arange(1, 10)
    c = np.cov(x.T)
    assert dimension.participation_ratio(x) == pytest.approx(np.trace(c) ** 2 / (c**2).sum())


def test_aggregate_weights_layers_by_their_variance():
    rng = np.random.default_rng(4)
    x = rng.standard_normal((20, 3, 8)) * np.array([1.0, 3.0, 0.5])[None, :, None]
    got = dimension.effective_dimensionality(x)
    traces = np.array([np.trace(np.cov(x[:, k].T)) for k in range(3)])
    ratios = np.array([dimension.participation_ratio(x[:, k]) for k in range(3)])
    np.testing.assert_allclose(got.weights, traces / traces.sum())
    np.testing.assert_allclose(got.per_layer, ratios)
    assert got.aggregate == pytest.approx((ratios * traces).sum() / traces.sum())
    assert got.ceiling == 19 and (got.per_layer <= got.ceiling).all()
    for k in range(3):
        share = np.cumsum(np.sort(np.linalg.eigvalsh(np.cov(x[:, k].T)))[::-1]) / traces[k]
        assert share[got.ninety[k] - 1] >= 0.9 > (share[got.ninety[k] - 2] if got.ninety[k] > 1 else 0)


@pytest.mark.parametrize("x", [np.zeros((0, 4)), np.ones((1, 4)), np.ones((6, 4)), np.full((5, 4), np.nan)])
def test_no_variance_is_undefined(x):
    assert np.isnan(dimension.participation_ratio(x))
    assert np.isnan(dimension.participation_ratio(x, unbiased=True))
    assert np.isnan(dimension.two_nn(x)) and np.isnan(dimension.levina_bickel(x))
    got = dimension.effective_dimensionality(x[:, None, :])
    assert np.isnan(got.aggregate) and got.reason


def test_rows_that_are_not_finite_are_left_out_and_counted():
    x = np.random.default_rng(5).standard_normal((12, 2, 4))
    bad = x.copy()
    bad[3, 1, 0] = np.nan
    got = dimension.effective_dimensionality(bad)
    keep = np.arange(12) != 3
    assert got.left_out == 1 and got.n == 11
    assert got.aggregate == pytest.approx(dimension.effective_dimensionality(x[keep]).aggregate)


def test_subsampling_draws_the_same_items_for_every_regime():
    rng = np.random.default_rng(6)
    a = rng.standard_normal((60, 5, 30))
    grams = {name: [dimension.centred_gram(a[:, k]) for k in range(5)] for name in ("baseline", "same")}
    table = dimension.subsampling(grams, sizes=(10, 25, 60, 100), repeats=8, seed=1)
    same = table[table["regime"] == "same"].set_index("size")
    assert (same.loc[[10, 25, 60], "mean_difference"] == 0).all()
    assert np.isnan(same.loc[100, "mean"]) and same.loc[100, "reason"] == "only 60 items"
    whole = dimension.effective_dimensionality(a)
    assert same.loc[60, "mean"] == pytest.approx(whole.aggregate)
    assert same.loc[10, "mean"] < same.loc[25, "mean"] < same.loc[60, "mean"]


def test_subset_equals_the_states_themselves():
    x = np.random.default_rng(7).standard_normal((30, 2, 6))
    pick = np.array([3, 8, 9, 20, 21, 5])
    got, corrected = dimension.from_subset([dimension.centred_gram(x[:, k]) for k in range(2)], pick)
    direct = dimension.effective_dimensionality(x[pick])
    assert (got, corrected) == pytest.approx((direct.aggregate, direct.aggregate_unbiased))


@pytest.mark.parametrize("d", [2, 5])
def test_neighbour_estimates_equal_scikit_dimension(d):
    skdim = pytest.importorskip("skdim", reason="scikit-dimension is not installed")
    rng = np.random.default_rng(8)
    x = rng.standard_normal((400, d)) @ rng.standard_normal((d, 20))
    assert dimension.two_nn(x) == pytest.approx(skdim.id.TwoNN().fit(x).dimension_, rel=1e-6)
    assert dimension.levina_bickel(x, k=10) == pytest.approx(skdim.id.MLE().fit(x, n_neighbors=10).dimension_, rel=1e-6)
    assert dimension.two_nn(x) == pytest.approx(d, rel=0.2)


def test_a_duplicate_neither_zeroes_nor_crashes():
    x = np.random.default_rng(9).standard_normal((200, 3))
    doubled = np.concatenate([x, x[:1], x[:1]])
    for estimate in (dimension.two_nn_detail, dimension.levina_bickel_detail):
        clean, got = estimate(x), estimate(doubled)
        assert got.value == pytest.approx(clean.value) and got.duplicates == 2 and got.n == 200
    assert dimension.levina_bickel_detail(x[:5], k=10).reason == "k brought down to 4"


def test_near_duplicates_keep_their_digits():
    x = np.random.default_rng(10).standard_normal((100, 40)) * 1e3
    x[1] = x[0] + 1e-7
    found = dimension.Neighbours.of(x, 2)
    assert found.distance[0, 0] == pytest.approx(np.linalg.norm(x[1] - x[0]), rel=1e-12)


def test_wrong_shapes_are_refused():
    with pytest.raises(RequestError, match=r"\[n, d\]"):
        dimension.participation_ratio(np.zeros(3))
    with pytest.raises(RequestError, match=r"\[n, L, d\]"):
        dimension.effective_dimensionality(np.zeros((3, 4)))
    with pytest.raises(RequestError, match="k is 1"):
        dimension.levina_bickel(np.zeros((5, 2)), k=1)


# -- splits ------------------------------------------------------------------------------------------------------------


def test_an_item_stands_on_one_side_whatever_its_regimes():
    items = [f"q{i}" for i in range(50)] * 3
    labels = np.random.default_rng(0).random(150) < 0.3
    split = splits.split_items(items, labels, seed=4)
    train, validation, test = (set(np.array(items)[rows]) for rows in split.rows(items))
    assert not train & validation and not train & test and not validation & test
    assert split.sizes() == (30, 10, 10)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_split_keeps_the_share_of_labels(share):
    n = 200
    labels = np.arange(n) < share * n
    for seed in range(5):
        parts = splits.split_items(np.arange(n), labels, seed=seed).rows(np.arange(n))
        for rows, fraction in zip(parts, (0.6, 0.2, 0.2), strict=True):
            assert labels[rows].sum() == pytest.approx(share * n * fraction, abs=1)


def test_every_item_has_its_chance_of_being_tested():
    tested = np.zeros(20)
    for seed in range(600):
        tested[splits.split_items(np.arange(20), np.arange(20) < 7, seed=seed).rows(np.arange(20))[2]] += 1
    assert (np.abs(tested / 600 - 0.2) < 0.08).all()


def test_folds_cover_all_items_once():
    items = np.repeat(np.arange(23), 2)
    fold = splits.fold_items(items, 5, items < 6, seed=1)
    assert (fold[0::2] == fold[1::2]).all()
    counts = np.bincount(fold[0::2])
    assert counts.size == 5 and counts.max() - counts.min() <= 1
    with pytest.raises(RequestError, match="5 folds over 3 items"):
        splits.fold_items([1, 2, 3], 5)


def test_unknown_item_and_bad_fractions_are_refused():
    split = splits.split_items(["a", "b", "c"])
    with pytest.raises(RequestError, match="'d' is not in the split"):
        split.rows(["a", "d"])
    with pytest.raises(RequestError, match="sum to 1"):
        splits.split_items(["a"], fractions=(0.5, 0.2, 0.2))


@pytest.mark.parametrize("value", [14.62, 0.1, 1e-30, 1e30, -7.7, 0.0])
@pytest.mark.parametrize("n", [2, 3, 20, 1000])
def test_states_that_do_not_vary_have_no_dimension(n, value):
    """The mean of equal values is not exactly theirs in floating point; what is left of them is no variation."""
    x = np.full((n, 8), value)
    assert math.isnan(dimension.participation_ratio(x)) and math.isnan(dimension.participation_ratio(x, unbiased=True))
    result = dimension.effective_dimensionality(np.stack([x, x], 1))
    assert math.isnan(result.aggregate) and result.reason == "the states do not vary"
    gram = dimension.centred(x @ x.T)
    assert math.isnan(dimension.ratio_from_gram(gram))
    x[0, 0] += 1e-6 * max(abs(value), 1e-30)
    assert dimension.participation_ratio(x) == pytest.approx(1.0, rel=1e-3)


def test_a_layer_that_does_not_vary_leaves_the_others_as_they_are():
    rng = np.random.default_rng(0)
    x = np.full((30, 2, 6), 3.3)
    x[:, 1] = rng.normal(size=(30, 6))
    result = dimension.effective_dimensionality(x)
    assert math.isnan(result.per_layer[0]) and result.per_layer[1] == dimension.participation_ratio(x[:, 1])
    assert result.aggregate == pytest.approx(result.per_layer[1])
