"""Probes against scikit-learn on the same split, simulations with a known answer, planted leaks, and thin data."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from sklearn.preprocessing import StandardScaler

from precollapse.analysis import statistics
from precollapse.analysis.probing import logistic, probes, rowspace, splits
from precollapse.errors import RequestError


def _states(n=200, layers=4, d=64, effect=0.8, seed=0, dtype="float32"):
    """The second layer carries the label in four features; scales differ by feature, one feature is constant."""
    rng = np.random.default_rng(seed)
    y = rng.random(n) < 0.4
    x = rng.standard_normal((n, layers, d))
    x[y, min(1, layers - 1), :4] += effect
    x = x * rng.uniform(0.1, 50, (layers, d)) + rng.uniform(-100, 100, (layers, d))
    x[:, 0, 0] = 3.0
    return x.astype(dtype), y


def _plain(x, y, split, items):
    """The textbook pipeline with scikit-learn: scaler on train, C by validation AUROC, test once."""
    train, validation, test = split.rows(items)
    flat = x.reshape(len(x), -1).astype(np.float64)
    scaled = StandardScaler().fit(flat[train]).transform(flat)
    best = (-1.0, None, None)
    for c in probes.C_GRID:
        model = LogisticRegression(C=c, tol=1e-8, max_iter=20000).fit(scaled[train], y[train])
        score = model.decision_function(scaled)
        value = round(roc_auc_score(y[validation], score[validation]), 12)
        if value > best[0]:
            best = (value, c, score)
    return best[1], roc_auc_score(y[test], best[2][test]), roc_auc_score(y[train], best[2][train])


@pytest.mark.parametrize("seed", range(3))
def test_logistic_probe_equals_scikit_learn_on_the_same_split(seed):
    x, y = _states(seed=seed)
    items = np.arange(len(y))
    split = splits.split_items(items, y, seed=seed)
    c, test, train = _plain(x, y, split, items)
    got = probes.recoverability(x, y, split=split, shuffles=0, resamples=10)
    assert got.C == c
    assert got.test_auroc == pytest.approx(test, abs=1e-3)
    assert got.train_auroc == pytest.approx(train, abs=1e-3)
    assert got.gap == pytest.approx(train - test, abs=2e-3)


@pytest.mark.parametrize("shape", [(40, 300), (200, 12)])
def test_solver_equals_scikit_learn_at_every_c(shape):
    rng = np.random.default_rng(1)
    z = rng.standard_normal(shape)
    y = (z[:, 0] + rng.standard_normal(shape[0])) > 0.3
    p = rowspace.products(rowspace.Block.of(z), rowspace.Request(np.arange(shape[0]), np.arange(shape[0])))
    scaled = StandardScaler().fit_transform(z)
    coordinates = rowspace.coordinates(p)
    weights = logistic.fit_path(coordinates, y[None], probes.C_GRID)
    for i, c in enumerate(probes.C_GRID):
        model = LogisticRegression(C=c, tol=1e-10, max_iter=50000).fit(scaled, y)
        ours = coordinates @ weights[i, 0, :-1] + weights[i, 0, -1]
        np.testing.assert_allclose(ours, model.decision_function(scaled), atol=2e-3 * (1 + np.abs(ours).max()))


def test_solver_reaches_the_minimum_when_classes_separate():
    """At C = 100 and f > n the gradient of the objective still vanishes."""
    rng = np.random.default_rng(2)
    z, y = rng.standard_normal((30, 30)) * 50, np.arange(30) % 2
    w = logistic.fit_path(z, y[None], [1e-4, 1.0, 1e2])[-1, 0]
    p = 1 / (1 + np.exp(-(z @ w[:-1] + w[-1])))
    assert np.abs(100 * z.T @ (p - y) + w[:-1]).max() < 1e-4 * max(1.0, np.abs(w).max())
    assert abs((p - y).sum()) < 1e-6


def test_many_label_vectors_equal_one_at_a_time():
    rng = np.random.default_rng(3)
    z = rng.standard_normal((25, 10))
    labels = np.stack([rng.permutation(np.arange(25) < 9) for _ in range(6)])
    together = logistic.fit_path(z, labels, [0.1, 10.0])
    for i, one in enumerate(labels):
        np.testing.assert_allclose(together[:, i], logistic.fit_path(z, one[None], [0.1, 10.0])[:, 0], atol=1e-6)


def test_ridge_mean_difference_and_neighbours_equal_their_definitions():
    x, y = _states(n=60, layers=1, d=100, seed=4, dtype="float64")
    train = np.arange(40)
    flat = x[:, 0]
    p = rowspace.products(rowspace.Block.of(flat), rowspace.Request(np.arange(60), train, norms=True))
    scaled = StandardScaler().fit(flat[train]).transform(flat)
    labels = y[train].astype(float)[None]
    ridge = probes.PROBES["ridge"]
    for alpha, got in zip(ridge.grid, ridge.fit(p, labels, 0), strict=True):
        peer = Ridge(alpha=alpha).fit(scaled[train], 2 * y[train] - 1.0).predict(scaled)
        np.testing.assert_allclose(got[0], peer, atol=1e-6)
    least = probes.PROBES["linear"].fit(p, labels, 0)[0, 0]
    np.testing.assert_allclose(least[train], 2 * y[train] - 1.0, atol=1e-6)
    direction = scaled[train][y[train]].mean(0) - scaled[train][~y[train]].mean(0)
    np.testing.assert_allclose(probes.PROBES["mean-difference"].fit(p, labels, 0)[0, 0], scaled @ direction, atol=1e-8)
    knn = probes.PROBES["knn"]
    for k, got in zip(knn.grid, knn.fit(p, labels, 0), strict=True):
        peer = KNeighborsClassifier(int(k)).fit(scaled[train], y[train]).predict_proba(scaled[40:])[:, 1]
        np.testing.assert_allclose(got[0, 40:], peer, atol=1e-12)


@pytest.mark.parametrize("name", list(probes.PROBES))
def test_every_probe_finds_a_strong_signal_and_no_signal_in_noise(name):
    x, y = _states(n=100, d=32, effect=2.5, seed=5)
    strong = probes.recoverability(x, y, layers=[1], probe=name, shuffles=0, resamples=50)
    assert strong.test_auroc > 0.8 and strong.probe == name
    noise = probes.recoverability(x, y, layers=[3], probe=name, shuffles=0, resamples=50)
    assert 0.1 < noise.test_auroc < 0.9


@pytest.mark.parametrize("name", list(probes.PROBES))
def test_a_probe_that_ranks_well_also_reads_well(name):
    """Whatever penalty validation chose: it must not say the more frequent class of every row."""
    rng = np.random.default_rng(0)
    y = rng.random(120) < 0.3
    x = rng.standard_normal((120, 1, 8))
    x[y] += 3
    r = probes.recoverability(x, y, shuffles=0, resamples=2, probe=name)
    assert (r.test_read == r.test_labels).mean() > 0.9
    letters = np.array(list("DBCA"))[rng.choice(4, 200, p=(0.1, 0.2, 0.2, 0.5))]
    centres = {"A": 0, "B": 2, "C": 4, "D": 6}
    many = rng.standard_normal((200, 1, 8))
    for row, letter in zip(many, letters, strict=True):
        row[0, centres[letter] : centres[letter] + 2] += 4
    r = probes.recoverability(many, letters, shuffles=0, resamples=2, probe=name)
    assert r.classes == ("A", "B", "C", "D") and (r.test_read == r.test_labels).mean() > 0.85


def test_what_mean_difference_reads_is_the_nearest_centroid():
    x, y = _states(n=90, layers=1, d=5)
    split = splits.split_items(np.arange(90), y)
    train, _, test = split.rows(np.arange(90))
    r = probes.recoverability(x, y, split=split, shuffles=0, resamples=2, probe="mean-difference")
    scaled = StandardScaler().fit(x[train, 0]).transform(x[:, 0])[:, 1:]  # the first feature is constant
    nearest = NearestCentroid().fit(scaled[train], y[train]).predict(scaled[test])
    assert (r.test_read == nearest).all()


def test_label_shuffles_trade_whole_items():
    """Three prompts of an item share its label: a shuffle that tears them apart is no draw under the hypothesis."""
    items = ["a", "b", "a", "c", "b", "d", "d", "d"]
    label = {"a": 0, "b": 1, "c": 2, "d": 3}
    rng, seen = np.random.default_rng(0), set()
    for _ in range(200):
        order = statistics.permuted_rows(items, rng)
        assert sorted(order) == list(range(8))
        moved = [label[items[i]] for i in order]
        assert all(len({moved[i] for i, item in enumerate(items) if item == name}) == 1 for name in label)
        seen.add(tuple(moved))
    assert seen == {(0, 1, 0, 2, 1, 3, 3, 3), (1, 0, 1, 2, 0, 3, 3, 3)}
    single = statistics.permuted_rows(range(50), np.random.default_rng(1))
    assert (single == np.random.default_rng(1).permutation(50)).all()


def test_several_rows_of_an_item_are_not_counted_as_independent():
    x, y = _states(n=40, layers=1, d=8)
    once = probes.recoverability(x, y, shuffles=0, resamples=50)
    tripled = np.repeat(np.arange(40), 3)
    got = probes.recoverability(x[tripled], y[tripled], tripled, shuffles=0, resamples=50)
    assert got.n_test == 3 * once.n_test and not got.small_sample.defined and got.shown == got.interval
    assert "several rows per item" in got.small_sample.reason


def test_standardisation_uses_training_rows_only():
    """Test rows of another scale do not change the probe: their scores change, those of the others stay."""
    x, y = _states(n=100, seed=6)
    items = np.arange(100)
    split = splits.split_items(items, y, seed=0)
    _, _, test = split.rows(items)
    moved = x.copy()
    moved[test[0]] = moved[test[0]] * 1e4
    a, b = (probes.recoverability(v, y, split=split, shuffles=0, resamples=5) for v in (x, moved))
    assert a.train_auroc == b.train_auroc and a.validation_auroc == b.validation_auroc and a.C == b.C
    np.testing.assert_allclose(a.test_scores[1:], b.test_scores[1:], rtol=1e-4, atol=1e-6)


def test_labels_without_signal_give_one_half():
    """Mean test and shuffled AUROC over 40 data sets lie within 3 standard errors of 0.5."""
    rng = np.random.default_rng(7)
    test, shuffled = [], []
    for k in range(40):
        x, y = rng.standard_normal((60, 1, 150)), rng.random(60) < 0.5
        got = probes.recoverability(x, y, seed=k, resamples=1, shuffles=3)
        test.append(got.test_auroc)
        shuffled.append(got.shuffle_auroc)
    for values in (test, shuffled):
        assert abs(np.mean(values) - 0.5) < 3 * np.std(values, ddof=1) / np.sqrt(40)


def test_permutation_p_values_are_uniform_without_signal():
    rng = np.random.default_rng(8)
    p = []
    for k in range(40):
        x, y = rng.standard_normal((60, 30)), rng.random(60) < 0.5
        p.append(probes.recoverability(x, y, seed=k, resamples=1, shuffles=19).shuffle_p)
    assert stats.kstest(p, "uniform").statistic < 0.3
    assert np.mean(np.array(p) <= 0.1) < 0.3


def test_interval_covers_the_auroc_of_the_fitted_probe():
    """Gaussian classes: the fitted direction's true AUROC is known, and 93-97% of 500 intervals hold it."""
    rng = np.random.default_rng(9)
    shift, held = np.full(6, 0.45), 0
    for k in range(500):
        y = rng.random(300) < 0.5
        x = rng.standard_normal((300, 6)) + y[:, None] * shift
        train, test = np.arange(120), np.arange(120, 300)
        p = rowspace.products(rowspace.Block.of(x), rowspace.Request(np.arange(300), train))
        scores = probes.PROBES["mean-difference"].fit(p, y[train].astype(float)[None], 0)[0, 0]
        # the fitted direction in the space of the states, by least squares on its scores
        w = np.linalg.lstsq(np.c_[x, np.ones(300)], scores, rcond=None)[0][:-1]
        truth = stats.norm.cdf(w @ shift / np.sqrt(2 * w @ w))
        got = statistics.bootstrap_auroc(y[test], scores[test], resamples=300, seed=k)
        held += got.lower <= truth <= got.upper
    assert 0.93 <= held / 500 <= 0.97, held


