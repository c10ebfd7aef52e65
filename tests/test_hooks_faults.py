"""Faults that tools of this field have had, each held here as a test with the right value."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
import torch

from precollapse.errors import CaptureError, RequestError
from precollapse.hooks import Extractor
from precollapse.hooks.backends.hf import HuggingFaceBackend
from precollapse.hooks.backends.protocol import Request
from precollapse.hooks.decoding.greedy import continue_greedily
from precollapse.hooks.loading.config_file import refuse_unsupported
from precollapse.hooks.prompts.boundary import assemble
from precollapse.hooks.prompts.rendering import Renderer
from precollapse.hooks.taps import as_sequences
from precollapse.hooks.unembedding import is_plain, row_statistics
from precollapse.perf.small_models import VOCABULARY, small_model, small_tokenizer
from precollapse.studies.trajectories.chains import generate_chains
from precollapse.studies.trajectories.forced import forced_answers

TEXTS = ["Is it?", "The quick brown fox", "No"]
WITH_BOS = "{{ bos_token }}{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
WITHOUT_BOS = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(((a.double() - b.double()).abs().amax(-1) / b.double().abs().amax(-1)).max())


def tokenizer_that_writes(template: str, padding_side: str = "left", chat: str | None = None) -> Any:
    """The small tokenizer with a post-processor such as "<s> $A" or "$A </s>"."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = small_tokenizer(padding_side, chat)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=template, special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return tokenizer


