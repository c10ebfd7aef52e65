"""Where chains are cut, and on which token a cut falls."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precollapse.errors import RequestError
from precollapse.studies.trajectories import segmentation as s

TEXT = 'First, add 3.5 and 4. Is it 7.5? Yes!\nSo the sum is 7.5.\n\nStep 1: check it.\nStep 2: done "now." End'


def units(text: str, rule: str, **options) -> list[str]:
    ends = s.segment(text, rule, options.pop("cap", None), **options).ends
    return [text[a:b].strip() for a, b in zip((0, *ends), ends, strict=False)]


def test_each_rule_cuts_where_it_says():
    assert units(TEXT, "sentence") == [
        "First, add 3.5 and 4.", "Is it 7.5?", "Yes!", "So the sum is 7.5.", "Step 1: check it.", 'Step 2: done "now."', "End",
    ]  # fmt: skip
    assert units(TEXT, "newline") == [line for line in TEXT.split("\n") if line]
    assert units(TEXT, "blank-line") == [part for part in TEXT.split("\n\n")]
    assert units(TEXT, "marker") == [TEXT.split("\n\n")[0], "Step 1: check it.", 'Step 2: done "now." End']


def test_numbers_and_enumerators_end_no_sentence():
    assert units("Pay $2.10 now. Then:\n1. First thing.\n2. Second thing.", "sentence") == [
        "Pay $2.10 now.", "Then:\n1. First thing.", "2. Second thing.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "applied"), [("a.\n\nb.", "blank-line"), ("One. Two.", "sentence"), ("Step 1: a\nStep 2: b", "marker")]
)
def test_marker_falls_back_and_says_so(text, applied):
    found = s.segment(text, "marker")
    assert found.applied == applied and found.rule == "marker" and found.units == 2


def test_cap_merges_the_tail_into_the_last_unit():
    text = "\n\n".join(f"part {i}" for i in range(12))
    found = s.segment(text, "blank-line", 8)
    assert (found.units, len(found.ends), found.merged, found.capped) == (12, 8, 4, True)
    assert found.ends[-1] == len(text) and text[: found.ends[6]].endswith("part 6")
    whole = s.segment(text, "blank-line", None)
    assert len(whole.ends) == 12 and not whole.capped


def test_windows_count_tokens():
    ends = list(range(1, 101))
    found = s.segment("x" * 100, "window-40", None, ends)
    assert found.ends == (40, 80, 100)
    with pytest.raises(RequestError, match="token"):
        s.segment("x" * 100, "window-40")


@pytest.mark.parametrize("rule", ["paragraph", "window-0", "window-", ""])
def test_unknown_rules_are_refused_with_the_known_ones(rule):
    with pytest.raises(RequestError, match="blank-line"):
        s.segment(TEXT, rule)


@pytest.mark.parametrize("text", ["", "   \n\n "])
def test_a_chain_of_white_space_has_no_units(text):
    assert s.segment(text, "sentence").ends == ()


@given(st.text(alphabet="ab1. \n?!:S", max_size=60), st.sampled_from(s.RULES[:4]), st.sampled_from([None, 1, 3]))
@settings(max_examples=200, deadline=None)
def test_cuts_ascend_and_end_with_the_text(text, rule, cap):
    found = s.segment(text, rule, cap)
    assert list(found.ends) == sorted(set(found.ends))
    if text.strip():
        assert found.ends[-1] == len(text.rstrip())
        assert all(not text[e - 1].isspace() for e in found.ends)
    assert found.units == len(found.ends) + found.merged


# -- tokens --------------------------------------------------------------------------------------------------------------


def test_a_boundary_inside_a_token_moves_to_its_end_and_is_counted():
    ends = [3, 8, 9, 15]
    found = s.to_tokens([3, 5, 9], ends)
    assert found.tokens == (0, 1, 2, 3) and found.inside == 1 and found.collapsed == 0
    both = s.to_tokens([4, 6, 15], ends, include_start=False)
    assert both.tokens == (2, 4) and both.inside == 2 and both.collapsed == 1
    with pytest.raises(RequestError, match="beyond"):
        s.to_tokens([16], ends)


@pytest.fixture(scope="module")
def merging_tokenizer():
    """A byte-level BPE whose vocabulary holds tokens like `.\\n\\n` that straddle sentence ends."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    newline = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("\n")[0][0]
    pieces = [*alphabet, f".{newline}", f".{newline}{newline}"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[(".", newline), (f".{newline}", newline)]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_prefixes_are_what_the_tokens_spell(merging_tokenizer):
    text = "One.\n\nTwo is 2.\n\nTree 🌳 grows."
    ids, ends = s.token_ends_of_text(merging_tokenizer, text)
    same_text, same_ends = s.token_ends_of_ids(merging_tokenizer, ids)
    assert same_text == text and same_ends == ends
    at = s.to_tokens(s.segment(text, "blank-line").ends, ends)
    assert at.inside == 2  # both full stops share their token with the line breaks
    prefixes = [merging_tokenizer.decode(ids[:n], clean_up_tokenization_spaces=False) for n in at.tokens]
    assert prefixes == ["", "One.\n\n", "One.\n\nTwo is 2.\n\n", text]


@given(st.text(max_size=40))
@settings(max_examples=100, deadline=None)
def test_token_ends_cover_any_text(text):
    from_text = _BYTES.setdefault("tokenizer", _byte_tokenizer())
    if not text:
        return
    ids, ends = s.token_ends_of_text(from_text, text)
    assert ends == sorted(ends) and ends[-1] == len(text)
    assert s.token_ends_of_ids(from_text, ids) == (text, ends)


_BYTES: dict[str, object] = {}


def _byte_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_real_solutions_keep_their_prefixes(embedded, shared_data):
    """On the embedded model's tokenizer and 40 written solutions, every prefix decodes to the start of the solution."""
    tokenizer = embedded.tokenizer
    for line in (shared_data / "gsm8k.jsonl").read_text().splitlines()[:40]:
        text = json.loads(line)["answer"]
        ids, ends = s.token_ends_of_text(tokenizer, text)
        at = s.to_tokens(s.segment(text, "sentence", None).ends, ends)
        for count in at.tokens:
            assert text.startswith(tokenizer.decode(ids[:count], clean_up_tokenization_spaces=False))
        assert s.units_by_rule(text, ends)["newline"] == len([x for x in text.split("\n") if x.strip()])


# -- version 2 of the rules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mr. Lee has 3. Dr. Wu has 4.", ["Mr. Lee has 3.", "Dr. Wu has 4."]),
        ("Take a fruit, e.g. an apple. It costs 2, i.e. two coins.", ["Take a fruit, e.g. an apple.", "It costs 2, i.e. two coins."]),
        ("See Fig. 3 and Eq. 4. Then add.", ["See Fig. 3 and Eq. 4.", "Then add."]),
        ("J. K. Smith met St. John at approx. 5. They left.", ["J. K. Smith met St. John at approx. 5.", "They left."]),
        ("Then 5! = 120 and 3! + 1 = 7. Done!", ["Then 5! = 120 and 3! + 1 = 7.", "Done!"]),
        ("共有3个苹果。每个2元！一共多少？6元。", ["共有3个苹果。", "每个2元！", "一共多少？", "6元。"]),
        ("पहला चरण। दूसरा चरण।", ["पहला चरण।", "दूसरा चरण।"]),
        ("The total is\n42.\nSo we stop.", ["The total is\n42.", "So we stop."]),
        ("Steps:\n1. Add.\n2. Halve.", ["Steps:\n1. Add.", "2. Halve."]),
        ("We have $a. b$ and \\(c. d\\). Next.", ["We have $a. b$ and \\(c. d\\).", "Next."]),
        ("Run\n```\nprint(1). x\ny = 2. z\n```\nDone. End.", ["Run\n```\nprint(1). x\ny = 2. z\n```\nDone.", "End."]),
        ("It costs $5. She pays $3. Fine.", ["It costs $5.", "She pays $3.", "Fine."]),
        ("And so on... until 9. Stop.", ["And so on... until 9.", "Stop."]),
        ("We meet at 5 p.m. Then we go.", ["We meet at 5 p.m.", "Then we go."]),
        ("We meet at 5 p.m. on Monday.", ["We meet at 5 p.m. on Monday."]),
    ],
)  # fmt: skip
def test_sentences_end_where_a_reader_ends_them(text, expected):
    assert units(text, "sentence") == expected


