"""The one measure of "the same", and the one probe that lets a fast way of running a model be taken or left."""

from __future__ import annotations

import math

import pytest
import torch

from precollapse.hooks.decoding import tree
from precollapse.hooks.decoding.continuations import decoding_for
from precollapse.hooks.decoding.probe import Way, choose, remembered, sample_tokens
from precollapse.hooks.decoding.tree import method_for
from precollapse.hooks.differences import LIMITS, largest, limits, relative_difference
from precollapse.perf.small_models import small_model

PLAIN = torch.randn(4, 32, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1.0], [1.0], [1e-3], [1.0]])
WRONG = PLAIN * torch.tensor([[1.0], [1.0], [1.5], [1.0]])
"""Half as large again in a row that is a thousandth of the others: 0.0005 of the largest value of all."""


def test_a_small_row_is_measured_by_itself():
    assert float((WRONG - PLAIN).abs().max() / PLAIN.abs().max()) < 1e-3
    assert relative_difference(WRONG, PLAIN) == pytest.approx(0.5, rel=1e-6)


def test_differences_are_taken_in_float64():
    a, b = torch.tensor([[1.0, 1000.0]], dtype=torch.float16), torch.tensor([[1.0, 1001.0]], dtype=torch.float16)
    assert relative_difference(a, b) == 1 / 1001


def test_what_is_not_a_number_is_no_agreement():
    bad = PLAIN.clone()
    bad[1, 3] = math.nan
    for pair in ((bad, PLAIN), (PLAIN, bad)):
        assert math.isnan(relative_difference(*pair))
        assert math.isnan(largest([0.0, relative_difference(*pair), 1.0]))
    assert math.isnan(largest([]))
    assert choose([Way("fast", "it", lambda: [bad])], lambda: [PLAIN], "plain", torch.float32).name == "plain"


def test_every_dtype_has_its_limits_and_wider_ones_are_no_looser():
    ordered = [LIMITS[dtype] for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)]
    for narrow, wide in zip(ordered[1:], ordered, strict=False):
        assert wide.states < narrow.states <= narrow.compiled_states and wide.entropy_bits < narrow.entropy_bits
    assert limits("bfloat16") == LIMITS[torch.bfloat16]


def test_the_first_way_that_is_right_is_taken_and_the_others_reasons_are_said():
    def broken() -> list[torch.Tensor]:
        raise ValueError("no such cache\nat all")

    plain_passes = []

    def plain() -> list[torch.Tensor]:
        plain_passes.append(1)
        return [PLAIN]

    ways = [
        Way("never", "it", broken, "it takes no mask"),
        Way("broken", "the second way", broken),
        Way("wrong", "the third way", lambda: [WRONG]),
        Way("right", "the last way", lambda: [PLAIN]),
    ]
    method = choose(ways, plain, "plain", torch.float32)
    assert method.name == "right" and method.error == 0 and len(plain_passes) == 1
    assert method.reason == (
        "it takes no mask; the second way failed in the model's own code (ValueError: no such cache); "
        "the third way gave states that differ by 0.5 from those of plain passes"
    )
    assert choose(ways[:3], plain, "plain", torch.float32).name == "plain"
    assert choose(ways[-1:], plain, "plain", torch.float32).reason is None
    choose(ways[:1], lambda: pytest.fail("nothing is to be compared"), "plain", torch.float32)


def test_a_tree_that_is_wrong_at_a_small_state_only_is_not_taken(monkeypatch):
    """Held to the largest value of all states, as it once was, the wrong state passed."""
    for name, final in (("tree", WRONG), ("cache", PLAIN)):
        monkeypatch.setitem(tree._RUNNERS, name, lambda *_, final=final: tree.TreeStates(final, None, 0))
    monkeypatch.setattr(tree, "run_separately", lambda *_: tree.TreeStates(PLAIN, None, 0))
    method = method_for(small_model("llama"))
    assert method.name == "cache" and "differ by 0.5" in (method.reason or "")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt2", "qwen3", "olmo2"])
def test_sound_families_run_as_a_tree_in_every_dtype(family, dtype):
    method = method_for(small_model(family, dtype=dtype))
    assert method.name == "tree" and method.error < limits(dtype).states / 2


def test_a_hook_of_someone_elses_is_right_on_whole_texts_only():
    model = small_model("llama")
    handle = model.model.layers[0].register_forward_hook(lambda *_: None)
    assert method_for(model).name == "separate" and decoding_for(model).name == "whole"
    assert "has a hook of someone else's" in (method_for(model).reason or "")
    handle.remove()
    assert method_for(model).name == "tree" and decoding_for(model).name == "shared"


def test_answers_are_kept_for_each_attention_implementation():
    model, answers = small_model("llama"), iter(("first", "second"))
    for _ in range(2):
        assert remembered(model, ("question",), lambda: next(answers)) == "first"
    model.config._attn_implementation = "eager"
    assert remembered(model, ("question",), lambda: next(answers)) == "second"


def test_the_probe_is_longer_than_a_short_window_and_fits_the_context():
    assert len(sample_tokens(small_model("mistral"))[0]) > small_model("mistral").config.sliding_window + 8
    model = small_model("llama")
    model.config.max_position_embeddings = 20
    text, rest = sample_tokens(model, 5)
    assert len(text) == 12 and len(rest) == 5


@pytest.mark.parametrize("family", ["bloom", "jamba", "mamba"])
def test_what_is_wrong_in_float32_is_not_taken_for_rounding_in_16_bits(family):
    """Reusing their caches is off by 0.02 to 0.07, which bfloat16 alone may be."""
    for dtype in (torch.bfloat16, torch.float16):
        assert method_for(small_model(family, dtype=dtype)).name == "separate"
    if family != "bloom":  # of which that is so under sdpa alone
        assert method_for(small_model(family)).name == "separate"
