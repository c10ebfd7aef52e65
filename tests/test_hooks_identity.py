"""The model as it is now: whatever was changed after the extractor was made is seen, and held to the model's own logits again."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch
from torch import nn

from precollapse import Extractor
from precollapse.errors import CaptureError, RequestError
from precollapse.hooks import Steering
from precollapse.perf.small_models import small_model, small_tokenizer

PROMPTS = ["Is it so?", "The quick brown fox", "12 + 34 =", "a"]


def right(ex):
    """Entropies, top tokens and last block's states equal those of the model's own pass, one prompt at a time."""
    states = ex.capture(PROMPTS)
    for i, ids in enumerate(states.token_ids):
        with torch.no_grad():
            output = ex.model(input_ids=torch.tensor([list(ids)]), use_cache=False)
        log_p = output.logits[0, -1].double().log_softmax(-1)
        assert states.entropy_bits[i] == pytest.approx(float(-(log_p.exp() * log_p).sum() / np.log(2)), abs=1e-4)
        assert states.top_ids[i][0] == int(log_p.argmax())
    return states


class Scaled(nn.Module):
    """A block in another module."""

    def __init__(self, block, by):
        super().__init__()
        self.block, self.by = block, by

    def forward(self, *args, **kwargs):
        return self.block(*args, **kwargs) * self.by

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("block"), name)


def wider_head(model):
    model.lm_head = nn.Linear(32, model.config.vocab_size, bias=True).requires_grad_(False)
    nn.init.normal_(model.lm_head.weight, std=0.3)


def other_norm(model):
    model.model.norm = nn.LayerNorm(32).requires_grad_(False)


def untied(model):
    model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.3, requires_grad=False)


def own_forward(model):
    mlp = model.model.layers[0].mlp
    plain = type(mlp).forward
    mlp.forward = types.MethodType(lambda self, x: plain(self, x) * 1.5, mlp)


def hook(model):
    model.model.layers[0].register_forward_hook(lambda module, args, output: output * 1.5)


def head_hook(model):
    model.lm_head.register_forward_hook(lambda module, args, output: output * 2)


CHANGES = {
    "another head, with a bias": wider_head,
    "a resized embedding": lambda model: model.resize_token_embeddings(model.config.vocab_size + 41),
    "a head untied": untied,
    "a wrapped block": lambda model: model.model.layers.__setitem__(
        1, Scaled(small_model("llama").model.layers[0], 1.0)
    ),
    "a block exchanged": lambda model: model.model.layers.__setitem__(0, small_model("llama").model.layers[1]),
    "another final norm": other_norm,
    "a forward of its own": own_forward,
    "a hook that changes a block's output": hook,
    "a hook that changes the logits": head_hook,
    "another dtype": lambda model: model.double(),
    "a submodule set by name": lambda model: model.set_submodule(
        "model.layers.0.mlp", nn.Sequential(nn.Linear(32, 32))
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_construction_is_seen(change):
    torch.manual_seed(0)
    ex = Extractor(small_model("llama"), small_tokenizer())
    before = right(ex)
    with torch.no_grad():
        CHANGES[change](ex.model)
    assert np.abs(right(ex).entropy_bits - before.entropy_bits).max() > (1e-9 if change == "another dtype" else 1e-3)


@pytest.mark.parametrize("wrap", [True, False])
def test_a_block_whose_parts_add_up_no_more_is_refused(wrap):
    ex = Extractor(small_model("llama"), small_tokenizer())
    right(ex)
    block = ex.model.model.layers[1]
    if wrap:
        ex.model.model.layers[1] = Scaled(block, 1.5)
    else:
        plain = type(block).forward
        block.forward = types.MethodType(lambda self, *a, **k: plain(self, *a, **k) * 1.5, block)
    with pytest.raises(CaptureError, match="after the model was changed: .*sum of resid_pre, attn_out and mlp_out"):
        ex.capture(PROMPTS)


def test_a_softcap_that_is_set_later_is_applied_and_kept_in_the_manifest():
    ex = Extractor(small_model("gemma2"), small_tokenizer())
    right(ex)
    ex.model.config.final_logit_softcapping = 0.5
    assert right(ex).manifest["changed_after_loading"] is True


def test_a_change_that_cannot_be_read_is_refused_and_gives_no_numbers():
    ex = Extractor(small_model("llama"), small_tokenizer())
    plain = type(ex.model).forward

    def doubled(self, *args, **kwargs):
        output = plain(self, *args, **kwargs)
        output.logits = output.logits * 2
        return output

    ex.model.forward = types.MethodType(doubled, ex.model)
    for _ in range(2):
        with pytest.raises(CaptureError, match="logits .* differ from the model's own|entropy of the fused"):
            ex.capture(PROMPTS)
    del ex.model.forward
    right(ex)


def test_an_unchanged_model_is_checked_once(monkeypatch):
    ex = Extractor(small_model("llama"), small_tokenizer())
    monkeypatch.setattr("precollapse.hooks.extractor.checked", lambda *a: pytest.fail("the model was not changed"))
    with torch.no_grad():
        ex.model.model.layers[0].mlp.down_proj.weight.mul_(3)
    right(ex)
    assert "changed_after_loading" not in ex.manifest()


def test_adapters_put_on_and_merged_are_seen():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = small_model("llama")
    ex = Extractor(model, small_tokenizer())
    before = right(ex)
    adapted = peft.inject_adapter_in_model(
        peft.LoraConfig(target_modules=["q_proj", "down_proj"], init_lora_weights=False), model
    )
    assert adapted is model and np.abs(right(ex).entropy_bits - before.entropy_bits).max() > 1e-3


# --- the check at load --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_order_of_tokens_that_entropy_does_not_see_is_refused(dtype):
    """Logits of the head's rows in another order have the same entropy and another top token."""
    model = small_model("llama", dtype=dtype)
    plain = type(model).forward

    def turned(self, *args, **kwargs):
        output = plain(self, *args, **kwargs)
        output.logits = output.logits.roll(1, -1)
        return output

    model.forward = types.MethodType(turned, model)
    with pytest.raises(CaptureError, match="logits .* differ from the model's own"):
        Extractor(model, small_tokenizer())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_between_backbone_and_unembedding_is_run(dtype):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    size = dict(
        hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, initializer_range=0.15
    )
    special = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, vocab_size=99, tie_word_embeddings=False)
    config = AutoConfig.for_model("modernbert-decoder", max_position_embeddings=256, **size, **special)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    ex = Extractor(model, small_tokenizer())
    states = ex.capture(PROMPTS)
    for i, ids in enumerate(states.token_ids):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -1].double()
        assert (
            logits.max() - logits[int(states.top_ids[i][0])]
            <= (2e-2 if dtype is torch.bfloat16 else 1e-5) * logits.abs().max()
        )


