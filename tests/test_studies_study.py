"""The study runner: what is stored equals what the model gives; any kill or stop is made good; bad requests are refused."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import precollapse as pc
from precollapse import store
from precollapse.hooks.decoding.greedy import continue_greedily
from precollapse.studies import StudyConfig, run_study, shard_loop
from precollapse.studies.grading import graders as grading
from precollapse.studies.study import moments
from precollapse.studies.study import run as study_module

SMALL = {"n": 4, "max_new_tokens": 6, "benchmarks": ("builtin", "builtin_choice"), "regimes": ("baseline", "cot")}


@pytest.fixture(scope="module")
def extractor(tiny_folder):
    return pc.Extractor.from_pretrained(str(tiny_folder))


@pytest.fixture(scope="module")
def run(tiny_folder, extractor, tmp_path_factory):
    out = tmp_path_factory.mktemp("study") / "run.zarr"
    config = StudyConfig(out=out, model=str(tiny_folder), attention="summary", moments=True, **SMALL)
    return run_study(config, progress=False, extractor=extractor)


def _plain(extractor, ids, new_tokens):
    """Greedy text of one prompt by the model's own generate(), and its own outputs at the boundary."""
    ids = torch.as_tensor(ids)[None].long()
    with torch.no_grad():
        out = extractor.model(ids, output_hidden_states=True)
        written = extractor.model.generate(ids, max_new_tokens=new_tokens, do_sample=False, pad_token_id=258)
    return out, written[0, ids.shape[1] :].tolist()


def test_every_state_equals_the_models_own(run, extractor):
    states = run.states
    assert len(states) == 16 and states["id"].is_unique and run.progress.complete and not run.failed_cells
    log2 = np.log(2)
    for i in range(0, len(states), 3):
        row = states.iloc[i]
        ids = run.ragged("token_ids", i)
        out, written = _plain(extractor, ids, row["max_new_tokens"])
        log_p = torch.log_softmax(out.logits[0, -1].double(), -1)
        assert row["entropy_bits"] == pytest.approx(float(-(log_p.exp() * log_p).sum() / log2), abs=1e-5)
        for layer in (0, 1):
            own = out.hidden_states[layer + 1][0, -1].numpy()
            np.testing.assert_allclose(run.resid(layer)[i], own, rtol=1e-4, atol=1e-5 * np.abs(own).max())
        stop = written.index(257) if 257 in written else len(written)
        assert run.ragged("output_ids", i).tolist() == written[:stop]
        assert row["truncated"] == (257 not in written)
        assert row["output_tokens"] == stop and row["prompt_tokens"] == len(ids) and row["boundary"] == len(ids) - 1
        assert run.array("top_ids")[i, 0] == int(out.logits[0, -1].argmax())
        if row["format"] == "choice":
            forms = [extractor.tokenizer.convert_tokens_to_ids(o) for o in json.loads(row["choices"])]
            np.testing.assert_allclose(run.array("option_logprobs")[i], log_p[forms].numpy(), atol=1e-5)
            assert row["option_mass"] == pytest.approx(float(log_p[forms].exp().sum()), rel=1e-4)


def test_grades_and_text_are_kept_and_free_response_has_no_options(run):
    for row in run.states.itertuples():
        choices = None if row.format == "free" else json.loads(row.choices)
        grade = grading.grade(row.benchmark, row.text, row.gold, choices)
        assert (row.correct, row.compliant) == (grade.correct, grade.compliant)
        assert row.prompt.startswith("<|turn|>user\n") and row.prompt.endswith("<|turn|>assistant\n")
    free = run.states[run.states["format"] == "free"]
    assert free[["option_entropy_bits", "option_mass", "option_margin"]].isna().all().all()
    assert free["option_choice"].isna().all()


def test_moments_equal_what_the_stored_states_give(run):
    cells = moments.cell_moments(run)
    assert len(cells) == 4
    for (benchmark, regime), found in cells.items():
        kept = run.manifest["moments"][f"{benchmark}/{regime}"]
        for layer in range(3):
            rows = run.resid(layer, benchmark=benchmark, regime=regime).astype(np.float64)
            covariance = np.cov(rows.T)
            assert found.count == kept["count"] == len(rows)
            np.testing.assert_allclose(np.asarray(found.covariance(layer)), covariance, rtol=1e-6, atol=1e-8)
            ratio = np.trace(covariance) ** 2 / np.square(covariance).sum()
            assert kept["participation_ratio"][layer] == pytest.approx(ratio, rel=1e-6)
            assert kept["trace"][layer] == pytest.approx(np.trace(covariance), rel=1e-6)


