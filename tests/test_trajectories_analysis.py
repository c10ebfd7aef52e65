"""Shapes, outcomes and statistics against published counts, brute force and other libraries."""

from __future__ import annotations

import io
import itertools
import json
import math
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from precollapse import declared
from precollapse.analysis import hypotheses
from precollapse.analysis.trajectories import shapes as t
from precollapse.analysis.trajectories import statistics as ts
from precollapse.analysis.trajectories.public import chain_table, load_distributions, load_texts
from precollapse.analysis.trajectories.tables import agreement, completion_curve
from precollapse.errors import RequestError

# -- entropies -----------------------------------------------------------------------------------------------------------


def test_five_answers_allow_thirteen_entropies():
    values = t.attainable_entropies(5)
    assert len(values) == 13
    assert np.diff(values).min() == pytest.approx(0.015199, abs=5e-7)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 6])
def test_attainable_entropies_are_those_of_all_answer_lists(m):
    seen = {
        round(scipy.stats.entropy(list(Counter(answers).values())), 10)
        for n in range(1, m + 1)
        for answers in itertools.combinations_with_replacement("abcdef", n)
    }
    assert np.allclose(sorted(seen), t.attainable_entropies(m), atol=1e-9)


@given(st.lists(st.sampled_from(["1", "2", "3", None]), max_size=12), st.randoms())
@settings(max_examples=100, deadline=None)
def test_entropy_of_answers_is_the_plug_in_entropy_in_any_order(answers, random):
    parsed = [a for a in answers if a is not None]
    found = t.answer_entropy(answers)
    if not parsed:
        assert math.isnan(found)
        return
    assert found == pytest.approx(scipy.stats.entropy(list(Counter(parsed).values())), abs=1e-12)
    shuffled = answers[:]
    random.shuffle(shuffled)
    assert t.answer_entropy(shuffled) == found  # to the last bit, or steps of zero would become violations


def test_proportional_answer_counts_have_the_same_entropy_to_the_last_bit():
    assert t.answer_entropy("aabbc") == t.answer_entropy("aaaabbbbcc")
    assert t.answer_entropy("abc") == t.answer_entropy("aabbcc")


def test_distribution_entropy_matches_scipy_and_skips_absent_options():
    p = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [2.0, 2.0, np.nan]])
    assert np.allclose(t.distribution_entropy(p), [scipy.stats.entropy(p[0]), 0.0, math.log(2)])
    assert np.isnan(t.distribution_entropy(np.zeros((1, 3)))).all()
    with pytest.raises(RequestError):
        t.distribution_entropy(np.log(p[:1]))


# -- shapes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entropies", "epsilon", "monotone", "violations", "largest"),
    [
        ([1.6, 1.0, 0.5, 0.0], 0.01, True, 0, math.nan),
        ([1.0, 1.005, 0.5], 0.01, True, 0, math.nan),
        ([1.0, 1.005, 0.5], 0.0, False, 1, 0.005),
        ([0.0, 0.5, 0.2, 0.9], 0.01, False, 2, 0.7),
        ([0.7, 0.8], 0.1, True, 0, math.nan),  # 0.7 + 0.1 < 0.8 in binary; the step is epsilon all the same
        ([0.5, 0.5, 0.5], 0.0, True, 0, math.nan),
    ],
)
def test_shape(entropies, epsilon, monotone, violations, largest):
    s = t.shape(entropies, epsilon)
    assert (s.monotone, s.violations) == (monotone, violations)
    assert s.max_violation == pytest.approx(largest, nan_ok=True)
    assert s.coherence == pytest.approx(entropies[0] - entropies[-1])
    assert s.final == entropies[-1]


def test_missing_points_are_dropped_and_never_filled():
    s = t.shape([math.nan, 1.0, None, 0.4, math.nan])
    assert (s.points, s.coherence, s.final, s.monotone) == (2, pytest.approx(0.6), 0.4, True)
    filled_with_zero = t.shape([0.0, 1.0, 0.0, 0.4, 0.0])
    assert filled_with_zero.violations == 2


@pytest.mark.parametrize("entropies", [[], [0.3], [math.nan, 0.3, None]])
def test_fewer_than_two_points_exclude_a_chain(entropies):
    s = t.shape(entropies)
    assert s.monotone is None and s.violations is None and "fewer than two points" in s.reason


