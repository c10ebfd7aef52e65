"""Chat templates are programs that come with a model: one that does not end is refused with a sentence."""

from __future__ import annotations

import time

import pytest

from precollapse.errors import RequestError
from precollapse.hooks.prompts import template
from precollapse.hooks.prompts.rendering import Renderer
from precollapse.tests.conftest import CHAT_TEMPLATE, byte_tokenizer

ENDLESS = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a long loop that writes": "{% for a in range(99999) %}{% for b in range(99999) %}a{% endfor %}{% endfor %}",
    "one power": "{{ 9 ** (9 ** (9 ** 9)) }}",
    "a power of a power, printed": "{% set x = 10 ** (10 ** 9) %}",
}


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_a_template_that_does_not_end_is_refused_by_name(monkeypatch, text):
    monkeypatch.setattr(template, "SECONDS", 1)
    tokenizer = byte_tokenizer(text)
    tokenizer.name_or_path = "someone/model"
    with pytest.raises(
        RequestError, match="the chat template of someone/model (did not end|filled the memory).*--template raw"
    ):
        Renderer(tokenizer).render([{"role": "user", "content": "a"}])


def test_a_template_that_fills_the_memory_is_refused():
    text = "{% set n = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}"
    assert template.fault_of(text, 10) == "filled the memory when it was tried"


def test_a_range_that_is_too_long_is_refused():
    with pytest.raises(RequestError, match="refused by the model's chat template"):
        Renderer(byte_tokenizer("{% for i in range(10 ** 12) %}{% endfor %}")).render(
            [{"role": "user", "content": "a"}]
        )


def test_a_template_that_ends_for_one_conversation_only_is_stopped(monkeypatch):
    text = "{{ messages[0].content }}{% if messages[0].content == 'go' %}" + ENDLESS["loops in loops"] + "{% endif %}"
    monkeypatch.setattr(template, "SECONDS", 1)
    renderer = Renderer(byte_tokenizer(text))
    assert renderer.render([{"role": "user", "content": "stay"}]).text == "stay"
    with pytest.raises(RequestError, match="did not end within 1 s for a conversation of 1 messages"):
        renderer.render([{"role": "user", "content": "go"}])
    assert renderer.render([{"role": "user", "content": "stay"}]).text == "stay"


def test_a_template_that_writes_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(template, "LONGEST", 1000)
    with pytest.raises(RequestError, match="wrote 5000 characters, and 1000 are most"):
        Renderer(byte_tokenizer("{% for i in range(5000) %}a{% endfor %}")).render([{"role": "user", "content": "a"}])


def test_a_sound_template_is_tried_once_and_costs_nothing_more(monkeypatch):
    template.fault_of.cache_clear()
    renderer = Renderer(byte_tokenizer())
    for _ in range(3):
        renderer.render([{"role": "user", "content": "a"}])
    assert template.fault_of.cache_info().misses == 1
    began = time.process_time()
    for _ in range(200):
        renderer.render([{"role": "user", "content": "a"}])
    assert time.process_time() - began < 4  # two renderings of some 0.1 ms each, and two clocks
    assert template.fault_of(CHAT_TEMPLATE, 10) == ""


@pytest.mark.parametrize(
    "text", ["{{ raise_exception('no') }}", "{{ nothing.at.all }}", "{% generation %}a{% endgeneration %}"]
)
def test_a_template_that_refuses_has_no_fault_of_this_kind(text):
    assert template.fault_of(text, 10) == ""
