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


ONE_STEP = {
    "a width by JSON": "{{ messages | tojson(indent=10 ** 10) }}",
    "a list by batches": "{{ [1] | batch(10000000000000, 0) | list }}",
    "a power by rounding": "{{ (messages | length) | round(9000000000, 'ceil') }}",
    "a format by name": "{% set form = '%100000000000d' %}{{ form % 1 }}",
    "a power": "{% set x = (messages | length + 8) ** (9 ** 9) %}",
    "a text times a number": "{{ 'a' * 10 ** 12 }}",
    "a list times a number": "{{ ([1] * 10 ** 11) | length }}",
    "a width": "{{ 'a'.ljust(10 ** 11) }}",
    "a width by filter": "{{ 'a' | center(10 ** 11) }}",
    "a width by format": "{{ '%100000000000d' % 1 }}",
    "a width by index": "{{ 'a'['zfill'](10 ** 11) }}",
    "doubling": "{% set n = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "replacing": "{% set n = namespace(s='aa') %}{% for i in range(60) %}{% set n.s = n.s.replace('a', 'aa') %}{% endfor %}",
    "joining": "{% set n = namespace(s='aa') %}{% for i in range(60) %}{% set n.s = n.s | join(n.s) %}{% endfor %}",
}


@pytest.mark.parametrize("step", ONE_STEP.values(), ids=ONE_STEP)
def test_a_single_step_that_does_not_end_for_one_conversation_is_stopped(monkeypatch, step):
    """No clock stops it where it runs, so that each conversation is tried in a process of its own."""
    monkeypatch.setattr(template, "SECONDS", 1)
    renderer = Renderer(
        byte_tokenizer("{{ messages[0].content }}{% if messages[0].content == 'go' %}" + step + "{% endif %}")
    )
    assert renderer.render([{"role": "user", "content": "stay"}]).text == "stay"
    with pytest.raises(RequestError, match="did not end|filled the memory|wrote"):
        renderer.render([{"role": "user", "content": "go"}])


def test_plain_templates_need_no_trial_of_each_conversation():
    from precollapse.hooks.prompts.template_steps import has_unbounded_steps

    assert not has_unbounded_steps(CHAT_TEMPLATE)
    assert not has_unbounded_steps(
        "{% for m in messages %}{% if loop.index0 % 2 %}{{ m.content | trim ~ eos_token }}{% endif %}{% endfor %}"
    )
    assert not has_unbounded_steps(
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    )
