"""The one runner: settings as they always were, files read once, devices refused alike, and a kind of work of one's own."""

from __future__ import annotations

import hashlib
import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from precollapse import store
from precollapse.cli.main import main
from precollapse.errors import RequestError
from precollapse.hooks import Extractor
from precollapse.store.run_plan import config_hash
from precollapse.studies import StudyConfig, TrajectoryConfig, prompts, run_study, run_trajectories, runner
from precollapse.studies.models import ModelRequest
from precollapse.studies.study import run as study_module
from precollapse.studies.study.run import Study
from precollapse.studies.trajectories import run as trajectory_module
from precollapse.studies.trajectories.run import Trajectories

REGIMES = "short:\n  free: 'Q: {question} A:'\n  choice: 'Q: {question} of {choices} A:'\n  max_new_tokens: 3\n"


@pytest.fixture(scope="module")
def extractor(tiny_folder: Path) -> Extractor:
    return Extractor.from_pretrained(str(tiny_folder))


# --- settings are what they were ----------------------------------------------------------------------------------------

EMBEDDED = {
    "model": "sha256:b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "revision": None,
    "device_type": "cpu",
}
"""What the model and the device add to a run of the embedded model on a CPU."""

STUDY = {
    "benchmarks": ["builtin", "builtin_choice"], "n": 25, "seed": 0, "regimes": ["baseline", "cot", "babble"], "template": "auto",
    "sites": ["resid_post"], "layers": "all", "attention": "none", "top_k": 10, "generate": True, "after": [], "moments": False,
    "store_dtype": "auto", "backend": "hf", "dtype": "auto", "revision": None, "batch_tokens": 8192, "share_prefix": "auto",
    "compile": False, "max_new_tokens": {"babble": 96, "baseline": 96, "cot": 96}, "hypotheses_sha256": None,
    "items": {
        "builtin": {"count": 25, "sha256": "94a36dfc437925ce"},
        "builtin_choice": {"count": 25, "sha256": "4f3a0e5b9a69b8bd"},
    },
    "templates": {
        "babble": {"choice": "f4695197b17193d7", "free": "2824ba6c34250529"},
        "baseline": {"choice": "3c9a0781bba51846", "free": "acbb299126ec8054"},
        "cot": {"choice": "415346df3b9e94cb", "free": "8eb51eea03b7e0a0"},
    },
}  # fmt: skip
STUDY_HASH = "ed1bf3ce603304a68ee6ece1b030bdf06afd827abf0fca07ff4f6c3af0322cc6"

TRAJECTORY = {
    "benchmarks": ["builtin"], "n": 3, "seed": 0, "measures": ["sampled"],
    "system": "Solve the problem step by step. Put each reasoning step on its own line. End with the final answer.",
    "chain_temperature": 0.7, "chain_tokens": 120, "rule": "blank-line", "cap": 8, "m": 3, "temperature": 0.7,
    "continuation_tokens": 40, "graded": "whole", "forced_rule": "sentence", "forced_cap": None, "compare_rules": [],
    "anchors": [" So, the answer is:"], "options": None, "end_tag": None, "tag_side": "before", "residual": False,
    "dtype": "auto", "revision": None, "items": {"count": 3, "sha256": "39a3c343353d9cf4"}, "chains": {}, "preregistration": None,
}  # fmt: skip
TRAJECTORY_HASH = "335be7070f617e2f0bda82c12a78a36c76cd2edf79d79e7f872b546bcca5daf2"


def test_a_studys_settings_are_those_that_runs_were_begun_with():
    """As `precollapse run --benchmark builtin,builtin_choice --n 25 --max-new-tokens 96` recorded them at first."""
    study = Study.of(StudyConfig(out="x", n=25, max_new_tokens=96, device="cpu"))
    assert study.settings() == STUDY
    assert config_hash(study.settings() | EMBEDDED, study.defaults()) == STUDY_HASH


def test_a_trajectory_studys_settings_are_those_that_runs_were_begun_with():
    """As `precollapse trajectories --n 3 --m 3 --chain-tokens 120 --continuation-tokens 40` recorded them at first."""
    config = TrajectoryConfig(out="x", n=3, m=3, chain_tokens=120, continuation_tokens=40, device="cpu")
    study = Trajectories.of(config)
    assert study.settings() == TRAJECTORY
    assert config_hash(study.settings() | EMBEDDED, study.defaults()) == TRAJECTORY_HASH


# --- files are read once ------------------------------------------------------------------------------------------------


def _counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    calls: list[Any] = []
    function = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *given: (calls.append(given), function(*given))[1])
    return calls


def test_regimes_edited_while_a_study_runs_change_nothing(tiny_folder, extractor, tmp_path, monkeypatch):
    file = tmp_path / "regimes.yaml"
    file.write_text(REGIMES)
    config = StudyConfig(
        out=tmp_path / "r.zarr", model=str(tiny_folder), n=4, regimes=("short",), regimes_file=file, shard_size=2
    )
    make = study_module.make_shard

    def edited(*arguments):
        file.write_text(REGIMES.replace("3", "9").replace("Q:", "Question:"))
        return make(*arguments)

    monkeypatch.setattr(study_module, "make_shard", edited)
    loads = _counted(monkeypatch, prompts, "load_regimes")
    run = run_study(config, progress=False, extractor=extractor)
    assert len(loads) == 1 and run.config["max_new_tokens"] == run.manifest["max_new_tokens"] == {"short": 3}
    assert set(run.states["max_new_tokens"]) == {3} and run.states["output_tokens"].max() <= 3
    assert not run.states["prompt"].str.contains("Question:").any()
    assert {h for by_form in run.config["templates"].values() for h in by_form.values()} == set(
        run.states["regime_hash"]
    )
    with pytest.raises(store.ConfigMismatch, match="templates"):
        run_study(config, progress=False, extractor=extractor)