def test_early_exit_sees_the_first_transitions_only():
    assert t.early_exit([1.0, 0.8, 0.9, 0.1]) == [True, False, False]


def test_negative_epsilon_is_refused():
    with pytest.raises(RequestError, match="epsilon"):
        t.shape([1.0, 0.5], -0.1)


def test_ties_follow_the_declared_rule():
    answers = ["7", None, "12", "7", "12"]
    assert t.majority(answers).answer == "7"
    assert t.majority(answers, "smallest").answer == "12"
    assert t.majority(answers, "none").answer is None
    assert t.majority(answers).tied and t.majority(answers).share == 0.5
    assert t.majority([None]).answer is None
    with pytest.raises(RequestError):
        t.majority(answers, "largest")


# -- published counts ------------------------------------------------------------------------------------------------------


def test_published_counts_give_published_numbers():
    g = ts.gap_from_counts(54, 73, 198, 426)
    assert g.points.estimate == pytest.approx(27.494, abs=5e-4)
    assert g.odds_ratio.estimate == pytest.approx(3.273, abs=5e-4)
    assert g.p_greater == pytest.approx(9.17e-06, rel=1e-3)
    other = ts.gap_from_counts(152, 221, 37, 79)
    assert other.points.estimate == pytest.approx(21.94, abs=5e-3)
    assert other.odds_ratio.estimate == pytest.approx(2.5006, abs=5e-5)
    assert other.coverage == pytest.approx(0.7367, abs=1e-4)


def test_both_fisher_tests_are_named_and_differ():
    g = ts.gap_from_counts(152, 221, 37, 79)
    table = [[152, 69], [37, 42]]
    assert g.p_two_sided == pytest.approx(scipy.stats.fisher_exact(table)[1])
    assert g.p_greater == pytest.approx(scipy.stats.fisher_exact(table, "greater")[1])
    assert g.p_greater < g.p_two_sided


def test_a_gap_without_monotone_chains_is_undefined():
    g = ts.gap_from_counts(0, 0, 30, 60)
    assert math.isnan(g.points.estimate) and math.isnan(g.p_greater) and g.points.reason


