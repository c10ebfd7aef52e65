"""Selective prediction against brute force, closed forms and limits."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precollapse.analysis import selective
from precollapse.errors import RequestError


def brute_risk(correct: list[bool], confidence: list[float]) -> np.ndarray:
    """Mean selective risk over every permutation that is consistent with the confidences."""
    n = len(correct)
    total, count = np.zeros(n), 0
    for order in itertools.permutations(range(n)):
        ranked = [confidence[i] for i in order]
        if ranked != sorted(ranked, reverse=True):
            continue
        errors = np.cumsum([not correct[i] for i in order])
        total += errors / np.arange(1, n + 1)
        count += 1
    return total / count


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 1.0, 2.0])), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_expected_risk_is_the_mean_over_all_tie_breaks(rows):
    correct, confidence = [r[0] for r in rows], [r[1] for r in rows]
    expected = brute_risk(correct, confidence)
    assert np.allclose(selective.expected_risk(correct, confidence), expected, atol=1e-12)


def test_seeded_ties_tend_to_the_exact_expectation():
    rng = np.random.default_rng(1)
    y, c = rng.random(300) < 0.6, rng.integers(0, 3, 300).astype(float)
    exact = selective.area(selective.expected_risk(y, c))
    assert abs(selective.aurc(y, c, draws=4000) - exact) < 2e-3


def test_ties_do_not_inherit_the_order_of_rows():
    """A constant score says nothing: rows sorted by outcome must not look like a perfect ranking."""
    y = np.r_[np.ones(60), np.zeros(40)]
    risk = selective.risk_coverage(y, np.zeros(100), draws=200).risk
    assert abs(risk[49] - 0.4) < 0.03
    assert abs(selective.aurc(y, np.zeros(100), draws=200) - selective.aurc(y[::-1], np.zeros(100), draws=200)) < 0.03


def test_equal_seeds_share_their_draws_between_scores():
    a, b = selective.tie_breaks(20, 50, 3), selective.tie_breaks(20, 50, 3)
    assert (a == b).all() and not (a == selective.tie_breaks(20, 50, 4)).all()


@pytest.mark.parametrize("risk", [0.05, 0.3, 0.64])
def test_oracle_tends_to_its_closed_form(risk):
    n = 200_000
    y = np.arange(n) >= round(risk * n)
    assert selective.oracle_aurc(y) == pytest.approx(risk + (1 - risk) * math.log(1 - risk), abs=1e-4)
    assert selective.oracle_limit(risk) == pytest.approx(risk + (1 - risk) * math.log(1 - risk), rel=1e-12)


def test_no_score_beats_the_oracle():
    rng = np.random.default_rng(0)
    y = rng.random(200) < 0.7
    for _ in range(5):
        assert selective.aurc(y, rng.random(200)) >= selective.oracle_aurc(y) - 1e-12


def test_truncation_is_the_mean_over_the_first_coverages():
    y, c = np.array([1, 1, 0, 1, 0], bool), np.array([5.0, 4, 3, 2, 1])
    risks = [0, 0, 1 / 3, 1 / 4, 2 / 5]
    assert selective.aurc(y, c) == pytest.approx(np.mean(risks))
    assert selective.aurc(y, c, max_coverage=0.6) == pytest.approx(np.mean(risks[:3]))
    assert selective.selective_accuracy(y, c, 0.6) == pytest.approx(2 / 3)


@pytest.mark.parametrize(("coverage", "n", "k"), [(0.737, 300, 221), (0.737, 499, 368), (0.5, 5, 3), (1.0, 7, 7)])
def test_accepted_count_is_rounded_not_cut(coverage, n, k):
    assert selective.accepted_count(coverage, n) == k


@pytest.mark.parametrize(
    ("correct", "confidence"), [([], []), ([True], [0.1, 0.2]), ([True, False], [0.1, math.nan]), ([2, 0], [0.1, 0.2])]
)
def test_unusable_input_is_refused(correct, confidence):
    with pytest.raises(RequestError):
        selective.aurc(np.array(correct), np.array(confidence))


@pytest.mark.parametrize("coverage", [0, -0.1, 1.2, 0.001])
def test_impossible_coverage_is_refused(coverage):
    with pytest.raises(RequestError):
        selective.aurc(np.array([True, False]), np.array([0.1, 0.2]), max_coverage=coverage)