def test_attention_summary_is_complete(run):
    parts = [
        run.array(f"attention_{name}") for name in ("first_token", "instruction", "question", "choices", "cue", "rest")
    ]
    total = np.nansum(parts, axis=0)
    assert total.shape == (16, 3, 4)
    # the first token lies in no span of the user's text, since the template's own head comes before it
    np.testing.assert_allclose(total, 1.0, atol=1e-5)


def test_a_run_begun_before_options_had_attention_of_their_own_goes_on(
    tiny_folder, extractor, tmp_path, monkeypatch, run
):
    """Its plan has no array for it; all else is as in a run of today."""
    config = StudyConfig(
        out=tmp_path / "r", model=str(tiny_folder), attention="summary", shard_size=4, moments=True, **SMALL
    )
    arrays, make = study_module.Recipe.arrays, study_module.make_shard

    def without(found):
        return {name: value for name, value in found.items() if name != "attention_options"}

    def stopped(*arguments):
        os.kill(os.getpid(), signal.SIGINT)  # this shard is still finished
        made = make(*arguments)
        return {**made, "arrays": without(made["arrays"])}

    monkeypatch.setattr(study_module.Recipe, "arrays", lambda self: without(arrays(self)))
    monkeypatch.setattr(study_module, "make_shard", stopped)
    with pytest.raises(shard_loop.StudyInterrupted):
        run_study(config, progress=False, extractor=extractor)
    monkeypatch.undo()
    again = run_study(config, progress=False, extractor=extractor)
    assert again.progress.complete and "attention_options" not in again.arrays
    np.testing.assert_allclose(again.array("attention_choices"), run.array("attention_choices"), atol=1e-5)


def test_attention_on_each_option(run, extractor):
    """Against the rows themselves, cut where each option stands in the rendered prompt."""
    masses = run.array("attention_options")
    states, seen = run.states, 0
    for i, row in states.iterrows():
        choices = json.loads(row["choices"]) if isinstance(row["choices"], str) else {}
        assert np.isnan(masses[i][..., len(choices) :]).all()
        if not choices or seen == 3:
            continue
        seen += 1
        rows = extractor.capture([run.ragged("token_ids", i).tolist()], attention="rows").attention_rows[0].numpy()
        places = extractor.tokenizer(row["prompt"], add_special_tokens=False, return_offsets_mapping=True)
        shift = rows.shape[-1] - len(places["input_ids"])
        for k, (label, text) in enumerate(choices.items()):
            start = row["prompt"].index(f"{label}) {text}")
            end = start + len(f"{label}) {text}")
            own = [c + shift for c, (a, b) in enumerate(places["offset_mapping"]) if a < end and b > start]
            np.testing.assert_allclose(masses[i][..., k], rows[..., own].sum(-1), rtol=1e-4, atol=1e-6)
    assert seen == 3 and masses.shape == (16, 3, 4, masses.shape[-1])


def test_the_same_study_again_does_nothing_and_another_is_refused(run, tiny_folder, monkeypatch):
    monkeypatch.setattr(
        pc.Extractor, "from_pretrained", lambda *a, **k: pytest.fail("the model was loaded for a finished run")
    )
    config = StudyConfig(out=run.path, model=str(tiny_folder), attention="summary", moments=True, **SMALL)
    assert run_study(config, progress=False).progress.complete
    other = StudyConfig(
        out=run.path, model=str(tiny_folder), attention="summary", moments=True, **{**SMALL, "max_new_tokens": 7}
    )
    with pytest.raises(store.ConfigMismatch, match="max_new_tokens"):
        run_study(other, progress=False)


def test_capture_only_leaves_outcomes_missing(tiny_folder, extractor, tmp_path):
    config = StudyConfig(
        out=tmp_path / "c.zarr",
        model=str(tiny_folder),
        generate=False,
        sites=("resid_mid", "final_norm", "z"),
        layers="0,-1",
        **{k: v for k, v in SMALL.items() if k != "max_new_tokens"},
    )
    run = run_study(config, progress=False, extractor=extractor)
    for column in ("text", "answer", "correct", "compliant", "output_tokens", "truncated"):
        assert run.states[column].isna().all(), column
    assert (
        run.sites["resid_mid"] == (0, 2)
        and run.array("z").shape == (16, 2, 4, 8)
        and run.array("final_norm").shape == (16, 32)
    )