class TestPadding:
    @pytest.fixture(scope="class")
    def model(self) -> Any:
        return small_model("gpt2")  # learnt positions: a shifted prompt is another prompt

    @pytest.fixture(scope="class")
    def single(self, model: Any) -> list[torch.Tensor]:
        out = []
        for text in TEXTS:
            ids = small_tokenizer()(text, return_tensors="pt")["input_ids"]
            with torch.no_grad():
                out.append(model(ids, output_hidden_states=True).hidden_states[1][0, -1])
        return out

    @pytest.mark.parametrize("side", ["right", "left"])
    def test_the_tokenizers_padding_side_does_not_matter(
        self, model: Any, single: list[torch.Tensor], side: str
    ) -> None:
        states = Extractor(model, small_tokenizer(side), check=False).capture(TEXTS)
        assert all(relative(states.resid_post[i, 0], own) < 1e-5 for i, own in enumerate(single))

    @pytest.mark.parametrize("side", ["right", "left"])
    def test_a_padded_batch_with_its_mask(self, model: Any, single: list[torch.Tensor], side: str) -> None:
        tokenizer = small_tokenizer(side)
        encoded = tokenizer(TEXTS, return_tensors="pt", padding=True)
        states = Extractor(model, tokenizer, check=False).capture(dict(encoded))
        assert all(relative(states.resid_post[i, 0], own) < 1e-5 for i, own in enumerate(single))
        assert states.boundary == [len(t) - 1 for t in TEXTS]

    @pytest.mark.parametrize("side", ["right", "left"])
    def test_a_padded_tensor_without_its_mask_is_refused(self, model: Any, side: str) -> None:
        tokenizer = small_tokenizer(side)
        ids = tokenizer(TEXTS, return_tensors="pt", padding=True)["input_ids"]
        with pytest.raises(RequestError, match="without a mask.*attention_mask"):
            Extractor(model, tokenizer, check=False).capture(ids)

    @pytest.mark.parametrize("side", ["right", "left"])
    def test_every_form_of_padded_ids_without_a_mask_is_refused(self, model: Any, side: str) -> None:
        tokenizer = small_tokenizer(side)
        ex = Extractor(model, tokenizer, check=False)
        fixed = tokenizer(TEXTS[0], return_tensors="pt", padding="max_length", max_length=9)["input_ids"]
        lists = tokenizer(TEXTS, padding=True)["input_ids"]
        rows = [torch.tensor(row) for row in lists]
        for given in (fixed, fixed[0], fixed.numpy(), fixed.tolist(), lists, rows, lists[2], {"input_ids": lists}):
            with pytest.raises(RequestError, match="without a mask and (starts|ends) with the pad token 0"):
                ex.capture(given)
        plain = tokenizer(TEXTS)["input_ids"]
        assert torch.equal(ex.capture(plain).resid_post, ex.capture(TEXTS).resid_post)

    @pytest.mark.parametrize("side", ["right", "left"])
    @pytest.mark.parametrize("pad", ["bos_token", "eos_token"])
    def test_where_the_pad_token_may_be_meant(self, model: Any, side: str, pad: str) -> None:
        tokenizer = small_tokenizer(side)
        tokenizer.pad_token = getattr(tokenizer, pad)
        ex, one = Extractor(model, tokenizer, check=False), tokenizer.pad_token_id
        for given in (
            tokenizer(TEXTS, padding=True)["input_ids"],
            tokenizer(["four", "five5"], padding=True)["input_ids"],  # one pad token, in one row of a rectangle
            torch.tensor([[one, one, 9, 10]]),
            [[5, 6, one, one], [7]],
        ):
            with pytest.raises(RequestError, match=f"with the pad token {one}"):
                ex.capture(given)
        square = [(9, 10, one), (7, 8, one)]
        for meant in ([(one, 9, 10), (9, one)], square, [(one, 9, one)]):
            assert ex.capture([list(row) for row in meant]).token_ids == meant
        assert ex.capture(torch.tensor(square)).token_ids == square

    def test_a_mask_that_is_no_padding_mask_is_refused(self, model: Any) -> None:
        """An additive mask would be read the wrong way round, and tokens under a hole would be left out unsaid."""
        ex, ids = Extractor(model, small_tokenizer(), check=False), torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
        additive = torch.tensor([[0.0, 0.0, 0.0, -3e38], [0.0, 0.0, 0.0, 0.0]])
        hole = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 1]])
        for mask, told in ((additive, "additive mask"), (hole, "of prompt 1 has zeros between"), (hole * 2, "to 2")):
            with pytest.raises(RequestError, match=told):
                ex.capture({"input_ids": ids, "attention_mask": mask})
        both_sides = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]])
        states = ex.capture({"input_ids": ids, "attention_mask": both_sides.float()})
        assert states.token_ids == [(6, 7), (9, 10, 11, 12)]

    def test_left_padding_carries_its_positions(self, model: Any) -> None:
        batch = assemble([0, 1], [(5, 6, 7), (8,)], 0, "left")
        assert batch.position_ids is not None and batch.attention_mask is not None
        assert batch.position_ids.tolist() == [[0, 1, 2], [0, 0, 0]]
        assert batch.attention_mask.tolist() == [[1, 1, 1], [0, 0, 1]]

    @pytest.mark.parametrize("family", ["mamba", "mamba2", "jamba"])
    def test_one_padded_prompt_through_a_recurrent_model(self, family: str) -> None:
        """transformers skips the mask for a batch of one, so that padding runs through the recurrence."""
        model = small_model(family)
        padded, mask = torch.tensor([[0, 0, 0, 9, 20, 31]]), torch.tensor([[0, 0, 0, 1, 1, 1]])
        ex = Extractor(model, small_tokenizer(), check=False)
        states = ex.capture({"input_ids": padded, "attention_mask": mask})
        with torch.no_grad():
            alone = ex.backend.architecture.backbone(padded[:, 3:], use_cache=False)[0][0, -1]
        assert relative(ex.capture([[9, 20, 31]], sites=("final_norm",)).final_norm[0], alone) < 1e-6
        assert torch.equal(states.resid_post, ex.capture([[9, 20, 31]]).resid_post)