def test_a_planted_leak_is_what_the_pipeline_does_not_do():
    """C and layer chosen on the test part, scored there: inflated on pure noise. Ours: near one half."""
    rng = np.random.default_rng(10)
    inflated, ours = [], []
    for k in range(16):
        x, y = rng.standard_normal((60, 8, 30)), np.arange(60) % 2 == 0
        split = splits.split_items(np.arange(60), y, seed=k)
        curve = probes.layer_curve(x, y, split=split, resamples=1)
        inflated.append(curve["auroc"].max())
        sets = [[layer] for layer in range(8)]
        ours.append(probes.recoverability(x, y, layers=sets, split=split, shuffles=0, resamples=1).test_auroc)
    assert np.mean(inflated) > 0.7
    assert abs(np.mean(ours) - 0.5) < 3 * np.std(ours, ddof=1) / 4


def test_layers_are_chosen_on_validation_items():
    x, y = _states(effect=2.5, seed=11)
    got = probes.recoverability(x, y, layers=[[0], [1], [2, 3]], shuffles=2, resamples=20)
    assert got.layers == (1,)
    fixed = probes.recoverability(x, y, layers=[-3], shuffles=0, resamples=20)
    assert fixed.layers == (1,)


def test_concatenated_layers_equal_flattened_features():
    x, y = _states(n=80, seed=12)
    split = splits.split_items(np.arange(80), y, seed=0)
    a = probes.recoverability(x[:, [1, 2]], y, split=split, shuffles=2, resamples=50)
    b = probes.recoverability(x[:, [1, 2]].reshape(80, -1), y, split=split, shuffles=2, resamples=50)
    c = probes.recoverability(x, y, layers=[1, 2], split=split, shuffles=2, resamples=50)
    assert a.interval == b.interval == c.interval and a.shuffle_auroc == b.shuffle_auroc == c.shuffle_auroc


