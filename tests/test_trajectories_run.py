"""Trajectory runs from end to end: what is kept, interruption and resumption, refusals, and the report."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from precollapse import open_run, verify
from precollapse.analysis.trajectories.tables import forced_table, run_agreement, sampled_table
from precollapse.errors import RequestError
from precollapse.reports.kinds import KINDS, ReportRequest
from precollapse.store import ConfigMismatch
from precollapse.studies import benchmarks, trajectories
from precollapse.studies.trajectories import run as trajectories_run
from precollapse.studies.trajectories import segmentation
from precollapse.studies.trajectories import shards as trajectory_shards

REGISTRATION = """
title: small
protocol: {rule: sentence, m: 3, epsilon: 0.01, seed: 1}
hypotheses:
  - {name: H1, estimate: gap_points, criterion: "> 0", p: fisher_greater}
family: [H1]
"""


@pytest.fixture(scope="module")
def settings(tiny_folder, tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("trajectories")
    rows = [{"id": f"q{i}", "question": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(6)]
    choices = [
        {"id": f"c{i}", "question": f"Is {i} even?", "answer": "AB"[i % 2], "choices": ["yes", "no"]} for i in range(2)
    ]
    for name, content in (("sums", rows), ("parity", choices)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    (folder / "registration.yaml").write_text(REGISTRATION)
    return {
        "model": str(tiny_folder), "benchmarks": ("sums", "parity"), "items": {n: folder / f"{n}.jsonl" for n in ("sums", "parity")},
        "measures": ("sampled", "forced"), "chain_tokens": 60, "continuation_tokens": 12, "m": 3, "rule": "window-20",
        "cap": 3, "forced_rule": "window-10", "compare_rules": ("sentence",), "shard_size": 2, "seed": 1,
        "anchors": trajectories.ANCHOR_PARAPHRASES[:2], "preregistration": folder / "registration.yaml", "residual": True,
    }  # fmt: skip


@pytest.fixture(scope="module")
def run(settings, tmp_path_factory):
    return trajectories.run_trajectories(
        trajectories.TrajectoryConfig(out=tmp_path_factory.mktemp("whole") / "run.zarr", **settings), progress=False
    )


def same_runs(a, b) -> None:
    assert a.states["id"].tolist() == b.states["id"].tolist()
    for column in trajectory_shards.COLUMNS:
        pd.testing.assert_series_equal(a.states[column], b.states[column])
    for name in a.ragged_arrays:
        for i in range(len(a)):
            assert np.array_equal(
                a.ragged(name, i), b.ragged(name, i), equal_nan=a.ragged(name, i).dtype.kind == "f"
            ), name


def test_what_is_kept_is_consistent(run):
    s = run.states
    assert run.progress.complete and verify(run.path) == [] and len(run) == 8
    for i, state in enumerate(s.itertuples()):
        kept = json.loads(state.continuations)
        bounds = run.ragged("boundaries", i)
        assert bounds[0] == 0 and (np.diff(bounds) > 0).all() and bounds[-1] <= state.chain_tokens
        assert len(kept) == len(bounds) == len(run.ragged("entropies", i)) <= 4
        assert all(len(prefix) == 3 for prefix in kept)
        answers = [[c["answer"] for c in prefix] for prefix in kept]
        parsed = [sum(a is not None for a in row) for row in answers]
        assert parsed == run.ragged("parsed", i).tolist()
        assert [p == 0 for p in parsed] == np.isnan(run.ragged("entropies", i)).tolist()
        assert state.chain_tokens == len(run.ragged("chain_ids", i))
        assert state.truncated == (state.finish_reason == "length")
        forced = run.ragged("forced_boundaries", i)
        by_rule = json.loads(state.forced_by_rule)
        assert set(by_rule) == {"window-10", "sentence"} and sorted(set(sum(by_rule.values(), []))) == forced.tolist()
        assert run.ragged("forced_logprobs", i).shape[:2] == (2, len(forced))
        assert run.ragged("resid_answer", i).shape == (len(forced), 3, 32)
    assert s["forced_labels"].iloc[-1] == '["A", "B"]'


def test_free_response_forces_the_answers_the_model_gave_and_scores_gold_beside_them(run):
    for i, state in enumerate(run.select(benchmark="sums").states.itertuples()):
        labels = json.loads(state.forced_labels)
        given = {c["answer"] for prefix in json.loads(state.continuations) for c in prefix} | {state.answer}
        assert set(labels) <= given and json.loads(state.forced_candidates) == [state.gold]
        assert run.select(benchmark="sums").ragged("forced_candidate_logprobs", i).shape[2] == 1


def test_an_interrupted_run_equals_an_uninterrupted_one(run, settings, tmp_path, monkeypatch):
    config = trajectories.TrajectoryConfig(out=tmp_path / "run.zarr", **settings)
    make, calls = trajectory_shards.make_shard, []

    def breaking(*arguments):
        calls.append(1)
        if len(calls) in (2, 4):
            raise KeyboardInterrupt
        return make(*arguments)

    monkeypatch.setattr(trajectories_run, "make_shard", breaking)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            trajectories.run_trajectories(config, progress=False)
    part = open_run(config.out)
    assert 0 < part.progress.states < 8
    same_runs(trajectories.run_trajectories(config, progress=False), run)


def test_a_killed_run_equals_an_uninterrupted_one(run, settings, tmp_path):
    script = tmp_path / "go.py"
    given = {k: str(v) if isinstance(v, Path) else v for k, v in settings.items()}
    given["items"] = {k: str(v) for k, v in settings["items"].items()}
    script.write_text(
        "import json, sys\nfrom precollapse.studies.trajectories import TrajectoryConfig, run_trajectories\n"
        "run_trajectories(TrajectoryConfig(**json.load(open(sys.argv[1]))), progress=False)\n"
    )
    (tmp_path / "config.json").write_text(json.dumps({**given, "out": str(tmp_path / "run.zarr")}))
    process = subprocess.Popen(
        [sys.executable, script, tmp_path / "config.json"], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    commits = tmp_path / "run.zarr" / "_commits"
    deadline = time.monotonic() + 150
    while (
        not (commits.is_dir() and any(commits.glob("*.json")))
        and process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert any(commits.glob("*.json"))
    config = trajectories.TrajectoryConfig(out=tmp_path / "run.zarr", **settings)
    same_runs(trajectories.run_trajectories(config, progress=False), run)


def test_a_hub_model_is_the_commit_that_the_run_began_with(hub, settings, tmp_path, monkeypatch):
    """A branch that moves between two starts must not mix two models in one run."""
    first, second = "a" * 40, "b" * 40
    hub(first, None)
    short = {**settings, "model": "lab/tiny", "benchmarks": ("parity",), "measures": ("forced",), "chain_tokens": 8}
    short["items"] = {"parity": settings["items"]["parity"]}
    config = trajectories.TrajectoryConfig(out=tmp_path / "run.zarr", **short)
    run = trajectories.run_trajectories(config, progress=False)
    assert run.config["model"] == f"lab/tiny@{first}" and run.manifest["capture"]["model_revision"] == first
    same_runs(trajectories.run_trajectories(config, progress=False), run)
    hub(second, 7)
    with pytest.raises(ConfigMismatch, match=f"{first}.*{second}"):
        trajectories.run_trajectories(config, progress=False)
    pinned = trajectories.TrajectoryConfig(out=tmp_path / "run.zarr", **short, revision=first)
    same_runs(trajectories.run_trajectories(pinned, progress=False), run)
    earlier = trajectories.TrajectoryConfig(out=tmp_path / "earlier.zarr", **short)
    with monkeypatch.context() as patch:  # as runs were begun that recorded the branch
        patch.setattr("precollapse.hooks.loading.pinned", lambda source: source)
        trajectories.run_trajectories(earlier, progress=False)
    assert trajectories.run_trajectories(earlier, progress=False).config["model"] == "lab/tiny@main"


def test_another_protocol_or_an_edited_registration_is_refused(run, settings, tmp_path):
    with pytest.raises(ConfigMismatch, match="temperature"):
        trajectories.run_trajectories(trajectories.TrajectoryConfig(out=run.path, **{**settings, "temperature": 0.1}))
    edited = tmp_path / "registration.yaml"
    edited.write_text(REGISTRATION.replace("> 0", "> -5"))
    with pytest.raises(ConfigMismatch, match="preregistration"):
        trajectories.run_trajectories(
            trajectories.TrajectoryConfig(out=run.path, **{**settings, "preregistration": edited})
        )


def test_given_chains_are_followed_as_they_stand(settings, tmp_path):
    chains = tmp_path / "chains.jsonl"
    texts = {"q1": "One and one. That makes 2.", "q3": "Three twice is 6. Sure? Yes, 6."}
    chains.write_text("".join(json.dumps({"id": k, "chain": v}) + "\n" for k, v in texts.items()))
    given = {
        **settings,
        "benchmarks": ("sums",),
        "items": {"sums": settings["items"]["sums"]},
        "chains": {"sums": chains},
    }
    given |= {"rule": "sentence", "cap": None, "preregistration": None}
    found = trajectories.run_trajectories(
        trajectories.TrajectoryConfig(out=tmp_path / "run.zarr", **given), progress=False
    )
    assert dict(zip(found.states["item_id"], found.states["chain"], strict=True)) == texts
    assert found.states["correct"].tolist() == [True, True] and found.states["truncated"].isna().all()
    assert [len(found.ragged("boundaries", i)) for i in range(2)] == [3, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": "paragraphs"}, "segmentation rule"),
        ({"m": 0}, "m, the number"),
        ({"temperature": -1}, "temperature"),
        ({"chain_tokens": 0}, "budget"),
        ({"cap": 0}, "cap"),
        ({"measures": ("guessed",)}, "measure"),
        ({"benchmarks": ("nothing",), "items": {}}, "benchmark"),
        ({"tie": "coin"}, "tie"),
        ({"options": ("A",)}, "two options"),
        ({"epsilon": -0.1}, "epsilon"),
    ],
)
def test_bad_settings_are_refused_at_once(settings, tmp_path, change, message):
    with pytest.raises(RequestError, match=message):
        trajectories.TrajectoryConfig(out=tmp_path / "run.zarr", **{**settings, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chain_tokens": 5000}, "context is 1024"),
        ({"options": ("A", "A ")}, "same tokens|share|two different"),
        ({"n": 99}, "99"),
        ({"anchors": ("",)}, "anchor is empty"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_before_any_work(settings, tmp_path, change, message):
    config = trajectories.TrajectoryConfig(out=tmp_path / "run.zarr", **{**settings, **change})
    with pytest.raises(RequestError, match=message):
        trajectories.run_trajectories(config, progress=False)
    assert not (tmp_path / "run.zarr").exists()


def test_report_has_every_part_of_every_benchmark(run):
    report = trajectories.trajectory_report(run, resamples=20, others={"the same again": run}, figures=False)
    for part in (
        "Protocol",
        "sums: What the protocol did",
        "parity: Sampled entropy, outcome: answer at the last prefix",
        "parity: Forced entropy, outcome: the chain's own answer",
        "sums: Sensitivity",
        "Agreement",
    ):
        assert part in report.markdown
    assert "rule: declared 'sentence', run with 'window-20'" in report.markdown
    verdict = [name for name in report.tables if name.endswith("_verdicts")]
    assert verdict and set(report.tables[verdict[0]]["verdict"]) <= {"supported", "not supported", "undefined"}
    again = report.tables["sums_run_agreement"].iloc[0]
    assert again["same_flag"] == 1 and again["same_answer"] == 1
    pairs = report.tables["parity_sensitivity_anchor"]
    assert len(pairs) == 1 and -1 <= pairs["spearman"].iloc[0] <= 1
    assert set(report.tables["parity_sensitivity_rule"]["rule"]) == {"window-10", "sentence"}
    assert not report.files


def test_a_report_tests_hypotheses_given_afterwards_and_says_so(run, tmp_path):
    later = tmp_path / "later.yaml"
    later.write_text(REGISTRATION.replace("H1", "H9"))
    request = ReportRequest([run], options={"hypotheses": later, "resamples": 20})
    report = KINDS["trajectories"].write(request)
    verdict = next(table for name, table in report.tables.items() if name.endswith("_verdicts"))
    assert verdict["name"].tolist() == ["H9"]
    assert "later.yaml (sha256 " in report.markdown and "treat them as not declared. small" in report.markdown
    assert "Hypotheses declared before the run" not in report.markdown
    later.write_text("hypotheses:\n- {id: S1, test: entropy_change, benchmark: sums, regime: cot, alternative: less}\n")
    with pytest.raises(RequestError, match="No hypothesis of later.yaml is on trajectories"):
        KINDS["trajectories"].write(request)


def test_written_report_opens_alone(run, tmp_path):
    report = trajectories.trajectory_report(run.select(benchmark="sums"), tmp_path / "report", resamples=20)
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<svg" in page and "<title>prefix 0:" in page and 'id="completion"' in page and "src='http" not in page
    assert {f.name for f in report.files} >= {
        "report.md",
        "report.html",
        "report.json",
        "diagnostics.csv",
        "completion.png",
    }
    assert json.loads((tmp_path / "report" / "report.json").read_text())["protocol"]["seed"] == "1"


def test_tables_agree_with_the_stored_entropies(run):
    sampled, forced = sampled_table(run), forced_table(run)
    for i in range(len(run)):
        h = run.ragged("entropies", i)
        points = h[~np.isnan(h)]
        if len(points) >= 2:
            assert sampled["violations"].iloc[i] == (np.diff(points) > 0.01).sum()
            assert sampled["coherence"].iloc[i] == pytest.approx(points[0] - points[-1])
        wanted = json.loads(run.states["forced_by_rule"].iloc[i])["window-10"]
        assert len(forced["entropies"].iloc[i]) == len(wanted)
    logprobs = run.ragged("forced_logprobs", 7)[0][-1]
    assert forced["confidence"].iloc[7] == pytest.approx(math.exp(logprobs.max()) / np.exp(logprobs).sum())
    fewer = sampled_table(run, m=1)
    assert fewer["final"].dropna().eq(0).all()  # one answer has no entropy
    assert run_agreement({"a": sampled, "b": fewer})["n"].iloc[0] <= 8


def test_a_run_of_another_kind_is_refused(tmp_path):
    from precollapse import store

    plan = store.Plan.build([{"id": "a", "benchmark": "b", "regime": "c", "item_id": "d"}], 1)
    with store.open_writer(tmp_path / "other.zarr", plan=plan, config={}, columns={"x": "int64"}) as writer:
        writer.write(0, table={"x": [1]})
    with pytest.raises(RequestError, match="kind"):
        trajectories.trajectory_report(store.open_run(tmp_path / "other.zarr"))


def test_hovered_text_is_the_text_between_boundaries(run):
    for i, state in enumerate(run.states.itertuples()):
        characters = run.ragged("boundary_characters", i)
        assert characters[0] == 0 and (np.diff(characters) > 0).all() and characters[-1] <= len(state.chain)


def test_forced_answers_of_free_response_need_answers_to_compare(tmp_path, tiny_folder):
    config = trajectories.TrajectoryConfig(
        out=tmp_path / "run.zarr", model=str(tiny_folder), benchmarks=("builtin",), n=2, measures=("forced",)
    )
    with pytest.raises(RequestError, match="free response.*--both"):
        trajectories.run_trajectories(config, progress=False)
    assert not (tmp_path / "run.zarr").exists()


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["1/2", "0.5", ".50", None, "2", "2.0"], ["1/2", "1/2", "1/2", None, "2", "2"]),
        (["1,000", "1000", "x + 1", "x+1"], ["1,000", "1,000", "x + 1", "x+1"]),
    ],
)
def test_equal_numbers_are_one_answer_however_they_are_spelled(answers, expected):
    seen = {}
    assert [trajectory_shards.one_spelling(a, seen) for a in answers] == expected


@pytest.mark.parametrize(("answer", "right"), [("18", True), ("18.0", True), ("17", False), (None, False)])
def test_a_named_option_that_the_model_never_gave_is_graded_against_the_gold_answer(answer, right):
    config = trajectories.TrajectoryConfig(out="x", measures="forced", options=("17", "18"))
    work = trajectory_shards.Work("sums", benchmarks.Item("1", "9 + 9?", "18"), None)
    forced = SimpleNamespace(labels=("17", "18"), choice=("17", answer) if answer else (), candidates=(), tokens_run=1)
    boundaries = {config.forced_rule: segmentation.Boundaries((0, 5), 0, 0)}
    found = trajectory_shards._forced_columns(config, work, [forced], boundaries, {None: False})
    assert found["forced_correct"] is right


FIVE = (r"(3, \frac{\pi}{2})", r"\left( 3, \frac{\pi}{2} \right)", r"(3,\pi/2)", r"(3, \frac\pi2)", r"(3, 0.5\pi)")


def test_answers_that_the_grader_calls_equal_are_one_answer_with_one_verdict():
    from functools import partial

    from precollapse.analysis.trajectories import answer_entropy
    from precollapse.studies.grading import graders

    seen = {}
    class_of = partial(graders.answer_class, "math500", gold=FIVE[0])
    spelled = [trajectory_shards.one_spelling(a, seen, class_of) for a in FIVE]
    assert set(spelled) == {FIVE[0]} and answer_entropy(spelled) == 0
    answers = [
        *FIVE,
        "(3,\\pi/3)",
        r"(3, \frac{\pi}{3})",
        "3",
        "x=3",
        "3.0",
        "50\\%",
        "0.5",
        "1/2",
        "",
        "east",
        "\\text{East}",
        "1,2",
        "2,1",
        "(1,2)",
    ]
    for gold in answers[:-5]:
        if not gold:
            continue
        classes = {}
        for answer in answers:
            if answer:
                verdict = graders.grade("math500", rf"\boxed{{{answer}}}", gold).correct
                classes.setdefault(graders.answer_class("math500", answer, gold), set()).add(verdict)
        assert all(len(verdicts) == 1 for verdicts in classes.values()), (gold, classes)
        assert sum(True in verdicts for verdicts in classes.values()) == 1


def test_the_last_point_is_that_of_the_last_prefix_that_bears_an_answer():
    """A chain that is finished makes the model write nothing more: its answer is the one before."""
    answers = [["3", "18", None], ["18", "18", "7"], [None, None, None]]
    kept = [
        [{"answer": a, "correct": a == "18", "text": "", "tokens": 0, "finish": "stop"} for a in row] for row in answers
    ]
    state = {"id": "a", "benchmark": "sums", "item_id": "a", "answer": "18", "gold": "18", "correct": True, "chain_tokens": 9, "continuations": json.dumps(kept)}  # fmt: skip
    run = SimpleNamespace(states=pd.DataFrame([state, {**state, "continuations": json.dumps([kept[2]])}]))
    table = sampled_table(run)
    assert (
        table["answer_last"].iloc[0] == "18"
        and bool(table["correct_last"].iloc[0])
        and table["confidence"].iloc[0] == pytest.approx(2 / 3)
    )
    assert (
        pd.isna(table["answer_last"].iloc[1])
        and not bool(table["correct_last"].iloc[1])
        and math.isnan(table["confidence"].iloc[1])
    )


def test_a_run_of_earlier_rules_is_continued_under_them(settings, tmp_path, monkeypatch):
    from precollapse.studies import rule_versions

    config = trajectories.TrajectoryConfig(
        out=tmp_path / "run.zarr",
        **{**settings, "rule": "sentence", "measures": "sampled", "hypotheses": None, "preregistration": None},
    )
    make, versions = trajectory_shards.make_shard, []

    def breaking(*arguments):
        versions.append(arguments[-1])
        if len(versions) == 2:
            raise KeyboardInterrupt
        return make(*arguments)

    monkeypatch.setattr(trajectories_run, "make_shard", breaking)
    with monkeypatch.context() as earlier:
        earlier.setattr(rule_versions, "CURRENT", dict(rule_versions.FIRST))
        with pytest.raises(KeyboardInterrupt):
            trajectories.run_trajectories(config, progress=False)
    with pytest.warns(UserWarning, match="begun under version 1 of the grader"):
        continued = trajectories.run_trajectories(config, progress=False)
    assert set(versions) == {1} and continued.progress.complete
    assert trajectories.run_trajectories(config, progress=False).config["segmentation"] == 1
    assert rule_versions.kept(trajectories_run.Trajectories.of(config).defaults(), None) == {
        "grader": 2,
        "segmentation": 2,
    }
