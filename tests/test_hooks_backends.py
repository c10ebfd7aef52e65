"""The three backends give the same states on the same weights, and say plainly what they cannot give."""

from __future__ import annotations

import importlib.util
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from precollapse.errors import CaptureError, RequestError
from precollapse.hooks import Extractor
from precollapse.hooks.backends import BACKENDS, make_backend, recognise, wrap
from precollapse.hooks.backends.protocol import Request, Rows
from precollapse.hooks.decoding.greedy import continue_greedily
from precollapse.hooks.prompts.boundary import assemble
from precollapse.hooks.taps import first_tensor
from precollapse.hooks.unembedding import is_plain
from precollapse.perf.small_models import small_model, small_tokenizer

PACKAGES = {"nnsight": "nnsight", "transformer_lens": "transformer_lens"}
# TransformerLens forms attention probabilities in float32, so float64 does not bring it closer than that.
TOLERANCE = {
    ("nnsight", torch.float32): 0.0,
    ("nnsight", torch.float64): 0.0,
    ("transformer_lens", torch.float32): 1e-5,
    ("transformer_lens", torch.float64): 2e-6,
}
KINDS = ("llama", "gemma2", "granite", "gpt2", "gptj", "opt", "bloom", "gpt_oss", "jamba", "mamba")
PROMPTS = [tuple(range(5, 17)), tuple(range(20, 25)), (9,)]


def needs(backend: str) -> None:
    if backend in PACKAGES and importlib.util.find_spec(PACKAGES[backend]) is None:
        pytest.skip(f"{PACKAGES[backend]} is not installed")