def test_items_with_several_rows_stay_in_one_part():
    x, y = _states(n=90, seed=13)
    items = np.repeat(np.arange(30), 3)
    got = probes.recoverability(x, y, items=items, shuffles=0, resamples=20)
    assert len(set(got.test_items)) == 6 and got.n_test == 18


def test_more_than_two_classes_are_scored_one_against_rest():
    rng = np.random.default_rng(14)
    letters = np.array(list("ABCD"))[rng.integers(0, 4, 160)]
    x = rng.standard_normal((160, 30))
    x[np.arange(160), np.array([ord(c) - 65 for c in letters])] += 3
    got = probes.recoverability(x, letters, shuffles=3, resamples=50)
    assert got.test_auroc > 0.9 and got.classes == ("A", "B", "C", "D") and got.test_scores.shape == (got.n_test, 4)
    assert 0.3 < got.shuffle_auroc < 0.7
    by_class = [roc_auc_score(got.test_labels == c, got.test_scores[:, c]) for c in range(4)]
    assert got.test_auroc == pytest.approx(np.mean(by_class))


def test_nested_cross_validation_scores_every_item_once():
    x, y = _states(n=120, effect=1.5, seed=15)
    got = probes.nested(x, y, layers=[1], folds=5, inner=3, resamples=100)
    assert np.isfinite(got.scores).all() and np.isfinite(got.folds).all() and np.isfinite(got.C).all()
    assert got.auroc == pytest.approx(got.folds.mean()) and got.pairs.lower < got.auroc < got.pairs.upper
    assert got.auroc > 0.75
    noise = probes.nested(np.random.default_rng(0).standard_normal((120, 50)), y, resamples=10)
    assert 0.3 < noise.auroc < 0.7