# --- other objects ------------------------------------------------------------------------------------------------------


def test_a_token_that_the_model_lacks_is_named():
    tokenizer = small_tokenizer()
    tokenizer.add_tokens(["<new>"])
    ex = Extractor(small_model("llama"), tokenizer)
    with pytest.raises(RequestError, match="resize_token_embeddings"):
        ex.capture(["a", "a<new>"])
    ex.model.resize_token_embeddings(len(tokenizer))
    assert len(ex.capture(["a", "a<new>"])) == 2


def test_a_plain_nnsight_wrapper_gives_the_same_states():
    nnsight = pytest.importorskip("nnsight")
    model = small_model("llama")
    plain = Extractor(model, small_tokenizer()).capture(PROMPTS)
    states = Extractor(nnsight.NNsight(model), small_tokenizer()).capture(PROMPTS)
    torch.testing.assert_close(states.resid_post, plain.resid_post)


def test_a_model_whose_weights_lie_on_disk_gives_the_same_states(tmp_path):
    from transformers import AutoModelForCausalLM

    model = small_model("llama")
    model.save_pretrained(tmp_path / "m")
    plain = Extractor(model, small_tokenizer()).capture(PROMPTS)
    placed = {"model.embed_tokens": "disk", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "disk"}
    for places in ({"": "disk"}, {**placed, "model.rotary_emb": "cpu", "lm_head": "disk"}):
        lazy = AutoModelForCausalLM.from_pretrained(
            tmp_path / "m", device_map=places, offload_folder=str(tmp_path / "off"), dtype=torch.float32
        )
        states = Extractor(lazy, small_tokenizer()).capture(PROMPTS)
        torch.testing.assert_close(states.resid_post, plain.resid_post)
        np.testing.assert_allclose(states.entropy_bits, plain.entropy_bits, atol=1e-5)


# --- steering beside massive channels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["add", "ablate", "project", "replace"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3", "granite", "olmo2"])
def test_parts_add_up_under_every_mode_with_a_massive_channel(family, mode):
    """resid_mid + mlp_out = resid_post in bfloat16, where one channel is 500 before and near 0 after the change."""
    model = small_model(family, dtype=torch.bfloat16)
    with torch.no_grad():
        model.get_input_embeddings().weight[:, 3] = 500.0 / (getattr(model.config, "embedding_multiplier", None) or 1.0)
    ex = Extractor(model, small_tokenizer(), check=False)
    if "resid_mid" not in ex.backend.sites or "mlp_out" not in ex.backend.sites:
        pytest.skip("this family has no such sites")
    base = ex.capture(PROMPTS[0], sites=("resid_mid",), layers=[1]).resid_mid[0, 0].float()
    vector = torch.full((32,), 0.25) if mode == "replace" else -base if mode == "add" else base
    if mode == "project":
        vector = torch.ones(32).index_fill(0, torch.tensor([3]), 0.0)
    with Steering("resid_mid", 1, vector, 1.0, "boundary", mode).on(ex):
        states = ex.capture(PROMPTS[0], sites=("resid_mid", "mlp_out", "resid_post"), layers=[1])
    mid, added, post = (states[name][0, 0].float() for name in ("resid_mid", "mlp_out", "resid_post"))
    rounding = 2**-8 * (mid + added).abs() + 1e-6
    assert ((mid + added - post).abs() <= rounding).all(), (mid + added - post).abs().max()


# --- autocast -----------------------------------------------------------------------------------------------------------


def test_autocast_is_refused_for_captures_and_at_load_and_leaves_no_trace():
    ex = Extractor(small_model("llama"), small_tokenizer())
    before = ex.capture(PROMPTS).resid_post
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(
            RequestError, match="torch.autocast is on for cpu, so the model would compute in torch.bfloat16"
        ):
            ex.capture(PROMPTS)
        with pytest.raises(RequestError, match="torch.autocast is on"):
            Extractor(small_model("llama"), small_tokenizer())
        with torch.autocast("cpu", enabled=False):
            assert torch.equal(ex.capture(PROMPTS).resid_post, before)
    assert torch.equal(ex.capture(PROMPTS).resid_post, before)
