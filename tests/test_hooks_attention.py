"""Attention rows beside every attention implementation, against the weights of transformers' own eager attention."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from precollapse.errors import RequestError
from precollapse.hooks import Extractor
from precollapse.hooks.attention import supports_attention
from precollapse.hooks.backends.hf import HuggingFaceBackend
from precollapse.hooks.backends.protocol import Request
from precollapse.hooks.prompts.boundary import assemble
from precollapse.perf.small_models import FAMILIES, small_model, small_tokenizer

ATTENDING = tuple(f for f in FAMILIES if f not in ("mamba", "mamba2", "falcon_mamba"))
# transformers' eager Falcon adds the ALiBi biases twice, so its eager weights are not those of its sdpa.
IMPLEMENTATION = {"falcon-alibi": "eager"}
PROMPTS = [tuple(range(5, 5 + n)) for n in (1, 12, 7)]
LAYERS = 2


@lru_cache(maxsize=2)
def eager_model(family: str) -> Any:
    return small_model(family, attention="eager")


def eager_rows(family: str, prompt: tuple[int, ...]) -> list[torch.Tensor]:
    """Last query's weights of each attention layer, [H, T], from the eager implementation of an unpadded prompt."""
    with torch.no_grad():
        out = eager_model(family)(input_ids=torch.tensor([prompt]), output_attentions=True, use_cache=False)
    return [w[0, :, -1] for w in out.attentions if w is not None]


def attending_layers(rows: list[torch.Tensor | None]) -> list[torch.Tensor]:
    return [row for row in rows if row is not None]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("family", ATTENDING)
def test_rows_equal_eager_weights(family: str, side: str) -> None:
    """A padded batch through the family's default implementation, against each prompt alone through eager."""
    model = small_model(family, IMPLEMENTATION.get(family))
    backend = HuggingFaceBackend(model)
    batch = assemble(range(len(PROMPTS)), PROMPTS, 0, side)
    implementation = model.config._attn_implementation
    got = backend.rows(batch, Request((), tuple(range(LAYERS)), batch.boundary[:, None], attention=True))
    assert model.config._attn_implementation == implementation
    assert got.attention is not None
    ours = attending_layers(got.attention)
    for i, prompt in enumerate(PROMPTS):
        end = int(batch.boundary[i]) + 1
        theirs = eager_rows(family, prompt)
        assert len(ours) == len(theirs) > 0
        for mine, own in zip(ours, theirs, strict=True):
            assert mine.dtype is torch.float32
            assert (mine[i, :, end - len(prompt) : end] - own).abs().max() < 3e-6
            outside = torch.cat([mine[i, :, : end - len(prompt)], mine[i, :, end:]], -1)
            assert outside.numel() == 0 or outside.abs().max() == 0.0, "padding is not attended"