class TestBeginningOfSequence:
    MESSAGES = [{"role": "user", "content": "Hi"}]

    def test_a_template_that_writes_its_bos_gets_no_second(self) -> None:
        rendered = Renderer(tokenizer_that_writes("<s> $A", chat=WITH_BOS)).render(self.MESSAGES)
        assert (
            rendered.bos_count == 1
            and rendered.token_ids[:2] == (1, rendered.token_ids[1])
            and rendered.token_ids[1] != 1
        )

    def test_a_template_without_bos_gets_the_tokenizers(self) -> None:
        rendered = Renderer(tokenizer_that_writes("<s> $A", chat=WITHOUT_BOS)).render(self.MESSAGES)
        assert rendered.bos_count == 1 and len(rendered.token_ids) == len("[Hi]") + 1

    def test_no_bos_where_neither_writes_one(self) -> None:
        rendered = Renderer(small_tokenizer(chat_template=WITHOUT_BOS)).render(self.MESSAGES)
        assert rendered.bos_count == 0 and len(rendered.token_ids) == len("[Hi]")
        assert Renderer(small_tokenizer()).render("Hi").bos_count == 0

    def test_a_tokenizers_flag_is_obeyed(self) -> None:
        assert Renderer(tokenizer_that_writes("<s> $A")).render("Hi").bos_count == 1
        assert Renderer(tokenizer_that_writes("$A")).render("Hi").bos_count == 0

    def test_text_that_brings_its_own_bos(self) -> None:
        rendered = Renderer(tokenizer_that_writes("<s> $A")).render("<s>Hi")
        assert rendered.bos_count == 1 and len(rendered.token_ids) == 3

    def test_an_appended_eos_is_not_the_boundary(self) -> None:
        rendered = Renderer(tokenizer_that_writes("<s> $A </s>")).render("Hi")
        assert rendered.token_ids[-1] == small_tokenizer()("i")["input_ids"][0]

    def test_counts_travel_with_the_states(self) -> None:
        tokenizer = tokenizer_that_writes("<s> $A", chat=WITH_BOS)
        states = Extractor(small_model("llama"), tokenizer, check=False).capture(
            ["Hi", self.MESSAGES, [5, 6], [1, 1, 5]]
        )
        assert states.bos_count == [1, 1, 0, 2]


class TestSitesMeanWhatTheySay:
    def test_blooms_attention_module_returns_the_residual_too(self) -> None:
        model = small_model("bloom")
        backend = HuggingFaceBackend(model)
        seen: list[torch.Tensor] = []
        model.transformer.h[0].self_attention.register_forward_hook(lambda _m, _a, out: seen.append(out[0][:, -1]))
        batch = assemble([0], [(5, 6, 7, 8)], 0)
        sites = backend.rows(
            batch, Request(("resid_pre", "attn_out", "resid_mid"), (0,), batch.boundary[:, None])
        ).sites
        pre, attn, mid = (sites[s][0, 0, 0] for s in ("resid_pre", "attn_out", "resid_mid"))
        assert relative(pre + attn, mid) < 1e-6
        assert relative(seen[0][0], mid) < 1e-6, "what the module returns is the stream after it"
        assert relative(seen[0][0], attn) > 0.1

    def test_mambas_hidden_states_are_one_off(self) -> None:
        """hidden_states[l + 1] is the output of block l everywhere but in Mamba, where hidden_states[l] is."""
        model = small_model("mamba")
        states = Extractor(model, small_tokenizer(), check=False).capture("abc")
        with torch.no_grad():
            hidden = model(torch.tensor([states.token_ids[0]]), output_hidden_states=True).hidden_states
        assert relative(states.resid_post[0, 0], hidden[0][0, -1]) < 1e-6

    def test_granites_multiplier_is_inside_the_parts(self) -> None:
        states = Extractor(small_model("granite"), small_tokenizer(), check=False).capture(
            TEXTS, sites=("resid_pre", "attn_out", "mlp_out", "resid_post")
        )
        assert relative(states.resid_pre + states.attn_out + states.mlp_out, states.resid_post) < 1e-6


class Rounded(torch.nn.Module):
    """An unembedding that keeps 8-bit weights and a scale per row, as quantised layers do."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.scale = torch.nn.Buffer(linear.weight.abs().amax(1) / 127)
        self.weight = torch.nn.Parameter(
            (linear.weight / self.scale[:, None]).round().to(torch.int8), requires_grad=False
        )
        self.seen: list[tuple[int, ...]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(tuple(x.shape))
        return x @ (self.weight.to(x.dtype) * self.scale[:, None].to(x.dtype)).T


class Packed(torch.nn.Module):
    """4-bit weights, eight to an int32, with a scale per output, under the names that GPTQ uses."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.infeatures, self.outfeatures = linear.in_features, linear.out_features
        self.register_buffer("scales", linear.weight.abs().amax(1) / 7)
        whole = ((linear.weight / self.scales[:, None]).round() + 8).to(torch.int32).T  # [in, out]
        shifts = torch.arange(0, 32, 4, dtype=torch.int32)[:, None]
        self.register_buffer("shifts", shifts)
        self.register_buffer("qweight", (whole.unflatten(0, (-1, 8)) << shifts).sum(1).to(torch.int32))
        self.bias = linear.bias

    def matrix(self) -> torch.Tensor:
        whole = (self.qweight[:, None] >> self.shifts) & 15
        return (whole.flatten(0, 1).to(self.scales.dtype).T - 8) * self.scales[:, None]

    def plain(self) -> torch.nn.Linear:
        made = torch.nn.Linear(self.infeatures, self.outfeatures, self.bias is not None, dtype=self.scales.dtype)
        made.weight.data = self.matrix().contiguous()
        return made.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.matrix(), self.bias)


