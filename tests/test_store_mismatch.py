"""A run that is continued under other settings: one sentence, and every difference for a script."""

from __future__ import annotations

import json

import pytest

from precollapse import store
from precollapse.cli.main import main

STATE = {"id": "a", "benchmark": "b", "regime": "r", "item_id": "a"}


def mismatch(tmp_path, stored, asked):
    plan = store.Plan.build([STATE], 1)
    with store.open_writer(tmp_path / "run.zarr", plan=plan, config=stored):
        pass
    with pytest.raises(store.ConfigMismatch) as caught:
        store.open_writer(tmp_path / "run.zarr", plan=plan, config=asked)
    return caught.value


def test_many_differences_are_counted_and_three_are_named_words_before_checksums(tmp_path):
    stored = {f"k{n}": "x" * 500 for n in range(20)} | {"a_hash": "0"}
    error = mismatch(tmp_path, stored, {f"k{n}": "y" * 500 for n in range(20)} | {"a_hash": "1"})
    text = str(error)
    assert "21 differ, the first: config.k0: stored" in text and "--json lists them all" in text and len(text) < 800
    assert len(error.differences) == 21 and error.differences[-1].field == "config.a_hash"


def test_few_differences_are_all_named(tmp_path):
    text = str(mismatch(tmp_path, {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 3, "c": 4}))
    assert "(2 differ: config.b: stored 2, asked 3; config.c: stored 3, asked 4)" in text


def test_a_script_gets_every_difference(tmp_path, tiny_folder, capsys):
    items = tmp_path / "items.jsonl"
    items.write_text('{"question": "a", "answer": "1"}\n')
    words = [
        "run",
        "--model",
        str(tiny_folder),
        "--benchmark",
        "own",
        "--items",
        f"own={items}",
        "--regimes",
        "baseline",
    ]
    words += ["--no-generate", "--out", str(tmp_path / "run.zarr"), "--quiet", "--json"]
    assert main(words) == 0
    capsys.readouterr()
    assert main([*words, "--seed", "3", "--template", "raw", "--attention", "summary", "--layers", "0"]) == 2
    told = capsys.readouterr()
    found = json.loads(told.out)["differences"]
    assert len(found) > 3 and {"field", "stored", "asked"} == set(found[0]) and told.err.count("\n") == 1