def test_one_failing_cell_does_not_stop_the_others(tiny_folder, extractor, tmp_path, monkeypatch):
    config = StudyConfig(out=tmp_path / "f.zarr", model=str(tiny_folder), **SMALL)
    whole = study_module.make_shard

    def breaks(recipe, members, bar=None):
        if members[0][0].regime == "cot" and members[0][0].benchmark == "builtin":
            raise RuntimeError("out of memory, say")
        return whole(recipe, members, bar)

    monkeypatch.setattr(study_module, "make_shard", breaks)
    run = run_study(config, progress=False, extractor=extractor)
    assert {key: "out of memory, say" in reason for key, reason in run.failed_cells.items()} == {
        ("builtin", "cot"): True
    }
    assert len(run.states) == 12
    monkeypatch.setattr(study_module, "make_shard", whole)
    mended = run_study(config, progress=False, extractor=extractor)
    assert not mended.failed_cells and len(mended.states) == 16


def _in_a_child(config: StudyConfig, extractor) -> int:
    """Start the study in a forked process (the model is loaded already, so that a kill soon hits the work itself)."""
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            run_study(config, progress=False, extractor=extractor)
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    return child


def test_killed_five_times_equals_uninterrupted(tiny_folder, extractor, tmp_path):
    def config(name: str) -> StudyConfig:
        return StudyConfig(
            out=tmp_path / name,
            model=str(tiny_folder),
            shard_size=2,
            moments=True,
            **{**SMALL, "n": 8, "max_new_tokens": 24},
        )

    assert os.waitpid(_in_a_child(config("whole.zarr"), extractor), 0)[1] == 0
    torn, rng = tmp_path / "torn.zarr", random.Random(0)
    for _ in range(5):
        child, before = _in_a_child(config("torn.zarr"), extractor), _commits(torn)
        deadline = time.monotonic() + 60
        while _commits(torn) == before and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, "the study ended before it was killed"
    assert 0 < _commits(torn) < 16
    assert os.waitpid(_in_a_child(config("torn.zarr"), extractor), 0)[1] == 0
    assert pc.verify(torn) == []
    a, b = pc.open_run(tmp_path / "whole.zarr"), pc.open_run(torn)
    assert len(a.states) == 32 and a.states.equals(b.states)
    for name in ("top_ids", "top_logits", "option_logprobs"):
        np.testing.assert_array_equal(a.array(name), b.array(name))
    for layer in range(3):
        np.testing.assert_array_equal(a.resid(layer), b.resid(layer))
    assert [d for _, d in a.blobs("moments")] == [d for _, d in b.blobs("moments")]


def _commits(path: Path) -> int:
    folder = path / "_commits"
    return len(list(folder.glob("*.json"))) if folder.is_dir() else 0


