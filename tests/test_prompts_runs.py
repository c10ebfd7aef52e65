"""Runs whose prompts depend on the day, the template's arguments, or texts at which outputs end."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import pandas
import pytest

from precollapse import StudyConfig, run_study, store
from precollapse.errors import RequestError, StoreError
from precollapse.studies import prompt_settings
from precollapse.tests.conftest import CHAT_TEMPLATE, byte_tokenizer

DATED = "{{ 'Today is ' ~ strftime_now('%-d %B %Y') }}\n" + CHAT_TEMPLATE


MONDAY, TUESDAY = datetime.date(2031, 3, 3), datetime.date(2031, 3, 4)


def folder_with(tiny_folder: Path, place: Path, chat_template: str | None) -> Path:
    shutil.copytree(tiny_folder, place)
    for left in place.glob("chat_template*"):
        left.unlink()
    byte_tokenizer(chat_template).save_pretrained(place)
    return place


def on(monkeypatch, day):
    monkeypatch.setattr(prompt_settings, "today", lambda: day)


def config(out, folder, **settings):
    return StudyConfig(
        out,
        model=str(folder),
        benchmarks=("builtin",),
        n=6,
        shard_size=3,
        max_new_tokens=4,
        regimes=("baseline",),
        **settings,
    )


def same(a, b):
    assert a.states.equals(b.states)
    assert (a.array("resid_post") == b.array("resid_post")).all()


def test_a_run_that_is_continued_on_another_day_equals_one_that_was_not(tmp_path, tiny_folder, monkeypatch):
    folder = folder_with(tiny_folder, tmp_path / "model", DATED)
    on(monkeypatch, MONDAY)
    whole = run_study(config(tmp_path / "whole.zarr", folder), progress=False)
    assert "Today is 3 March 2031" in whole.states["prompt"][0] and whole.manifest["chat"]["date"] == "2031-03-03"
    first = store.Writer.write
    calls = []

    def stop_after_one(self, *args, **kwargs):
        if calls:
            raise StoreError("stopped here")
        calls.append(1)
        return first(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(store.Writer, "write", stop_after_one)
        with pytest.raises(StoreError):
            run_study(config(tmp_path / "cut.zarr", folder), progress=False)
    on(monkeypatch, TUESDAY)
    assert 0 < len(store.open_run(tmp_path / "cut.zarr").states) < 6
    with pytest.raises(RequestError, match="prompts of builtin/baseline are not those|date"):
        run_study(config(tmp_path / "cut.zarr", folder, date="2031-03-04"), progress=False)
    same(run_study(config(tmp_path / "cut.zarr", folder), progress=False), whole)
    given = run_study(config(tmp_path / "given.zarr", folder, date="2031-03-03"), progress=False)
    same(given, whole)
    same(run_study(config(tmp_path / "whole.zarr", folder, date="2031-03-03"), progress=False), whole)


@pytest.fixture(scope="module")
def extractor(tiny_folder):
    from precollapse.hooks import Extractor

    return Extractor.from_pretrained(str(tiny_folder))


def test_outputs_end_before_a_stop_text_and_say_so(tmp_path, tiny_folder, extractor):
    free = run_study(config(tmp_path / "a.zarr", tiny_folder), progress=False, extractor=extractor)
    whole = free.states["text"][0]
    stop = whole[1:3]
    run = run_study(
        config(tmp_path / "b.zarr", tiny_folder, stop={"baseline": stop}), progress=False, extractor=extractor
    )
    for before, after in zip(free.states.itertuples(), run.states.itertuples(), strict=True):
        cut = stop in before.text
        assert after.text == (before.text.partition(stop)[0] if cut else before.text)
        assert (after.finish_reason == "stop_text") == cut and (
            after.stop_text == stop if cut else pandas.isna(after.stop_text)
        )
        assert after.output_tokens <= before.output_tokens and not (cut and after.truncated)
    assert run.manifest["stop"] == {"baseline": [stop]}
    with pytest.raises(RequestError, match="stop"):
        run_study(config(tmp_path / "b.zarr", tiny_folder), progress=False, extractor=extractor)


def test_raw_outputs_end_at_the_regimes_own_headings(tmp_path, tiny_folder, extractor):
    run = run_study(config(tmp_path / "a.zarr", tiny_folder, template="raw"), progress=False, extractor=extractor)
    assert run.manifest["stop"] == {"baseline": ["\nProblem:", "\nQuestion:", "\nChoices:"]}
    assert run.config["stop_texts"] == run.manifest["stop"]


def test_items_with_one_and_the_same_prompt_are_named(tmp_path, tiny_folder, extractor):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(f'{{"id": "i{i}", "question": "{q}", "answer": "1"}}\n' for i, q in enumerate(("a", "b", "a")))
    )
    asked = dict(
        model=str(tiny_folder),
        benchmarks=("own",),
        items={"own": rows},
        regimes=("baseline",),
        generate=False,
        sites=(),
    )
    with pytest.raises(RequestError, match="own/i2/baseline and own/i0/baseline.*--allow-same-prompts"):
        run_study(StudyConfig(tmp_path / "r.zarr", **asked), progress=False, extractor=extractor)
    run = run_study(
        StudyConfig(tmp_path / "r.zarr", **asked, allow_same_prompts=True), progress=False, extractor=extractor
    )
    assert len(run.states) == 3


def test_a_regime_has_a_system_text_turns_and_the_beginning_of_the_answer(tmp_path, tiny_folder, extractor):
    file = tmp_path / "regimes.yaml"
    file.write_text(
        "shots:\n  free: 'Q: {question}'\n  system: be brief\n  turns:\n    - {user: 'Q: 1 + 1', assistant: '2'}\n  prefill: The answer is\n"
    )
    asked = {"regimes_file": file, "n": 2}
    base = dict(model=str(tiny_folder), benchmarks=("builtin",), regimes=("shots",), generate=False, sites=(), **asked)
    run = run_study(StudyConfig(tmp_path / "r.zarr", **base), progress=False, extractor=extractor)
    question = run.states["question"][0]
    turn = "<|turn|>{}\n{}"
    assert run.states["prompt"][0] == "</s>\n".join(
        turn.format(*words)
        for words in (("system", "be brief"), ("user", "Q: 1 + 1"), ("assistant", "2"), ("user", f"Q: {question}"), ("assistant", "The answer is"))
    )  # fmt: skip
    raw = run_study(StudyConfig(tmp_path / "raw.zarr", template="raw", **base), progress=False, extractor=extractor)
    assert raw.states["prompt"][0] == f"be brief\n\nQ: 1 + 1 2\n\nQ: {question} The answer is"
    with pytest.warns(UserWarning, match="template ends in a blank"):
        file.write_text("shots:\n  free: 'Q: {question} '\n")
        StudyConfig(tmp_path / "w.zarr", **base)
