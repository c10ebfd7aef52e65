"""Items: row formats, ids, samples, generated problems, and every kind of bad file."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import types
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precollapse.errors import RequestError
from precollapse.studies import benchmarks
from precollapse.studies.benchmarks import Item, load
from precollapse.studies.grading.graders import grade

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared benchmark rows are not here")

ROWS: dict[str, list[dict[str, Any]]] = {
    "gsm8k": [
        {"question": "One and one?", "answer": "1+1=<<1+1=2>>2\n#### 2"},
        {"question": "A thousand twice?", "answer": "#### 2,000"},
    ],
    "math500": [
        {
            "problem": "Half of one?",
            "solution": r"It is $\boxed{\frac{1}{2}}$.",
            "answer": r"\frac{1}{2}",
            "subject": "Algebra",
            "level": 1,
            "unique_id": "test/algebra/1.json",
        }
    ],
    "arc_challenge": [
        {
            "id": "x_1",
            "question": "Which?",
            "choices": {"text": ["a", "b", "c"], "label": ["1", "2", "3"]},
            "answerKey": "2",
        },
        {"id": "x_2", "question": "What?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A"},
    ],
    "aqua_rat": [{"question": "How many?", "options": ["A)21", "B) 22", "C)(1,1)"], "rationale": "", "correct": "C"}],
    "mmlu": [
        {"question": "Which is even?", "subject": "arithmetic", "choices": ["1", "3", "4", "5"], "answer": 2},
        {"question": "Which is odd?", "subject": "arithmetic", "choices": ["2", "7", "4", "0.50"], "answer": "B"},
        {"question": "Tenth?", "question_id": "ten", "options": list("0123456789"), "answer": "J", "answer_index": 9},
    ],
}
EXPECTED: dict[str, list[Item]] = {
    "gsm8k": [Item("0", "One and one?", "2"), Item("1", "A thousand twice?", "2,000")],
    "math500": [Item("test/algebra/1.json", "Half of one?", r"\frac{1}{2}")],
    "arc_challenge": [
        Item("x_1", "Which?", "2", {"1": "a", "2": "b", "3": "c"}),
        Item("x_2", "What?", "A", {"A": "a", "B": "b"}),
    ],
    "mmlu": [
        Item("0", "Which is even?", "C", {"A": "1", "B": "3", "C": "4", "D": "5"}),
        Item("1", "Which is odd?", "B", {"A": "2", "B": "7", "C": "4", "D": "0.50"}),
        Item("ten", "Tenth?", "J", dict(zip("ABCDEFGHIJ", map(str, range(10)), strict=True))),
    ],
    "aqua_rat": [Item("0", "How many?", "C", {"A": "21", "B": "22", "C": "(1,1)"})],
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write rows (objects, or raw text lines) to a JSON Lines file."""

    def _write(*rows: Any) -> Path:
        path = tmp_path / "items.jsonl"
        path.write_text(
            "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n", encoding="utf-8"
        )
        return path

    return _write


# --- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_rows_in_the_formats_of_the_hub(name: str, write: Callable[..., Path]) -> None:
    items = load(name, path=write(*ROWS[name]))
    assert items == EXPECTED[name]
    assert all((item.format == "choice") is benchmarks.is_choice(name) for item in items)


def test_own_rows_without_and_with_choices(write: Callable[..., Path]) -> None:
    path = write(
        {"question": "2+2?", "answer": 4},
        '{"id": "half", "question": "1/2?", "answer": 0.50}',
        {"id": 7, "question": "q", "answer": "a"},
    )
    assert load("mine", path=path) == [Item("0", "2+2?", "4"), Item("half", "1/2?", "0.50"), Item("7", "q", "a")]
    path = write(
        {"question": "q", "answer": "B", "choices": ["x", 2.5, "z"]},
        {"question": "q", "answer": "no", "choices": {"yes": "x", "no": "y"}},
        {"question": "q", "answer": "2", "choices": {"text": ["x", "y"], "label": [1, 2]}},
    )
    assert [item.choices for item in load("mine", path=path)] == [
        {"A": "x", "B": "2.5", "C": "z"},
        {"yes": "x", "no": "y"},
        {"1": "x", "2": "y"},
    ]