def test_steps_may_be_headings():
    for form in (
        "## Step {}: do",
        "**Step {}:** do",
        "### Step {}\ndo",
        "Step {}. do",
        "Step {} - do",
        "- **Step {}**: do",
        "Step {}: do",
    ):
        text = "Let us see.\n\n" + "\n\n".join(form.format(i) for i in (1, 2, 3))
        assert units(text, "marker") == text.split("\n\n"), form
    assert units("第一步：加。第二步：减。", "marker") == ["第一步：加。", "第二步：减。"]


def test_formulas_and_code_are_whole_under_every_rule():
    display = "We get\n\\[\nx = 1.\n\ny = 2\n\\]\n\nSo 3."
    assert units(display, "blank-line") == [display.split("\n\nSo")[0], "So 3."]
    assert units(display, "newline") == ["We get", display[7:].split("\n\nSo")[0], "So 3."]
    code = "Code:\n```python\na = 1\n\nb = 2\n```\n\nEnd"
    assert units(code, "blank-line") == [code.split("\n\nEnd")[0], "End"]
    aligned = "\\begin{align}\na &= 1\\\\\n\nb &= 2\n\\end{align}\n\nEnd"
    assert len(units(aligned, "blank-line")) == 2


def test_a_step_a_line_where_the_prompt_asks_for_it():
    from precollapse.studies.trajectories.chains import SYSTEM_PROMPT

    assert s.asks_for_lines(SYSTEM_PROMPT) and not s.asks_for_lines("Think step by step.")
    text = "First add.\nThen halve.\nAnswer 3"
    found = s.segment(text, "blank-line", lines=True)
    assert (found.units, found.applied, found.rule) == (3, "newline", "blank-line")
    assert s.segment(text, "blank-line").units == 1
    assert s.segment("a\nb\n\nc", "blank-line", lines=True).units == 2
    assert s.segment(text, "marker", lines=True).applied == "newline"


def test_version_1_cuts_as_it_did():
    text = "Mr. Lee has 3.\n42.\nSo $a. b$ 5! = 120。好"
    assert units(text, "sentence", version=1) == ["Mr.", "Lee has 3.", "42.\nSo $a.", "b$ 5!", "= 120。好"]
    assert s.segment("## Step 1. a\n\n## Step 2. b", "marker", version=1).applied == "blank-line"
    assert s.segment("a\nb", "blank-line", version=1, lines=True).units == 1
    with pytest.raises(RequestError, match="version"):
        s.segment(text, "sentence", version=3)


@given(st.text(alphabet="aB1. \n?!:S$`\\[]。#*", max_size=60), st.sampled_from(s.RULES[:4]), st.booleans())
@settings(max_examples=200, deadline=None)
def test_every_version_ascends_and_ends_with_the_text(text, rule, lines):
    for version in (1, 2):
        found = s.segment(text, rule, None, version=version, lines=lines)
        assert list(found.ends) == sorted(set(found.ends))
        assert not text.strip() or found.ends[-1] == len(text.rstrip())
