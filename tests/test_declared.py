"""One file of hypotheses for studies and trajectories: what it may hold, earlier files, and families over both kinds."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from precollapse import declared
from precollapse.analysis import hypotheses, statistics
from precollapse.analysis.trajectories import statistics as trajectory_statistics
from precollapse.errors import RequestError
from precollapse.studies import StudyConfig, TrajectoryConfig

BOTH = """
title: one question, two kinds of run
protocol: {m: 5}
hypotheses:
  - {id: S1, test: entropy_change, benchmark: builtin, regime: cot, alternative: less, family: main}
  - {id: T1, estimate: gap_points, criterion: "> 0", p: fisher_greater, family: main}
  - {id: T2, estimate: spearman_coherence, criterion: "< 0.1", statement: says nothing}
"""
EARLIER = """
title: shape
seeds: 3
hypotheses:
  - {name: H1, text: right more often, estimate: gap_points, criterion: "> 0", p: fisher_greater}
  - {name: H2, estimate: auroc_final, criterion: ">= 0.5", p: spearman_final}
  - {name: H3, estimate: auroc_final, criterion: ">= 0.5"}
family: [H1]
"""
TODAY = """
title: shape
protocol: {seed: 3}
hypotheses:
  - {id: H1, statement: right more often, estimate: gap_points, criterion: "> 0", p: fisher_greater}
  - {id: H3, estimate: auroc_final, criterion: ">= 0.5"}
