"""Rotary embeddings that depend on the batch's length: each prompt as it is alone, whatever runs beside it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from precollapse.hooks import Extractor, Steering
from precollapse.hooks.decoding.greedy import continue_greedily
from precollapse.hooks.decoding.rotary import LengthRule, length_rule, together
from precollapse.hooks.decoding.tree import Row, Segment, method_for, run
from precollapse.perf.small_models import VOCABULARY, small_model, small_tokenizer

LIMIT = 16
PROMPTS = ["a" * 3, "0123456789abcdef", "0123456789abcdefg", "the quick brown fox jumps", "xyz", "0123456789abcd"]


def longrope(dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        "phi3",
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        original_max_position_embeddings=LIMIT,
        initializer_range=0.15,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0, 1.5, 2.0, 2.5],
            "long_factor": [3.0, 4.0, 5.0, 8.0],
            "original_max_position_embeddings": LIMIT,
        },
    )
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval().requires_grad_(False)


def alone(model: Any, ids: tuple[int, ...]) -> Any:
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)


@pytest.mark.parametrize("share_prefix", ["never", "always"])
def test_a_long_prompt_does_not_turn_the_short_ones(share_prefix: str) -> None:
    model = longrope()
    ex = Extractor(model, small_tokenizer(), check=False, share_prefix=share_prefix)
    for options in ({}, {"attention": "rows"}):
        states = ex.capture(PROMPTS, sites=("resid_post", "final_norm"), **options)
        for i, ids in enumerate(states.token_ids):
            hidden = alone(model, ids).hidden_states
            torch.testing.assert_close(states.resid_post[i, 0], hidden[1][0, -1])
            torch.testing.assert_close(states.final_norm[i], hidden[-1][0, -1])
    shared = states.manifest["passes"]["shared_prefixes"]
    assert shared == ([{"tokens": 13, "prompts": 2}] if share_prefix == "always" else [])


@pytest.mark.parametrize("steered", [None, "prompt", "boundary", "generated", "response", "all"])
def test_generation_across_the_limit_equals_generation_without_a_cache(steered: str | None) -> None:
    model = longrope(seed=3)
    ex = Extractor(model, small_tokenizer())
    assert ex.gate_report is not None and ex.gate_report.left_padding_safe, "else only equal lengths go together anyway"
    v, scale = torch.randn(32, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 6, 1.0
    steering = None if steered is None else Steering("resid_post", 0, v, scale, steered)
    columns = {
        "prompt": lambda n, t: slice(0, n),
        "boundary": lambda n, t: slice(n - 1, n),
        "generated": lambda n, t: slice(n, t),
        "response": lambda n, t: slice(n - 1, t),
        "all": lambda n, t: slice(0, t),
    }
    written = {}

    def generate() -> None:
        for captured in ex.stream(ex.render(PROMPTS), keep_cache=True):
            for row, out in zip(captured.batch.rows, continue_greedily(model, ex.tokenizer, captured, 16), strict=True):
                written[row] = list(out.token_ids)

    if steering is None:
        generate()
    else:
        with steering.on(ex):
            generate()
    for i, r in enumerate(ex.render(PROMPTS)):
        ids, n, expected = list(r.token_ids), len(r.token_ids), []
        handle = None
        if steered is not None:

            def change(_m: Any, _a: Any, out: torch.Tensor, n: int = n) -> torch.Tensor:
                out = out.clone()
                out[:, columns[steered](n, out.shape[1])] += v
                return out

            handle = model.model.layers[0].register_forward_hook(change)
        for _ in range(16):
            token = int(alone(model, tuple(ids)).logits[0, -1].argmax())
            if token == 2:
                break
            expected.append(token)
            ids.append(token)
        if handle is not None:
            handle.remove()
        assert written[i] == expected, i


def test_compiled_captures_run_plainly_and_say_so() -> None:
    model = longrope(torch.float32)
    states = Extractor(model, small_tokenizer(), check=False, compile="eager").capture(PROMPTS)
    assert "rotary embedding depends on the length" in states.manifest["passes"]["not_compiled"]


def test_forced_answers_of_such_a_model_run_each_text_by_itself() -> None:
    """A tree of texts on both sides of the limit would turn the short ones as it turns the longest."""
    model = longrope(torch.float32)
    method = method_for(model)
    assert method.name == "separate" and "length of the whole text" in (method.reason or "")
    segments = [Segment(tuple(range(5, 15))), Segment((20, 21), 0, 3), Segment(tuple(range(30, 42)), 0, 9)]
    rows = [Row(1, 1), Row(2, 11)]
    found = run(model, segments, rows).final
    for got, ids in zip(found, [(5, 6, 7, 20, 21), (*range(5, 14), *range(30, 42))], strict=True):
        torch.testing.assert_close(got, alone(model, ids).hidden_states[-1][0, -1], rtol=1e-4, atol=1e-5)


def test_which_prompts_go_together() -> None:
    lengths = [5, 16, 17, 30, 5]
    assert together(None, lengths, True) == [[0, 1, 2, 3, 4]]
    longrope_rule = LengthRule("longrope", 16)
    assert together(longrope_rule, lengths, False) == [[0, 1, 4], [2, 3]]
    assert together(longrope_rule, lengths, True) == [[0, 4], [1], [2, 3]]
    dynamic = LengthRule("dynamic", 16)
    assert together(dynamic, lengths, False) == [[0, 1, 4], [2], [3]]
    assert together(dynamic, lengths, True) == [[0, 4], [1], [2], [3]]


def test_rules_are_read_from_configs() -> None:
    assert length_rule(longrope().config) == LengthRule("longrope", LIMIT)
    assert length_rule(small_model("llama").config) is None
    assert length_rule(small_model("gemma3").config) is None, "rope parameters per kind of layer"
    config = AutoConfig.for_model(
        "llama", max_position_embeddings=64, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    )
    assert length_rule(config) == LengthRule("dynamic", 64)
