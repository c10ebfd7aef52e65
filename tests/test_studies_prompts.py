"""Prompts: the templates to the letter, texts that look like templates, spans, and a user's own regimes."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precollapse.errors import RequestError
from precollapse.studies import prompts
from precollapse.studies.benchmarks import Item
from precollapse.studies.prompts import REGIMES, Regime, load_regimes, render

FREE = Item("1", "What is 2+2?", "4")
CHOICE = Item("2", "Which is even?", "B", {"A": "3", "B": "4", "C": "5"})

# Written out whole, so that a change to any line break or space of the named templates fails here.
PRINTED = {
    (
        "baseline",
        "free",
    ): "Solve this math problem. Give only the final\nnumerical answer.\n\nProblem: What is 2+2?\nAnswer:",
    ("cot", "free"): (
        "Solve this math problem step by step. Show your\nreasoning, then give the final answer after ####.\n\n"
        "Problem: What is 2+2?\nSolution:"
    ),
    ("babble", "free"): (
        "Given this math problem, write a long stream of\nconsciousness about numbers, calculations, and\n"
        "mathematical concepts. Do NOT solve the problem -\njust write loosely related mathematical musings\n"
        "for about 100 words.\n\nProblem: What is 2+2?\nStream of consciousness:"
    ),
    ("baseline", "choice"): (
        "Choose the correct option. Reply with only one\nletter from the available choices.\n\n"
        "Question: Which is even?\nChoices: A) 3\nB) 4\nC) 5\nAnswer:"
    ),
    ("cot", "choice"): (
        "Think step by step, then choose the correct option.\nAt the end, reply with only one letter from the\n"
        "available choices.\n\nQuestion: Which is even?\nChoices: A) 3\nB) 4\nC) 5\nReasoning:\nFinal answer:"
    ),
    ("babble", "choice"): (
        "Write a long stream of consciousness about the topic\nand the possible answers. Do NOT solve the problem.\n"
        "At the end, still output exactly one letter from the\navailable choices.\n\n"
        "Question: Which is even?\nChoices: A) 3\nB) 4\nC) 5\nStream of consciousness:\nFinal answer:"
    ),
}


@pytest.mark.parametrize(("regime", "form"), PRINTED)
def test_printed_templates_to_the_letter(regime: str, form: str) -> None:
    prompt = render(regime, FREE if form == "free" else CHOICE)
    assert prompt.text == str(prompt) == PRINTED[regime, form]


def test_open_forms_stop_before_the_answer() -> None:
    for regime in ("cot", "babble"):
        printed = PRINTED[regime, "choice"]
        assert render(f"{regime}-open", CHOICE).text == printed.removesuffix("\nFinal answer:")
        assert render(f"{regime}-open", FREE) == render(regime, FREE)


def test_caps() -> None:
    caps = {name: regime.max_new_tokens for name, regime in REGIMES.items()}
    assert caps == {"baseline": 50, "cot": 512, "babble": 512, "cot-open": 512, "babble-open": 512}


def test_spans_of_the_parts() -> None:
    prompt = render("cot", CHOICE)
    parts = {part: prompt.text[start:end] for part, (start, end) in prompt.spans.items()}
    assert parts == {
        "instruction": (
            "Think step by step, then choose the correct option.\nAt the end, reply with only one letter from the\n"
            "available choices."
        ),
        "question": "Which is even?",
        "choices": "A) 3\nB) 4\nC) 5",
        "option:A": "A) 3",
        "option:B": "B) 4",
        "option:C": "C) 5",
        "cue": "Reasoning:\nFinal answer:",
    }
    assert list(parts) == ["instruction", "question", "choices", "option:A", "option:B", "option:C", "cue"]


def test_spans_where_the_question_repeats_other_parts() -> None:
    item = Item("1", "Answer: Answer:", "A", {"A": "Answer:", "B": "B) Answer:"})
    prompt = render("baseline", item)
    question, cue = prompt.spans["question"], prompt.spans["cue"]
    assert prompt.text[slice(*question)] == item.question
    assert prompt.text[: question[0]].endswith("Question: ")
    assert cue == (len(prompt.text) - len("Answer:"), len(prompt.text))
    assert prompt.text[slice(*prompt.spans["option:B"])] == "B) B) Answer:"


texts = st.text(min_size=1) | st.sampled_from(
    ["{question}", "{choices}", "{{question}}", "{0}", "{", "}}", "%s", "\\1", "$x"]
)


@settings(deadline=None)
@given(question=texts, options=st.lists(texts, min_size=2, max_size=5), regime=st.sampled_from(list(REGIMES)))
def test_an_items_text_is_never_read_as_a_template(question: str, options: list[str], regime: str) -> None:
    choices = dict(zip("ABCDE", options, strict=False))
    item = Item("1", question, "A", choices)
    prompt = render(regime, item)
    listed = "\n".join(f"{label}) {option}" for label, option in choices.items())
    before, after_question = REGIMES[regime].template("choice").split("{question}")
    between, after = after_question.split("{choices}")
    assert prompt.text == before + question + between + listed + after
    assert prompt.text[slice(*prompt.spans["question"])] == question
    for label, option in choices.items():
        assert prompt.text[slice(*prompt.spans[f"option:{label}"])] == f"{label}) {option}"


def test_template_hash_tells_templates_apart_and_items_do_not_enter() -> None:
    hashes = {regime.template_hash(form) for regime in REGIMES.values() for form in ("free", "choice")}
    assert len(hashes) == 8  # the open free-response forms are the printed ones
    assert render("cot", CHOICE).template_hash == REGIMES["cot"].template_hash("choice")
    assert render("cot", FREE).template_hash == REGIMES["cot-open"].template_hash("free")
    assert all(len(one) == 16 for one in hashes)


def test_unknown_regime_and_missing_form() -> None:
    with pytest.raises(
        RequestError, match="unknown regime 'cott'; known: baseline, cot, babble, cot-open, babble-open"
    ):
        render("cott", FREE)
    with pytest.raises(RequestError, match="regime 'mine' has no template for multiple choice; add 'choice' to it"):
        render(Regime("mine", "{question}", None), CHOICE)


# --- a user's regimes -------------------------------------------------------------------------------------------------


def _load(tmp_path: Path, content: str) -> dict[str, Regime]:
    path = tmp_path / "regimes.yaml"
    path.write_text(content, encoding="utf-8")
    return load_regimes(path)


def test_regimes_from_yaml(tmp_path: Path) -> None:
    regimes = _load(
        tmp_path,
        """
