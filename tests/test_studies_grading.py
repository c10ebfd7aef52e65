"""Grading: public faults of graders of this kind, adversarial texts, and every gold answer of the shared data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precollapse.errors import RequestError
from precollapse.studies import benchmarks
from precollapse.studies.grading import math_equality
from precollapse.studies.grading.graders import Grade, grade
from precollapse.studies.grading.math_equality import expressions_equal
from precollapse.studies.grading.read_expression import boxes, final_expression
from precollapse.studies.grading.read_number import last_number

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared benchmark rows are not here")

LETTERS = {"A": "Planetary density will decrease.", "B": "vitamin C", "C": "250 m", "D": "None of these"}
DIGITS = {"1": "iron", "2": "2 hours", "3": "copper", "4": "zinc"}


# --- faults that graders of this kind have had in public, with the right value ---------------------------------------


@pytest.mark.parametrize(
    ("text", "gold", "answer", "correct"),
    [
        pytest.param("She earns 18, which is all.", "18", "18", True, id="trailing comma is punctuation"),
        pytest.param("The total is $2,125.", "2125", "2125", True, id="money with a comma"),
        pytest.param("It costs $1,234.50.", "1234.50", "1234.5", True, id="money with comma and cents"),
        pytest.param("Example: 3+4\n#### 7\nNow: 9*2\n#### 18", "18", "18", True, id="#### of a copied example"),
        pytest.param(
            "Example: 3+4\n#### 7\nNow: 9*2\n#### 18", "7", "18", False, id="#### of a copied example, its value"
        ),
        pytest.param("#### 42.0", "42", "42", True, id="42.0 is 42"),
        pytest.param("#### 42.0", "420", "42", False, id="42.0 is not 420"),
        pytest.param("#### 199", "200", "199", False, id="199 is not 200"),
        pytest.param("#### 18.9", "18", "18.9", False, id="18.9 is not 18"),
        pytest.param("#### 18.0000000000000000000000000000000001", "18", None, False, id="no tolerance, however small"),
        pytest.param("#### 0.1", "0.10", "0.1", True, id="trailing zeros"),
    ],
)
def test_public_faults_with_numbers(text: str, gold: str, answer: str | None, correct: bool) -> None:
    result = grade("gsm8k", text, gold)
    assert result.correct is correct
    assert result.compliant
    assert answer is None or result.answer == answer


@pytest.mark.parametrize(
    ("text", "gold", "answer", "correct"),
    [
        pytest.param(r"\boxed{3}. No, wait: \boxed{4}", "4", "4", True, id="retracted box"),
        pytest.param(r"\boxed{3}. No, wait: \boxed{4}", "3", "4", False, id="retracted box, its value"),
        pytest.param(r"so \boxed{\frac{1}{2}}.", r"\frac{1}{3}", r"\frac{1}{2}", False, id="nested braces not cut"),
        pytest.param(r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}", r"\frac{1}{2}", True, id="nested braces kept"),
        pytest.param(r"\boxed{2}\boxed{3}", "23", "3", False, id="two boxes not merged"),
        pytest.param(
            r"first \boxed{1}, then \boxed{\sqrt{2}} ok", r"\sqrt2", r"\sqrt{2}", True, id="last of two boxes"
        ),
    ],
)
def test_public_faults_with_boxes(text: str, gold: str, answer: str, correct: bool) -> None:
    assert grade("math500", text, gold) == Grade(answer, correct, True)


def test_digit_keyed_items_are_read_by_digits() -> None:
    assert grade("arc_challenge", "The answer is 3.", "3", DIGITS) == Grade("3", True, True)
    assert grade("arc_challenge", "(2)", "3", DIGITS) == Grade("2", False, True)
    assert grade("arc_challenge", "C", "3", DIGITS) == Grade(None, False, False)
    assert grade("arc_challenge", "3", "3") == Grade("3", True, True)


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("18", "18"),
        ("$18.", "18"),
        ("18 dollars", "18"),
        ("1,000,000.00", "1000000"),
        ("€ 7", "7"),
        ("Rs.500", "500"),
        ("USD18", "18"),
        ("25%", "25"),
        (r"25\%", "25"),
        ("−5", "-5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("(-3)", "-3"),
        ("16-3", "3"),
        ("5–7", "7"),
        ("- 5 apples", "5"),
        (".5", "0.5"),
        ("The answer is.5", "5"),
        ("007", "7"),
        ("-0", "0"),
        ("1e3", "1000"),
        ("1.2 × 10^3", "1200"),
        (r"1.2 \times 10^{3}", "1200"),
        ("10^3", "1000"),
        ("1/2", "1/2"),
        ("½", "1/2"),
        (r"\frac{1}{2}", "1/2"),
        (r"-\dfrac34", "-3/4"),
        ("2 1/2 hours", "2 1/2"),
        (r"2\frac{1}{2}", "2 1/2"),
        (r"x2\frac{1}{2}", "1/2"),
        (r"H2 \frac{1}{2}", "1/2"),
        ("on 5/12/2024", "2024"),
        ("12 cm^2", "12"),
        ("12 cm²", "12"),
        ("18 kg of CO2", "18"),
        ("x_1 = 4, x_2", "4"),
        (r"\$1{,}200", "1200"),
        (r"10\,000", "10000"),
        ("70 000", "70000"),
        ("1,2,3", "3"),
        ("1, 2, 30", "30"),
        ("**18**", "18"),
        ("$18$", "18"),
        (r"\(18\)", "18"),
        (r"18\text{ dollars}", "18"),
        ("１８", "18"),
        ("答案是18。", "18"),
        ("<<9*2=18>>18", "18"),
        ("the result, 5/0", None),
        ("eighteen", None),
        ("", None),
        ("   \n", None),
        ("....,,,$$%", None),
    ],
)
def test_last_number(text: str, answer: str | None) -> None:
    assert grade("gsm8k", text, "123456") == Grade(answer, False, answer is not None)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### 18\n\nShe sells 9 eggs for 2 dollars each.", "18"),
        ("5 eggs\n#### 18 ####", "18"),
        ("5 eggs are 10 dollars\n####", "10"),
        ("#### Answer:\n\n9 * 2 = 18 dollars\n7 more words", "18"),
        ("##### 18", "18"),
        ("#### 5\n#### $1,018.00", "1018"),
        ("5 eggs\n#### none of them", None),
    ],
)
def test_final_answer_span(text: str, answer: str | None) -> None:
    assert grade("gsm8k", text, "999").answer == answer


def test_a_fraction_is_one_value() -> None:
    assert not grade("gsm8k", "#### 1/2", "2").correct
    assert grade("gsm8k", "#### 1/2", "0.5").correct
    assert grade("gsm8k", "#### 10/2", "5").correct


plain_numbers = st.decimals(min_value=-(10**12), max_value=10**12, places=4).map(lambda number: number.normalize())


@settings(deadline=None)
@given(
    number=plain_numbers,
    currency=st.sampled_from(["", "$", "€", r"\$"]),
    grouped=st.booleans(),
    end=st.sampled_from(["", ".", ",", "%", r"\%", " dollars.", "\n", ".00 ", ")", "**"]),
    before=st.sampled_from(["", "#### ", "so = ", "It is ", "(", "**", "Total:", "1 + 2 = "]),
)
def test_every_spelling_of_a_number_is_read_exactly(
    number: Decimal, currency: str, grouped: bool, end: str, before: str
) -> None:
    spelled = format(abs(number), ",f" if grouped else "f")
    if end == ".00 " and "." in spelled:
        end = " "
    text = f"{before}{'-' if number < 0 else ''}{currency}{spelled}{end}"
    result = grade("gsm8k", text, str(number))
    assert result.correct, text
    assert Fraction(Decimal(result.answer or "nan")) == Fraction(number)
    off = number + Decimal("0.0001")
    assert not grade("gsm8k", text, format(off, "f")).correct


def test_very_long_numbers_are_exact() -> None:
    digits = "9" * 6000
    assert grade("gsm8k", digits, digits).correct
    assert not grade("gsm8k", digits, digits[:-1] + "8").correct


def test_gold_without_a_number_is_refused() -> None:
    with pytest.raises(RequestError, match="must be a number"):
        grade("gsm8k", "18", "eighteen")


# --- expressions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{ $5$ }.", "5"),
        (r"\fbox{5}", "5"),
        (r"\boxed {5}", "5"),
        (r"\boxed{\left\{1\right.}", r"\left\{1\right."),
        (r"\boxed{5} and \boxed{", "5"),
        (r"\boxed{1 \boxed{5}", "5"),
        (r"\boxed{} \boxed{}", None),
        (r"The answer is \boxed{42", "42"),
        (r"}{ \boxed{5} }{", "5"),
        ("p - q", "p - q"),
        (r"$\frac{3\sqrt{3}}{4}$.", r"\frac{3\sqrt{3}}{4}"),
        ("The answer is p - q.", "p - q"),
        ("Steps.\n\n**Answer:** $\\pi$", r"\pi"),
        ("Evelyn", "Evelyn"),
        ("I do not know", None),
        ("#### x^2+1", "x^2+1"),
        ("#### The answer is 42 cm", "42"),
        ("It has 3 sides\nand 4 corners, so 7 in all", "7"),
        ("3, 5, 7", "3, 5, 7"),
        ("{", None),
        ("", None),
    ],
)
def test_final_expression(text: str, answer: str | None) -> None:
    assert final_expression(text) == answer


@settings(deadline=None)
@given(
    st.recursive(
        st.sampled_from(["1", "x", "{}", r"\{", r"\}", r"\\", "+"]), lambda inner: st.lists(inner).map("{{{}}}".join)
    )
)
def test_a_box_returns_its_content_whole(content: str) -> None:
    content = f"7{content}7"
    opened = content.replace(r"\\", "").replace(r"\{", "").replace(r"\}", "")
    if opened.count("{") == opened.count("}"):
        assert boxes(rf"first \boxed{{0}} then \boxed{{{content}}} end }}") == ["0", content]


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        (r"\frac{3}{2}", "1.5", True),
        (r"\frac{1}{3}", "0.333333", False),
        ("1/3", r"\frac{1}{3}", True),
        ("10,000", "10000", True),
        ("x=5", "5", True),
        ("p - q", "-q + p", True),
        ("p - q", "q - p", False),
        (r"\text{Evelyn}", "Evelyn", True),
        (r"\text{even}", "odd", False),
        (r"90^\circ", "90", True),
        ("(3,4]", "(3,4)", False),
        ("6 - 5i", "-5i+6", True),
        (r"\cot x", r"\frac{\cos x}{\sin x}", True),
        ("1,-2", "-2, 1", True),
        ("50", r"50\%", True),
        ("18", "18.9", False),
        ("200", "199", False),
        ("x", "", False),
        ("x", "}{", False),
        ("x", "\\", False),
        ("x", "\ud800", False),
    ],
)
def test_expressions_equal(gold: str, answer: str, equal: bool) -> None:
    assert expressions_equal(gold, answer) is equal


def test_a_comparison_that_never_ends_is_stopped_and_the_next_one_works() -> None:
    began = time.monotonic()
    assert not expressions_equal("x", r"\sin(9999999999!!)^{9^{9^{9}}} + 7^{7^{7^{7^7}}}", seconds=0.5)
    assert not expressions_equal("y", "2^{2^{2^{2^{2^{2}}}}}", seconds=0.5)
    assert time.monotonic() - began < 200
    assert expressions_equal("x+1", "1 + x")


def test_time_limit_ends_a_worker_that_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    os.kill(math_equality._worker()._process.pid, signal.SIGSTOP)
    assert not expressions_equal("x + 17", "17 + x", seconds=0.05)
    assert "did not end within" in caplog.text
    assert expressions_equal("x + 17", "17 + x")


def test_math_is_graded_off_the_main_thread_and_from_several_threads() -> None:
    results: list[Grade] = []
    threads = [
        threading.Thread(target=lambda k=k: results.append(grade("math500", rf"\boxed{{{k}+y}}", f"y+{k}")))
        for k in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    assert all(result.correct for result in results)


def test_interrupt_between_question_and_reply_does_not_shift_later_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    expressions_equal("a+1", "1+a")
    worker = math_equality._current
    assert worker is not None

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "_line", interrupted)
    with pytest.raises(KeyboardInterrupt):
        expressions_equal("b+1", "1+b")
    assert not expressions_equal("b+2", "3+b")
    assert expressions_equal("b+1", "1+b")


def test_worker_ends_with_its_parent() -> None:
    program = (
        "from precollapse.studies import math_equality as m\n"
        "m.expressions_equal('x+1', '1+x')\n"
        "print(m._current._process.pid, flush=True)\n"
        "import os; os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    stat = Path(f"/proc/{done.stdout.strip()}/stat")
    if not Path("/proc").is_dir():
        pytest.skip("no /proc to look a process up in")
    deadline = time.monotonic() + 60
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        # forms
        ("B", "B"),
        ("b", "B"),
        ("B.", "B"),
        ("B)", "B"),
        ("(B)", "B"),
        ("(b)", "B"),
        ("**B**", "B"),
        ("- B", "B"),
        ("'B'", "B"),
        ("Ｂ", "B"),
        ("（B）", "B"),
        ("$B$", "B"),
        ("B: vitamin C", "B"),
        ("B. vitamin C", "B"),
        ("B) vitamin C", "B"),
        ("B vitamin C", "B"),
        ("A Planetary density will decrease.", "A"),
        ("Answer: B", "B"),
        ("Answer: b", "B"),
        ("Answer: a", "A"),
        ("Answer (B)", "B"),
        ("**Answer:** C", "C"),
        ("**Answer: C**", "C"),
        ('{"answer": "C"}', "C"),
        ("The answer is (C).", "C"),
        ("The correct option is **D**.", "D"),
        ("The best choice is B!", "B"),
        ("I think a good answer is B", "B"),
        ("I choose B.", "B"),
        ("I would go with option C", "C"),
        ("#### B", "B"),
        (r"\boxed{B}", "B"),
        (r"$\boxed{\text{B}}$", "B"),
        # where the answer stands
        ("Reasoning about A, C and D ...\nFinal answer: B", "B"),
        ("Final answer:\n\nB", "B"),
        ("B\n\nExplanation: A is wrong, and so is C.", "B"),
        ("The answer is B because A is wrong", "B"),
        ("B. A is wrong because it is heavy.", "B"),
        ("Answer: B\nNote that the answer is not A.", "B"),
        ("A) Planetary density will decrease.\nB) vitamin C\nC) 250 m\nD) None of these\nAnswer: C", "C"),
        ("Let me think. It must be B.", "B"),
        ("B, B", "B"),
        ("The answer is B, not A", "B"),
        ("not A but B", "B"),
        ("A is correct", "A"),
        ("A because plants need it", "A"),
        # two, or none
        ("A) and B)", None),
        ("A and B", None),
        ("B or C", None),
        ("A/B", None),
        ("Answer: A or B", None),
        ("A, B, C, and D", None),
        ("A B C D", None),
        ("A. B. C. D.", None),
        ("A\nB\nC\nD", None),
        ("A) 6 B) 7 C) 13 D) 19", None),
        ("A) Planetary density will decrease.\nB) vitamin C\nC) 250 m\nD) None of these", None),
        ("B.\nActually C.", None),
        ("", None),
        ("E", None),
        ("ABCD", None),
        ("I do not know.", None),
        # letters that are not options
        ("A plant needs light", None),
        ("a", "A"),
        ("The answer is a plant", None),
        ("The answer is A plant", None),
        ("A 5 kg ball falls", None),
        ("vitamin C", None),
        ("250 m", None),
        ("20 °C", None),
        ("Water boils at 100 C", None),
        ("A-level", None),
        ("The B-cell", None),
        ("C++", None),
        ("f(A) = 2", None),
        ("Car B is faster than the other car", None),
        ("The answer is not A", None),
        ("A is wrong. C is wrong.", None),
        ("The answer is A.\nNo, the answer is not A.", None),
    ],
)
def test_option_letters(text: str, answer: str | None) -> None:
    assert grade("aqua_rat", text, "D", LETTERS).answer == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("2", "2"),
        ("(2)", "2"),
        ("2.", "2"),
        ("2) 2 hours", "2"),
        ("option 2 is correct", "2"),
        ("1. First this.\n2. Then that.\nAnswer: 3", "3"),
        ("2 hours", None),
        ("2.5", None),
        ("12", None),
        ("$2", None),
        ("2%", None),
        ("1/2", None),
        ("2,000", None),
        ("1 or 2", None),
        ("B", None),
        ("5", None),
    ],
)
def test_option_digits(text: str, answer: str | None) -> None:
    assert grade("arc_challenge", text, "4", DIGITS).answer == answer


def test_an_option_that_says_it_is_not_something_is_not_refused() -> None:
    choices = {"A": "is magnetic", "B": "is not magnetic", "C": "Cannot be determined"}
    assert grade("arc_challenge", "B) is not magnetic", "B", choices).correct
    assert grade("arc_challenge", "C) Cannot be determined", "C", choices).correct


def test_an_option_worded_like_prose_is_read_only_where_it_fills_the_line() -> None:
    choices = {"A": "plant", "B": "rock"}
    assert grade("arc_challenge", "A plant", "A", choices).correct
    assert grade("arc_challenge", "A) plant, as I said", "A", choices).correct
    assert grade("arc_challenge", "A plant needs water", "A", choices) == Grade(None, False, False)
    assert grade("arc_challenge", "2 hours", "2", {"1": "days", "2": "hours"}) == Grade(None, False, False)


def test_labels_alone_are_enough() -> None:
    assert grade("arc_challenge", "(E)", "E", ("A", "B", "C", "D", "E")).correct
    assert grade("aqua_rat", "(E)", "E").correct


def test_a_gold_that_is_no_label_is_refused() -> None:
    with pytest.raises(RequestError, match="'E' of a arc_challenge item is not one of its labels A, B"):
        grade("arc_challenge", "A", "E", {"A": "x", "B": "y"})


@settings(deadline=None)
@given(
    label=st.sampled_from("ABCD"),
    form=st.sampled_from(
        ["{}", "({})", "{})", "{}.", "**{}**", "Answer: {}", "The answer is {}.", "Final answer: **({})**"]
    ),
    reasoning=st.sampled_from(["", "The plants need light.\n", "It takes 5 hours.\n\n", "a b c\n", "So I think:\n"]),
)
def test_every_form_of_a_label_is_read(label: str, form: str, reasoning: str) -> None:
    assert grade("arc_challenge", reasoning + form.format(label), label, LETTERS).correct


@settings(deadline=None)
@given(
    first=st.sampled_from("ABCD"),
    second=st.sampled_from("ABCD"),
    join=st.sampled_from([" and ", " or ", ", ", "/", "\n"]),
)
def test_two_options_are_no_answer(first: str, second: str, join: str) -> None:
    result = grade("arc_challenge", f"Answer: {first}{join}{second}", first, LETTERS)
    if join != "\n":  # a line break ends the final answer
        assert result.correct is (first == second)


# --- a user's own items ----------------------------------------------------------------------------------------------


def test_own_items_are_graded_by_their_gold_answer() -> None:
    assert grade("mine", "It costs $1,000.", "1000").correct
    assert not grade("mine", "0.333333", "1/3").correct
    assert grade("mine", r"\boxed{y+x}", "x+y").correct
    assert grade("mine", "Answer: Paris", "Paris").correct
    assert not grade("mine", "Answer: Rome", "Paris").correct
    assert grade("mine", "It is a city.\n**Answer:** new york.", "New York").correct
    assert grade("mine", "#### New York", "New York").correct
    assert grade("mine", "Answer: not New York", "New York") == Grade("not New York", False, True)
    assert grade("mine", "It is a city.\nI cannot say.", "New York") == Grade(None, False, False)
    assert grade("mine", "(B)", "B", {"A": "Rome", "B": "Paris"}).correct


# --- everything at once ----------------------------------------------------------------------------------------------

pieces = st.sampled_from(
    [
        "A",
        "B)",
        "(C",
        "####",
        "\n",
        " ",
        ".",
        ",",
        "18",
        "-",
        "$",
        "%",
        "/",
        "^",
        "{",
        "}",
        r"\boxed{",
        r"\frac",
        "\\",
        "answer is",
    ]
    + ["the", ":", "*", "=", "1,000", "e5", "½", "因", "\u2028", "\x00", "not", "because"]
)


@settings(max_examples=150, deadline=None)
@given(text=st.lists(pieces | st.text(max_size=3), max_size=25).map("".join))
def test_any_text_gets_a_grade(text: str) -> None:
    for result in (
        grade("gsm8k", text, "18"),
        grade("arc_challenge", text, "A", LETTERS),
        grade("arc_challenge", text, "1", DIGITS),
    ):
        assert result.compliant is (result.answer is not None)
        assert not result.correct or result.compliant
    expression = final_expression(text)
    assert expression is None or expression.strip()


@settings(max_examples=25, deadline=None)
@given(text=st.lists(pieces, max_size=12).map("".join))
def test_any_text_gets_a_mathematical_grade(text: str) -> None:
    result = grade("math500", text, r"\frac{x}{2}")
    assert result.compliant is (result.answer is not None)


@pytest.mark.parametrize(
    "piece", ["#", "\n", "{", "}", r"\boxed{", "1,", "1/", "9", "$", "A ", "A) ", "a.", "-", "answer is ", "("]
)
def test_long_degenerate_texts_are_graded_quickly(piece: str) -> None:
    text = piece * 3000
    began = time.thread_time()
    grade("gsm8k", text, "18")
    grade("arc_challenge", text, "A", LETTERS)
    final_expression(text)
    assert time.thread_time() - began < 5


# --- the gold answers of real rows -----------------------------------------------------------------------------------


def _rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@needs_data
def test_every_gsm8k_solution_is_graded_correct() -> None:
    items = benchmarks.load("gsm8k", path=DATA / "gsm8k.jsonl")
    rows = _rows("gsm8k")
    assert len(items) == len(rows) == 400
    for row, item in zip(rows, items, strict=True):
        assert grade("gsm8k", row["answer"], item.answer).correct
        assert grade("gsm8k", f"It is ${item.answer}.", row["answer"]).correct
        gold = last_number(item.answer)
        assert gold is not None
        assert not grade("gsm8k", row["answer"], f"{gold.text}.5").correct


@needs_data
def test_every_math_solution_is_graded_correct() -> None:
    rows = _rows("math500")
    for row in rows:
        for text in (
            row["solution"],
            row["answer"],
            f"#### {row['answer']}",
            f"So ${row['answer']}$\nAnswer: ${row['answer']}$.",
        ):
            assert grade("math500", text, row["answer"]).correct, text
    others = [row["answer"] for row in rows[1:31] if row["answer"] != "x=5"]  # the row before it has the gold answer 5
    assert not any(grade("math500", row["solution"], other).correct for row, other in zip(rows, others, strict=False))


@needs_data
@pytest.mark.parametrize("name", ["arc_challenge", "aqua_rat"])
def test_every_option_of_every_item_is_read_in_every_form(name: str) -> None:
    forms = (
        "{0}",
        "({0})",
        "{0}) {1}",
        "{0}. {1}",
        "{0} {1}",
        "The answer is {0}) {1}",
        "Final answer: ({0}) {1}",
        "{0}: {1}\n\nThus.",
    )
    for item in benchmarks.load(name, path=DATA / f"{name}.jsonl"):
        assert item.choices is not None
        for label, option in item.choices.items():
            for form in forms:
                result = grade(name, form.format(label, option), item.answer, item.choices)
                assert result == Grade(label, label == item.answer, True), (item.id, form, option)
            assert grade(name, option, item.answer, item.choices).answer is None, (item.id, option)
        listed = [f"{label}) {option}" for label, option in item.choices.items()]
        assert grade(name, "\n".join(listed), item.answer, item.choices).answer is None
        assert grade(name, " ".join(listed), item.answer, item.choices).answer is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \frac{3}{4}", "3/4"),
        (r"the answer is \dfrac{3}{4}.", "3/4"),
        (r"is\frac{3}{4}", "3/4"),
        (r"it is -\frac{3}{4}", "-3/4"),
        (r"it is 12 \frac{1}{2}", "12 1/2"),
        (r"x = \frac34", "3/4"),
    ],
)
def test_a_latex_fraction_after_words_is_read_whole(text, answer):
    assert grade("gsm8k", text, answer) == Grade(answer, True, True)


# --- texts of whatever length and content -------------------------------------------------------------------------------

_N = 400_000
_LONG_TEXTS = {
    "digits": "7" * _N,
    "decimals": "7" * (_N // 2) + "." + "7" * (_N // 2),
    "blanks": "1" + " " * _N + "x",
    "cue and blanks": "answer is" + " " * _N,
    "groups": "1" + " 000" * (_N // 4),
    "dollars": "$" * _N + "5",
    "letters": "A " * (_N // 2),
    "open fraction": r"\frac{" + " " * _N + "1",
    "open boxes": r"\boxed{" * (_N // 7),
    "boxes in boxes": r"\boxed{" * (_N // 8) + "1" + "}" * (_N // 8),
    "nothing": "\0" * _N,
    "marks": "####\n" * (_N // 5),
    "polynomial": r"\boxed{" + "+".join(f"x^{{{i}}}" for i in range(_N // 8)) + "}",
}


@pytest.mark.parametrize("text", _LONG_TEXTS.values(), ids=_LONG_TEXTS)
@pytest.mark.parametrize("benchmark", ["gsm8k", "arc_challenge", "mine"])
def test_reading_keeps_its_limit_whatever_the_text(benchmark: str, text: str) -> None:
    began = os.times()
    choices = {"A": "x", "B": "y"} if benchmark == "arc_challenge" else None
    result = grade(
        benchmark, text, {"gsm8k": "5", "arc_challenge": "A", "mine": "new york"}[benchmark], choices, seconds=1
    )
    ended = os.times()
    assert isinstance(result, Grade)
    assert ended.user - began.user < 5  # of this process; the other one has its limit


@pytest.mark.parametrize("where", ["{}", r"\boxed{{{}}}", "#### {}", "12 and {}", "{}/3", "{} 1/2"])
def test_a_number_of_too_many_digits_is_no_answer(where: str) -> None:
    for digits in (10_001, 50_000, 500_000):
        assert grade("gsm8k", where.format("9" * digits), "12") == Grade(None, False, False)
    assert grade("gsm8k", where.replace("/3", "").replace(" 1/2", "").format("9" * 9_000), "9" * 9_000).correct


def test_the_end_of_a_long_text_is_read_as_a_short_one() -> None:
    filler = "So we go on, and think of it again.\n" * 5_000
    assert grade("gsm8k", filler + "#### 18", "18") == Grade("18", True, True)
    assert grade("gsm8k", filler + "It is -1 1/3", "-4/3").correct
    assert grade("math500", filler + r"\boxed{x+1}", "1+x").correct
    assert grade("mine", filler + "Answer: New York.", "new york").correct
    assert grade("arc_challenge", filler + "Answer: B", "B", {"A": "x", "B": "y"}) == Grade("B", True, True)
    assert grade("gsm8k", "#### 18\n" + filler, "18") == Grade(None, False, False)


def test_a_reader_that_is_stopped_gives_no_answer_and_the_next_one_works(caplog: pytest.LogCaptureFixture) -> None:
    from precollapse.studies.grading import reading

    filler = "a b c. " * 2_000
    assert reading.final_number(filler + "5").text == "5"
    os.kill(reading._worker()._process.pid, signal.SIGSTOP)
    assert reading.final_number(filler + "6", seconds=0.05) is None
    assert "counted as no answer" in caplog.text
    assert reading.final_number(filler + "6").text == "6"


def test_a_gold_answer_of_a_million_digits_is_refused_at_once() -> None:
    for benchmark in ("gsm8k", "math500", "mine"):
        with pytest.raises(RequestError, match="has 1000000 characters; at most 10000 are compared"):
            grade(benchmark, "1", "9" * 1_000_000)


def test_nul_bytes_are_blanks() -> None:
    assert grade("gsm8k", "It is 5\0", "5").correct
    assert grade("math500", "\\boxed{x\0+1}", "1+x").correct
