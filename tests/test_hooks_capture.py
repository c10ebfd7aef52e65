"""Capture against transformers' own outputs: hidden states, logits and their float64 softmax, under every padding and batch."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from precollapse.errors import CaptureError, RequestError
from precollapse.hooks import Extractor, States
from precollapse.hooks.backends.protocol import Request, Rows
from precollapse.hooks.loading import embedded_gguf
from precollapse.hooks.prompts.boundary import assemble, boundary_index, group
from precollapse.perf.small_models import small_model, small_tokenizer

DATA = Path(__file__).parents[2] / "shared" / "data" / "gsm8k.jsonl"
TEXTS = ["Is it so?", "a", "The quick brown fox jumps over", "12 + 34 =", "Yes, but why? Answer:"]
KINDS = ("llama", "gpt2", "gemma2", "qwen3", "bloom", "jamba")
ITEMS = 24


def own_states(model: Any, ids: tuple[int, ...]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """What transformers itself says of one unpadded prompt's last position: hidden states and logits."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    return [h[0, -1] for h in out.hidden_states], out.logits[0, -1]


def softmax_entropy_bits(logits: torch.Tensor) -> float:
    p = torch.softmax(logits.double(), -1)
    return float(-(p * torch.log2(p)).nan_to_num(0.0).sum())


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(((a.double() - b.double()).abs().amax(-1) / b.double().abs().amax(-1)).max())


@pytest.fixture(scope="module", params=KINDS)
def small(request: pytest.FixtureRequest) -> Extractor:
    return Extractor(small_model(request.param), small_tokenizer())


def test_small_models_equal_their_own_outputs(small: Extractor) -> None:
    states = small.capture(TEXTS, sites=small.backend.sites, top_k=5)
    for i, ids in enumerate(states.token_ids):
        hidden, logits = own_states(small.model, ids)
        for layer in range(small.n_layers - 1):
            assert relative(states.resid_post[i, layer], hidden[layer + 1]) < 1e-5
        for layer in range(small.n_layers):
            assert relative(states.resid_pre[i, layer], hidden[layer]) < 1e-5
        assert relative(states.final_norm[i], hidden[-1]) < 1e-5
        norm = small.backend.architecture.norm
        assert norm is not None
        assert relative(norm(states.resid_post[i, -1][None])[0], hidden[-1]) < 1e-5, (
            "last layer: the state before the norm"
        )
        assert relative(states.resid_post[i, -1], hidden[-1]) > 1e-2, "the last hidden state is not the residual stream"
        assert states.entropy_bits[i] == pytest.approx(softmax_entropy_bits(logits), abs=1e-5)
        assert states.logsumexp[i] == pytest.approx(float(torch.logsumexp(logits.double(), -1)), abs=1e-5)
        top = torch.topk(logits, 5)
        assert states.top_ids[i].tolist() == top.indices.tolist()
        assert states.top_logits[i] == pytest.approx(top.values.double().numpy(), abs=1e-5)


@pytest.fixture(scope="module")
def embedded() -> Extractor:
    if embedded_gguf() is None:
        pytest.skip("the embedded model's package is not installed")
    return Extractor.from_pretrained("smollm2-135m-instruct", check=False, batch_tokens=2048)


@pytest.fixture(scope="module")
def real_prompts() -> list[str]:
    if not DATA.exists():
        pytest.skip("needs shared/data/gsm8k.jsonl")
    questions = [json.loads(line)["question"] for line in DATA.read_text().splitlines()[:200]]
    questions = sorted(questions, key=len)[:ITEMS]  # the short ones: a CPU runs each of them several times here
    order = np.random.default_rng(0).permutation(len(questions))
    return [f"Problem: {questions[i]}\nAnswer:" for i in order]


@pytest.fixture(scope="module")
def alone(embedded: Extractor, real_prompts: list[str]) -> States:
    one_by_one = Extractor(embedded.model, embedded.tokenizer, check=False, batch_tokens=1)
    return one_by_one.capture(real_prompts, sites=("resid_post", "final_norm"), top_k=3)


def test_real_prompts_equal_the_models_own_outputs(embedded: Extractor, alone: States) -> None:
    """24 GSM8K prompts against the model's own forward pass: hidden states, and its logits' float64 softmax."""
    assert len(alone) == ITEMS
    norm = embedded.backend.architecture.norm
    weight = embedded.model.get_output_embeddings().weight.double()
    for i, ids in enumerate(alone.token_ids):
        hidden, logits = own_states(embedded.model, ids)
        exact = hidden[-1].double() @ weight.T  # the model's own float32 logits are themselves off by up to 1e-5 bits
        assert alone.entropy_bits[i] == pytest.approx(softmax_entropy_bits(exact), abs=1e-5)
        assert alone.entropy_bits[i] == pytest.approx(softmax_entropy_bits(logits), abs=5e-5)
        assert alone.top_ids[i].tolist() == logits.topk(3).indices.tolist()
        assert relative(alone.resid_post[i, :-1], torch.stack(hidden[1:-1])) < 1e-5
        with torch.no_grad():
            assert relative(norm(alone.resid_post[i, -1][None])[0], hidden[-1]) < 1e-5
        assert relative(alone.final_norm[i], hidden[-1]) < 1e-5


