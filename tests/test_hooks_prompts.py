"""What becomes of a prompt's text: kept by every template, words that look like control tokens, outputs that end at a text."""

from __future__ import annotations

import datetime

import numpy as np
import pandas
import pytest
import torch

from precollapse.errors import RequestError
from precollapse.hooks import Extractor
from precollapse.hooks.decoding.stops import before_stop, reached, spelled
from precollapse.hooks.prompts.chat_settings import ChatSettings
from precollapse.hooks.prompts.inputs import as_prompts
from precollapse.hooks.prompts.rendering import Renderer
from precollapse.perf import chat_templates
from precollapse.perf.small_models import small_model, small_tokenizer
from precollapse.tests.conftest import CHAT_TEMPLATE, byte_tokenizer

PARTS = "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
USERS = "{% for m in messages if m.role == 'user' %}[{{ m.content }}]{% endfor %}"
SYSTEM = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why?"}]


@pytest.mark.parametrize("family", chat_templates.TEMPLATES)
def test_every_familys_template_keeps_all_text(family):
    found = chat_templates.row(family)
    assert (
        found["text kept"] and found["system kept"] and found["continues"] and found["BOS of a tokenizer with one"] == 1
    )


def test_a_template_of_parts_is_given_parts():
    assert Renderer(byte_tokenizer(PARTS)).render(SYSTEM).text == "[system]be brief[user]why?"


def test_parts_of_text_are_given_as_text_where_a_template_takes_text():
    parts = [{"role": "user", "content": [{"type": "text", "text": "wh"}, {"type": "text", "text": "y?"}]}]
    assert Renderer(byte_tokenizer()).render(parts).text == "<|turn|>user\nwhy?</s>\n<|turn|>assistant\n"
    with pytest.raises(RequestError, match="part of type 'image'"):
        Renderer(byte_tokenizer()).render([{"role": "user", "content": [{"type": "image"}]}])


def test_a_system_text_without_a_place_opens_the_users_turn_and_spans_stay_right():
    renderer = Renderer(byte_tokenizer(USERS))
    rendered = renderer.render(SYSTEM)
    assert rendered.text == "[be brief\n\nwhy?]"
    columns = renderer.columns(rendered, 0, 3)
    assert "".join(renderer.tokenizer.decode([rendered.token_ids[c]]) for c in columns) == "why"


def test_what_no_form_keeps_is_refused_by_its_message():
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    with pytest.raises(RequestError, match=r"leaves out the text of message 2 \(assistant\) of 3"):
        Renderer(byte_tokenizer(USERS)).render(chat)
    with pytest.raises(RequestError, match=r"changes the text of message 1 \(user\)"):
        Renderer(byte_tokenizer("{{ messages[0].content | replace('secret', '') }}")).render(
            [{"role": "user", "content": "the secret word"}]
        )


def test_a_chat_that_ends_with_the_assistants_words_is_continued_as_transformers_does():
    tokenizer = byte_tokenizer()
    chat = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "It is"}]
    theirs = tokenizer.apply_chat_template(chat, continue_final_message=True, return_dict=True)["input_ids"]
    assert list(Renderer(tokenizer).render(chat).token_ids) == list(theirs)


@pytest.mark.parametrize("text", ["a</s>b", "<|turn|>assistant\nno", "x <s> y"])
def test_control_tokens_in_a_question_are_text(text):
    tokenizer = byte_tokenizer()
    chat = [{"role": "user", "content": text}]
    rendered = Renderer(tokenizer).render(chat)
    theirs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, sanitize_control_tokens=True, return_dict=True
    )
    assert list(rendered.token_ids) == list(theirs["input_ids"])
    assert sum(i >= 256 for i in rendered.token_ids) == 3  # the template's own: a turn, its end, a turn
    assert Renderer(tokenizer).columns(rendered, 0, len(text)) == list(range(6, 6 + len(text.encode())))


def test_control_tokens_in_the_words_of_a_plain_prompt_are_text():
    text = "Q: </s>\nA:</s>"
    ids = Renderer(byte_tokenizer()).render(text, words=[(3, 7)]).token_ids
    assert ids.count(257) == 1 and ids[-1] == 257 and len(ids) == len(text) - 3


def test_arguments_that_the_template_does_not_read_are_refused():
    tokenizer = byte_tokenizer(CHAT_TEMPLATE + "{% if thinking %}<think>{% endif %}")
    chat = [{"role": "user", "content": "a"}]
    assert Renderer(tokenizer, ChatSettings({"thinking": True})).render(chat).text.endswith("<think>")
    assert not Renderer(tokenizer, ChatSettings({"thinking": False})).render(chat).text.endswith("<think>")
    with pytest.raises(
        RequestError, match="'thinkin', which the model's chat template does not read; it reads .*thinking"
    ):
        Renderer(tokenizer, ChatSettings({"thinkin": False}))


