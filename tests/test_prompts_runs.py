"""Runs whose prompts depend on the day, the template's arguments, or texts at which outputs end."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

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