@pytest.mark.parametrize(
    "family", ["llama", "mistral", "gemma2", "qwen3", "opt", "falcon", "falcon-new", "falcon-alibi"]
)
def test_rows_times_values_are_the_heads_outputs(family: str) -> None:
    """What each head wrote is its row times the values: a check on the very pass that ran, without eager."""
    model = small_model(family)
    values: list[torch.Tensor] = []
    for name, module in model.named_modules():
        if name.endswith("v_proj"):
            module.register_forward_hook(lambda _m, _a, out: values.append(out.unflatten(-1, (-1, width))))
        if name.endswith("query_key_value"):
            split = model.get_submodule(name.rpartition(".")[0])._split_heads
            module.register_forward_hook(lambda _m, _a, out, split=split: values.append(split(out)[2]))
    ex = Extractor(model, small_tokenizer(), check=False)
    width = ex.backend.architecture.head_width
    states = ex.capture("Where to look?", sites=("z",), attention="rows")
    rows = states.attention_rows[0]
    assert len(values) == LAYERS
    for layer, value in enumerate(values):
        heads = value[0].repeat_interleave(rows.shape[1] // value.shape[2], 1)
        assert (torch.einsum("ht,thd->hd", rows[layer], heads) - states.z[0, layer]).abs().max() < 1e-5


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "flex_attention"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gemma3", "gpt_oss", "qwen3"])
def test_every_implementation_gives_the_same_rows(family: str, implementation: str) -> None:
    if (family, implementation) == ("gpt_oss", "flex_attention"):
        pytest.skip("transformers' flex attention has no sinks on a CPU")
    try:
        model = small_model(family, attention=implementation)
    except RequestError as error:
        pytest.skip(str(error))
    with torch.compiler.set_stance(
        "force_eager"
    ):  # flex attention compiles itself, which takes a minute and changes nothing here
        states = Extractor(model, small_tokenizer(), check=False).capture(["Is it so, then?", "No."], attention="rows")
    assert model.config._attn_implementation == implementation
    for ids, rows in zip(states.token_ids, states.attention_rows, strict=True):
        theirs = torch.stack(eager_rows(family, ids))
        assert rows.shape == theirs.shape
        assert (rows - theirs).abs().max() < 3e-6


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_neox"])
def test_rows_beside_flash_attention(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU there is no flash attention: its entry point is replaced by one that records how it is called."""
    from transformers.integrations import flash_attention
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    calls: list[dict[str, Any]] = []

    def flash(query: Any, key: Any, value: Any, mask: Any, **options: Any) -> torch.Tensor:
        calls.append(options | {"mask": mask})
        return torch.zeros_like(query)

    monkeypatch.setattr(flash_attention, "_flash_attention_forward", flash)
    model = small_model(family)
    before = dict(ALL_ATTENTION_FUNCTIONS), dict(ALL_MASK_ATTENTION_FUNCTIONS)
    model.config._attn_implementation = "flash_attention_2"
    backend = HuggingFaceBackend(model)
    batch = assemble(range(len(PROMPTS)), PROMPTS, 0, "left")
    plain = backend.rows(batch, Request((), (0,), batch.boundary[:, None])).final_norm
    quiet, calls[:] = list(calls), []
    got = backend.rows(batch, Request((), (0,), batch.boundary[:, None], attention=True))
    assert model.config._attn_implementation == "flash_attention_2"
    assert (dict(ALL_ATTENTION_FUNCTIONS), dict(ALL_MASK_ATTENTION_FUNCTIONS)) == before
    assert torch.equal(got.final_norm, plain) and len(calls) == len(quiet) == LAYERS
    for mine, own in zip(calls, quiet, strict=True):
        assert mine["attn_implementation"] == own["attn_implementation"] == "flash_attention_2"
        assert mine.keys() == own.keys() and (mine["mask"] is None) == (own["mask"] is None)
    for i, prompt in enumerate(PROMPTS):  # the first layer's row does not depend on what the attention wrote
        end = int(batch.boundary[i]) + 1
        assert (got.attention[0][i, :, end - len(prompt) : end] - eager_rows(family, prompt)[0]).abs().max() < 3e-6


def test_gpt2s_other_eager_form_is_left_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """With reorder_and_upcast_attn, GPT-2's eager attention is another function, chosen by the implementation's name."""
    model = small_model("gpt2", attention="eager")
    used: list[int] = []
    for layer, block in enumerate(model.transformer.h):
        block.attn.reorder_and_upcast_attn = True
        own = block.attn._upcast_and_reordered_attn
        monkeypatch.setattr(
            block.attn, "_upcast_and_reordered_attn", lambda *a, own=own, layer=layer: (used.append(layer), own(*a))[1]
        )
    states = Extractor(model, small_tokenizer(), check=False).capture("Which form is it?", attention="rows")
    assert used == [0, 1]
    with torch.no_grad():
        out = model(torch.tensor([states.token_ids[0]]), output_attentions=True, use_cache=False)
    for layer in range(LAYERS):
        torch.testing.assert_close(states.attention_rows[0][layer], out.attentions[layer][0, :, -1])


def test_sinks_take_their_share() -> None:
    states = Extractor(small_model("gpt_oss"), small_tokenizer(), check=False).capture(
        "Where does it go?", attention="rows"
    )
    total = states.attention_rows[0].sum(-1)
    assert (total < 1.0).all() and (total > 0.0).all()
    plain = Extractor(small_model("llama"), small_tokenizer(), check=False).capture(
        "Where does it go?", attention="rows"
    )
    assert (plain.attention_rows[0].sum(-1) - 1.0).abs().max() < 1e-6


def test_window_is_seen() -> None:
    states = Extractor(small_model("mistral"), small_tokenizer(), check=False).capture("0123456789", attention="rows")
    rows = states.attention_rows[0]
    assert (rows[..., :-5] == 0).all() and (rows[..., -5:] > 0).all()


def test_hybrid_has_missing_rows_not_zeros() -> None:
    ex = Extractor(small_model("jamba"), small_tokenizer(), check=False)
    rows = ex.capture("abcdef", attention="rows").attention_rows[0]
    assert torch.isnan(rows[0]).all() and (rows[1].sum(-1) - 1).abs().max() < 1e-6
    summary = ex.capture("abcdef", attention="summary").attention_summary
    assert np.isnan(summary["entropy_bits"][0, 0]).all() and np.isfinite(summary["entropy_bits"][0, 1]).all()
    ex.model.model.layers[0].register_forward_hook(lambda *_: pytest.fail("the model ran"))
    for attention in ("rows", "summary"):
        with pytest.raises(RequestError, match="none of the asked layers has attention; layers 1 do"):
            ex.capture("abcdef", attention=attention, layers=[0])


@pytest.mark.parametrize("family", ["mamba", "mamba2", "falcon_mamba"])
def test_no_attention_is_said(family: str) -> None:
    ex = Extractor(small_model(family), small_tokenizer(), check=False)
    assert not supports_attention(ex.backend.architecture)
    with pytest.raises(RequestError, match="no attention rows.*its blocks have no attention"):
        ex.capture("abc", attention="rows")


def test_summary_is_the_rows_reduced() -> None:
    ex = Extractor(small_model("qwen2"), small_tokenizer(), check=False)
    texts = ["Choose: (a) or (b)?", "Yes"]
    spans = [{"instruction": (0, 7), "option": (8, 11)}, {"instruction": (0, 3)}]
    rows = ex.capture(texts, attention="rows").attention_rows
    summary = ex.capture(texts, attention="summary", spans=spans).attention_summary
    for i, row in enumerate(rows):
        p = row.double().numpy()
        q = p / p.sum(-1, keepdims=True)
        assert summary["entropy_bits"][i] == pytest.approx(-(q * np.log2(q)).sum(-1), abs=1e-6)
        assert summary["first_token"][i] == pytest.approx(p[..., 0], abs=1e-7)
        low, high = spans[i]["instruction"]
        assert summary["instruction"][i] == pytest.approx(p[..., low:high].sum(-1), abs=1e-7)
    p = rows[0].double().numpy()
    assert summary["option"][0] == pytest.approx(p[..., 8:11].sum(-1), abs=1e-7)
    assert summary["rest"][0] == pytest.approx(p[..., 7:8].sum(-1) + p[..., 11:].sum(-1), abs=1e-7)
    assert np.isnan(summary["option"][1]).all(), "a span that a prompt lacks is missing, not zero"


@pytest.mark.parametrize("family", ["llama", "falcon", "bloom"])
def test_looking_does_not_change_the_model(family: str) -> None:
    ex = Extractor(small_model(family), small_tokenizer(), check=False)
    with_rows = ex.capture("Does it change?", attention="rows", sites=ex.backend.sites)
    without = ex.capture("Does it change?", sites=ex.backend.sites)
    for site in ex.backend.sites:
        assert torch.equal(with_rows[site], without[site])
