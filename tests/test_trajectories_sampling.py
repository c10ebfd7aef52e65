"""Sampled continuations against the model's own forward passes, one token at a time."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch
import transformers as tf

from precollapse.errors import RequestError
from precollapse.hooks.decoding.continuations import crosses, decoding_for
from precollapse.hooks.decoding.trunks import Origin
from precollapse.studies.trajectories import chains
from precollapse.tests.conftest import byte_tokenizer

VOCAB, END = 264, 257
SMALL = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 256, "eos_token_id": END, "pad_token_id": 258,
}  # fmt: skip
SHARED = {
    "llama": (tf.LlamaConfig, SMALL),
    "mistral": (tf.MistralConfig, {**SMALL, "sliding_window": 16}),
    "gemma2": (tf.Gemma2Config, {**SMALL, "head_dim": 8, "sliding_window": 16, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}),
    "gemma3": (tf.Gemma3TextConfig, {**SMALL, "head_dim": 8, "sliding_window": 16}),
    "gpt2": (tf.GPT2Config, {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256, "bos_token_id": 256, "eos_token_id": END}),
    "gpt_oss": (tf.GptOssConfig, {**SMALL, "head_dim": 8, "sliding_window": 16, "num_local_experts": 4, "num_experts_per_tok": 2}),
}  # fmt: skip
COPIED = {
    "bloom": (tf.BloomConfig, {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4, "eos_token_id": END}),
    "mamba2": (tf.Mamba2Config, {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8, "eos_token_id": END}),
}  # fmt: skip


def small(config, settings):
    torch.manual_seed(0)
    model = tf.AutoModelForCausalLM.from_config(config(**settings)).eval()
    for p in model.parameters():
        if p.ndim > 1:
            p.data.normal_(0, 0.15)
    return types.SimpleNamespace(model=model, tokenizer=byte_tokenizer())


@pytest.fixture(scope="module")
def trunks() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 250, n).tolist() for n in (60, 35)]


@torch.no_grad()
def by_hand(
    model, context: list[int], uniforms: np.ndarray, temperature: float, budget: int, nearest: list[float] | None = None
) -> tuple[tuple[int, ...], str]:
    """The inverse-CDF draw with full forward passes of the whole text; `nearest` gets how far each draw was from another token."""
    written: list[int] = []
    for i in range(budget):
        logits = model(input_ids=torch.tensor([context + written])).logits[0, -1].double()
        if temperature == 0:
            token = int(logits.argmax())
        else:
            cumulative = (logits / temperature).softmax(-1).cumsum(-1)
            token = int((cumulative <= uniforms[i] * cumulative[-1]).sum())
            if nearest is not None:
                nearest.append(float((cumulative - uniforms[i] * cumulative[-1]).abs().min()))
        if token == END:
            return tuple(written), "stop"
        written.append(token)
    return tuple(written), "length"


@pytest.mark.parametrize("family", [*SHARED, *COPIED])
def test_continuations_are_those_of_plain_decoding(family, trunks):
    ex = small(*(SHARED | COPIED)[family])
    assert decoding_for(ex.model).name == ("shared" if family in SHARED else "copies")
    prefixes, ties = [[5, 40, 60], [35]], 0
    found = chains.sample_continuations(ex, trunks, prefixes, ["x", "y"], samples=2, max_new_tokens=12, seed=3)
    for trunk, lengths, item, of_trunk in zip(trunks, prefixes, "xy", found, strict=True):
        for k, (length, row) in enumerate(zip(lengths, of_trunk, strict=True)):
            for s, c in enumerate(row):
                u, nearest = chains.uniforms(3, item, k, s, 12), []
                tokens, finish = by_hand(ex.model, trunk[:length], u, 0.7, 12, nearest)
                tie = next((i for i, gap in enumerate(nearest) if gap < 1e-7), None)  # rounding decides such a draw
                assert c.tokens[:tie] == tokens[:tie] and (tie is not None or c.finish == finish)
                ties += tie is not None
    assert ties <= 1


LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 40,
    "short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [3.0, 4.0, 5.0, 8.0],
}  # fmt: skip


@pytest.mark.parametrize(
    ("prefixes", "across"),
    [([[5, 38, 60], [35]], True), ([[45, 60]], False), ([[5, 20]], True), ([[45], [20]], True)],
    ids=["across", "beyond", "of a long chain", "on both sides"],
)
def test_continuations_across_the_length_at_which_a_rotary_embedding_changes(prefixes, across, trunks):
    """LongRoPE: keys of a prefix up to the limit are not those of the same tokens in a longer text."""
    settings = {**SMALL, "original_max_position_embeddings": 40, "rope_parameters": LONGROPE}
    ex, used = small(tf.Phi3Config, settings), trunks[: len(prefixes)]
    origins = [Origin(i, n) for i, own in enumerate(prefixes) for n in own]
    assert crosses(ex.model, used, origins, 12) == across
    assert not crosses(ex.model, [t[:20] for t in used], [Origin(0, 20)], 20)
    found = chains.sample_continuations(ex, used, prefixes, "xy"[: len(used)], samples=2, max_new_tokens=12, seed=3)
    for trunk, lengths, item, of_trunk in zip(used, prefixes, "xy", found, strict=False):
        for k, (length, row) in enumerate(zip(lengths, of_trunk, strict=True)):
            for sample, c in enumerate(row):
                u = chains.uniforms(3, item, k, sample, 12)
                assert (c.tokens, c.finish) == by_hand(ex.model, trunk[:length], u, 0.7, 12)


def test_company_order_and_budget_do_not_change_a_draw(trunks):
    ex = small(*SHARED["llama"])
    both = chains.sample_continuations(ex, trunks, [[10, 60], [20]], ["x", "y"], samples=3, max_new_tokens=20)
    alone = chains.sample_continuations(ex, trunks[1:], [[20]], ["y"], samples=3, max_new_tokens=20)
    assert both[1] == alone[0]
    shorter = chains.sample_continuations(ex, trunks[1:], [[20]], ["y"], samples=2, max_new_tokens=8)
    assert [c.tokens for c in shorter[0][0]] == [c.tokens[:8] for c in alone[0][0][:2]]
    assert len({c.tokens for c in alone[0][0]}) == 3  # samples do differ


def test_draws_follow_the_distribution(trunks):
    ex = small(*SHARED["llama"])
    found = chains.sample_continuations(ex, trunks[:1], [[30]], ["z"], samples=1500, max_new_tokens=1, temperature=1.0)
    first = [c.tokens[0] if c.tokens else END for c in found[0][0]]
    with torch.no_grad():
        p = ex.model(input_ids=torch.tensor([trunks[0][:30]])).logits[0, -1].double().softmax(-1).numpy()
    observed = np.bincount(first, minlength=VOCAB) / len(first)
    assert 0.5 * np.abs(observed - p).sum() < 1.2 * 0.5 * np.sqrt(2 * p * (1 - p) / (np.pi * 1500)).sum() * 1.5


def test_greedy_chains_equal_the_librarys_own_generate(trunks):
    ex = small(*SHARED["llama"])
    found = chains.generate_chains(ex, trunks, ["x", "y"], temperature=0, max_new_tokens=25)
    for trunk, c in zip(trunks, found, strict=True):
        ids = torch.tensor([trunk])
        expected = ex.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=25)[
            0, len(trunk) :
        ].tolist()
        if END in expected:
            expected = expected[: expected.index(END)]
        assert list(c.tokens) == expected
        assert c.truncated == (len(c.tokens) == 25)


def test_configuration_is_put_back_even_after_an_error(trunks):
    ex = small(*SHARED["llama"])
    before = ex.model.config._attn_implementation
    chains.sample_continuations(ex, trunks, [[5], [5]], ["x", "y"], samples=1, max_new_tokens=2)
    handle = ex.model.model.layers[1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        chains.sample_continuations(ex, trunks, [[5], [5]], ["x", "y"], samples=1, max_new_tokens=2)
    handle.remove()
    assert ex.model.config._attn_implementation == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 0}, "m, the number"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"max_new_tokens": 0}, "budget"),
    ],
)
def test_bad_sampling_is_refused(change, message, trunks):
    ex = small(*SHARED["llama"])
    with pytest.raises(RequestError, match=message):
        chains.sample_continuations(ex, trunks, [[5], [5]], ["x", "y"], **change)