def test_real_prompts_in_a_batch(embedded: Extractor, real_prompts: list[str], alone: States) -> None:
    """Batches of 16 and more, padded on the right, against each prompt alone. Entropy sums what float32 leaves of 49152 logits."""
    together = embedded.capture(real_prompts[:17], top_k=1)
    assert len(group([len(t) for t in together.token_ids], embedded.batch_tokens)[0]) >= 16
    assert relative(together.resid_post, alone.resid_post[:17]) < 1e-5
    assert together.entropy_bits == pytest.approx(alone.entropy_bits[:17], abs=1e-4)


def test_real_prompts_padded_on_the_left(embedded: Extractor, real_prompts: list[str], alone: States) -> None:
    order = sorted(range(ITEMS), key=lambda i: len(alone.token_ids[i]))
    chosen = [*order[:3], order[-1]]
    padded = rows(embedded, [alone.token_ids[i] for i in chosen], "left")
    assert relative(padded.sites["resid_post"][:, 0], alone.resid_post[chosen]) < 1e-5
    assert relative(padded.final_norm[:, 0], alone.final_norm[chosen]) < 1e-5


def rows(ex: Extractor, prompts: list[tuple[int, ...]], side: str, sites: tuple[str, ...] = ("resid_post",)) -> Rows:
    batch = assemble(range(len(prompts)), prompts, ex.renderer.pad_id, side)
    return ex.backend.rows(batch, Request(sites, tuple(range(ex.n_layers)), batch.boundary[:, None]))


@pytest.mark.parametrize("count", [1, 16])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_and_batch_do_not_matter(small: Extractor, side: str, count: int) -> None:
    """Every layer site, mixed lengths from 1 to 60 tokens, against each prompt alone."""
    sites = tuple(s for s in small.backend.sites if s != "final_norm")
    generator = torch.Generator().manual_seed(count)
    lengths = [1, 60, *torch.randint(2, 60, (14,), generator=generator).tolist()][:count] if count > 1 else [17]
    prompts = [tuple(torch.randint(3, 99, (n,), generator=generator).tolist()) for n in lengths]
    batched = rows(small, prompts, side, sites)
    for i, prompt in enumerate(prompts):
        alone = rows(small, [prompt], "right", sites)
        for site in sites:
            assert relative(batched.sites[site][i], alone.sites[site][0]) < 1e-5, (site, len(prompt))
        assert relative(batched.final_norm[i], alone.final_norm[0]) < 1e-5


def test_order_and_batch_size_do_not_matter(small: Extractor) -> None:
    few = Extractor(small.model, small.tokenizer, check=False, batch_tokens=1).capture(TEXTS, options=("A", "B"))
    many = small.capture(TEXTS[::-1], options=("A", "B"))
    assert relative(few.resid_post.flip(0), many.resid_post) < 1e-5
    assert few.entropy_bits[::-1] == pytest.approx(many.entropy_bits, abs=1e-5)
    assert few.option_logprobs[::-1] == pytest.approx(many.option_logprobs, abs=1e-5)
    assert few.token_ids[::-1] == many.token_ids


def test_boundary_index() -> None:
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 0]])
    assert boundary_index(mask).tolist() == [1, 3, 3, 2]
    with pytest.raises(RequestError, match="token in every row"):
        boundary_index(torch.tensor([[1, 1], [0, 0]]))