def rows(backend: Any, sites: tuple[str, ...], side: str) -> Rows:
    batch = assemble(range(len(PROMPTS)), PROMPTS, 0, side)
    return backend.rows(batch, Request(sites, (0, 1), batch.boundary[:, None], attention=backend.gives_attention))


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(((a.double() - b.double()).abs().amax(-1) / b.double().abs().amax(-1)).max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("name", PACKAGES)
def test_same_states_as_hooks(name: str, family: str, dtype: torch.dtype) -> None:
    needs(name)
    plain = make_backend(small_model(family, dtype=dtype))
    other = make_backend(wrap(small_model(family, dtype=dtype), small_tokenizer(), name))
    assert other.name == name
    sites = tuple(s for s in plain.sites if s != "final_norm")
    assert set(other.sites) == set(plain.sites)
    sides = (
        ("right", "left") if dtype is torch.float32 else ("right",)
    )  # eager float64 models give NaN under left padding
    for side in sides:
        ours, theirs = rows(plain, sites, side), rows(other, sites, side)
        for site in sites:
            assert relative(theirs.sites[site], ours.sites[site]) <= TOLERANCE[name, dtype], (site, side)
        assert relative(theirs.final_norm, ours.final_norm) <= TOLERANCE[name, dtype]
        assert (theirs.attention is None) == (ours.attention is None)
        for a, b in zip(theirs.attention or (), ours.attention or (), strict=True):
            assert (a is None) == (b is None)
            assert a is None or (a - b).abs().max() < 2e-6


def test_what_nnsight_puts_into_a_module_leaves_the_unembedding_a_plain_matrix() -> None:
    """Its stand-in for `forward` runs what was there; a forward of the user's own was there before."""
    needs("nnsight")
    model = small_model("llama")
    assert is_plain(make_backend(wrap(model, small_tokenizer(), "nnsight")).architecture.head)
    model = small_model("llama")
    own = model.lm_head.forward
    model.lm_head.forward = lambda x: 2 * own(x)
    assert not is_plain(make_backend(wrap(model, small_tokenizer(), "nnsight")).architecture.head)


def test_an_unembedding_that_runs_as_a_module_keeps_float64() -> None:
    model = small_model("llama", dtype=torch.float64)
    own = model.lm_head.forward
    model.lm_head.forward = lambda x: 2 * own(x)
    ex = Extractor(model, small_tokenizer(), check=False)
    with torch.no_grad():
        p = torch.softmax(model(torch.tensor([[5, 6, 7]])).logits[0, -1], -1)
    got = ex.capture([[5, 6, 7]])
    assert float(got.entropy_bits[0]) == pytest.approx(float(-(p * p.log2()).sum()), rel=1e-13)


@pytest.mark.parametrize("name", PACKAGES)
def test_whole_captures_agree(name: str) -> None:
    needs(name)
    tokenizer = small_tokenizer()
    texts = ["What is it?", "a b c", "Answer: yes or no?", "z"]
    plain = Extractor(small_model("llama"), tokenizer)
    wrapped = wrap(small_model("llama"), tokenizer, name)
    assert recognise(wrapped) == name
    ex = Extractor(wrapped, tokenizer)
    options = {"sites": ("resid_post", "z", "final_norm"), "options": ("A", "B"), "attention": "rows", "top_k": 3}
    ours, theirs = plain.capture(texts, **options), ex.capture(texts, **options)
    assert theirs.manifest["backend"] == name
    assert relative(theirs.resid_post, ours.resid_post) < 1e-5
    assert relative(theirs.z.flatten(-2), ours.z.flatten(-2)) < 1e-5
    assert theirs.entropy_bits == pytest.approx(ours.entropy_bits, abs=1e-5)
    assert theirs.option_logprobs == pytest.approx(ours.option_logprobs, abs=1e-5)
    assert np.array_equal(theirs.top_ids, ours.top_ids)
    for a, b in zip(theirs.attention_rows, ours.attention_rows, strict=True):
        assert (a - b).abs().max() < 2e-6


@pytest.mark.parametrize("name", BACKENDS)
class TestEachBackend:
    def test_sequences_are_gone_while_the_model_still_runs(self, name: str) -> None:
        """When the last block ends, no output of the blocks before it is alive but the one that it just read."""
        needs(name)
        model = small_model("llama", layers=5)
        made: list[weakref.ref[torch.Tensor]] = []
        alive: list[int] = []

        def watch(_module: Any, _inputs: Any, output: Any) -> None:
            made.append(weakref.ref(first_tensor(output)))

        ex = Extractor(wrap(model, small_tokenizer(), name), small_tokenizer(), check=False)
        for block in model.model.layers:
            block.register_forward_hook(watch)
        model.model.layers[4].register_forward_hook(lambda *_: alive.append(sum(r() is not None for r in made[:3])))
        ex.capture(["0123456789" * 3, "ab"], sites=("resid_post",))
        assert len(made) == 5 and alive == [0]
        assert not any(r() is not None for r in made)

    def test_no_whole_sequence_is_kept_and_no_full_logits(self, name: str) -> None:
        needs(name)
        model = small_model("llama")
        calls: list[tuple[int, ...]] = []
        model.lm_head.register_forward_hook(lambda _m, args, _o: calls.append(tuple(args[0].shape)))
        ex = Extractor(wrap(model, small_tokenizer(), name), small_tokenizer(), check=False)
        ex.capture(["0123456789" * 3, "ab"])
        assert all(len(shape) == 2 and shape[0] <= 2 for shape in calls), "the unembedding sees boundary rows only"
        batch = assemble([0], [tuple(range(5, 45))], 0)
        got = ex.backend.rows(batch, Request(("resid_post",), (0, 1), batch.boundary[:, None]))
        kept = [*got.sites.values(), got.final_norm]
        assert max(t.untyped_storage().nbytes() for t in kept) <= 4 * 2 * 32

    def test_users_hooks_stay_and_second_capture_agrees(self, name: str) -> None:
        needs(name)
        model = small_model("gpt2")
        seen: list[int] = []
        wrapped = wrap(model, small_tokenizer(), name)
        handle = model.transformer.h[0].register_forward_hook(lambda *_: seen.append(1))
        ex = Extractor(wrapped, small_tokenizer(), check=False)
        ex.capture("warm")  # a bridge wires itself at its first pass
        hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
        first, second = (ex.capture(["one", "two and more"], attention="rows") for _ in range(2))
        assert torch.equal(first.resid_post, second.resid_post)
        assert seen and handle.id in model.transformer.h[0]._forward_hooks
        assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == hooks

    def test_error_in_the_middle_leaves_the_model_usable(self, name: str) -> None:
        needs(name)
        model = small_model("llama")
        wrapped = wrap(model, small_tokenizer(), name)
        ex = Extractor(wrapped, small_tokenizer(), check=False)
        before = ex.capture("abc").resid_post

        def burst(*_: Any) -> None:
            raise RuntimeError("in the middle")

        handle = model.model.layers[1].register_forward_pre_hook(burst)
        with pytest.raises(RuntimeError, match="in the middle"):
            ex.capture("abc", attention="rows")
        handle.remove()
        assert torch.equal(ex.capture("abc").resid_post, before)

    def test_cache_is_refused(self, name: str) -> None:
        needs(name)
        ex = Extractor(wrap(small_model("llama"), small_tokenizer(), name), small_tokenizer(), check=False)
        assert ex.backend.gives_cache == (name == "hf")
        if name == "hf":
            return
        with pytest.raises(RequestError, match=f"{name}.*gives no cache"):
            ex.stream(ex.render("abc"), keep_cache=True)
        batch = assemble([0], [(5, 6)], 0)
        with pytest.raises(CaptureError, match="no cache"):
            ex.backend.rows(batch, Request((), (), batch.boundary[:, None], use_cache=True))

    def test_training_mode(self, name: str) -> None:
        needs(name)
        model = small_model("gpt2")
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.5
        wrapped = wrap(model, small_tokenizer(), name)
        quiet = Extractor(wrapped, small_tokenizer(), check=False).capture("abc").resid_post
        model.train()
        flags = [m.training for m in model.modules()]
        assert torch.equal(Extractor(wrapped, small_tokenizer(), check=False).capture("abc").resid_post, quiet)
        assert [m.training for m in model.modules()] == flags


class TestRefusals:
    def test_unknown_backend(self) -> None:
        with pytest.raises(RequestError, match="backend 'vllm' is unknown; choose from hf, nnsight, transformer_lens"):
            Extractor(small_model("llama"), small_tokenizer(), backend="vllm")

    def test_backend_that_does_not_fit_the_object(self) -> None:
        with pytest.raises(RequestError, match="backend 'nnsight' was asked for, but the model is a LlamaForCausalLM"):
            Extractor(small_model("llama"), small_tokenizer(), backend="nnsight")

    def test_object_that_is_no_model(self) -> None:
        with pytest.raises(RequestError, match="model is a Linear; give a Hugging Face"):
            Extractor(torch.nn.Linear(2, 2), small_tokenizer())

    @pytest.mark.parametrize("family", ["falcon-alibi", "falcon-new", "opt-post-norm"])
    def test_what_transformer_lens_computes_otherwise(self, family: str) -> None:
        needs("transformer_lens")
        with pytest.raises(RequestError, match="(cannot read|cannot bridge).*use backend 'hf'"):
            wrap(small_model(family), small_tokenizer(), "transformer_lens")

    def test_processed_bridge(self) -> None:
        needs("transformer_lens")
        bridge = wrap(small_model("gpt2"), small_tokenizer(), "transformer_lens")
        bridge.process_weights()
        with pytest.raises(RequestError, match="processed weights"):
            Extractor(bridge, small_tokenizer())

    def test_bridge_without_the_models_tokenizer(self) -> None:
        needs("transformer_lens")
        bridge = wrap(small_model("gpt2"), small_tokenizer(), "transformer_lens")
        with pytest.raises(RequestError, match="adds a BOS.*pass the model's"):
            Extractor(bridge)

    def test_nnsight_brings_its_tokenizer(self) -> None:
        needs("nnsight")
        states = Extractor(wrap(small_model("gpt2"), small_tokenizer(), "nnsight")).capture("abc")
        assert len(states) == 1

    def test_nnsight_without_weights(self) -> None:
        needs("nnsight")
        import nnsight

        lazy = nnsight.NNsight(small_model("gpt2").to("meta"))
        with pytest.raises(RequestError, match="not loaded yet"):
            Extractor(lazy, small_tokenizer())


TEXTS = ["What is it?", "a b c", "Answer: yes or no?", "z", "c d e"]


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("family", ["llama", "gpt2", "jamba"])
def test_generation_after_a_backend_without_cache(family: str, check: bool) -> None:
    """The prefill runs again through the plain model; unless padding is known to be harmless, in equal lengths."""
    needs("nnsight")
    tokenizer = small_tokenizer()
    ex = Extractor(wrap(small_model(family), tokenizer, "nnsight"), tokenizer, check=check)
    plain = small_model(family)
    written: dict[int, tuple[int, ...]] = {}
    sizes = []
    for captured in ex.stream(ex.render(TEXTS)):
        for begun in ex.prefill(captured):
            sizes.append(len(begun.batch.rows))
            assert begun.states.token_ids == [ex.render(TEXTS[i])[0].token_ids for i in begun.batch.rows]
            outputs = continue_greedily(ex.model, tokenizer, begun, 6)
            written |= {row: o.token_ids for row, o in zip(begun.batch.rows, outputs, strict=True)}
    assert sizes == ([5] if check else [1, 1, 2, 1])
    for i, text in enumerate(TEXTS):
        ids, expected = list(ex.render(text)[0].token_ids), []
        while len(expected) < 6:
            with torch.no_grad():
                best = int(plain(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())
            if best == tokenizer.eos_token_id:
                break
            expected.append(best)
            ids.append(best)
        assert list(written[i]) == expected


def test_a_prefill_that_is_not_finite_is_refused() -> None:
    needs("nnsight")
    model = small_model("llama")
    ex = Extractor(wrap(model, small_tokenizer(), "nnsight"), small_tokenizer(), check=False)
    captured = list(ex.stream(ex.render(TEXTS)))[0]
    model.model.norm.register_forward_hook(lambda _m, _a, out: out * float("nan"))
    with pytest.raises(CaptureError, match=r"final_norm of prompt \d is not finite"):
        list(ex.prefill(captured))