def test_line_ends_byte_order_mark_blank_lines_and_line_separators_in_texts(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    question = "first\u2028second\u0085third"
    lines = [
        "",
        json.dumps({"question": question, "answer": "1"}, ensure_ascii=False),
        "   ",
        json.dumps({"question": "q", "answer": "2"}),
    ]
    path.write_bytes("\r\n".join(["\ufeff" + lines[0], *lines[1:]]).encode("utf-8"))
    assert load("mine", path=path) == [Item("0", question, "1"), Item("1", "q", "2")]


@needs_data
@pytest.mark.parametrize(
    ("name", "count"), [("gsm8k", 400), ("math500", 150), ("arc_challenge", 300), ("aqua_rat", 254)]
)
def test_real_rows(name: str, count: int) -> None:
    path = DATA / f"{name}.jsonl"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        items = load(name, path=path)
    assert len(items) == count == len({item.id for item in items})
    sample = load(name, 24, 5, path)
    assert len(sample) == 24
    assert sample == [item for item in items if item in sample]
    for item, line in zip(items, path.read_text(encoding="utf-8").splitlines(), strict=True):
        row = json.loads(line)
        assert item.question == row.get("question", row.get("problem"))
        if name == "arc_challenge":
            assert (item.id, item.answer) == (row["id"], row["answerKey"])
            assert item.choices == dict(zip(row["choices"]["label"], row["choices"]["text"], strict=True))
        elif name == "aqua_rat":
            assert item.choices is not None
            assert [f"{label}){text}" for label, text in item.choices.items()] == [
                option.strip() for option in row["options"]
            ]
        elif name == "gsm8k":
            assert row["answer"].endswith(f"#### {item.answer}")
        else:
            assert (item.id, item.answer) == (row["unique_id"], row["answer"])


# --- samples ----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 39))
def test_a_sample_keeps_order_and_holds_the_smaller_ones(
    seed: int, n: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "sample.jsonl"
    if not path.exists():
        path.write_text("".join(json.dumps({"question": f"q{k}", "answer": str(k)}) + "\n" for k in range(40)))
    everything = load("mine", path=path)
    sample, larger = load("mine", n, seed, path), load("mine", n + 1, seed, path)
    assert len(sample) == n
    assert sample == [item for item in everything if item in sample]
    assert all(item in larger for item in sample)
    assert sample == load("mine", n, seed, path)


def test_different_seeds_sample_every_row_about_equally(write: Callable[..., Path]) -> None:
    path = write(*({"question": f"q{k}", "answer": "1"} for k in range(10)))
    counts = Counter(item.id for seed in range(400) for item in load("mine", 3, seed, path))
    assert all(120 - 45 < counts[str(k)] < 120 + 45 for k in range(10))  # 5 standard deviations


def test_asking_for_more_than_exist_names_both_counts(write: Callable[..., Path]) -> None:
    path = write(*ROWS["gsm8k"])
    assert len(load("gsm8k", 2, 0, path)) == 2
    with pytest.raises(
        RequestError, match=r"^3 gsm8k items were asked for, but .*items\.jsonl has 2; ask for at most 2$"
    ):
        load("gsm8k", 3, 0, path)


@pytest.mark.parametrize("n", [0, -1, 2.5, True, "3"])
def test_a_count_that_is_none(n: Any) -> None:
    with pytest.raises(RequestError, match="whole number of at least 1; found"):
        load("builtin", n)


def test_repeated_ids_keep_the_first_and_warn(write: Callable[..., Path]) -> None:
    path = write(*({"id": identity, "question": f"q{k}", "answer": "1"} for k, identity in enumerate("abacab")))
    with pytest.warns(
        UserWarning, match=r"3 row\(s\) repeat the id of an earlier row and were left out: 'a' \(.*line 3\)"
    ):
        items = load("mine", path=path)
    assert [(item.id, item.question) for item in items] == [("a", "q0"), ("b", "q1"), ("c", "q3")]


# --- bad files --------------------------------------------------------------------------------------------------------

GOOD = {"question": "q", "answer": "1"}


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("mine", '{"question": "q", "answer": "1"', r"not valid JSON \(Expecting ',' delimiter, column 32\)"),
        ("mine", "question,answer", r"not valid JSON"),
        ("mine", '{"question": "q", "answer": NaN}', "not valid JSON .NaN"),
        ("mine", "[" * 100_000, "not valid JSON"),
        ("mine", '["q", "1"]', "must be an object with named fields; found a list"),
        ("mine", '"q"', "must be an object with named fields; found a text"),
        ("mine", {"answer": "1"}, "field 'question' is missing; the row has 'answer'"),
        ("mine", {}, "field 'question' is missing; the row has no fields"),
        ("mine", {"question": "q"}, "field 'answer' is missing; the row has 'question'"),
        ("mine", {"question": "q", "answer": None}, "field 'answer' is missing"),
        ("mine", {"question": "  ", "answer": "1"}, "field 'question' is blank"),
        ("mine", {"question": ["q"], "answer": "1"}, "field 'question' must hold text; found a list"),
        ("mine", {"question": "q", "answer": True}, "field 'answer' must hold text; found true or false"),
        ("mine", {"question": "\ud800", "answer": "1"}, "half of a surrogate pair"),
        ("mine", {"id": {}, "question": "q", "answer": "1"}, "field 'id' must hold text; found an object"),
        (
            "mine",
            {"question": "q", "answer": "A", "choices": ["x", "y"]},
            "the item has choices while the first item has none",
        ),
        ("gsm8k", {"question": "q", "answer": "It is two."}, "must end in #### and the number; found 'It is two.'"),
        ("gsm8k", {"problem": "q", "answer": "#### 1"}, "field 'question' is missing; the row has 'problem', 'answer'"),
    ],
)
def test_a_bad_line_is_named(name: str, row: Any, message: str, write: Callable[..., Path]) -> None:
    path = write({"question": "q", "answer": "#### 1"}, "", row)
    with pytest.raises(RequestError, match=rf"^{re.escape(str(path))}, line 3: .*{message}") as caught:
        load(name, path=path)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        (
            "mine",
            {"question": "q", "answer": "C", "choices": ["x", "y"]},
            "field 'answer' must be one of the labels A, B; found 'C'",
        ),
        ("mine", {"question": "q", "answer": "x", "choices": ["x", "y"]}, "must be one of the labels A, B; found 'x'"),
        ("mine", {"question": "q", "answer": "A", "choices": ["x"]}, "at least 2 choices; found 1"),
        ("mine", {"question": "q", "answer": "A", "choices": {}}, "at least 2 choices; found 0"),
        ("mine", {"question": "q", "answer": "A", "choices": ["x"] * 27}, "at most 26 entries; found 27"),
        (
            "mine",
            {"question": "q", "answer": "A", "choices": "x, y"},
            "must be a list of texts or an object label to text; found a text",
        ),
        ("mine", {"question": "q", "answer": "A", "choices": ["x", None]}, "'choices' must hold text; found null"),
        (
            "mine",
            {"question": "q", "answer": "a", "choices": {"a": "x", "A": "y"}},
            "labels must differ, whatever their case",
        ),
        (
            "mine",
            {"question": "q", "answer": "a b", "choices": {"a b": "x", "c": "y"}},
            "a label must consist of letters and digits",
        ),
        (
            "arc_challenge",
            {**ROWS["arc_challenge"][0], "answerKey": "B"},
            "'answerKey' must be one of the labels 1, 2, 3; found 'B'",
        ),
        (
            "arc_challenge",
            {**ROWS["arc_challenge"][0], "choices": ["a", "b"]},
            "must hold the lists 'text' and 'label'; found a list",
        ),
        (
            "arc_challenge",
            {**ROWS["arc_challenge"][0], "choices": {"text": ["a"], "label": ["A", "B"]}},
            "the lists 'text' and 'label' of field 'choices' must be equally long",
        ),
        ("aqua_rat", {"question": "q", "options": ["21", "22"], "correct": "A"}, r"a text like 'A\)21'; found '21'"),
        (
            "aqua_rat",
            {"question": "q", "options": "A)21", "correct": "A"},
            r"a list of texts like 'A\)21'; found a text",
        ),
        (
            "aqua_rat",
            {"question": "q", "options": ["A)1", "B)2"], "correct": "E"},
            "'correct' must be one of the labels A, B; found 'E'",
        ),
    ],
)
def test_bad_choices_are_named(name: str, row: Any, message: str, write: Callable[..., Path]) -> None:
    with pytest.raises(RequestError, match=rf"line 1: .*{message}"):
        load(name, path=write(row))


