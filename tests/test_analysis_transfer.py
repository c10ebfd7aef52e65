"""Transfer, density, contrast-consistent search, before against after, and mutual information."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import mutual_info_score

from precollapse.analysis import information, statistics
from precollapse.analysis.probing import ccs, contrast, density, probes, splits, transfer
from precollapse.errors import RequestError


def _regimes(n=150, seed=0, turn=False):
    """Two regimes of the same items; with `turn` the second regime codes the outcome in other features."""
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((n, 2, 40))
    x, y = {}, {}
    for k, name in enumerate(("baseline", "cot")):
        y[name] = rng.random(n) < 0.5
        states = base + 0.5 * rng.standard_normal((n, 2, 40))
        start = 10 * k if turn else 0
        states[y[name], 1, start : start + 5] += 1.5
        x[name] = states
    return x, y, [f"q{i}" for i in range(n)]


def test_diagonal_equals_the_probe_of_that_regime():
    x, y, items = _regimes()
    split = splits.split_items(items, seed=3)
    got = transfer.transfer_matrix(x, y, items, split=split, resamples=200)
    for name in x:
        own = probes.recoverability(x[name], y[name], items, split=split, resamples=200, shuffles=0)
        assert got.auroc.loc[name, name] == pytest.approx(own.test_auroc)
        assert got.lower.loc[name, name] == pytest.approx(own.interval.lower)
        assert got.degradation.loc[name, name].estimate == 0
    assert (got.n_test == 30).all()


def test_a_shared_code_transfers_and_another_code_does_not():
    shared = transfer.transfer_matrix(*_regimes(), resamples=200)
    turned = transfer.transfer_matrix(*_regimes(turn=True), resamples=200)
    assert shared.auroc.loc["baseline", "cot"] > 0.8
    assert 0.2 < turned.auroc.loc["baseline", "cot"] < 0.75
    assert turned.degradation.loc["baseline", "cot"].lower > 0
    assert shared.degradation.loc["baseline", "cot"].lower < 0.1


def test_items_seen_in_training_are_never_tested_under_another_regime():
    """States that identify their item, with labels that agree over regimes: a leak would give AUROC 1."""
    rng = np.random.default_rng(1)
    n = 100
    fingerprint, y = rng.standard_normal((n, 400)), rng.random(n) < 0.5
    x = {name: fingerprint + 0.01 * rng.standard_normal((n, 400)) for name in ("a", "b")}
    got = [transfer.transfer_matrix(x, {"a": y, "b": y}, range(n), seed=s, resamples=1).auroc for s in range(8)]
    assert abs(np.mean([table.loc["a", "b"] for table in got]) - 0.5) < 0.2
    leaked = probes.recoverability(x["a"], y, shuffles=0, resamples=1).train_auroc
    assert leaked == 1.0


def test_undefined_cells_say_why():
    x, y, items = _regimes()
    y["babble"], x["babble"] = np.zeros(150, bool), x["baseline"]
    got = transfer.transfer_matrix(x, y, items, resamples=20)
    assert np.isnan(got.auroc.loc["babble"]).all() and np.isnan(got.auroc["babble"]).all()
    assert got.reason.loc["babble", "cot"].startswith("one class in the training items of babble (0 of ")
    assert got.reason.loc["baseline", "babble"] == "test items of babble: one class only (0 of 30 positive)"
    assert np.isfinite(got.auroc.loc["baseline", "cot"])
    flat = {(r["train"], r["test"]): r for r in got.records()}
    assert len(flat) == 9 and np.isnan(flat["babble", "cot"]["degradation"])


def test_a_regime_may_lack_items_and_benchmarks_have_their_own():
    x, y, items = _regimes()
    x["cot"], y["cot"] = x["cot"][:100], y["cot"][:100]
    got = transfer.transfer_matrix(x, y, {"baseline": items, "cot": items[:100]}, resamples=20)
    assert np.isfinite(got.auroc.to_numpy()).all() and got.n_test["cot"] < got.n_test["baseline"]
    apart = {"baseline": [("gsm8k", i) for i in items], "cot": [("arc", i) for i in items[:100]]}
    other = transfer.transfer_matrix(x, y, apart, resamples=20)
    assert other.n_test["baseline"] == pytest.approx(30, abs=2) and other.n_test["cot"] == pytest.approx(20, abs=2)


def test_transfer_refuses_what_does_not_fit():
    x, y, items = _regimes()
    with pytest.raises(RequestError, match="give both for each"):
        transfer.transfer_matrix(x, {"baseline": y["baseline"]}, items)
    with pytest.raises(RequestError, match="one shape"):
        transfer.transfer_matrix({"baseline": x["baseline"], "cot": x["cot"][:, :, :5]}, y, items)


# -- density -----------------------------------------------------------------------------------------------------------


def test_density_tells_unusual_inputs_and_uses_no_outcomes():
    rng = np.random.default_rng(2)
    x, unusual = rng.standard_normal((200, 60)) @ np.diag(np.r_[np.full(5, 5.0), np.ones(55)]), rng.random(200) < 0.3
    split = splits.split_items(np.arange(200), unusual, seed=0)
    train, _, _ = split.rows(np.arange(200))
    odd = unusual.copy()
    odd[train] = False
    x[odd, :5] *= 4
    got = density.adequacy(x, ~unusual, split=split, resamples=200)
    assert got.mahalanobis.estimate > 0.75 and got.mixture.estimate > 0.75 and 1 <= got.clusters <= 3
    swapped = unusual.copy()
    swapped[train] = rng.random(train.size) < 0.5
    again = density.adequacy(x, ~swapped, split=split, resamples=200)
    np.testing.assert_array_equal(got.scores, again.scores)


def test_mixture_finds_two_clusters():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((150, 4)) + 6 * (np.arange(150) % 2)[:, None]
    assert density.adequacy(x, rng.random(150) < 0.5, resamples=10).clusters >= 2


@pytest.mark.parametrize("x", [np.ones((40, 3)), np.random.default_rng(0).standard_normal((6, 3))])
def test_density_of_nothing_is_undefined(x):
    got = density.adequacy(x, np.arange(len(x)) % 2 == 0, resamples=5)
    assert not got.mixture.defined and got.reason


# -- contrast-consistent search ----------------------------------------------------------------------------------------


def _statements(n=200, strength=2.0, seed=0):
    """States after "yes" and "no" to statements: a truth direction, and a larger one that only marks the word."""
    rng = np.random.default_rng(seed)
    truth = rng.random(n) < 0.5
    noise = rng.standard_normal((2, n, 30))
    sign = np.where(truth, 1.0, -1.0)[:, None]
    direction, word = np.eye(30)[0], np.eye(30)[1] * 8
    return noise[0] + strength * sign * direction + word, noise[1] - strength * sign * direction - word, truth


def test_search_finds_truth_without_labels():
    yes, no, truth = _statements()
    got = ccs.search(yes, no, truth, resamples=200)
    assert got.test_auroc.estimate > 0.9 and got.test_accuracy.estimate > 0.8 and got.loss < 0.2
    turned = ccs.search(yes, no, ~truth, split=splits.split_items(np.arange(200), truth, seed=0), resamples=10)
    same = ccs.search(yes, no, truth, split=splits.split_items(np.arange(200), truth, seed=0), resamples=10)
    assert turned.flipped != same.flipped and turned.loss == same.loss


def test_search_gradient_is_right():
    from scipy.optimize import check_grad

    rng = np.random.default_rng(4)
    yes, no = rng.standard_normal((2, 20, 5))
    w = rng.standard_normal(6)
    assert check_grad(lambda v: ccs._loss(v, yes, no)[0], lambda v: ccs._loss(v, yes, no)[1], w) < 1e-5


def test_search_on_noise_and_on_too_little():
    rng = np.random.default_rng(5)
    got = [
        ccs.search(*rng.standard_normal((2, 100, 20)), rng.random(100) < 0.5, seed=k, restarts=3, resamples=1)
        for k in range(12)
    ]
    assert abs(np.mean([g.test_auroc.estimate for g in got]) - 0.5) < 0.15
    few = splits.Split({i: 0 if i < 6 else 2 for i in range(10)}, 0, False)
    tiny = ccs.search(np.zeros((10, 2)), np.zeros((10, 2)), [True, False] * 5, split=few)
    assert not tiny.test_auroc.defined and "fewer than 8" in tiny.reason
    with pytest.raises(RequestError, match="both be"):
        ccs.search(np.zeros((6, 2)), np.zeros((6, 3)), [True, False] * 3)


# -- before and after --------------------------------------------------------------------------------------------------


def test_before_and_after_share_the_test_items():
    rng = np.random.default_rng(6)
    y = rng.random(200) < 0.5
    before, after = rng.standard_normal((2, 200, 2, 20))
    after[y, 0, :5] += 2
    after[9, 1, 1] = np.nan
    got = contrast.before_after(before, after, y, shuffles=2, resamples=200)
    assert list(got.before.test_items) == list(got.after.test_items)
    assert got.before.n_train + got.before.n_validation + got.before.n_test == 199
    assert got.difference.lower > 0 and got.difference.estimate == pytest.approx(
        got.after.test_auroc - got.before.test_auroc
    )
    several = contrast.before_after(before, after, np.array(list("ABC"))[np.arange(200) % 3], shuffles=0, resamples=20)
    assert several.before.defined and several.after.defined and several.difference.reason == "more than two classes"
    nothing = contrast.before_after(before, after, np.ones(200, bool))
    assert not nothing.difference.defined and "one class" in nothing.difference.reason


# -- mutual information ------------------------------------------------------------------------------------------------


def test_information_equals_scikit_learn_and_corrects_its_bias():
    rng = np.random.default_rng(7)
    a = rng.integers(0, 4, 200)
    b = np.where(rng.random(200) < 0.7, a, rng.integers(0, 4, 200))
    got = information.mutual_information(a, b, resamples=100, permutations=50)
    assert got.plug_in == pytest.approx(mutual_info_score(a, b) / np.log(2))
    assert got.interval.lower < got.corrected < got.plug_in and got.p_value == pytest.approx(1 / 51)
    assert got.agreement.estimate == pytest.approx((a == b).mean())
    free = [
        information.mutual_information(rng.integers(0, 4, 60), rng.integers(0, 4, 60), resamples=1, permutations=20)
        for _ in range(60)
    ]
    plug, fixed = (np.array([getattr(f, name) for f in free]) for name in ("plug_in", "corrected"))
    assert plug.mean() > 0.08 and abs(fixed.mean()) < 3 * fixed.std(ddof=1) / np.sqrt(60) + 0.005
    assert np.mean([f.shuffled for f in free]) == pytest.approx(plug.mean(), abs=0.03)


def test_information_of_equal_labels_is_their_entropy_and_missing_ones_are_left_out():
    a = ["A", "B", "C", "D"] * 25
    got = information.mutual_information([*a, None], [*a, "A"], resamples=20, permutations=20)
    assert got.plug_in == pytest.approx(2.0) and got.left_out == 1
    assert np.isnan(information.mutual_information(["A"], ["A"]).plug_in)
    with pytest.raises(RequestError, match="2 labels against 1"):
        information.mutual_information(["A", "B"], ["A"])


def test_auroc_difference_uses_common_items():
    x, y, items = _regimes()
    split = splits.split_items(items, seed=0)
    a, b = (probes.recoverability(x[r], y[r], items, split=split, shuffles=0, resamples=10) for r in x)
    got = contrast.difference(a, b, resamples=100)
    assert got.n == 30 and got.estimate == pytest.approx(a.test_auroc - b.test_auroc)
    assert statistics.auroc(a.test_labels, a.test_scores) == a.test_auroc
