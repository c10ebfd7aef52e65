"""Compiled captures: taps that survive, one graph, and the plain backbone wherever the graph does not apply."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from precollapse import Extractor
from precollapse.errors import CaptureError, RequestError
from precollapse.hooks import join
from precollapse.hooks.backends.compiled import _shape
from precollapse.perf.small_models import small_model, small_tokenizer

PROMPTS = ["hello there", "x y", "a longer prompt than the others", "one two three"]
SITES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "z", "final_norm")


@pytest.fixture
def fresh():
    """Nothing compiled, all counters at zero."""
    torch._dynamo.reset()
    counters.clear()


def both(family: str = "llama", compiler: str = "eager", layers: int = 1) -> tuple[Extractor, Extractor]:
    model, tokenizer = small_model(family, layers=layers), small_tokenizer()
    return Extractor(model, tokenizer, check=False, compile=compiler), Extractor(model, tokenizer, check=False)


@pytest.fixture(scope="module")
def pair() -> tuple[Extractor, Extractor]:
    """One compiled and one plain extractor of the same model."""
    return both(layers=2)


@pytest.mark.parametrize(("family", "sites"), [("llama", SITES), ("granite", ("attn_out", "resid_post"))])
def test_one_graph_serves_batches_of_every_size(fresh, family, sites):
    compiled, plain = both(family)
    expected = plain.capture(PROMPTS, sites=sites)
    got = compiled.capture(PROMPTS, sites=sites)
    for site in sites:
        torch.testing.assert_close(got[site], expected[site], rtol=1e-4, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1
    compiled.capture(["z" * 40] * 3, sites=sites)
    compiled.capture("a", sites=sites)
    many = compiled.capture([*PROMPTS, "seven words are in this sixth prompt", "b"], sites=sites)
    torch.testing.assert_close(many.resid_post[:4], expected.resid_post, rtol=1e-4, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def test_inductor_keeps_the_taps(fresh):
    compiled, plain = both(compiler="inductor")
    expected, got = plain.capture(PROMPTS), compiled.capture(PROMPTS)
    torch.testing.assert_close(got.resid_post, expected.resid_post, rtol=1e-4, atol=1e-5)
    again = compiled.capture(PROMPTS[1:3])
    torch.testing.assert_close(again.resid_post, expected.resid_post[1:3], rtol=1e-4, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1
    assert got.manifest["compile"] == "inductor"
    assert "not_compiled" not in got.manifest["passes"]


def test_several_positions_and_chosen_layers(pair):
    compiled, plain = pair
    asked = {"layers": [1], "positions": ("e", "boundary")}
    prompts = [PROMPTS[0], PROMPTS[2], PROMPTS[3]]
    torch.testing.assert_close(
        compiled.capture(prompts, **asked).resid_post, plain.capture(prompts, **asked).resid_post, rtol=1e-4, atol=1e-5
    )


def test_the_users_model_gets_no_hook_and_keeps_its_own(pair):
    compiled, _ = pair
    compiled.capture(PROMPTS)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in compiled.model.modules())


def test_a_hook_of_the_users_is_honoured_and_said(pair):
    """A compiled module would ignore a hook that comes later: the plain backbone must run instead."""
    compiled, plain = pair
    before = compiled.capture(PROMPTS).resid_post
    handle = compiled.model.model.layers[0].register_forward_hook(lambda _m, _i, output: output * 2)
    doubled, expected = compiled.capture(PROMPTS), plain.capture(PROMPTS)
    assert torch.equal(doubled.resid_post, expected.resid_post)
    assert "layers.0 has a hook" in doubled.manifest["passes"]["not_compiled"]
    handle.remove()
    torch.testing.assert_close(compiled.capture(PROMPTS).resid_post, before)


def test_hidden_states_asked_for_once_do_not_switch_it_off(pair):
    """transformers leaves a hook on every block once someone asked for hidden states; it is idle in all other passes."""
    compiled, plain = pair
    with torch.no_grad():
        compiled.model(torch.tensor([[5, 6, 7]]), output_hidden_states=True, output_attentions=True)
    assert any(m._forward_hooks for m in compiled.model.modules()), "else this test is without its point"
    got = compiled.capture(PROMPTS)
    assert "not_compiled" not in got.manifest["passes"]
    torch.testing.assert_close(got.resid_post, plain.capture(PROMPTS).resid_post, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_padding_stays_within_the_learnt_positions(family):
    model = small_model(family, layers=1)
    if family == "gpt2":
        model.transformer.wpe = torch.nn.Embedding.from_pretrained(model.transformer.wpe.weight[:21].clone())
    model.config.max_position_embeddings = 21
    compiled = Extractor(model, small_tokenizer(), check=False, compile="eager")
    plain = Extractor(model, small_tokenizer(), check=False)
    for text in ("x" * 21, "y" * 18, "z" * 9):
        torch.testing.assert_close(
            compiled.capture(text).resid_post, plain.capture(text).resid_post, rtol=1e-4, atol=1e-5
        )


def test_what_some_batches_could_not_is_noted():
    """Prompts after a shared prefix run uncompiled; those run whole do not, whichever batch comes first."""
    model, tokenizer = small_model("llama", layers=1), small_tokenizer()
    compiled = Extractor(model, tokenizer, check=False, compile="eager", share_prefix="always")
    prompts = ["Solve it. " * 6 + end for end in ("1", "22", "333")] + ["alone", "z" * 70]
    for order in (prompts, prompts[::-1]):
        note = compiled.capture(order).manifest["passes"]
        assert note["not_compiled"] == "the pass goes on from a shared prefix"
        assert note["shared_prefixes"] == [{"tokens": 60, "prompts": 3}]
    pieces = list(compiled.stream(compiled.render(prompts)))
    assert len(pieces) > 1
    for own in (pieces, pieces[::-1]):
        assert join(own, 5).manifest["passes"]["not_compiled"] == "the pass goes on from a shared prefix"
    assert "not_compiled" not in compiled.capture(["alone", "x"]).manifest["passes"]


def test_weights_changed_in_place_or_replaced_are_seen():
    compiled, plain = both(layers=2)
    compiled.capture(PROMPTS)
    with torch.no_grad():
        compiled.model.model.layers[0].mlp.down_proj.weight.mul_(3)
    torch.testing.assert_close(compiled.capture(PROMPTS).resid_post, plain.capture(PROMPTS).resid_post)
    compiled.model.model.layers[1].mlp.down_proj = torch.nn.Linear(64, 32, bias=False).requires_grad_(False)
    torch.testing.assert_close(compiled.capture(PROMPTS).resid_post, plain.capture(PROMPTS).resid_post)


def test_numbers_and_buffers_set_since_are_seen():
    """A graph holds the numbers that it was made with, and the buffers: it would go on with the old ones, unsaid."""
    compiled, plain = both(layers=2)
    before = compiled.capture(PROMPTS).resid_post
    compiled.model.model.layers[0].self_attn.scaling *= 3
    changed = compiled.capture(PROMPTS)
    assert "not_compiled" not in changed.manifest["passes"] and not torch.allclose(
        changed.resid_post, before, rtol=1e-2
    )
    torch.testing.assert_close(changed.resid_post, plain.capture(PROMPTS).resid_post, rtol=1e-4, atol=1e-5)
    backbone, found = compiled.backend.architecture.backbone, []
    for change in (
        lambda: backbone.rotary_emb.register_buffer("inv_freq", backbone.rotary_emb.inv_freq * 2, persistent=False),
        lambda: setattr(backbone.norm, "variance_epsilon", 0.5),
        lambda: None,
    ):
        before = _shape(backbone)
        change()
        found.append(_shape(backbone) != before)
    assert found == [True, True, False]


def test_more_programs_than_one_function_may_have_graphs(pair):
    """Each choice of layers is a program of its own: torch takes them for recompilations of one where they share a code."""
    compiled, plain = pair
    with torch._dynamo.config.patch(recompile_limit=1):
        for layers in ([0], [1]):
            got = compiled.capture(PROMPTS, ("resid_pre",), layers)
            assert "not_compiled" not in got.manifest["passes"]
            expected = plain.capture(PROMPTS, ("resid_pre",), layers)
            torch.testing.assert_close(got.sites["resid_pre"], expected.sites["resid_pre"], rtol=1e-4, atol=1e-5)


def test_attention_rows_and_caches_take_the_plain_backbone(pair):
    compiled, plain = pair
    got, expected = (own.capture(PROMPTS, attention="rows") for own in (compiled, plain))
    assert got.manifest["passes"]["not_compiled"] == "attention rows were asked for"
    assert all(torch.equal(a, b) for a, b in zip(got.attention_rows, expected.attention_rows, strict=True))
    kept = list(compiled.stream(compiled.render(PROMPTS), keep_cache=True))
    assert all(piece.cache is not None for piece in kept)


def test_a_wrong_compilation_is_refused():
    """A compiler that returns another function's numbers must not pass."""

    def wrong(graph, _inputs):
        def run(*args):
            return tuple(x * 1.5 if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in graph(*args))

        return run

    model, tokenizer = small_model("llama", layers=1), small_tokenizer()
    with pytest.raises(CaptureError, match="compiled backbone differs by"):
        Extractor(model, tokenizer, check=False, compile=wrong).capture(PROMPTS)


def test_an_unknown_compiler_is_refused():
    with pytest.raises(RequestError, match="compile='fastest' is not a compiler"):
        both(compiler="fastest")