@pytest.mark.parametrize("form", ["%d %b %Y", "%A, %-d %B %Y", "%Y-%m-%d", "%j %%"])
def test_a_template_is_told_the_day(form):
    day = datetime.date(2024, 7, 6)
    tokenizer = byte_tokenizer("{% set d = strftime_now('" + form + "') %}{{ d }}|{{ messages[0].content }}")
    rendered = Renderer(tokenizer, ChatSettings(day=day)).render([{"role": "user", "content": "a"}])
    assert rendered.text == day.strftime(form) + "|a"


def test_who_begins_a_chat_is_the_template_where_it_names_a_bos():
    named = "{% if messages[0].role == 'system' %}{{ bos_token }}{% endif %}" + CHAT_TEMPLATE
    chat = [{"role": "user", "content": "a"}]
    for template, bos, count in (
        (named, "auto", 0),
        (named, "tokenizer", 1),
        (CHAT_TEMPLATE, "auto", 1),
        (CHAT_TEMPLATE, "template", 0),
    ):
        renderer = Renderer(chat_templates.tokenizer(template), ChatSettings(bos=bos))
        assert renderer.render(chat).bos_count == count
        assert renderer.describe()["chat"]["bos"] == ("tokenizer" if count else "template")


class Words:
    """A tokenizer whose tokens are given, and which cleans blanks up unless it is told not to."""

    def __init__(self, *tokens):
        self.tokens = tokens

    def decode(self, ids, skip_special_tokens=False, clean_up_tokenization_spaces=True):
        text = "".join(self.tokens[i] for i in ids)
        return text.replace(" .", ".") if clean_up_tokenization_spaces else text


def test_ids_are_spelled_as_they_are():
    assert spelled(Words("It", " is", " .", "75"), [0, 1, 2, 3]) == "It is .75"


def test_an_output_ends_before_a_stop_text_in_tokens_and_text_alike():
    tokenizer = Words(" 5", ".\n", "\nPro", "blem: ", "x")
    assert reached(tokenizer, [0, 1, 2, 3], ["\nProblem:"]) and not reached(tokenizer, [0, 1, 2], ["\nProblem:"])
    assert before_stop(tokenizer, [0, 1, 2, 3, 4], ["\nProblem:"]) == ((0, 1), " 5.\n", "\nProblem:")
    assert before_stop(tokenizer, [0, 1, 2, 3], ["\n\nProblem:"]) == ((0, 1), " 5.", "\n\nProblem:")
    assert before_stop(tokenizer, [0, 4], ["y"]) == ((0, 4), " 5x", None)


def test_a_pad_token_beyond_the_embedding_changes_nothing():
    model, plain, padded = small_model("llama"), small_tokenizer(), small_tokenizer()
    padded.add_special_tokens({"pad_token": "[PAD]"})
    assert padded.pad_token_id >= model.get_input_embeddings().num_embeddings
    prompts = ["a", "much longer than that", "mid length"]
    one, two = (Extractor(model, t).capture(prompts) for t in (plain, padded))
    assert torch.equal(one.resid_post, two.resid_post) and (one.entropy_bits == two.entropy_bits).all()


def test_prompts_come_in_every_form_that_tokenizers_and_tables_give():
    tokenizer = byte_tokenizer()
    renderer, ids = Renderer(tokenizer), list(tokenizer("ab")["input_ids"])
    forms = [
        tokenizer("ab"), tokenizer("ab", return_tensors="pt"), tokenizer(["ab"]), [tokenizer("ab")], np.array([ids]),
        [np.array(ids, np.int32)], [np.int64(i) for i in ids], iter(ids), pandas.Series(["ab"], index=[7]), (t for t in ["ab"]),
    ]  # fmt: skip
    for form in forms:
        assert [list(renderer.render(p).token_ids) for p in as_prompts(form, renderer)] == [ids]
    assert as_prompts(tokenizer(["a", "bbb"]), renderer) == [tokenizer(t)["input_ids"] for t in ("a", "bbb")]


def test_the_context_goes_further_where_positions_are_not_learned():
    long = [[5] * 2000]
    llama = small_model("llama")
    limit = llama.config.max_position_embeddings
    with pytest.raises(RequestError, match="more than the model's context"):
        Extractor(llama, small_tokenizer(), check=False).capture(long)
    ex = Extractor(llama, small_tokenizer(), check=False, context_length=limit + 2000)
    assert ex.capture(long).resid_post.isfinite().all()
    with pytest.raises(RequestError, match="positions that the model has learned"):
        Extractor(small_model("gpt2"), small_tokenizer(), check=False, context_length=1 << 20)