# -- statistics of a table -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Sampled-looking chains whose outcome depends on final entropy and length; three chains a problem."""
    rng = np.random.default_rng(7)
    n = 360
    final = rng.choice(t.attainable_entropies(5), n)
    violations = rng.poisson(0.8 + final)
    length = rng.normal(200, 60, n).round()
    right = rng.random(n) < 1 / (1 + np.exp(-(1.2 - 1.6 * final + 0.004 * (length - 200))))
    return pd.DataFrame(
        {
            "problem": np.repeat(np.arange(n // 3), 3), "monotone": violations == 0, "violations": violations,
            "max_violation": np.where(violations > 0, rng.random(n), np.nan), "coherence": rng.normal(0.4, 0.3, n) - final,
            "final": final, "confidence": 1 - final / 2, "length": length, "excluded": False, "correct": right,
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def found(table) -> ts.TrajectoryStatistics:
    return ts.trajectory_statistics(table, resamples=100)


def test_correlations_match_scipy(table, found):
    by_name = found.correlations.set_index("measure")
    for measure in ("violations", "coherence", "final", "max_violation"):
        there = table[measure].notna()
        expected = scipy.stats.spearmanr(table[measure][there], table["correct"][there])
        assert by_name.at[measure, "rho"] == pytest.approx(expected.statistic)
        assert by_name.at[measure, "p"] == pytest.approx(expected.pvalue)
        assert by_name.at[measure, "n"] == there.sum()
    assert by_name.at["max_violation", "n"] < len(table)  # non-monotone chains only


def test_partial_correlation_is_the_correlation_of_rank_residuals(table, found):
    ranks = table[["final", "correct", "length"]].astype(float).rank()
    design = np.column_stack([np.ones(len(ranks)), ranks["length"]])

    def residual(name: str) -> np.ndarray:
        return ranks[name] - design @ np.linalg.lstsq(design, ranks[name], rcond=None)[0]

    expected = np.corrcoef(residual("final"), residual("correct"))[0, 1]
    assert found.correlations.set_index("measure").at["final_given_length", "rho"] == pytest.approx(expected)


def test_logistic_coefficients_match_another_fit(table, found):
    from sklearn.linear_model import LogisticRegression

    x = table[["monotone", "length", "final"]].astype(float)
    z = (x - x.mean()) / x.std(ddof=0)
    expected = LogisticRegression(C=1e8, tol=1e-8, max_iter=5000).fit(z, table["correct"]).coef_[0]
    assert np.allclose(found.logistic["coefficient"], expected, atol=1e-3)
    assert found.logistic.set_index("term").at["final", "upper"] < 0


def test_auroc_and_buckets(table, found):
    from sklearn.metrics import roc_auc_score

    by_score = found.auroc.set_index("score")["auroc"]
    assert by_score["final"] == pytest.approx(roc_auc_score(table["correct"], -table["final"]))
    assert by_score["violations"] == pytest.approx(roc_auc_score(table["correct"], -table["violations"]))
    buckets = found.buckets.set_index("bucket")
    assert buckets["n"].sum() == len(table)
    three = table["violations"] >= 3
    assert buckets.at[">=3", "accuracy"] == pytest.approx(table["correct"][three].mean())


def test_oracle_and_random_frame_every_score(found):
    scores = found.selective.set_index("score")
    named = scores.loc[list(ts.SCORES), "aurc"]
    assert (named > scores.at["oracle", "aurc"]).all()
    assert scores.at["final", "aurc"] < scores.at["random", "aurc"]


def test_triage_accepts_exactly_the_coverage_on_held_out_problems(table, found):
    for triage in found.triage:
        assert triage.train + triage.test == len(table)
        assert triage.accepted == math.floor(triage.coverage * triage.test + 0.5)
        assert triage.train % 3 == 0  # whole problems
        assert 0 < triage.false_positives < triage.at_random
        assert triage.reduction.estimate == pytest.approx(1 - triage.false_positives / triage.at_random, abs=0.02)


def test_intervals_resample_whole_problems():
    """Copies of one chain add no information: the interval must be as wide as with one chain a problem."""
    rng = np.random.default_rng(0)
    y, flag = rng.random(80) < 0.5, rng.random(80) < 0.5
    once = ts.accuracy_gap(y, flag, np.arange(80), resamples=400)
    copies = ts.accuracy_gap(np.repeat(y, 10), np.repeat(flag, 10), np.repeat(np.arange(80), 10), resamples=400)
    width = once.points.upper - once.points.lower
    assert copies.points.upper - copies.points.lower == pytest.approx(width, rel=0.05)


def test_excluded_and_ungraded_chains_are_counted_not_used(table):
    marked = table.copy()
    marked["correct"] = marked["correct"].astype("boolean")
    marked.loc[:9, "excluded"] = True
    marked.loc[10:14, "correct"] = pd.NA
    found = ts.trajectory_statistics(marked, resamples=20)
    assert (found.n, found.excluded) == (len(table) - 15, 15)


def test_one_class_and_separation_are_reasons_not_numbers(table):
    same = table.assign(correct=True)
    found = ts.trajectory_statistics(same, resamples=20)
    assert found.auroc["auroc"].isna().all() and found.auroc["reason"].str.len().gt(0).all()
    assert found.logistic["reason"].eq("one outcome only").all()
    separated = table.assign(correct=table["final"] < 0.6)
    assert ts.trajectory_statistics(separated, resamples=20).logistic["reason"].str.contains("separated").any()


def test_missing_columns_and_empty_tables_are_refused(table):
    with pytest.raises(RequestError, match="lacks length"):
        ts.trajectory_statistics(table.drop(columns="length"))
    with pytest.raises(RequestError, match="no chain"):
        ts.trajectory_statistics(table.assign(excluded=True))


def test_epsilons_below_the_smallest_step_are_one_rule():
    rng = np.random.default_rng(3)
    values = t.attainable_entropies(5)
    chains = [list(rng.choice(values, 6)) for _ in range(80)]
    rows = ts.epsilon_table(chains, rng.random(80) < 0.5, (0.0, 0.01, 0.05, 0.10), answers=5).set_index("epsilon")
    assert rows.at[0.0, "allowed_steps"] == rows.at[0.01, "allowed_steps"] == 0
    assert rows.at[0.0, "monotone"] == rows.at[0.01, "monotone"]
    assert rows.at[0.10, "allowed_steps"] > rows.at[0.05, "allowed_steps"] > 0


def test_holm_family_is_adjusted_over_its_members_only():
    p = {"a": 0.01, "b": 0.03, "c": 0.5}
    rows = ts.family(p, ["a", "b"]).set_index("name")
    assert rows.at["a", "p_holm"] == pytest.approx(0.02) and rows.at["b", "p_holm"] == pytest.approx(0.03)
    with pytest.raises(RequestError, match="no p value"):
        ts.family(p, ["a", "z"])


def test_censored_chains_never_count_as_ended():
    curve = completion_curve([100, 200, 600, 600], [True, True, False, False])
    assert curve["completed"].tolist() == pytest.approx([0.25, 0.5, 0.5])
    early = completion_curve([100, 150, 200], [True, False, True]).set_index("tokens")["completed"]
    assert early[200] == pytest.approx(1.0) and early[150] == pytest.approx(1 / 3)


# -- preregistration -------------------------------------------------------------------------------------------------------

DECLARED = """
title: shape
protocol: {rule: blank-line, m: 5, epsilon: 0.01}
hypotheses:
  - {name: H1, estimate: gap_points, criterion: "> 0", p: fisher_greater}
  - {name: H2, estimate: spearman_coherence, criterion: "> 0.3"}
  - {name: H3, estimate: auroc_final, criterion: ">= 0.5", p: spearman_final}
family: [H1, H3]
"""


def _declaration(text):
    return declared.parse(text.encode(), Path("registration.yaml"))


def test_verdicts_follow_criterion_and_holm():
    declared = _declaration(DECLARED)
    estimates = {"gap_points": 5.0, "spearman_coherence": 0.1, "auroc_final": math.nan}
    rows = hypotheses.verdicts(declared, estimates, {"fisher_greater": 0.04, "spearman_final": 0.001}).set_index("name")
    assert rows["verdict"].to_dict() == {"H1": "supported", "H2": "not supported", "H3": "undefined"}
    rows = hypotheses.verdicts(declared, estimates, {"fisher_greater": 0.04, "spearman_final": 0.9}).set_index("name")
    assert rows.at["H1", "p_holm"] == pytest.approx(0.08) and rows.at["H1", "verdict"] == "not supported"


def test_deviations_are_listed():
    declared = _declaration(DECLARED)
    assert hypotheses.deviations(declared, {"rule": "blank-line", "m": 5, "epsilon": 0.01}) == []
    assert hypotheses.deviations(declared, {"rule": "sentence", "m": 5}) == [
        "rule: declared 'blank-line', run with 'sentence'",
        "epsilon: declared 0.01, but the run has no such setting",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("title: shape", "titel: shape"), "unknown field 'titel'"),
        (('criterion: "> 0"', 'criterion: "positive"'), "criterion"),
        (("family: [H1, H3]", "family: [H1, H2]"), "family"),
        (("title: shape", "exclusions: [outliers]"), "exclusion"),
        (("name: H2", "name: H1"), "twice"),
        (("hypotheses:", "hypotheses: [\n"), "YAML"),
        (("hypotheses:", "hypotheses: []\nrest:"), "list at least one"),
        (("title: shape", "title: shape\ntitle: other"), "'title' appears twice"),
        (("title: shape", "alpha: often"), "alpha is 'often'"),
        (("title: shape", "outcome: best"), "outcome 'best'"),
        (("title: shape", "exclusions: 3"), "exclusions is 3"),
        (("{rule: blank-line, m: 5, epsilon: 0.01}", "blank-line"), "protocol is 'blank-line'"),
        (('criterion: "> 0"', 'criterion: "> 1.2.3"'), "criterion"),
        (("estimate: gap_points", "estimate: gap"), "H1 names estimate 'gap', which no report computes"),
        (("p: fisher_greater", "p: fisher"), "H1 names p 'fisher', which no report computes"),
    ],
)
def test_a_registration_that_cannot_be_followed_is_refused(change, message):
    with pytest.raises(RequestError, match=message):
        _declaration(DECLARED.replace(*change))


def test_every_name_that_a_registration_may_use_is_computed():
    rng = np.random.default_rng(0)
    chains = {str(i): sorted(rng.random(6), reverse=True) if i % 3 == 0 else list(rng.random(6)) for i in range(60)}
    table = t.shape_table(chains).assign(
        problem=range(60), confidence=rng.random(60), length=rng.integers(10, 99, 60), correct=rng.random(60) < 0.5
    )
    found = ts.trajectory_statistics(table, resamples=10)
    assert set(found.estimates()) == set(ts.ESTIMATES) and set(found.pvalues()) == set(ts.PVALUES)
    assert all(math.isfinite(v) for name, v in found.estimates().items() if "max_violation" not in name)
    one = ts.trajectory_statistics(table.assign(correct=True, confidence=math.nan), resamples=10)  # nothing to compare
    assert set(one.estimates()) == set(ts.ESTIMATES) and math.isnan(one.estimates()["aurc_confidence"])
    declared = _declaration(DECLARED)
    verdict = hypotheses.verdicts(declared, one.estimates(), one.pvalues()).set_index("name")["verdict"]
    assert verdict.to_dict() == {"H1": "not supported", "H2": "undefined", "H3": "undefined"}


def test_many_answers_have_a_table_without_the_lattice():
    rows = ts.epsilon_table([[1.0, 0.5], [0.2, 0.9]], [True, False], answers=50)
    assert rows["allowed_steps"].isna().all() and rows["n"].tolist() == [2, 2, 2, 2]


def test_agreement_is_over_chains_that_have_an_answer():
    table = pd.DataFrame(
        {
            "answer_last": ["1", "2", None, None], "answer_own": ["1", "3", "4", None],
            "correct_last": pd.array([True, False, False, False], "boolean"),
            "correct_own": pd.array([True, False, True, False], "boolean"),
        }
    )  # fmt: skip
    assert agreement(table)["same_answer"] == pytest.approx(1 / 3) and agreement(table)["same_verdict"] == 3 / 4
    assert math.isnan(agreement(table[3:])["same_answer"])


# -- public chains ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def public(shared_data):
    return load_distributions(shared_data / "cot-proxy-tasks-8.tar.gz")


def test_public_distributions_are_read_whole(public, shared_data):
    assert len(public) == 940 and len({c.name for c in public}) == 940
    assert sum(len(c.probabilities) for c in public) == 22_413
    with tarfile.open(shared_data / "cot-proxy-tasks-8.tar.gz") as archive:
        name = "datasets/8/qwen-3-32b/test/gpqa_gpqa_diamond_0047_rollout_004.json"
        record = json.load(archive.extractfile(name))
    chain = next(c for c in public if c.name == "gpqa_gpqa_diamond_0047/4")
    for step, h, choice in zip(record["sentence_summaries"], chain.entropies, chain.choices, strict=True):
        assert h == pytest.approx(scipy.stats.entropy(list(step["answer_distribution"].values())), abs=1e-12)
        assert choice == step["most_common"]


def test_statistics_of_the_public_chains(public):
    table = chain_table(public)
    gpqa = table[table["source"] == "gpqa_gpqa_diamond"]
    assert (len(gpqa), gpqa["problem"].nunique(), gpqa["correct"].sum()) == (591, 60, 309)
    found = ts.trajectory_statistics(gpqa, resamples=20)
    assert found.gap.n_monotone == 0 and math.isnan(found.gap.points.estimate)  # no chain falls at every sentence
    assert found.auroc.set_index("score").at["final", "auroc"] == pytest.approx(0.6998, abs=1e-3)


def test_public_texts_come_with_their_prompts(shared_data):
    chains = load_texts(shared_data / "cot-proxy-tasks-7.tar.gz")
    assert len(chains) == 3044 and all(c.prompt and c.text and c.tokens > 0 for c in chains)


@pytest.mark.parametrize("content", [b"", b"not an archive"])
def test_a_broken_archive_is_refused(tmp_path, content):
    path = tmp_path / "chains.tar.gz"
    path.write_bytes(content)
    with pytest.raises(RequestError, match="chains.tar.gz"):
        load_distributions(path)


def test_a_malformed_distribution_is_refused_by_name(tmp_path):
    record = {
        "question_id": "q_1", "source_rollout_idx": 0, "correct_answer": "A",
        "sentence_summaries": [{"sentence_idx": 0, "partial_cot_length": 5, "answer_distribution": {"A": 0.7, "B": 0.7}}],
    }  # fmt: skip
    data = json.dumps(record).encode()
    path = tmp_path / "chains.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("split/q_1.json")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    with pytest.raises(RequestError, match="split/q_1.json"):
        load_distributions(path)