def test_ctrl_c_stops_at_a_shard_and_resumes(tiny_folder, extractor, tmp_path, monkeypatch):
    config = StudyConfig(out=tmp_path / "i.zarr", model=str(tiny_folder), shard_size=2, **SMALL)
    whole = study_module.make_shard

    def interrupted(recipe, members, bar=None):
        os.kill(os.getpid(), signal.SIGINT)
        return whole(recipe, members, bar)

    monkeypatch.setattr(study_module, "make_shard", interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(shard_loop.StudyInterrupted, match="2 of 16 states"):
        run_study(config, progress=False, extractor=extractor)
    assert signal.getsignal(signal.SIGINT) is before
    assert len(pc.open_run(tmp_path / "i.zarr").states) == 2
    monkeypatch.setattr(study_module, "make_shard", whole)
    assert len(run_study(config, progress=False, extractor=extractor).states) == 16


def _refused(message, **changes):
    with pytest.raises(pc.RequestError, match=message):
        run_study(StudyConfig(**changes), progress=False)


def test_bad_requests_are_refused_before_any_work(tiny_folder, tmp_path):
    base = {"out": tmp_path / "x.zarr", "model": str(tiny_folder), "n": 2}
    _refused("benchmark 'nope' is unknown", **base, benchmarks=("nope",))
    _refused("unknown regime 'nope'", **base, regimes=("nope",))
    _refused("site 'nope' is unknown", **base, sites=("nope",))
    _refused("layer 3 does not exist", **base, layers="3")
    _refused("backend 'nope' is unknown", **base, backend="nope")
    _refused("dtype 'int3' is unknown", **base, dtype="int3")
    _refused("does not exist", **{**base, "model": str(tmp_path / "none.gguf")})
    _refused("holds no config.json", **{**base, "model": str(tmp_path)})
    _refused("max_new_tokens of regime 'baseline' must be at least 1", **base, max_new_tokens=0)
    _refused("name one twice", **base, regimes=("cot", "cot"))
    assert not (tmp_path / "x.zarr").exists()


def test_prompts_over_the_context_are_refused_by_id(tiny_folder, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        json.dumps({"id": "short", "question": "1 + 1?", "answer": "2"})
        + "\n"
        + json.dumps({"id": "long", "question": "x" * 1100, "answer": "2"})
        + "\n"
    )
    base = {"out": tmp_path / "x.zarr", "model": str(tiny_folder), "benchmarks": ("mine",), "items": {"mine": rows}}
    _refused("mine/long/baseline has 1[0-9]+ tokens, more than the model's context of 1024", **base)
    rows.write_text(json.dumps({"id": "short", "question": "x" * 700, "answer": "2"}) + "\n")
    _refused("mine/short/cot has .* with 512 output tokens", **base, regimes=("cot",))
    assert not (tmp_path / "x.zarr").exists()


def test_a_folder_that_is_no_run_is_left_alone(tiny_folder, tmp_path):
    (tmp_path / "diary.txt").write_text("dear diary")
    _refused("not a precollapse run", out=tmp_path, model=str(tiny_folder), n=2)
    assert os.listdir(tmp_path) == ["diary.txt"]


@pytest.mark.parametrize(
    ("dtype", "store_dtype", "kept"),
    [("bfloat16", "auto", np.float32), ("float32", "float16", np.float16), ("float32", "bfloat16", np.float32)],
)
def test_sites_are_stored_in_the_dtype_asked_for(tiny_folder, tmp_path, dtype, store_dtype, kept):
    config = StudyConfig(
        out=tmp_path / "d.zarr", model=str(tiny_folder), dtype=dtype, store_dtype=store_dtype, **{**SMALL, "n": 2}
    )
    run = run_study(config, progress=False)
    own = pc.Extractor.from_pretrained(str(tiny_folder), dtype=dtype)
    for i in (0, 5):
        states = own.capture([run.ragged("token_ids", i)])
        stored = "bfloat16" if kept is np.float32 else "float16"
        expected = states.resid_post[0, 1].to(getattr(torch, stored)).float().numpy()
        found = run.resid(1)[i]
        assert found.dtype == kept and run.arrays["resid_post"].dtype == stored
        np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-2 * np.abs(expected).max())
        if dtype == "float32":
            np.testing.assert_allclose(found, expected, rtol=2**-7, atol=1e-4)


def test_a_float16_that_overflows_is_refused_not_stored(tiny_folder, tmp_path):
    extractor = pc.Extractor.from_pretrained(str(tiny_folder))
    with torch.no_grad():
        extractor.model.model.embed_tokens.weight.mul_(1e6)
    config = StudyConfig(
        out=tmp_path / "o.zarr", model=str(tiny_folder), store_dtype="float16", **{**SMALL, "benchmarks": ("builtin",)}
    )
    run = run_study(config, progress=False, extractor=extractor)
    assert len(run.states) == 0
    assert all("float16 can hold" in reason for reason in run.failed_cells.values()) and len(run.failed_cells) == 2


def test_a_run_killed_while_it_was_created_is_begun_anew(tiny_folder, extractor, tmp_path):
    out = tmp_path / "begun.zarr"
    config = StudyConfig(out=out, model=str(tiny_folder), **{**SMALL, "n": 2})
    run_study(config, progress=False, extractor=extractor)
    for entry in list(out.rglob("*")):
        if entry.is_file():
            entry.unlink()  # what a kill before the plan was written leaves: folders
    assert len(run_study(config, progress=False, extractor=extractor).states) == 8