class TestUnembeddings:
    def test_a_quantised_one_runs_as_its_module_on_boundary_rows_only(self) -> None:
        model = small_model("gemma2")  # with a softcap after it
        head = Rounded(model.lm_head)
        model.lm_head = head
        ex = Extractor(model, small_tokenizer())
        assert not is_plain(head)
        head.seen.clear()
        states = ex.capture(TEXTS, options=("A", "B"), top_k=3)
        assert head.seen and all(len(shape) == 2 and shape[0] <= len(TEXTS) for shape in head.seen)
        for i, ids in enumerate(states.token_ids):
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0, -1].double()
            p = torch.softmax(logits, -1)
            assert states.entropy_bits[i] == pytest.approx(float(-(p * p.log2()).sum()), abs=1e-5)
            assert states.top_ids[i].tolist() == logits.topk(3).indices.tolist()

    def test_one_with_a_users_hook_runs_as_its_module(self) -> None:
        model = small_model("llama")
        ex = Extractor(model, small_tokenizer())
        plain = ex.capture("abc").entropy_bits
        model.lm_head.register_forward_hook(lambda _m, _a, out: out * 2)
        assert not is_plain(model.lm_head)
        hooked = Extractor(model, small_tokenizer()).capture("abc")
        assert abs(hooked.entropy_bits[0] - plain[0]) > 1e-3

    def test_packed_layers_are_captured_as_the_matrices_they_stand_for(self) -> None:
        """GPTQ and AWQ keep several weights to an integer: no `weight` that is a matrix, only declared widths."""
        states = []
        for packed in (False, True):
            model = small_model("llama", dtype=torch.float64)
            for name, module in list(model.named_modules()):
                if isinstance(module, torch.nn.Linear):
                    made = Packed(module)
                    owner, _, child = name.rpartition(".")
                    setattr(model.get_submodule(owner), child, made if packed else made.plain())
            ex = Extractor(model, small_tokenizer())
            assert is_plain(model.lm_head) == (not packed)
            states.append(ex.capture(TEXTS, sites=ex.backend.sites, attention="rows", options=("A", "B"), top_k=99))
            with pytest.raises(RequestError, match="vocabulary size 99"):
                ex.capture(TEXTS, top_k=100)
        plain, own = states
        for site in plain.sites:
            torch.testing.assert_close(own[site], plain[site], rtol=1e-9, atol=1e-9)
        assert own.z.shape == (3, 2, 4, 8)
        assert own.entropy_bits == pytest.approx(plain.entropy_bits, abs=1e-5)
        assert own.option_logprobs == pytest.approx(plain.option_logprobs, abs=1e-5)

    def test_a_layer_that_hides_its_width_is_said(self) -> None:
        model = small_model("llama")
        model.model.layers[0].self_attn.o_proj = Rounded(model.model.layers[0].self_attn.o_proj)
        ex = Extractor(model, small_tokenizer(), check=False)
        assert len(ex.capture("abc", sites=("attn_out",))) == 1
        with pytest.raises(RequestError, match="Rounded does not say how wide its input is.*leave that site out"):
            ex.capture("abc", sites=("z",))

    def test_one_with_a_patched_forward_runs_as_its_module(self) -> None:
        model = small_model("llama")
        tokenizer = small_tokenizer()
        plain = Extractor(model, tokenizer, check=False).capture("abc").entropy_bits
        own = model.lm_head.forward
        model.lm_head.forward = lambda x: own(x) * 2
        assert not is_plain(model.lm_head)
        patched = Extractor(model, tokenizer).capture("abc")
        assert abs(patched.entropy_bits[0] - plain[0]) > 1e-3
        with torch.no_grad():
            logits = model(torch.tensor([patched.token_ids[0]])).logits[0, -1].double()
        p = torch.softmax(logits, -1)
        assert patched.entropy_bits[0] == pytest.approx(float(-(p * p.log2()).sum()), abs=1e-5)

    @pytest.mark.parametrize("kind", ["Linear8bitLt", "Linear4bit"])
    def test_bitsandbytes(self, kind: str) -> None:
        bnb = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
        model = small_model("llama")
        for block in model.model.layers:
            block.mlp.down_proj = _bits(bnb, kind, block.mlp.down_proj)
        model.lm_head = _bits(bnb, kind, model.lm_head)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model(torch.tensor([[5, 6]]))
            except NotImplementedError as error:
                pytest.skip(f"bitsandbytes has no {kind} for this CPU: {str(error)[:80]}")
            ex = Extractor(model, small_tokenizer(), check=False)
            batch = assemble([0], [tuple(range(5, 15))], 0)
            final = ex.backend.rows(batch, Request((), (0,), batch.boundary[:, None])).final_norm[:, 0]
            entropy = float(row_statistics(ex.backend.architecture, final, 1, None).entropy_bits[0])
            with torch.no_grad():
                p = torch.softmax(model.lm_head(final).double(), -1)
        assert not is_plain(model.lm_head)
        assert entropy == pytest.approx(float(-(p * p.log2()).sum()), abs=1e-4)