def test_chains_edited_while_they_are_followed_change_nothing(tiny_folder, extractor, tmp_path, monkeypatch):
    rows, chains = tmp_path / "sums.jsonl", tmp_path / "chains.jsonl"
    rows.write_text(
        "".join(json.dumps({"id": i, "question": f"{i} + 1?", "answer": str(i + 1)}) + "\n" for i in (1, 2))
    )
    texts = {"1": "One and one. That makes 2.", "2": "Two and one. That makes 3."}
    chains.write_text("".join(json.dumps({"id": i, "chain": text}) + "\n" for i, text in texts.items()))
    content = chains.read_bytes()
    config = TrajectoryConfig(
        out=tmp_path / "t.zarr", model=str(tiny_folder), benchmarks=("sums",), items={"sums": rows},
        chains={"sums": chains}, m=1, continuation_tokens=4, rule="sentence", shard_size=1,
    )  # fmt: skip
    work = trajectory_module.load_work(config)

    def edited(_config):
        chains.write_text("edited")
        return work

    monkeypatch.setattr(trajectory_module, "load_work", edited)
    run = run_trajectories(config, progress=False, extractor=extractor)
    assert dict(zip(run.states["item_id"], run.states["chain"], strict=True)) == texts
    assert run.config["chains"] == {"sums": hashlib.sha256(content).hexdigest()[:16]}


# --- devices --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["run", "trajectories", "profile"])
def test_a_device_that_is_not_there_is_refused_alike(command, tiny_folder, tmp_path, capsys):
    out = [] if command == "profile" else ["--out", str(tmp_path / "x.zarr"), "--quiet"]
    assert main([command, "--model", str(tiny_folder), "--n", "2", "--device", "banana", *out]) == 2
    said = capsys.readouterr().err
    assert said.startswith("precollapse: device 'banana' cannot be used here") and said.count("\n") == 1
    assert not (tmp_path / "x.zarr").exists()


def test_steering_refuses_a_device_that_is_not_there_before_it_learns(tiny_folder, extractor, tmp_path, capsys):
    config = StudyConfig(out=tmp_path / "s.zarr", model=str(tiny_folder), n=2, generate=False, regimes=("baseline",))
    run_study(config, progress=False, extractor=extractor)
    assert main(["steer", str(config.out), "--layer", "1", "--device", "banana", "--quiet"]) == 2
    assert capsys.readouterr().err.startswith("precollapse: device 'banana' cannot be used here")


# --- a kind of work of one's own ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lengths:
    """How many tokens a text has: all that a kind of work must say."""

    out: Path
    model: ModelRequest
    texts: tuple[str, ...]
    factor: int = 1
    unit: str = "text"
    shard_size: int | None = None
    calls: list[int] = field(default_factory=list)

    def keys(self):
        return [{"id": text, "benchmark": text[0], "regime": "as it is", "item_id": text} for text in self.texts]

    def settings(self):
        return {"factor": self.factor}

    def defaults(self):
        return {"factor": 1}

    def prepare(self, extractor, started):
        def make(shard, bar):
            if shard.benchmark == "x":
                raise ValueError("no x")
            self.calls.append(shard.index)
            lengths = [self.factor * len(extractor.tokenizer(s["id"])["input_ids"]) for s in shard.states]
            return {"arrays": {}, "table": {"tokens": lengths}, "ragged": {}, "blobs": {}}

        def finished(writer):
            writer.update_manifest({"finished": True})

        return runner.Job(make, {"kind": "lengths"}, {"tokens": "int64"}, shard_size=2, finished=finished)


def test_a_kind_of_ones_own_is_checked_resumed_and_reported_like_any_other(
    tiny_folder, extractor, tmp_path, monkeypatch
):
    kind = Lengths(tmp_path / "l.zarr", ModelRequest(str(tiny_folder)), ("ab", "abc", "abcd", "xy"))
    run = runner.run(kind, progress=False, extractor=extractor)
    assert run.states["tokens"].tolist() == [len(extractor.tokenizer(t)["input_ids"]) for t in ("ab", "abc", "abcd")]
    assert run.failed_cells == {("x", "as it is"): "ValueError: no x"} and run.manifest["finished"]
    assert run.config["model"] == extractor.source.revision and run.config["device_type"] == extractor.device.type
    assert kind.calls == [0, 1]
    runner.run(kind, progress=False, extractor=extractor)
    assert kind.calls == [0, 1]  # what is committed is not made again
    other = Lengths(kind.out, kind.model, kind.texts, factor=2)
    with pytest.raises(store.ConfigMismatch, match="factor"):
        runner.run(other, progress=False, extractor=extractor)
    with pytest.raises(RequestError, match="device 'banana'"):
        runner.run(
            Lengths(tmp_path / "m.zarr", ModelRequest(str(tiny_folder), device="banana"), ("ab",)), progress=False
        )
    assert not (tmp_path / "m.zarr").exists()
    whole = Lengths(tmp_path / "w.zarr", kind.model, ("ab",))
    runner.run(whole, progress=False, extractor=extractor)
    monkeypatch.setattr(Extractor, "from_pretrained", lambda *a, **k: pytest.fail("a finished run loads no model"))
    assert runner.run(whole, progress=False).progress.complete


def test_kinds_can_be_sent_to_another_process(tiny_folder, tmp_path):
    for kind in (
        Study.of(StudyConfig(out=tmp_path / "x", model=str(tiny_folder), n=2)),
        Trajectories.of(TrajectoryConfig(out=tmp_path / "x", model=str(tiny_folder), n=2)),
    ):
        assert pickle.loads(pickle.dumps(kind)) == kind