"""


def read(text: str) -> declared.Declaration:
    return declared.parse(text.encode(), Path("both.yaml"))


def test_one_file_holds_hypotheses_of_both_kinds():
    declaration = read(BOTH)
    assert [h.id for h in declaration.hypotheses] == ["S1", "T1", "T2"]
    assert [h.id for h in declaration.on_studies] == ["S1"]
    assert [h.family for h in declaration.on_trajectories] == ["main", ""]
    assert declaration.updates == () and declaration.protocol == {"m": 5}
    assert declaration.sha256 == hashlib.sha256(BOTH.encode()).hexdigest()


@pytest.mark.parametrize("study_p", [0.001, 0.03, 0.9])
def test_a_family_over_both_kinds_is_adjusted_as_a_whole(study_p):
    estimates, pvalues = {"gap_points": 5.0, "spearman_coherence": 0.0}, {"fisher_greater": 0.03}
    alone = hypotheses.verdicts(read(BOTH), estimates, pvalues).set_index("name")
    assert alone.at["T1", "p_holm"] == pytest.approx(0.06)  # S1 was not tested and stays in the family
    assert alone["verdict"].to_dict() == {"T1": "not supported", "T2": "supported"}
    together = hypotheses.verdicts(read(BOTH), estimates, pvalues, {"S1": study_p}).set_index("name")
    assert together.at["T1", "p_holm"] == pytest.approx(statistics.holm([study_p, 0.03]).adjusted[1])
    assert math.isnan(together.at["T2", "p_holm"])


def test_a_report_of_studies_keeps_the_members_on_trajectories():
    rows, remarks = hypotheses.evaluate([], read(BOTH))
    rows = rows.set_index("id")
    assert rows.loc[["S1", "T1", "T2"], "verdict"].tolist() == ["not testable"] * 3
    assert "not among these results" in rows.at["T1", "reason"] and "is not known" in remarks[0]
    results = {"gap_points": 5.0, "spearman_coherence": 0.3}, {"fisher_greater": 0.01}
    rows = hypotheses.evaluate([], read(BOTH), trajectories=results)[0].set_index("id")
    assert rows.at["T1", "p_holm"] == pytest.approx(0.02) and rows.at["T1", "verdict"] == "supported"
    assert rows.at["T2", "verdict"] == "not supported" and np.isnan(rows.at["T2", "p"])


def test_an_earlier_file_of_trajectories_is_read_and_says_what_it_would_be_now(tmp_path):
    path = tmp_path / "registration.yaml"
    path.write_text(EARLIER)
    with pytest.warns(UserWarning, match="`name` is `id` now; `text` is `statement` now; `seeds` is `seed`.*`family`"):
        declaration = declared.load(path)
    first, second, third = declaration.on_trajectories
    assert (first.id, first.statement, declaration.protocol) == ("H1", "right more often", {"seed": 3})
    assert (first.family, second.family, third.family) == ("declared", "", "")
    today = read(TODAY)
    assert today.on_trajectories == (first, third) and today.protocol == declaration.protocol
    path.write_text(TODAY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        declared.load(path)


def test_what_earlier_runs_recorded_is_still_read():
    digest = hashlib.sha256(EARLIER.encode()).hexdigest()
    manifest = {"preregistration": {"sha256": digest, "text": EARLIER}}
    assert declared.of_manifest(manifest).sha256 == digest
    assert declared.of_manifest({"preregistration": None}) is None
    entries = declared.manifest_entries(read(BOTH))
    assert set(entries) == {"hypotheses_sha256", "hypotheses"}  # as studies have always recorded them
    assert declared.of_manifest(entries).hypotheses == read(BOTH).hypotheses
    assert declared.manifest_entries(None) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("{id: T1, estimate", "{id: T1, test: entropy_change, estimate"), "unknown field 'criterion'"),
        (('criterion: "< 0.1"', 'criterion: "< 0.1", family: main'), "no p to adjust"),
        (("{id: T1, estimate: gap_points, ", "{id: T1, "), "lacks 'estimate'"),
        (("{id: T1", "{id: T1, name: T1"), "both 'name' and 'id'"),
        (("{id: T2", "{id: S1"), "declared twice"),
    ],
)
def test_a_file_that_cannot_be_followed_is_refused(change, message):
    assert change[0] in BOTH
    with pytest.raises(RequestError, match=message):
        read(BOTH.replace(*change))


def test_settings_of_trajectories_need_a_hypothesis_on_them():
    with pytest.raises(RequestError, match="'protocol', which is about trajectories"):
        read("protocol: {m: 5}\nhypotheses: [{id: a, test: probe_change, benchmark: b, regime: c}]")


def test_each_kind_of_run_refuses_a_file_that_declares_nothing_about_it(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text(TODAY)
    with pytest.raises(RequestError, match="declares none on a study"):
        StudyConfig(out=tmp_path / "run.zarr", hypotheses=path)
    path.write_text("hypotheses: [{id: a, test: probe_change, benchmark: builtin, regime: cot}]")
    with pytest.raises(RequestError, match="declares none on trajectories"):
        TrajectoryConfig(out=tmp_path / "run.zarr", hypotheses=path)
    path.write_text(BOTH)
    assert StudyConfig(out=tmp_path / "run.zarr", hypotheses=path).declared_hypotheses().name == "file.yaml"
    assert TrajectoryConfig(out=tmp_path / "run.zarr", hypotheses=path).declared_hypotheses().name == "file.yaml"


def test_the_earlier_name_of_the_setting_is_accepted_with_a_note(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text(BOTH)
    with pytest.warns(UserWarning, match="called hypotheses now"):
        config = TrajectoryConfig(out=tmp_path / "run.zarr", preregistration=path)
    assert (config.hypotheses, config.preregistration) == (path, None)
    with pytest.raises(RequestError, match="give hypotheses alone"):
        TrajectoryConfig(out=tmp_path / "run.zarr", preregistration=path, hypotheses=path)


def test_every_test_that_may_be_declared_is_there():
    assert tuple(hypotheses.TESTS) == declared.TESTS
    assert (trajectory_statistics.ESTIMATES, trajectory_statistics.PVALUES) == (declared.ESTIMATES, declared.PVALUES)


@pytest.mark.parametrize("module", ["precollapse.declared", "precollapse.studies.study.config"])
def test_declaring_loads_none_of_the_tests(module):
    code = f"import sys, {module}\nprint(sorted(m for m in sys.modules if m.startswith('precollapse.analysis')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=True)
    assert done.stdout.strip() == "[]"