class TestLeftAsFound:
    """The model is given back as it came, however a capture ends."""

    @pytest.fixture
    def ex(self) -> Extractor:
        return Extractor(small_model("llama"), small_tokenizer(), check=False)

    @staticmethod
    def hooks(model: Any) -> list[tuple[str, int]]:
        return [(n, len(m._forward_hooks) + len(m._forward_pre_hooks)) for n, m in model.named_modules()]

    def test_twice_gives_the_same_numbers(self, ex: Extractor) -> None:
        first, second = (ex.capture(TEXTS, attention="rows", sites=ex.backend.sites) for _ in range(2))
        for site in ex.backend.sites:
            assert torch.equal(first[site], second[site])
        assert all(torch.equal(a, b) for a, b in zip(first.attention_rows, second.attention_rows, strict=True))
        assert np.array_equal(first.entropy_bits, second.entropy_bits)

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    def test_error_in_the_middle_of_a_pass(self, ex: Extractor, error: type[BaseException]) -> None:
        def burst(*_: Any) -> None:
            raise error("in the middle")

        before = ex.capture(TEXTS).resid_post
        implementation = ex.model.config._attn_implementation
        handle = ex.model.model.layers[1].mlp.register_forward_hook(burst)
        counted = self.hooks(ex.model)
        with pytest.raises(error):
            ex.capture(TEXTS, sites=ex.backend.sites, attention="rows")
        assert self.hooks(ex.model) == counted
        assert ex.model.config._attn_implementation == implementation
        handle.remove()
        assert torch.equal(ex.capture(TEXTS).resid_post, before)

    def test_training_mode_is_neither_used_nor_changed(self) -> None:
        model = small_model("gpt2")
        tokenizer = small_tokenizer()
        quiet = Extractor(model, tokenizer, check=False).capture(TEXTS).resid_post
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.5
        model.train()
        model.transformer.h[0].eval()  # a user may train a part only
        flags = [m.training for m in model.modules()]
        ex = Extractor(model, tokenizer)
        assert torch.equal(ex.capture(TEXTS).resid_post, quiet)
        assert [m.training for m in model.modules()] == flags

    def test_users_own_hooks_stay_and_act(self, ex: Extractor) -> None:
        seen = []
        layer = ex.model.model.layers[0]
        keep = layer.register_forward_hook(lambda *_: seen.append(1))
        plain = ex.capture(TEXTS[:1]).resid_post
        change = layer.register_forward_hook(lambda _m, _a, out: out + 1.0)
        changed = ex.capture(TEXTS[:1]).resid_post
        assert len(seen) == 2
        assert torch.allclose(changed[0, 0], plain[0, 0] + 1.0, atol=1e-5), "the capture reads what later layers get"
        change.remove()
        assert torch.equal(ex.capture(TEXTS[:1]).resid_post, plain)
        assert keep.id in layer._forward_hooks

    def test_a_tap_only_reads(self, ex: Extractor) -> None:
        ids = torch.tensor([ex.render("Does it stay?")[0].token_ids])
        with torch.no_grad():
            before = ex.model(ids).logits
            ex.capture("Does it stay?", sites=ex.backend.sites, attention="rows")
            assert torch.equal(ex.model(ids).logits, before)


class TestFailClosed:
    """A row that did not arrive, or arrived as nonsense, is an error and never a number."""

    @pytest.fixture(scope="class")
    def ex(self) -> Extractor:
        return Extractor(small_model("llama"), small_tokenizer(), check=False)

    def test_a_block_that_never_runs(self, ex: Extractor, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ex.model.config, "num_hidden_layers", 1)  # transformers runs the first blocks only
        with pytest.raises(CaptureError, match="resid_post at layer 1 was reached 0 times"):
            ex.capture(TEXTS)

    def test_a_block_that_runs_twice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ex = Extractor(small_model("llama"), small_tokenizer(), check=False)
        ex.model.model.layers[1] = ex.model.model.layers[0]
        ex = Extractor(ex.model, ex.tokenizer, check=False)
        with pytest.raises(CaptureError, match="reached 2 times|reached 0 times"):
            ex.capture(TEXTS)

    def test_a_bypassed_module(self, ex: Extractor, monkeypatch: pytest.MonkeyPatch) -> None:
        block = ex.model.model.layers[0]
        monkeypatch.setattr(block.mlp, "__call__", None, raising=False)
        monkeypatch.setattr(
            type(block.mlp), "__call__", lambda self, x: self.forward(x)
        )  # forward() directly: no hooks
        with pytest.raises(CaptureError, match="mlp_out at layer 0 was reached 0 times"):
            ex.capture(TEXTS, sites=("mlp_out",))

    @pytest.mark.parametrize(
        ("request_", "message"),
        [
            ({"sites": ("resid_port",)}, "resid_port.*unknown.*resid_post"),
            ({"sites": ("resid_post", "resid_post")}, "twice"),
            ({"layers": [2]}, "layer 2 does not exist; the model has layers 0 to 1"),
            ({"layers": [-3]}, "layer -3 does not exist"),
            ({"layers": []}, "no layers"),
            ({"layers": [0, 0]}, "twice"),
            ({"layers": 1.5}, "fraction 1.5"),
            ({"layers": np.float32(1.5)}, "fraction 1.5"),
            ({"layers": Decimal("0.5")}, "not a block number|must be 'all'"),
            ({"layers": [Decimal("0.5")]}, "not a block number"),
            ({"layers": np.True_}, "must be 'all'"),
            ({"layers": [True]}, "not a block number"),
            ({"layers": "0,1-0"}, "'1-0' runs backwards, from block 1 to 0"),
            ({"attention": "all"}, "attention='all' is unknown"),
            ({"attention": "summary", "spans": {"q": (0, 2)}}, "give a list with one dict per prompt"),
            ({"attention": "summary", "spans": [{"q": (0, 2, 3)}, {}, {}, {}, {}]}, "spans of prompt 0 must map"),
            ({"attention": "summary", "spans": [{}, None, {}, {}, {}]}, "spans of prompt 1 must map"),
            ({"attention": "summary", "spans": [{}, {}, {"q": "no"}, {}, {}]}, "spans of prompt 2 must map"),
            ({"attention": "summary", "spans": [{"q": (0.5, 2.5)}, {}, {}, {}, {}]}, "spans of prompt 0 must map"),
            ({"top_k": 1000}, "top_k"),
            ({"top_k": -1}, "top_k"),
            ({"options": ("A",)}, "at least two"),
            ({"options": ("A", "Answer")}, "Answer.*no single token"),
        ],
    )
    def test_requests_that_name_nothing(self, ex: Extractor, request_: dict[str, Any], message: str) -> None:
        with pytest.raises(RequestError, match=message):
            ex.capture(TEXTS, **request_)

    def test_unknown_keyword(self, ex: Extractor) -> None:
        with pytest.raises(TypeError, match="return_type"):
            ex.capture(TEXTS, return_type="logits")  # type: ignore[call-arg]

    def test_missing_site_is_explained(self) -> None:
        for family, site, reason in (
            ("gptj", "resid_mid", "in parallel"),
            ("mamba", "attn_out", "recurrent"),
            ("jamba", "z", "only some"),
        ):
            ex = Extractor(small_model(family), small_tokenizer(), check=False)
            with pytest.raises(RequestError, match=f"no site '{site}'.*{reason}.*they have resid_pre"):
                ex.capture(TEXTS, sites=(site,))