def test_missing_empty_binary_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"the items file '.*none\.jsonl' does not exist"):
        load("gsm8k", path=tmp_path / "none.jsonl")
    with pytest.raises(RequestError, match=r"cannot be read: Is a directory"):
        load("gsm8k", path=tmp_path)
    path = tmp_path / "items.jsonl"
    for content in (b"", b"\n \n", b"\xef\xbb\xbf"):
        path.write_bytes(content)
        with pytest.raises(RequestError, match=r"is empty; it needs one JSON object a line"):
            load("gsm8k", path=path)
    path.write_bytes(json.dumps(GOOD).encode() + b'\n{"question": "caf\xe9"}\n')
    with pytest.raises(RequestError, match=r"line 2: not UTF-8 text \(byte 18\)"):
        load("mine", path=path)


# --- names and the Hub ------------------------------------------------------------------------------------------------


def test_unknown_names() -> None:
    with pytest.raises(
        RequestError, match="unknown benchmark 'gsm9k'; known: gsm8k, math500, arc_challenge, aqua_rat, builtin"
    ):
        load("gsm9k")
    with pytest.raises(RequestError, match="unknown benchmark 'mine'"):
        benchmarks.is_choice("mine")


def test_generated_items_take_no_file(write: Callable[..., Path]) -> None:
    with pytest.raises(RequestError, match="builtin items are generated and take no file"):
        load("builtin", path=write(GOOD))


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("mmlu", ("cais/mmlu", "all", "test")),
        ("gsm8k", ("openai/gsm8k", "main", "test")),
        ("math500", ("HuggingFaceH4/MATH-500", "default", "test")),
        ("arc_challenge", ("allenai/ai2_arc", "ARC-Challenge", "test")),
        ("aqua_rat", ("deepmind/aqua_rat", "raw", "test")),
    ],
)
def test_hub_rows_give_the_same_items_as_a_file(
    name: str, asked: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def load_dataset(dataset: str, config: str, split: str) -> list[dict[str, Any]]:
        calls.append((dataset, config, split))
        return ROWS[name]

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    assert load(name) == EXPECTED[name]
    assert calls == [asked]


def test_without_datasets_or_network_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        RequestError, match=r'"precollapse\[hub\]", or give the rows as a file with --items gsm8k=FILE\.jsonl'
    ):
        load("gsm8k")

    def offline(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach\n'openai/gsm8k' on the Hub")

    module = types.ModuleType("datasets")
    module.load_dataset = offline  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    with pytest.raises(
        RequestError, match=r"ConnectionError: Couldn't reach 'openai/gsm8k'.*--items gsm8k=FILE\.jsonl"
    ):
        load("gsm8k")


# --- generated problems -----------------------------------------------------------------------------------------------


def test_item_i_is_the_same_however_many_are_asked_for() -> None:
    for name in ("builtin", "builtin_choice"):
        many = load(name, 60, seed=3)
        assert load(name, 7, seed=3) == many[:7]
        assert len(load(name)) == 100
    assert not {item.id for item in load("builtin", 50, 1)} & {item.id for item in load("builtin", 50, 2)}


def test_generated_items_do_not_change_between_versions() -> None:
    text = "\n".join(repr(item) for name in ("builtin", "builtin_choice") for item in load(name, 200, seed=0))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "b39a15f6a047b789"


def test_both_forms_ask_the_same_questions_and_no_question_twice() -> None:
    free, choice = load("builtin", 2000, 1), load("builtin_choice", 2000, 1)
    assert [(item.id, item.question) for item in free] == [(item.id, item.question) for item in choice]
    assert len({item.question for item in free}) == 2000
    for item, options in zip(free, choice, strict=True):
        assert options.choices is not None
        assert list(options.choices) == ["A", "B", "C", "D"]
        assert options.choices[options.answer] == item.answer
        assert len(set(options.choices.values())) == 4
        assert all(text.isdigit() and int(text) > 0 for text in options.choices.values())
    labels = Counter(item.answer for item in choice)
    assert all(labels[label] == 500 for label in "ABCD")
    for start in range(0, 2000, 4):
        assert {item.answer for item in choice[start : start + 4]} == set("ABCD")


def test_levels_take_turns() -> None:
    assert [item.id.rpartition("-")[2] for item in load("builtin", 10)] == ["L1", "L2", "L3", "L4", "L5"] * 2


def _fraction_left(total: int, *parts: str) -> int:
    for part in parts:
        total -= total // {"half": 2, "third": 3, "quarter": 4, "fifth": 5}[part]
    return total


def _goats(heads: int, legs: int) -> int:
    return next(goats for goats in range(heads + 1) if 2 * (heads - goats) + 4 * goats == legs)


def _catch_up(slow: int, lead: int, fast: int) -> int:
    return next(slow * (hours + lead) for hours in range(1, 100) if slow * (hours + lead) == fast * hours)


def _minutes(volume: int, inflow: int, outflow: int) -> int:
    minutes = 0
    while volume > 0:
        volume -= inflow - outflow
        minutes += 1
    return minutes


# What each question says, read from its words alone, and the answer worked out another way than the generator does.
SOLVERS: list[tuple[str, Callable[..., int]]] = [
    (r"has (\d+) \w+ and finds (\d+) more", lambda a, b: sum((a, b))),
    (r"There are (\d+) \w+ in a bowl. \w+ takes (\d+) of them out", lambda a, b: len(range(b, a))),
    (r"reads (\d+) pages on Monday and (\d+) pages on Tuesday", lambda a, b: sum((a, b))),
    (r"Each box holds (\d+) \w+. How many \w+ are in (\d+) full", lambda a, b: sum([a] * b)),
    (r"shares (\d+) \w+ equally among (\d+) friends", lambda total, friends: len(range(0, total, friends))),
    (r"is (\d+) years old. \w+ is (\d+) times as old", lambda a, k: sum([a] * k)),
    (
        r"buys (\d+) pens for (\d+) dollars each and (\d+) notebooks for (\d+)",
        lambda a, p, b, q: sum([p] * a + [q] * b),
    ),
    (r"with (\d+) passengers. .* (\d+) get off and (\d+) get on. .* (\d+) get off", lambda a, b, c, d: a - b + c - d),
    (r"that is (\d+) meters long and (\d+) meters wide, .* gap of (\d+)", lambda a, b, gap: sum((a, b, a, b)) - gap),
    (r"costs (\d+) dollars. .* by (\d+) percent. .* for (\d+) chairs", lambda p, off, k: k * p * (100 - off) // 100),
    (r"tank of (\d+) liters at (\d+) liters per minute and leaks out at (\d+)", _minutes),
    (r"has (\d+) \w+ and gives one (\w+) of them .* gives one (\w+) of what is left", _fraction_left),
    (r"they have (\d+) heads and (\d+) legs", _goats),
    (r"at (\d+) kilometers per hour. .* (\d+) hours? later .* at (\d+) kilometers per hour", _catch_up),
    (r"After (\d+) tests \w+ has a mean score of (\d+) points. .* mean is (\d+)", lambda n, a, b: b * (n + 1) - a * n),
]


def test_every_gold_answer_follows_from_the_words_of_its_question() -> None:
    seen = Counter[str]()
    for item in load("builtin", 1500, seed=11):
        pattern, solve = next((pattern, solve) for pattern, solve in SOLVERS if re.search(pattern, item.question))
        found = re.search(pattern, item.question)
        assert found is not None
        values = [int(value) if value.isdigit() else value for value in found.groups()]
        assert str(solve(*values)) == item.answer, item
        seen[pattern] += 1
    assert len(seen) == len(SOLVERS)


def test_no_gold_answer_stands_in_its_question_at_the_higher_levels() -> None:
    for item in load("builtin", 500, seed=4):
        if item.id.endswith("L5"):
            assert item.answer not in re.findall(r"\d+", item.question) or "tests" in item.question


def test_generated_gold_answers_are_graded_correct() -> None:
    for free, choice in zip(load("builtin", 100, 2), load("builtin_choice", 100, 2), strict=True):
        assert grade("builtin", f"#### {free.answer}", free.answer).correct
        assert grade("builtin_choice", f"{choice.answer}) {free.answer}", choice.answer, choice.choices).correct
        assert grade("builtin_choice", free.answer, choice.answer, choice.choices).answer is None


def test_too_many_generated_items() -> None:
    with pytest.raises(RequestError, match="10001 generated items were asked for; ask for at most 10000"):
        load("builtin", 10_001)