terse:
  max_new_tokens: 64
  free: |-
    Be brief. Put the answer in \\boxed{} and not in {{answer}}.

    {question}
    Answer:
  choice: "{question}\\n{choices}"
bare:
  free: "{question}"
""",
    )
    assert list(regimes) == [*REGIMES, "terse", "bare"]
    assert regimes["terse"].max_new_tokens == 64
    assert regimes["bare"].max_new_tokens == 512
    prompt = render("terse", FREE, regimes)
    assert prompt.text == "Be brief. Put the answer in \\boxed{} and not in {answer}.\n\nWhat is 2+2?\nAnswer:"
    assert (
        prompt.text[slice(*prompt.spans["instruction"])] == "Be brief. Put the answer in \\boxed{} and not in {answer}."
    )
    assert render("terse", CHOICE, regimes).text == "Which is even?\nA) 3\nB) 4\nC) 5"
    assert render("bare", FREE, regimes).spans == {"question": (0, 12)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must map regime names to their templates; found nothing"),
        ("{}", "found an empty mapping"),
        ("- a", "found a list"),
        ("just text", "found a text"),
        ("a: [1", r"is not valid YAML \(line 1\)"),
        ("a:\n  free: '{question}'\n b: 1", r"is not valid YAML \(line 3\)"),
        ("a: !!python/object:os.system {}", "not valid YAML"),
        (
            "a: {free: '{question}'}\na: {free: '{question}'}",
            r"is not valid YAML \(line 2\): the name 'a' appears twice",
        ),
        ("a: {free: '{question}', free: '{question}'}", "the name 'free' appears twice"),
        ("cot: {free: '{question}'}", "regime 'cot' is one of the named ones .*; choose another name"),
        ("1: {free: '{question}'}", "a regime's name must be .*; found 1"),
        ("'a/b': {free: '{question}'}", "found 'a/b'"),
        ("a:", "'a' must have 'free' and/or 'choice'; found nothing"),
        ("a: '{question}'", "found a text"),
        ("a: {max_new_tokens: 5}", "'a' has no template; give 'free' and/or 'choice'"),
        ("a: {fre: '{question}'}", "unknown setting 'fre'; known: free, choice, max_new_tokens"),
        ("a: {free: 5}", "'free': the template must be text; found a number"),
        ("a: {free: 'Solve.'}", r"'free': the template must hold {question} exactly once; found it 0 times"),
        ("a: {free: '{question} {question}'}", r"must hold {question} exactly once; found it 2 times"),
        (
            "a: {free: '{question} {choices}'}",
            r"'free': unknown placeholder {choices}; known: {question}; write {{choices}}",
        ),
        ("a: {choice: '{question}'}", r"'choice': the template must hold {choices} exactly once; found it 0 times"),
        ("a: {choice: '{question} {choices} {hint}'}", r"unknown placeholder {hint}; known: {question}, {choices}"),
        ("a: {free: '{question', max_new_tokens: 5}", "must hold {question} exactly once"),
        (
            "a: {free: '{question}', max_new_tokens: 0}",
            "'max_new_tokens' must be a whole number of at least 1; found 0",
        ),
        ("a: {free: '{question}', max_new_tokens: yes}", "found True"),
    ],
)
def test_bad_regime_files(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        _load(tmp_path, content)
    assert str(tmp_path / "regimes.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_unreadable_regime_files(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="does not exist"):
        load_regimes(tmp_path / "none.yaml")
    with pytest.raises(RequestError, match="cannot be read"):
        load_regimes(tmp_path)
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"a: {free: 'caf\xe9 {question}'}")
    with pytest.raises(RequestError, match="is not UTF-8 text"):
        load_regimes(path)


def test_a_template_that_ends_in_a_line_break_is_kept_and_warned_about(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"write \|- instead of \|"):
        regimes = _load(tmp_path, "a:\n  free: |\n    {question}\n    Answer:\n")
    assert render("a", FREE, regimes).text.endswith("Answer:\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _load(tmp_path, "a:\n  free: |-\n    {question}\n    Answer:\n")


def test_get() -> None:
    assert prompts.get("cot").name == "cot"