class TestLayers:
    @pytest.fixture(scope="class")
    def ex(self) -> Extractor:
        return Extractor(small_model("llama", layers=4), small_tokenizer(), check=False)

    @pytest.mark.parametrize(
        ("asked", "found"),
        [
            ("all", (0, 1, 2, 3)), ("last", (3,)), (-1, (3,)), ([3, 0], (3, 0)), (range(1, 3), (1, 2)), ("1-2", (1, 2)), ("0,-1", (0, 3)),
            (0.0, (0,)), (1.0, (3,)), ([0.0, 0.34], (0, 1)), ("0.5", (2,)), (np.float32(0.5), (2,)), (np.float16(1), (3,)),
            (Fraction(1, 3), (1,)), (torch.tensor(0.5), (2,)), (torch.tensor(-1), (3,)), (torch.tensor([0.0, 0.34]), (0, 1)),
            (np.array([0.5], np.float32), (2,)), (np.array([3, 0]), (3, 0)), (np.int8(2), (2,)), (2.0, (2,)),
        ],
    )  # fmt: skip
    def test_selection(self, ex: Extractor, asked: Any, found: tuple[int, ...]) -> None:
        everything = ex.capture(TEXTS[:2], layers="all").resid_post
        states = ex.capture(TEXTS[:2], layers=asked)
        assert states.layers == found
        assert torch.equal(states.resid_post, everything[:, list(found)])


class TestPrecision:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
    @pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
    def test_low_precision_equals_the_models_own(self, family: str, dtype: torch.dtype) -> None:
        ex = Extractor(small_model(family, dtype=dtype), small_tokenizer())
        states = ex.capture(TEXTS, sites=("resid_post", "final_norm"))
        assert states.resid_post.dtype is dtype
        # eager attention, which a softcap needs, has its softmax in float32: sums of another padded length round otherwise
        double = 1e-6 if family == "gemma2" else 1e-12
        limit = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float64: double}[dtype]
        for i, ids in enumerate(states.token_ids):
            hidden, _ = own_states(ex.model, ids)
            assert relative(states.resid_post[i, 0], hidden[1]) < limit

    def test_float16_overflow_is_said(self) -> None:
        """Qwen2's known fault: a residual above 65504 becomes infinite in float16, then NaN, and is fine in float32."""
        model = small_model("qwen2", dtype=torch.float16)
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight.mul_(100)
            model.model.layers[0].mlp.down_proj.weight.mul_(3e4)
        ex = Extractor(model, small_tokenizer(), check=False)
        with pytest.raises(
            CaptureError, match=r"resid_post at layer \d of prompt \d is not finite in float16.*bfloat16"
        ):
            ex.capture(TEXTS)
        with pytest.raises(CaptureError, match="not finite"):
            ex.capture(TEXTS, sites=())
        fine = Extractor(model.float(), small_tokenizer(), check=False).capture(TEXTS)
        assert np.isfinite(fine.entropy_bits).all()
