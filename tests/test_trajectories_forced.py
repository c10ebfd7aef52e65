"""Forced answers in one pass against plain forward passes of the model's own code, one prefix at a time."""

from __future__ import annotations

import json
import math
import types
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from precollapse.errors import RequestError
from precollapse.studies import trajectories
from precollapse.studies.trajectories.answers import answer_forms, logprob_alone
from precollapse.tests.conftest import byte_tokenizer

VOCAB = 264
SMALL = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 258,
}  # fmt: skip
WINDOW = 24
FAMILIES = {
    "llama": (tf.LlamaConfig, SMALL),
    "mistral": (tf.MistralConfig, {**SMALL, "sliding_window": WINDOW}),
    "qwen2": (tf.Qwen2Config, {**SMALL, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}),
    "qwen3": (tf.Qwen3Config, {**SMALL, "head_dim": 8}),
    "gemma2": (tf.Gemma2Config, {**SMALL, "head_dim": 8, "sliding_window": WINDOW, "final_logit_softcapping": 4.0}),
    "gemma3": (tf.Gemma3TextConfig, {**SMALL, "head_dim": 8, "sliding_window": WINDOW}),
    "gpt2": (tf.GPT2Config, {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 512, "bos_token_id": 256, "eos_token_id": 257}),
    "phi3": (tf.Phi3Config, {**SMALL, "sliding_window": WINDOW}),
}  # fmt: skip
WITHOUT_TREE = {
    "bloom": (tf.BloomConfig, {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4}, "position_ids"),
    "falcon with alibi": (tf.FalconConfig, {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": True}, "ALiBi"),
    "mamba2": (tf.Mamba2Config, {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8}, "position_ids"),
}  # fmt: skip
PROMPT = "Which is it?\nA) the first\nB) the second\n"
CHAINS = [
    "Let me think. It is not the first, since 3.5 is more than 2! Is that so? Yes. Then it is the second.\n\nI am sure.",
    "No idea. Guess.",
]
OPTIONS = ("A", "B", "neither")


def small_model(config: Any, settings: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    model = tf.AutoModelForCausalLM.from_config(config(**settings)).eval()
    for p in model.parameters():
        if p.ndim > 1:
            p.data.normal_(0, 0.15)
    return types.SimpleNamespace(model=model, tokenizer=byte_tokenizer())


def plain_logprob(model: Any, context: list[int], sequence: list[int]) -> float:
    """log P(sequence | context) from one ordinary forward pass."""
    logits = model(input_ids=torch.tensor([context + sequence])).logits[0].double().log_softmax(-1)
    return float(sum(logits[len(context) - 1 + i, t] for i, t in enumerate(sequence)))


@torch.no_grad()
def separate(
    ex: Any, prompt: str, chain: str, boundaries: np.ndarray, anchor: str, answers: list[list[str]]
) -> np.ndarray:
    """Log-probability of each answer (a list of surface forms) after prompt + prefix + anchor, [k, answers]."""

    def encode(text: str) -> list[int]:
        return ex.tokenizer(text, add_special_tokens=False)["input_ids"]

    rows = []
    for count in boundaries:
        context = [*encode(prompt), *encode(chain)[:count], *encode(anchor)]
        forms = [[plain_logprob(ex.model, context, encode(form)) for form in group] for group in answers]
        rows.append([np.logaddexp.reduce(group) for group in forms])
    return np.array(rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_pass_equals_separate_passes(family):
    ex = small_model(*FAMILIES[family])
    found = trajectories.forced_answers(ex, [PROMPT] * 2, CHAINS, options=OPTIONS, candidates=[["42"], ["x", "y z"]])
    assert {f.method.name for f in found} == {"tree"}
    forms = [["A", " A"], ["B", " B"], ["neither", " neither"]]
    for f, chain, offered in zip(found, CHAINS, (["42"], ["x", "y z"]), strict=True):
        expected = separate(ex, PROMPT, chain, f.boundaries, trajectories.ANCHOR, forms)
        assert np.abs(f.option_logprobs - expected).max() < 1e-4
        wanted = separate(ex, PROMPT, chain, f.boundaries, trajectories.ANCHOR, [[" " + a] for a in offered])
        assert np.abs(f.candidate_logprobs - wanted).max() < 1e-4
        p = np.exp(expected - np.logaddexp.reduce(expected, axis=1, keepdims=True))
        assert np.allclose(f.entropy_nats, -(p * np.log(p)).sum(axis=1), atol=1e-4)
        assert np.allclose(f.option_mass, np.exp(expected).sum(axis=1), atol=1e-4)
        assert f.choice == tuple(OPTIONS[i] for i in expected.argmax(axis=1))
        ranked = np.sort(expected, axis=1)
        assert np.allclose(f.margin, ranked[:, -1] - ranked[:, -2], atol=2e-4)
    assert found[0].boundaries[0] == 0 and len(found[0].boundaries) == 7


def test_an_answer_that_another_begins_with_counts_only_what_does_not_go_on_to_it():
    ex = small_model(*FAMILIES["llama"])
    names = ("4", "42", "421", "7")
    (f,) = trajectories.forced_answers(ex, [PROMPT], CHAINS[:1], options=names)
    whole = np.exp(separate(ex, PROMPT, CHAINS[0], f.boundaries, trajectories.ANCHOR, [[x, " " + x] for x in names]))
    expected = np.stack([whole[:, 0] - whole[:, 1], whole[:, 1] - whole[:, 2], whole[:, 2], whole[:, 3]], axis=1)
    assert np.allclose(np.exp(f.option_logprobs), expected, rtol=1e-3)
    assert np.allclose(f.option_mass, whole[:, 0] + whole[:, 3], rtol=1e-3)  # any answer with 4, or 7
    (offered,) = trajectories.forced_answers(ex, [PROMPT], CHAINS[:1], options=None, candidates=[names])
    alone = np.exp(separate(ex, PROMPT, CHAINS[0], f.boundaries, trajectories.ANCHOR, [[" " + x] for x in names]))
    assert np.allclose(np.exp(offered.candidate_logprobs), alone, rtol=1e-3)  # sequences, as they are
    assert np.allclose(offered.option_mass, alone[:, 0] + alone[:, 3], rtol=1e-3)


def test_answers_that_begin_alike_exclude_each_other_when_the_model_is_sure():
    known = {(1,): math.log(0.8), (1, 2): math.log(0.8), (3,): math.log(0.2)}
    left = [math.exp(logprob_alone(form, known)) for form in known]
    assert left[0] < 1e-6 and left[1:] == pytest.approx([0.8, 0.2]) and sum(left) <= 1 + 1e-6


@pytest.mark.parametrize("family", ["llama", "gemma2", "mistral"])
def test_company_in_a_pass_changes_nothing(family):
    ex = small_model(*FAMILIES[family])
    alone = [trajectories.forced_answers(ex, [PROMPT], [c], options=OPTIONS)[0] for c in CHAINS]
    packed = trajectories.forced_answers(
        ex, [PROMPT] * 3, [CHAINS[1], CHAINS[0], CHAINS[1]], options=OPTIONS, tokens_per_pass=5000
    )
    assert len({f.tokens_run for f in packed}) == 1  # they did share a pass
    for f, own in zip(packed, (alone[1], alone[0], alone[1]), strict=True):
        assert np.abs(f.option_logprobs - own.option_logprobs).max() < 1e-4


@pytest.mark.parametrize("family", WITHOUT_TREE)
def test_families_without_a_tree_fall_back_say_so_and_are_right(family):
    config, settings, why = WITHOUT_TREE[family]
    ex = small_model(config, settings)
    found = trajectories.forced_answers(ex, [PROMPT], CHAINS[:1], options=("A", "B"))[0]
    assert found.method.name == "cache" and why in found.method.reason
    expected = separate(ex, PROMPT, CHAINS[0], found.boundaries, trajectories.ANCHOR, [["A"], ["B"]])
    assert np.abs(found.option_logprobs - expected).max() < 1e-4


def test_a_model_that_ignores_the_mask_is_found_out():
    """A backbone that drops the mask and positions still returns numbers; the probe must refuse the tree for it."""
    ex = small_model(*FAMILIES["llama"])
    forward = ex.model.model.forward

    def deaf(
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        use_cache=None,
        cache=None,
        **_rest,
    ):
        given = {k: v for k, v in {"past_key_values": past_key_values, "cache": cache}.items() if v is not None}
        return forward(input_ids=input_ids, use_cache=use_cache, **given)

    ex.model.model.forward = deaf
    found = trajectories.forced_answers(ex, [PROMPT], CHAINS[:1], options=("A", "B"))[0]
    assert found.method.name == "cache" and "differ" in found.method.reason
    expected = separate(ex, PROMPT, CHAINS[0], found.boundaries, trajectories.ANCHOR, [["A"], ["B"]])
    assert np.abs(found.option_logprobs - expected).max() < 1e-4


def test_residual_rows_are_those_of_separate_passes():
    ex = small_model(*FAMILIES["gemma3"])
    found = trajectories.forced_answers(ex, [PROMPT], CHAINS[:1], options=("A", "B"), residual=True)[0]
    tokens = ex.tokenizer(PROMPT, add_special_tokens=False)["input_ids"]
    chain = ex.tokenizer(CHAINS[0], add_special_tokens=False)["input_ids"]
    anchor = ex.tokenizer(trajectories.ANCHOR, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        for k, count in enumerate(found.boundaries):
            for rows, text in (
                (found.resid_boundary, tokens + chain[:count]),
                (found.resid_answer, tokens + chain[:count] + anchor),
            ):
                states = ex.model(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states
                for layer in range(3):  # the last hidden state is taken after the final norm
                    assert np.allclose(rows[k, layer], states[layer + 1][0, -1], atol=1e-4)
    assert found.resid_boundary.shape == (len(found.boundaries), 4, 32)


def test_wordings_share_a_pass_and_equal_their_own():
    ex = small_model(*FAMILIES["llama"])
    anchors = trajectories.ANCHOR_PARAPHRASES[:3]
    together = trajectories.forced_under_anchors(ex, [PROMPT], CHAINS[:1], anchors, options=("A", "B"))[0]
    for anchor, found in zip(anchors, together, strict=True):
        own = trajectories.forced_answers(ex, [PROMPT], CHAINS[:1], anchor=anchor, options=("A", "B"))[0]
        assert np.abs(found.option_logprobs - own.option_logprobs).max() < 1e-4


def test_end_of_thinking_tag_goes_where_asked():
    ex = small_model(*FAMILIES["llama"])
    for side, text in (("before", "</think>" + trajectories.ANCHOR), ("after", trajectories.ANCHOR + "</think>")):
        found = trajectories.forced_answers(
            ex, [PROMPT], CHAINS[:1], options=("A", "B"), end_tag="</think>", tag_side=side
        )[0]
        expected = separate(ex, PROMPT, CHAINS[0], found.boundaries, text, [["A"], ["B"]])
        assert np.abs(found.option_logprobs - expected).max() < 1e-4


def test_generated_ids_and_given_boundaries_are_taken_as_they_are():
    ex = small_model(*FAMILIES["llama"])
    ids = ex.tokenizer(CHAINS[0], add_special_tokens=False)["input_ids"]
    found = trajectories.forced_answers(ex, [PROMPT], [ids], options=("A", "B"), boundaries=[[3, 10, len(ids)]])[0]
    expected = separate(ex, PROMPT, CHAINS[0], np.array([3, 10, len(ids)]), trajectories.ANCHOR, [["A"], ["B"]])
    assert np.abs(found.option_logprobs - expected).max() < 1e-4
    with pytest.raises(RequestError, match="ascend"):
        trajectories.forced_answers(ex, [PROMPT], [ids], options=("A", "B"), boundaries=[[3, len(ids) + 1]])


def test_one_token_options_are_scored_by_all_their_one_token_forms(embedded):
    forms = answer_forms(embedded.tokenizer, ("A", "B"))
    assert [len(group) for group in forms.forms] == [2, 2] and forms.longest == 1  # "A" and " A"
    longer = answer_forms(embedded.tokenizer, ("yes", "absolutely not"))
    assert longer.longest > 1 and len(longer.forms[0]) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": "paragraph"}, "rule"),
        ({"options": ("A",)}, "two different"),
        ({"options": ("A", "A")}, "two different"),
        ({"anchor": ""}, "anchor"),
        ({"tag_side": "inside", "end_tag": "x"}, "before or after"),
        ({"chains": CHAINS}, "1 prompts but 2 chains"),
        ({"chains": ["word " * 200]}, "positions"),
        ({"method": "fast"}, "method"),
    ],
)
def test_bad_requests_are_refused_before_any_work(change, message):
    ex = small_model(*FAMILIES["llama"])
    ex.model.model.layers[0].register_forward_hook(lambda *_: pytest.fail("the model was run"))
    request = {"prompts": [PROMPT], "chains": CHAINS[:1], "options": ("A", "B"), **change}
    with pytest.raises(RequestError, match=message):
        trajectories.forced_answers(ex, **request)


def test_no_hook_stays_behind():
    ex = small_model(*FAMILIES["llama"])
    trajectories.forced_answers(ex, [PROMPT], CHAINS[:1], options=("A", "B"), residual=True)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in ex.model.modules())


def test_real_chains_of_the_embedded_model(embedded, shared_data):
    """Two chains of unlike length in one call; of the longer one the end alone, as each number is a pass of its own."""
    rows = [json.loads(line) for line in (shared_data / "gsm8k.jsonl").read_text().splitlines()[:2]]
    prompts, chains = [r["question"] for r in rows], [r["answer"] for r in rows]
    found = trajectories.forced_answers(embedded, prompts, chains, options=("A", "B"), candidates=[["18"], ["3 bolts"]])
    for i, answer, picked in ((0, "18", [-1]), (1, "3 bolts", [0, -1])):
        f, at = found[i], found[i].boundaries[picked]
        expected = separate(embedded, prompts[i], chains[i], at, trajectories.ANCHOR, [[x, " " + x] for x in "AB"])
        assert np.abs(f.option_logprobs[picked] - expected).max() < 1e-4
        wanted = separate(embedded, prompts[i], chains[i], at, trajectories.ANCHOR, [[" " + answer]])
        assert np.abs(f.candidate_logprobs[picked] - wanted).max() < 1e-4