def test_repeated_splits_report_their_spread():
    x, y = _states(effect=1.5, seed=16)
    got = probes.repeated(x, y, layers=[1], n_splits=6)
    assert got.auroc.shape == (6,) and got.undefined == 0
    assert got.mean == pytest.approx(got.auroc.mean()) and got.sd == pytest.approx(got.auroc.std(ddof=1))
    first = probes.recoverability(x, y, layers=[1], seed=0, shuffles=0, resamples=1)
    assert got.auroc[0] == first.test_auroc


def test_calibration_of_the_probe():
    x, y = _states(n=400, effect=1.5, seed=17)
    got = probes.recoverability(x, y, layers=[1], shuffles=0, resamples=10).calibration
    assert got.brier < got.baseline and got.curve["n"].sum() == got.n == 80
    assert ((got.curve["lower"] <= got.curve["observed"]) & (got.curve["observed"] <= got.curve["upper"])).all()


# -- thin and damaged data ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        (np.ones((20, 3)), np.zeros(20, bool), "one class in the train part (0 of 12 positive)"),
        (np.ones((1, 3)), [True], "one class in the train part (1 of 1 positive)"),
        (np.zeros((0, 3)), [], "no usable rows"),
        (np.ones((10, 3)), [None] * 10, "no usable rows"),
        (np.full((10, 3), np.nan), [True, False] * 5, "no usable rows"),
    ],
)
def test_what_the_data_do_not_define_is_undefined_with_its_reason(x, y, why):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = probes.recoverability(x, y, shuffles=2, resamples=10)
    assert got.reason == why and not got.defined
    assert np.isnan([got.test_auroc, got.train_auroc, got.gap, got.C, got.shuffle_auroc]).all()


