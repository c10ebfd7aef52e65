"""States after the answer has begun are the model's own at that token, or missing; declared hypotheses are kept with the run."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

import precollapse as pc
from precollapse import store
from precollapse.analysis import hypotheses
from precollapse.errors import RequestError
from precollapse.hooks.decoding.greedy import Output
from precollapse.reports import study as report
from precollapse.studies import StudyConfig, run_study
from precollapse.studies.study import after

SMALL = {
    "n": 4,
    "max_new_tokens": {"baseline": 6, "cot": 9},
    "benchmarks": ("builtin", "builtin_choice"),
    "regimes": ("baseline", "cot"),
}


@pytest.fixture(scope="module")
def extractor(tiny_folder):
    return pc.Extractor.from_pretrained(str(tiny_folder))


@pytest.fixture(scope="module")
def study_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("declared") / "study.yaml"
    entry = "{id: H1, test: entropy_change, benchmark: builtin, regime: cot, alternative: less}"
    path.write_text(f"hypotheses:\n  - {entry}\n")
    return path


@pytest.fixture(scope="module")
def run(tiny_folder, extractor, tmp_path_factory, study_file):
    out = tmp_path_factory.mktemp("after") / "run.zarr"
    places = ("1", "4", "9", "e")  # the letter is an anchor that some outputs hold and others do not
    config = StudyConfig(out=out, model=str(tiny_folder), after=places, hypotheses=study_file, **SMALL)
    return run_study(config, progress=False, extractor=extractor)


def _own(extractor, ids):
    with torch.no_grad():
        out = extractor.model(torch.as_tensor(ids)[None].long(), output_hidden_states=True)
    return out.hidden_states


def test_they_are_the_models_own_states_at_that_token(run, extractor):
    reached = {"1": 0, "4": 0, "9": 0, "anchor": 0}
    for i in range(len(run.states)):
        prompt, output = run.ragged("token_ids", i).tolist(), run.ragged("output_ids", i).tolist()
        text = extractor.tokenizer.decode(output, clean_up_tokenization_spaces=False)
        hidden = _own(extractor, prompt + output)
        counts = {k: int(k) if len(output) >= int(k) else None for k in ("1", "4", "9")}
        last = [n for n in range(1, len(output) + 1) if "e" in extractor.tokenizer.decode(output[n - 1 : n])]
        counts["anchor"] = last[-1] if "e" in text else None
        for place, count in counts.items():
            for layer in (0, 1):
                got = run.resid(layer, site=f"resid_post_after_{place}")[i]
                if count is None:
                    assert np.isnan(got).all()
                    continue
                own = hidden[layer + 1][0, len(prompt) - 1 + count].numpy()
                np.testing.assert_allclose(got, own, rtol=1e-4, atol=1e-5 * np.abs(own).max())
                reached[place] += layer
    assert reached["1"] > 4 and reached["4"] > 4 and reached["anchor"] < len(run.states)


def test_an_anchor_counts_with_the_token_that_completes_its_last_occurrence(extractor):
    tokenizer = extractor.tokenizer
    ids = tokenizer("a#### 1 #### 2", add_special_tokens=False)["input_ids"]
    count = after.token_count(tokenizer, Output(tuple(ids), "", False), "####")
    assert count is not None and tokenizer.decode(ids[:count], clean_up_tokenization_spaces=False) == "a#### 1 ####"
    assert after.token_count(tokenizer, Output(tuple(ids), "", False), "Answer") is None
    assert after.token_count(tokenizer, Output((), "", True), "1") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"after": ("0",)},
        {"after": ("-3",)},
        {"after": (" ",)},
        {"after": ("####", "Answer:")},
        {"after": ("1", "1")},
        {"after": ("1", "01")},
        {"after": ("1.5",)},
        {"after": ("1e3",)},
        {"after": ("²",)},
        {"after": ("nan",)},
        {"after": ("10",)},  # under no regime may so many tokens be written
        {"after": ("1",), "generate": False},
        {"after": ("1",), "sites": ("resid_mid",)},
    ],
)
def test_bad_places_are_refused(changes, tmp_path):
    with pytest.raises(RequestError):
        StudyConfig(out=tmp_path / "run.zarr", **SMALL, **changes)


def test_the_report_compares_before_with_after_on_one_split(run):
    made = report.write_report(run, None)
    table = made.after.set_index(["benchmark", "regime", "place"])
    assert len(table) == 4 * 4
    assert (table.xs(("baseline", "9"), level=("regime", "place"))["reached"] == 0).all()
    assert table.loc[("builtin", "baseline", "1"), "reached"] == 4
    assert "Before and after the first tokens" in made.to_markdown()


def test_hypotheses_are_recorded_before_the_start_and_tested_by_the_report(run, study_file):
    digest = hashlib.sha256(study_file.read_bytes()).hexdigest()
    assert run.manifest["hypotheses_sha256"] == digest and run.manifest["hypotheses"] == study_file.read_text()
    made = report.write_report(run, None)
    row = made.hypotheses[made.hypotheses["id"] == "H1"].iloc[0]
    assert row["declared"] == "yes" and row["verdict"] in ("supported", "not supported")
    assert any("recorded by the run before it started" in note for note in made.notes)
    other = hypotheses.parse(study_file.read_bytes() + b"# later\n", study_file)
    changed = report.write_report(run, None, hypotheses=other)
    assert any("treat them as not declared" in note for note in changed.notes)


def test_a_study_goes_on_only_under_the_hypotheses_it_was_started_with(
    run, tiny_folder, extractor, study_file, tmp_path
):
    other = tmp_path / "other.yaml"
    other.write_text(study_file.read_text() + "# later\n")
    places = ("1", "4", "9", "e")
    config = StudyConfig(out=run.path, model=str(tiny_folder), after=places, hypotheses=other, **SMALL)
    with pytest.raises(store.ConfigMismatch, match="hypotheses_sha256"):
        run_study(config, progress=False, extractor=extractor)


def test_a_hypothesis_about_what_the_study_does_not_run_is_refused(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("hypotheses: [{id: H1, test: entropy_change, benchmark: builtin, regime: babble}]")
    with pytest.raises(RequestError, match="H1"):
        StudyConfig(out=tmp_path / "run.zarr", hypotheses=path, **SMALL)
    with pytest.raises(RequestError, match="cannot be read"):
        StudyConfig(out=tmp_path / "run.zarr", hypotheses=tmp_path / "none.yaml", **SMALL)


def test_the_label_shuffle_test_has_one_direction(tmp_path):
    path = tmp_path / "study.yaml"
    entry = "{{id: H1, test: probe_above_chance, benchmark: builtin, regime: cot{}}}"
    path.write_text(f"hypotheses: [{entry.format('')}]")
    assert hypotheses.load(path).hypotheses[0].alternative == "greater"
    path.write_text(f"hypotheses: [{entry.format(', alternative: less')}]")
    with pytest.raises(RequestError, match="one direction only"):
        hypotheses.load(path)