def _bits(bnb: Any, kind: str, linear: torch.nn.Linear) -> Any:
    options = {"has_fp16_weights": False} if kind == "Linear8bitLt" else {}
    made = getattr(bnb.nn, kind)(linear.in_features, linear.out_features, bias=False, **options)
    made.load_state_dict({"weight": linear.weight.data})
    return made.to("cpu")


class TestPromptsThatCannotBeUsed:
    @pytest.fixture(scope="class")
    def ex(self) -> Extractor:
        return Extractor(small_model("llama"), small_tokenizer(), check=False)

    @pytest.mark.parametrize(
        ("prompts", "message"),
        [
            ([], "no prompts"),
            ("", "prompt 0 is empty"),
            (["ok", ""], "prompt 1 is empty"),
            ([[]], "prompt 0 is empty"),
            (["<s></s>"], "prompt 0 holds only special tokens"),
            ([[1, 2]], "prompt 0 holds only special tokens"),
            (["a" * 129], "prompt 0 has 129 tokens, more than the model's context of 128"),
            ([[5, 99]], "token id 99, outside the vocabulary of 99"),
            ([[5, "a"]], "mixes token ids|not a list of token ids"),
            (3.5, "prompts is a float"),
            ([3.5], "prompt 0 is a float"),
            ({"text": "a"}, "mapping with keys"),
            ([[{"role": "user", "content": "a"}]], "no chat template"),
        ],
    )
    def test_refused_before_anything_runs(self, ex: Extractor, prompts: Any, message: str) -> None:
        handle = ex.model.model.layers[0].register_forward_hook(lambda *_: pytest.fail("the model ran"))
        try:
            with pytest.raises(RequestError, match=message):
                ex.capture(prompts)
        finally:
            handle.remove()

    def test_a_template_that_refuses(self) -> None:
        refusing = "{{ raise_exception('roles must alternate') }}"
        ex = Extractor(small_model("llama"), small_tokenizer(chat_template=refusing), check=False)
        with pytest.raises(RequestError, match="refused by the model's chat template.*roles must alternate"):
            ex.capture([[{"role": "user", "content": "a"}]])

    def test_model_without_tokenizer(self) -> None:
        with pytest.raises(RequestError, match="a tokenizer is needed.*Extractor\\(model, tokenizer\\)"):
            Extractor(small_model("llama"))

    def test_models_of_another_kind(self) -> None:
        from transformers import AutoModelForSeq2SeqLM, BertConfig, BertModel, T5Config

        t5 = AutoModelForSeq2SeqLM.from_config(
            T5Config(vocab_size=99, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
        )
        with pytest.raises(RequestError, match="encoder-decoder"):
            Extractor(t5, small_tokenizer())
        bert = BertModel(
            BertConfig(vocab_size=99, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
        )
        with pytest.raises(RequestError, match="causal language model"):
            Extractor(bert, small_tokenizer())

    def test_vision_model(self) -> None:
        from transformers import AutoConfig

        from precollapse.hooks.loading.config_file import refuse_unsupported

        with pytest.raises(RequestError, match="images"):
            refuse_unsupported(AutoConfig.for_model("llava"), "some/llava")


def test_a_model_that_reads_padding_is_refused_at_load() -> None:
    """The gate finds a model whose right padding reaches the boundary."""
    model = small_model("llama")
    model.model.layers[0].mlp.register_forward_hook(lambda _m, _a, out: out + out.mean(1, keepdim=True))
    with pytest.raises(CaptureError, match="padded batch differs.*check=False overrides"):
        Extractor(model, small_tokenizer())


def test_a_wrong_scale_is_refused_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("cohere")
    forward = type(model).forward

    def other_scale(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = forward(self, *args, **kwargs)
        out.logits = out.logits * 3
        return out

    monkeypatch.setattr(type(model), "forward", other_scale)
    with pytest.raises(CaptureError, match="entropy of the fused statistics differs.*bits"):
        Extractor(model, small_tokenizer())


def test_a_model_whose_forward_takes_no_cache_can_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("llama")
    forward = type(model).forward

    def without_cache(self: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", without_cache)
    ex = Extractor(model, small_tokenizer())
    assert ex.gate_report is not None and not ex.gate_report.left_padding_safe
    assert len(ex.capture("abc")) == 1


def test_manifest_is_plain_values() -> None:
    manifest = Extractor(small_model("llama"), small_tokenizer()).capture("abc").manifest
    assert json.loads(json.dumps(manifest)) == manifest
    assert manifest["attention_implementation"] == "sdpa" and manifest["gate"]["statistics_error_bits"] < 1e-4


def test_not_a_number_in_a_padded_batch_is_refused_at_load() -> None:
    """A NaN in one prompt must not hide behind the finite differences of the others."""
    model = small_model("llama")

    def spoil(_module: Any, _args: Any, out: torch.Tensor) -> torch.Tensor | None:
        return out if len(out) == 1 else torch.cat([out[:-1], out[-1:] * float("nan")])

    model.model.layers[0].mlp.register_forward_hook(spoil)
    with pytest.raises(CaptureError, match="padded batch differs.*by nan"):
        Extractor(model, small_tokenizer())


class TestFoundByStructure:
    """Families that no table knows: what is taken for a block must give the model's own hidden states."""

    @staticmethod
    def made(kind: str, **settings: Any) -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM

        try:
            config = AutoConfig.for_model(
                kind, vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
                max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, **settings,
            )  # fmt: skip
        except (KeyError, ValueError):
            pytest.skip(f"this transformers has no {kind}")
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()

    def test_a_list_of_attentions_is_no_list_of_blocks(self) -> None:
        model = self.made("xlm", emb_dim=32, n_layers=3, n_heads=4, n_words=VOCABULARY)
        with pytest.raises(CaptureError, match="found by structure differs from the model's own hidden states"):
            Extractor(model, small_tokenizer())

    def test_several_streams_per_token_are_refused(self) -> None:
        """Flattened, the row at the boundary's number would be that of a token four times as early."""
        x = torch.zeros(2, 5, 4, 32)
        for given in (x, torch.zeros(3, 5, 32), torch.zeros(5, 32), torch.zeros(32)):
            with pytest.raises(CaptureError, match=r"has shape .* for a batch of 2, not \[batch, tokens, width\]"):
                as_sequences(given, 2, "resid_post of layer 0")
        assert as_sequences(torch.zeros(10, 32), 2, "mlp_out").shape == (2, 5, 32)

    def test_a_family_that_is_read_rightly_passes(self) -> None:
        ex = Extractor(self.made("biogpt", intermediate_size=64), small_tokenizer())
        assert ex.backend.architecture.source == "structure"
        with torch.no_grad():
            ids = torch.tensor([ex.render("Is it?")[0].token_ids])
            own = ex.model(ids, output_hidden_states=True).hidden_states
        found = ex.capture("Is it?").resid_post[0]
        assert all(relative(found[layer], own[layer + 1][0, -1]) < 1e-5 for layer in range(2))

    def test_no_language_model_is_refused_in_a_sentence(self) -> None:
        with pytest.raises(CaptureError, match="failed the check at load"):
            Extractor(self.made("electra", intermediate_size=64, embedding_size=16, is_decoder=True), small_tokenizer())


class TestTrainingMode:
    """A model in training mode drops parts at random: what it writes and what it is asked must not depend on that."""

    @pytest.fixture
    def ex(self) -> Any:
        model = small_model("gpt2")
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.5
        return Extractor(model.train(), small_tokenizer())

    def test_generation(self, ex: Any) -> None:
        def written() -> list[Any]:
            found = []
            for captured in ex.stream(ex.render(TEXTS), keep_cache=True):
                found += [o.token_ids for o in continue_greedily(ex.model, ex.tokenizer, captured, 8)]
            return found

        first = written()
        assert written() == first and ex.model.training
        ex.model.eval()
        assert written() == first

    def test_chains_and_forced_answers(self, ex: Any) -> None:
        prompts, chain = [list(ex.render(TEXTS[1])[0].token_ids)], "One. Two. Three."

        def found() -> Any:
            forced = forced_answers(ex, [TEXTS[1]], [chain], options=("A", "B"))[0].option_logprobs
            return forced.tolist(), generate_chains(ex, prompts, ["x"], 0.7, 8)[0].tokens

        first = found()
        assert found() == first and ex.model.training
        ex.model.eval()
        assert found() == first


class TestWhatIsNotRead:
    def test_inputs_that_would_be_ignored_are_refused(self) -> None:
        ex = Extractor(small_model("gpt2"), small_tokenizer(), check=False)
        ids = torch.tensor([[5, 6, 7]])
        with pytest.raises(RequestError, match="position_ids, which is not read"):
            ex.capture({"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": ids})

    def test_weights_that_are_not_loaded(self) -> None:
        model = small_model("llama")
        with pytest.raises(RequestError, match="not loaded .they lie on the meta device"):
            Extractor(model.to("meta"), small_tokenizer())

    @pytest.mark.parametrize("budget", ["512", 51.5, True, 0])
    def test_a_budget_that_is_no_number(self, budget: Any) -> None:
        with pytest.raises(RequestError, match="batch_tokens must be a whole number"):
            Extractor(small_model("llama"), small_tokenizer(), check=False, batch_tokens=budget)

    def test_a_name_that_is_none(self) -> None:
        with pytest.raises(RequestError, match="named by a Hub id or a path, found 3"):
            Extractor.from_pretrained(3)  # type: ignore[arg-type]

    def test_a_vision_model_names_the_class_of_its_text_part(self) -> None:
        from transformers import Gemma3Config

        with pytest.raises(RequestError, match="load its language model alone .Gemma3ForCausalLM."):
            refuse_unsupported(Gemma3Config(), "Gemma3ForConditionalGeneration")


def test_spans_side_by_side_share_no_token(embedded: Any) -> None:
    """Tokens begin with the blank before their word: that blank alone put a word into the span before it too."""
    text = "Reply with one letter. Question: is it so? Answer:"
    cut = text.index("Question")
    spans = [{"instruction": (0, cut), "question": (cut, len(text))}]
    rendered = embedded.render(text)[0]
    columns = [embedded.renderer.columns(rendered, *ends) for ends in spans[0].values()]
    assert sorted(columns[0] + columns[1]) == list(range(len(rendered.token_ids)))
    assert embedded.tokenizer.decode(rendered.token_ids[columns[1][0]]).strip() == "Question"
    summary = embedded.capture(text, (), attention="summary", spans=spans).attention_summary
    total = sum(summary[name] for name in ("instruction", "question", "rest"))
    torch.testing.assert_close(torch.as_tensor(total), torch.ones_like(torch.as_tensor(total)), rtol=1e-5, atol=1e-5)
    assert embedded.renderer.columns(rendered, cut - 1, cut) == columns[1][:1], "a span of one blank has its token"