def test_constant_features_score_one_half():
    got = probes.recoverability(np.full((40, 2, 5), 7.0), np.arange(40) % 2 == 0, shuffles=3, resamples=50)
    assert got.test_auroc == 0.5 and got.train_auroc == 0.5 and got.shuffle_auroc == 0.5


def test_one_class_in_validation_fixes_c_and_says_so():
    y = np.array([True, False] * 10)
    split = splits.Split({i: 0 if i < 12 else (1 if i in (12, 14) else 2) for i in range(20)}, 0, False)
    got = probes.recoverability(np.random.default_rng(0).standard_normal((20, 4)), y, split=split, shuffles=0)
    assert got.C == probes.FALLBACK_C and "one class in the validation part: C fixed at 1" in got.reason


def test_missing_labels_and_broken_states_are_left_out_and_counted():
    x, y = _states(n=100, seed=18)
    labels = pd.Series(y, dtype="boolean")
    labels[5] = pd.NA
    x[7, 2, 3] = np.inf
    got = probes.recoverability(x, labels, shuffles=0, resamples=10)
    assert got.left_out == 2 and got.n_train + got.n_validation + got.n_test == 98


def test_a_tiny_perfect_test_part_shows_a_wide_interval():
    rng = np.random.default_rng(19)
    y = np.arange(20) % 2 == 0
    x = rng.standard_normal((20, 4)) * 0.01 + y[:, None]
    got = probes.recoverability(x, y, shuffles=0)
    assert got.test_auroc == 1.0 and got.interval.lower == 1.0
    assert got.shown.lower < 0.7 and "Newcombe" in got.shown.method
    assert "only 2 test rows of the rarer class" in got.reason


def test_wrong_requests_name_what_was_wrong():
    x, y = _states(n=20)
    with pytest.raises(RequestError, match="no probe 'svm'"):
        probes.recoverability(x, y, probe="svm")
    with pytest.raises(RequestError, match=r"layers \[9\] are not among 0\.\.3"):
        probes.recoverability(x, y, layers=[9])
    with pytest.raises(RequestError, match="20 states, 19 labels"):
        probes.recoverability(x, y[:-1])
    with pytest.raises(RequestError, match="no layer was chosen"):
        probes.recoverability(x, y, layers=[])
    with pytest.raises(RequestError, match="positive and ascending"):
        logistic.fit_path(x[:, 0], y[None], [1.0, 0.1])


def test_nested_with_too_few_items_says_so():
    got = probes.nested(np.zeros((6, 3)), [True, False] * 3)
    assert np.isnan(got.auroc) and "too few for 5 folds" in got.reason
