"""`precollapse grade`: texts made elsewhere, from files in several forms, and what a person should look at first."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from precollapse.cli.main import main
from precollapse.errors import RequestError
from precollapse.studies import graded_files, grading
from precollapse.studies.graded_files import grade_file


@pytest.fixture
def write(tmp_path: Path):
    def _write(*rows: Any, name: str = "outputs.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
        return path

    return _write


def answers(path: Path, *arguments: Any, **columns: str) -> list[tuple[str | None, bool]]:
    return [(r.why.grade.answer, r.why.grade.correct) for r in grade_file(path, *arguments, **columns)]


def test_columns_are_found_or_named(write):
    path = write(
        {"response": "The answer is 18.", "answer": "5 eggs\n#### 18"}, {"response": "17", "answer": "#### 18"}
    )
    assert answers(path, "gsm8k") == [("18", True), ("17", False)]
    path = write({"a": "so 4", "b": 5, "text": "5", "gold": 4})
    assert answers(path, text="a", gold="b") == [("4", False)]
    assert answers(path, text="a") == [("4", True)]


@pytest.mark.parametrize(
    "choices",
    [
        {"A": "x", "B": "y", "C": "z"}, ["x", "y", "z"], ["A)x", "B) y", "C)z"], {"text": ["x", "y", "z"], "label": ["A", "B", "C"]},
        '{"A": "x", "B": "y", "C": "z"}',
    ],
)  # fmt: skip
def test_choices_in_every_form(write, choices):
    path = write(
        {"text": "Answer: B) y", "gold": "B", "choices": choices},
        {"text": "Answer: D", "gold": "B", "choices": choices},
    )
    assert answers(path) == [("B", True), (None, False)]


def test_rows_of_mmlu_and_of_several_benchmarks(write):
    row = {"question": "q", "choices": ["1", "3", "4", "5"], "answer": 2}
    path = write(
        {**row, "output": "Answer: C", "benchmark": "mmlu"},
        {"output": "\\boxed{x+1}", "answer": "1+x", "benchmark": "math500"},
    )
    graded = grade_file(path)
    assert [r.why.grade.correct for r in graded] == [True, True]
    assert [(c.benchmark, c.texts, c.correct, c.compliant) for c in graded_files.counts(graded)] == [
        ("mmlu", 1, 1, 1),
        ("math500", 1, 1, 1),
    ]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (['{"text": "a"'], r"line 1: not valid JSON"),
        (["[1]"], "line 1: each row must be an object"),
        ([{"text": "a", "gold": "1"}, 5], "line 2: each row must be an object"),
        ([{"text": "a"}], "line 1: no column for the gold answer .* name it with --gold"),
        ([{"gold": "1"}], "line 1: no column for the text"),
        ([{"text": "a", "gold": "1"}, {"text": "a"}], "line 2: column 'gold' is missing"),
        ([{"text": ["a"], "gold": "1"}], "line 1: field 'text' must hold text; found a list"),
        ([{"text": "B", "gold": "E", "choices": ["x", "y"]}], "line 1: .*'E'.* is not one of its labels A, B"),
        ([{"text": "B", "gold": "B", "choices": "x, y"}], "line 1: the choices are a text that is no JSON"),
        ([{"text": "B", "gold": "9" * 20_000}], "line 1: the gold answer has 20000 characters"),
        ([], "is empty"),
    ],
)
def test_what_cannot_be_graded_is_refused_by_its_line(write, rows, said, capsys):
    path = write(*rows)
    with pytest.raises(RequestError, match=said):
        grade_file(path)
    assert main(["grade", str(path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_nested_json_and_control_characters(write, capsys):
    path = write('{"text": "a", "gold": ' + "[" * 5000 + "]" * 5000 + "}")
    assert main(["grade", str(path)]) == 2
    path = write({"text": "5\u001b[31m", "gold": "\u001b[2J6", "id": "\u001b[1m"})
    assert main(["grade", str(path), "--audit", "3"]) == 0
    assert "\x1b" not in "".join(capsys.readouterr())


def test_the_command_writes_prints_and_audits(write, tmp_path, capsys):
    sure = {"id": "sure", "text": "#### 18", "gold": "18"}
    unsure = {"id": "unsure", "text": "The answer is 18. Wait, that is wrong: 19. So 17", "gold": "18"}
    none = {"id": "none", "text": "I do not know.", "gold": "18"}
    path = write(sure, none, unsure)
    assert main(["grade", str(path), "--benchmark", "gsm8k", "--audit", "1", "--out", str(tmp_path / "new")]) == 0
    printed = capsys.readouterr().out
    assert "gsm8k: 1 of 3 correct, 2 with an answer" in printed
    assert "id unsure" in printed
    assert "id sure" not in printed
    rows = [json.loads(line) for line in (tmp_path / "new" / "grades.jsonl").read_text().splitlines()]
    assert [r["rule"] for r in rows] == ["mark", "last number", "last number"]
    assert main(["grade", str(path), "--out", str(tmp_path / "g.csv"), "--json", "--quiet"]) == 0
    assert len(json.loads(capsys.readouterr().out)["grades"]) == 3
    with (tmp_path / "g.csv").open() as file:
        assert [r["id"] for r in csv.DictReader(file)] == ["sure", "none", "unsure"]
    assert main(["grade", str(path), "--out", str(tmp_path / "missing" / "g.csv")]) == 2
    assert main(["grade", str(path), "--audit", "-1"]) == 2


def test_explain_agrees_with_grade_and_shows_every_rule():
    why = grading.explain("aqua_rat", "<think>A</think>I chose B or C. Answer: C", "C")
    assert why.grade == grading.grade("aqua_rat", "<think>A</think>I chose B or C. Answer: C", "C")
    assert (why.rule, why.kind, why.thinking) == ("cue", "option", 16)
    assert [r.rule for r in why.readings] == ["box", "cue", "lines", "whole text"]
    assert "-> cue" in str(why)
    for benchmark, text, gold in (
        ("gsm8k", "so 3", "3"),
        ("math500", "x\nso $y+1$", "1+y"),
        ("mine", "Answer: New York", "new york"),
    ):
        why = grading.explain(benchmark, text, gold)
        assert why.grade.correct
        assert next(r for r in why.readings if r.rule == why.rule).answer == why.grade.answer
    assert grading.explain("gsm8k", "<think>5", "5").doubts == ("its thinking never ends",)
    assert grading.explain("gsm8k", "#### 5", "5").doubts == ()