@pytest.mark.parametrize("model_type", ["mamba", "falcon_mamba", "mamba2", "jamba", "gemma2", "mistral", "gpt2"])
def test_generation_in_a_padded_batch_is_that_of_each_prompt_alone(model_type, tiny_folder):
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    sizes = {
        "vocab_size": 264, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.3,
        "eos_token_id": 257, "pad_token_id": 258, "bos_token_id": 256,
    }  # fmt: skip
    own = {
        "mamba": {"state_size": 8},
        "falcon_mamba": {"state_size": 8},
        "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
        "jamba": {"num_key_value_heads": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 8},
        "gemma2": {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6},
        "mistral": {"num_key_value_heads": 2, "sliding_window": 6},
        "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    }[model_type]  # fmt: skip
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**sizes, **own})).eval()
    extractor = pc.Extractor(model, AutoTokenizer.from_pretrained(tiny_folder))
    prompts = ["abc", "the quick brown fox jumps over it", "hello wor", "xyzzy12"]
    for captured in extractor.stream(extractor.render(prompts), sites=(), keep_cache=True):
        for row, output in zip(
            captured.batch.rows, continue_greedily(model, extractor.tokenizer, captured, 8), strict=True
        ):
            ids = list(extractor.render(prompts[row])[0].token_ids)
            expected: list[int] = []
            with torch.no_grad():
                while len(expected) < 8:
                    best = int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())
                    if best == 257:
                        break
                    expected.append(best)
                    ids.append(best)
            assert list(output.token_ids) == expected, prompts[row]


def test_a_model_or_template_changed_since_is_not_resumed(tiny_folder, tmp_path):
    import shutil

    from precollapse.hooks import loading

    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    first = loading.resolve(folder).revision
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    second = loading.resolve(folder).revision
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    assert len({first, second, loading.resolve(folder).revision}) == 3


def test_an_extractor_of_another_model_is_refused(tiny_folder, extractor, tmp_path):
    import shutil

    shutil.copytree(tiny_folder, tmp_path / "other")
    (tmp_path / "other" / "generation_config.json").write_text("{}")
    with pytest.raises(pc.RequestError, match="give the same model to both"):
        run_study(StudyConfig(out=tmp_path / "x.zarr", model=str(tmp_path / "other"), n=1), extractor=extractor)


def test_what_a_capture_would_refuse_is_refused_before_the_run_is_made(tiny_folder, extractor, tmp_path):
    for changes, message in (({"top_k": 999}, "top_k must be"), ({"device": "zzz"}, "device 'zzz' cannot be used")):
        with pytest.raises(pc.RequestError, match=message):
            run_study(
                StudyConfig(out=tmp_path / "x.zarr", model=str(tiny_folder), n=1, **changes),
                progress=False,
                extractor=extractor,
            )
        assert not (tmp_path / "x.zarr").exists()


def test_an_option_is_never_scored_by_a_raw_byte(extractor):
    with pytest.raises(pc.RequestError, match="option 'é' .* no single token"):
        extractor.capture("Pick: ", options=("é", "B"))


def test_spans_are_those_of_the_message_and_not_of_the_template(extractor):
    chat = [{"role": "user", "content": "a"}]
    rendered = extractor.render([chat])[0]
    place = rendered.text.index("user\n") + len("user\n")
    ids_before = extractor.tokenizer(rendered.text[:place], add_special_tokens=False)["input_ids"]
    shift = len(rendered.token_ids) - len(extractor.tokenizer(rendered.text, add_special_tokens=False)["input_ids"])
    assert extractor.renderer.columns(rendered, 0, 1) == [len(ids_before) + shift]
    with pytest.raises(pc.RequestError, match="may not be named 'rest'"):
        extractor.capture([chat], attention="summary", spans=[{"rest": (0, 1)}])


@pytest.mark.parametrize(
    "prompts", [b"bytes", [np.int64(3), np.int64(4)], np.array(["a", "b"]), {"input_ids": [[1, 2], [3]]}]
)
def test_prompts_of_every_form_are_read_or_refused_in_words(extractor, prompts):
    if isinstance(prompts, bytes):
        with pytest.raises(pc.RequestError, match="prompts is a bytes"):
            extractor.capture(prompts)
    else:
        assert len(extractor.capture(prompts)) == (1 if isinstance(prompts, list) else 2)


@pytest.mark.parametrize(
    "changes", [{"options": (1, 2)}, {"sites": None}, {"top_k": None}, {"top_k": 1.5}, {"layers": [True]}]
)
def test_arguments_of_the_wrong_type_are_refused_in_words(extractor, changes):
    with pytest.raises(pc.RequestError):
        extractor.capture("hello", **changes)
