"""Steering against closed forms: h + s v and its kin, hidden states changed by hand, and generation without a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from precollapse.errors import CaptureError, RequestError
from precollapse.hooks import Extractor, Steering, join
from precollapse.hooks.decoding.greedy import continue_greedily
from precollapse.perf.small_models import small_model, small_tokenizer

PROMPTS = ["2 + 2 =", "The capital of France is", "abc", "One more prompt, longer than the others: why?", "Hi"]
WIDTH = 32
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
SINGLE_CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def vector(seed: int, width: int = WIDTH) -> torch.Tensor:
    return torch.randn(width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def extractor(family: str = "llama", dtype: torch.dtype = torch.float64, seed: int = 0, **options: Any) -> Extractor:
    return Extractor(small_model(family, dtype=dtype, layers=3, seed=seed), small_tokenizer(), **options)


@pytest.fixture(scope="module")
def llama() -> Extractor:
    return extractor()


def hook_counts(model: Any) -> list[tuple[int, int]]:
    return [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]


# -- what is captured is the changed state ---------------------------------------------------------------------------

FAMILIES = (
    "llama",
    "gpt2",
    "gemma2",
    "granite",
    "bloom",
    "opt",
    "opt-projected",
    "olmo2",
    "glm4",
    "falcon-alibi",
    "gptj",
)
SINGLE = ("gpt_oss", "jamba", "mamba2", "mamba")  # parts of these run in float32 only


@pytest.mark.parametrize("family", FAMILIES + SINGLE)
def test_every_site_changes_by_scale_times_vector(family: str) -> None:
    ex = extractor(family, torch.float32 if family in SINGLE else torch.float64)
    close = SINGLE_CLOSE if family in SINGLE else CLOSE
    sites = ex.backend.sites
    before = ex.capture(PROMPTS, sites)
    parts = {"resid_pre", "attn_out", "mlp_out"} <= set(sites)
    for site in sites:
        width = {"z": before[site][0, 0].numel(), "final_norm": before[site].shape[-1]}.get(site, WIDTH)
        v, layer = vector(1, width), None if site == "final_norm" else 1
        with Steering(site, layer, v, -1.5).on(ex):
            after = ex.capture(PROMPTS, sites)
        if site == "final_norm":
            np.testing.assert_allclose(after[site] - before[site], (-1.5 * v).expand(len(PROMPTS), -1), **close)
            assert torch.equal(after.resid_post, before.resid_post)
            assert not np.allclose(after.entropy_bits, before.entropy_bits)
            continue
        change = (after[site] - before[site])[:, 1].flatten(1)
        np.testing.assert_allclose(change, (-1.5 * v).expand(len(PROMPTS), -1), **close)
        assert torch.equal(after.resid_pre[:, :1], before.resid_pre[:, :1]), "an earlier block saw the steering"
        assert not torch.allclose(after.resid_post[:, 2], before.resid_post[:, 2])
        if parts:
            # what the block adds still sums to its output; a change between the parts stands for itself
            total = after.resid_pre + after.attn_out + after.mlp_out
            total[:, 1] += -1.5 * v if site in ("resid_mid", "resid_post") else 0.0
            np.testing.assert_allclose(after.resid_post, total, **close)


def test_steering_resid_mid_is_steering_what_attention_adds() -> None:
    for family in ("llama", "gemma2", "gpt2", "granite"):
        ex = extractor(family)
        found = []
        for site in ("resid_mid", "attn_out"):
            with Steering(site, 1, vector(2), 3.0).on(ex):
                found.append(ex.capture(PROMPTS, ("resid_post", "mlp_out")))
        for site in ("resid_post", "mlp_out"):
            np.testing.assert_allclose(found[0][site], found[1][site], **CLOSE)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_equals_the_remaining_blocks_run_by_hand(family: str) -> None:
    ex = extractor(family)
    model, v, scale = ex.model, vector(3), 2.5
    for prompt in PROMPTS[:3]:
        ids = torch.tensor([ex.render(prompt)[0].token_ids])
        with torch.no_grad():
            h = model(input_ids=ids, output_hidden_states=True).hidden_states[2] + scale * v  # the output of block 1
            if family == "llama":
                rotary = model.model.rotary_emb(h, torch.arange(ids.shape[1])[None])
                h = model.model.norm(model.model.layers[2](h, position_embeddings=rotary))
            else:
                h = model.transformer.ln_f(model.transformer.h[2](h))
            p = torch.log_softmax(model.lm_head(h[0, -1]), -1)
        with Steering("resid_post", 1, v, scale).on(ex):
            got = ex.capture(prompt, ("final_norm",))
        np.testing.assert_allclose(got.final_norm[0], h[0, -1], **CLOSE)
        assert got.entropy_bits[0] == pytest.approx(float(-(p.exp() * p).sum() / np.log(2)), rel=1e-6)


def test_modes(llama: Extractor) -> None:
    v = vector(4)
    u = v / v.norm()
    h = llama.capture(PROMPTS).resid_post[:, 1]
    along = (h @ u)[:, None] * u

    def steered(mode: str, scale: float = 1.0) -> torch.Tensor:
        with Steering("resid_post", 1, v, scale, mode=mode).on(llama):
            return llama.capture(PROMPTS).resid_post[:, 1]

    assert float((steered("ablate") @ v).abs().max()) < 1e-12
    np.testing.assert_allclose(steered("ablate"), h - along, **CLOSE)
    np.testing.assert_allclose(steered("ablate", 0.25), h - 0.25 * along, **CLOSE)
    np.testing.assert_allclose(steered("project"), along, **CLOSE)
    np.testing.assert_allclose(steered("project", 0.5), (h + along) / 2, **CLOSE)
    assert torch.equal(steered("replace"), v.expand_as(h))
    np.testing.assert_allclose(steered("replace", 0.5), (h + v) / 2, **CLOSE)


def test_one_vector_per_prompt_patches_each_with_its_own(llama: Extractor) -> None:
    llama.batch_tokens, before = 40, llama.batch_tokens
    donors = torch.stack([vector(100 + i) for i in range(len(PROMPTS))])
    with Steering("resid_post", 0, donors, mode="replace", positions="boundary").on(llama):
        got = llama.capture(PROMPTS).resid_post[:, 0]
    llama.batch_tokens = before
    assert torch.equal(got, donors)


def test_z_takes_heads_or_a_flat_vector(llama: Extractor) -> None:
    by_head = vector(5).reshape(4, 8)
    base = llama.capture(PROMPTS, ("z",)).z[:, 1]
    for given_vector in (by_head, by_head.flatten()):
        with Steering("z", 1, given_vector).on(llama):
            np.testing.assert_allclose(llama.capture(PROMPTS, ("z",)).z[:, 1], base + by_head, **CLOSE)


def test_plain_numbers_do_not_take_torchs_default_dtype(llama: Extractor) -> None:
    """A third has no bfloat16: rounded, it would steer by another vector."""
    numbers = [1 / 3] * 32
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        steering = Steering("resid_post", 1, numbers, 1.0)
    finally:
        torch.set_default_dtype(before)
    with steering.on(llama):
        got = llama.capture(["ab"]).resid_post[0, 1]
    want = llama.capture(["ab"]).resid_post[0, 1] + torch.tensor(numbers, dtype=torch.float64)
    assert float((got - want).abs().max()) < 1e-12


def test_bfloat16_is_rounded_once() -> None:
    model = small_model("llama", dtype=torch.bfloat16)
    ex = Extractor(model, small_tokenizer(), check=False)
    before = ex.capture(PROMPTS).resid_post[:, 0]
    v = vector(6).float()
    with Steering("resid_post", 0, v, 1.7).on(ex):
        after = ex.capture(PROMPTS).resid_post[:, 0]
    assert torch.equal(after, (before.float() + torch.tensor(1.7) * v).bfloat16())


# -- batches, padding, scales per prompt -----------------------------------------------------------------------------

PLACES: list[Any] = ["all", "prompt", "boundary", "response", (0, -1), (1,)]


@pytest.mark.parametrize("positions", PLACES, ids=str)
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "mamba"])
def test_batches_and_padding_change_nothing(family: str, positions: Any) -> None:
    ex = extractor(family)
    close = SINGLE_CLOSE if family in ("gemma2", "mamba") else CLOSE
    scales = [0.5, -2.0, 3.0, 0.0, 1.0]
    alone = []
    for prompt, scale in zip(PROMPTS, scales, strict=True):
        with Steering("resid_pre", 1, vector(7), scale, positions).on(ex):
            alone.append(ex.capture(prompt))
    plain = ex.capture(PROMPTS)
    assert not np.allclose(alone[2].entropy_bits, plain.entropy_bits[2])
    np.testing.assert_allclose(alone[3].resid_post[0], plain.resid_post[3], **close)
    for batch_tokens in (10_000, 50):
        ex.batch_tokens = batch_tokens
        with Steering("resid_pre", 1, vector(7), scales, positions).on(ex):
            right = ex.capture(PROMPTS)
            left = join(list(ex.stream(ex.render(PROMPTS), keep_cache=True)), len(PROMPTS))
        for got in (right, left):
            for i, one in enumerate(alone):
                np.testing.assert_allclose(got.resid_post[i], one.resid_post[0], **close)
                np.testing.assert_allclose(got.entropy_bits[i], one.entropy_bits[0], rtol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    scales=st.lists(st.floats(-4, 4), min_size=6, max_size=6),
    mode=st.sampled_from(["add", "ablate", "project", "replace"]),
    batch_tokens=st.integers(1, 200),
    left=st.booleans(),
)
def test_each_prompt_gets_its_own_scale(
    llama: Extractor, lengths: list[int], scales: list[float], mode: str, batch_tokens: int, left: bool
) -> None:
    prompts = [[5 + (7 * i + 3 * k) % 80 for k in range(length)] for i, length in enumerate(lengths)]
    s = np.array(scales[: len(prompts)])
    v = vector(8).numpy()
    u = v / np.linalg.norm(v)
    h = llama.capture(prompts).resid_post[:, 1].numpy()
    along = (h @ u)[:, None] * u
    target = {"add": h + v, "ablate": h - along, "project": along, "replace": np.broadcast_to(v, h.shape)}[mode]
    before = llama.batch_tokens
    try:
        llama.batch_tokens = batch_tokens
        with Steering("resid_post", 1, v, s, "boundary", mode).on(llama):
            pieces = list(llama.stream(llama.render(prompts), keep_cache=left))
    except CaptureError as error:
        assert "changed nothing" in str(error) and np.abs(s).max() < 1e-12
        return
    finally:
        llama.batch_tokens = before
    got = join(pieces, len(prompts)).resid_post[:, 1]
    np.testing.assert_allclose(got, h + s[:, None] * (target - h), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("positions", ["all", "prompt", "boundary", (0,), (-12,)], ids=str)
def test_shared_prefixes_see_the_same_steering(positions: Any) -> None:
    prompts = [
        "Four solved examples come first. Then a question: " + end
        for end in ("what is 2 + 2?", "and 3 + 35 + 7?", "why?")
    ]
    found = []
    for share in ("never", "always"):
        ex = extractor(share_prefix=share)
        plain = ex.capture(prompts)
        with Steering("resid_post", 0, vector(9), [1.0, -2.0, 0.5], positions).on(ex):
            found.append(ex.capture(prompts))
        assert not np.allclose(plain.entropy_bits, found[-1].entropy_bits)
    np.testing.assert_allclose(found[0].resid_post, found[1].resid_post, **CLOSE)


# -- generation ------------------------------------------------------------------------------------------------------


@contextmanager
def block_changed(block: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Change a block's output by replacing its forward: no hooks are used."""
    plain = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        out = plain(*args, **kwargs)
        return (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out)

    block.forward = forward
    try:
        yield
    finally:
        del block.forward


def without_cache(
    ex: Extractor, prompt: str, v: torch.Tensor, columns: Callable[[int, int], list[int]], steps: int
) -> list[int]:
    """Greedy tokens with the whole text run again at each step and the chosen columns of block 1's output moved by v."""
    ids = list(ex.render(prompt)[0].token_ids)
    length, written = len(ids), []

    def change(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[:, columns(length, x.shape[1])] += v
        return x

    with torch.no_grad(), block_changed(ex.backend.architecture.blocks[1], change):
        for _ in range(steps):
            token = int(ex.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())
            if token == ex.tokenizer.eos_token_id:
                break
            written.append(token)
            ids.append(token)
    return written


COLUMNS: dict[str, Callable[[int, int], list[int]]] = {
    "all": lambda length, total: list(range(total)),
    "prompt": lambda length, total: list(range(length)),
    "boundary": lambda length, total: [length - 1],
    "generated": lambda length, total: list(range(length, total)),
    "response": lambda length, total: list(range(length - 1, total)),
    "first": lambda length, total: [0, length - 2],
}
STEPS = 8


def generated(ex: Extractor, steps: int = STEPS) -> list[tuple[int, ...]]:
    written: list[tuple[int, ...]] = [()] * len(PROMPTS)
    for captured in ex.stream(ex.render(PROMPTS), keep_cache=True):
        outputs = continue_greedily(ex.model, ex.tokenizer, captured, steps)
        for row, output in zip(captured.batch.rows, outputs, strict=True):
            written[row] = output.token_ids
    return written


GENERATING = ("llama", "gpt2", "gemma2", "opt", "falcon", "bloom", "jamba", "mamba")


@pytest.mark.parametrize("family", GENERATING)
def test_generation_with_a_cache_equals_generation_without(family: str) -> None:
    # of other seeds, some repeat one token whatever happens; jamba's parts run in float32 only
    seed = {"gpt2": 1, "opt": 2, "falcon": 1}.get(family, 0)
    ex = extractor(family, torch.float32 if family in SINGLE else torch.float64, seed=seed)
    v, scales = vector(10) * 12, [1.0, -0.7, 0.4, 1.5, 0.0]
    found: dict[str, list[tuple[int, ...]]] = {}
    chosen = (
        COLUMNS if family in GENERATING[:3] else {name: COLUMNS[name] for name in ("generated", "response", "first")}
    )
    for name, columns in chosen.items():
        expected = [tuple(without_cache(ex, p, s * v, columns, STEPS)) for p, s in zip(PROMPTS, scales, strict=True)]
        for batch_tokens in (10_000, 50):
            ex.batch_tokens = batch_tokens
            with Steering("resid_post", 1, v, scales, (0, -2) if name == "first" else name).on(ex):
                found[name] = generated(ex)
            assert found[name] == expected, name
    plain = generated(ex)
    assert all(written[4] == plain[4] for written in found.values())
    assert all(written != plain for written in found.values())
    distinct = len({tuple(written) for written in found.values()})
    assert distinct == len(chosen), "the places must matter to this test"
    assert all(a[:1] == b[:1] for a, b in zip(found["generated"], plain, strict=True)), "the first token is unsteered"


@pytest.mark.parametrize(
    ("family", "positions"),
    [("llama", place) for place in ("all", "prompt", "generated", "response")]
    + [(family, place) for family in ("opt", "falcon", "bloom", "jamba", "mamba") for place in ("prompt", "response")],
)
def test_the_models_own_generate(family: str, positions: str) -> None:
    # the ALiBi mask of transformers' BLOOM overflows under left padding in float64
    ex = extractor(family, torch.float32 if family in (*SINGLE, "bloom") else torch.float64)
    v, scales = vector(10) * 12, [1.0, -0.7, 0.4, 1.5, 0.0]
    padded = family not in ("jamba", "mamba")  # transformers' own generate lets padding into a recurrent state
    groups = [list(range(len(PROMPTS)))] if padded else [[i] for i in range(len(PROMPTS))]
    for own in groups:
        batch = ex.tokenizer([PROMPTS[i] for i in own], return_tensors="pt", padding=True, return_token_type_ids=False)
        with Steering("resid_post", 1, v, [scales[i] for i in own], positions).on(ex):
            out = ex.model.generate(**batch, max_new_tokens=STEPS, do_sample=False)[:, batch["input_ids"].shape[1] :]
        for i, row in zip(own, out, strict=True):
            expected = without_cache(ex, PROMPTS[i], scales[i] * v, COLUMNS[positions], STEPS)
            assert row[: len(expected)].tolist() == expected


def test_passes_that_cannot_be_told_apart_are_refused(llama: Extractor) -> None:
    ids = torch.tensor([llama.render(PROMPTS[1])[0].token_ids])
    v = vector(10) * 12
    with pytest.raises(CaptureError, match="told apart"), Steering("resid_post", 1, v, 1.0, "prompt").on(llama):
        llama.model.generate(ids, max_new_tokens=4, do_sample=False, use_cache=False)
    with Steering("resid_post", 1, v).on(llama):
        a = llama.model.generate(ids, max_new_tokens=8, do_sample=False, use_cache=False)
        b = llama.model.generate(ids, max_new_tokens=8, do_sample=False)
    assert torch.equal(a, b)
    with Steering("resid_post", 1, v, 1.0, "prompt").on(llama), torch.no_grad():
        cache = llama.model(input_ids=ids, use_cache=True).cache
        with pytest.raises(CaptureError, match="told apart"):
            llama.model(input_ids=ids, cache=cache)
    with pytest.raises(CaptureError, match="2 prompts"), Steering("resid_post", 1, v, [1.0, 2.0]).on(llama):
        llama.model(input_ids=ids)


def test_a_second_turn_is_another_prompt(llama: Extractor) -> None:
    """What begins with the first prompt is a repetition only where no cache tells them apart."""
    ids = torch.tensor([llama.render(PROMPTS[0])[0].token_ids])
    options = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    steering = Steering("resid_post", 1, vector(10), 2.0, (position for position in (-1,)))
    with steering.on(llama):
        answered = llama.model.generate(ids, **options)
        both = llama.model.generate(answered, **options)
    with Steering("resid_post", 1, vector(10), 2.0, (-1,)).on(llama):
        assert torch.equal(llama.model.generate(answered, **options), both)


@pytest.mark.parametrize("positions", ["boundary", "response", (0, -1)])
def test_candidate_tokens_that_run_with_the_prompt_are_refused(llama: Extractor, positions: Any) -> None:
    """Prompt-lookup decoding: the last candidate would be taken for the boundary."""
    ids = torch.tensor([[40, 41, 42, 43, 44, 45, 40, 41]])
    with (
        pytest.raises(CaptureError, match="without candidate tokens"),
        Steering("resid_post", 1, vector(10), 2.0, positions).on(llama),
    ):
        llama.model.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False, prompt_lookup_num_tokens=2)


@pytest.mark.parametrize("asked_before", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_models_own_hidden_states_show_the_change(family: str, asked_before: bool) -> None:
    """transformers leaves readers on the blocks: those that were there first would read what was not yet steered."""
    ex, ids = extractor(family), torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        if asked_before:
            ex.model(input_ids=ids, output_hidden_states=True)
        plain = ex.model(input_ids=ids, output_hidden_states=True).hidden_states if asked_before else None
        with Steering("resid_post", 1, vector(3), 2.0).on(ex):
            shown = ex.model(input_ids=ids, output_hidden_states=True).hidden_states
            own = ex.capture(ids).resid_post
        with Steering("final_norm", None, vector(3), 2.0).on(ex):
            last = ex.model.base_model(input_ids=ids, output_hidden_states=True)
        plain = plain or ex.model(input_ids=ids, output_hidden_states=True).hidden_states
    torch.testing.assert_close(shown[2], plain[2] + 2 * vector(3))
    torch.testing.assert_close(shown[2][0, -1], own[0, 1])
    torch.testing.assert_close(last.hidden_states[-1], plain[-1] + 2 * vector(3))
    torch.testing.assert_close(last.last_hidden_state, last.hidden_states[-1])


def test_a_compiled_extractor_is_steered(llama: Extractor) -> None:
    """A compiled graph knows no hooks that came later; the plain backbone must run instead."""
    found = []
    for one in (extractor(compile="eager"), llama):
        with Steering("resid_post", 1, vector(17), 2.0, "boundary").on(one):
            found.append(one.capture(PROMPTS))
    np.testing.assert_allclose(found[0].resid_post, found[1].resid_post, **CLOSE)


# -- nesting, and leaving no trace -----------------------------------------------------------------------------------


def test_several_nest_and_act_in_order(llama: Extractor) -> None:
    v, w = vector(11), vector(12)
    h = llama.capture(PROMPTS).resid_post[:, 0]
    u = v / v.norm()
    add, ablate, later = (
        Steering("resid_post", 0, w, 2.0),
        Steering("resid_post", 0, v, mode="ablate"),
        Steering("resid_mid", 0, w),
    )
    with add.on(llama), ablate.on(llama):
        both = llama.capture(PROMPTS)
    np.testing.assert_allclose(both.resid_post[:, 0], (h + 2 * w) - ((h + 2 * w) @ u)[:, None] * u, **CLOSE)
    assert [s["mode"] for s in both.manifest["steering"]] == ["add", "ablate"]
    with ablate.on(llama), add.on(llama):
        other = llama.capture(PROMPTS).resid_post[:, 0]
    np.testing.assert_allclose(other, h - (h @ u)[:, None] * u + 2 * w, **CLOSE)
    with ablate.on(llama), later.on(llama):  # the block's output is ablated whole, what entered at its middle included
        assert float((llama.capture(PROMPTS).resid_post[:, 0] @ v).abs().max()) < 1e-12
    assert "steering" not in llama.capture("abc").manifest


def test_hooks_leave_no_trace_and_others_stay(llama: Extractor) -> None:
    block = llama.backend.architecture.blocks[1]
    seen: list[float] = []
    own = block.register_forward_hook(lambda m, a, out: seen.append(float(out.sum())))
    before, plain = hook_counts(llama.model), llama.capture(PROMPTS)
    steering = Steering("resid_mid", 1, vector(13), 2.0)
    with steering.on(llama):
        llama.capture(PROMPTS)
    assert hook_counts(llama.model) == before and llama.steerings == []
    unsteered, steered = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert len(steered) == len(unsteered) > 0 and not np.allclose(steered, unsteered)
    for failure in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(failure), ExitStack() as stack:
            stack.enter_context(steering.on(llama))
            stack.enter_context(Steering("z", 0, vector(13)).on(llama))
            stack.callback(block.register_forward_hook(_raiser(failure)).remove)
            llama.capture(PROMPTS)
        assert hook_counts(llama.model) == before and llama.steerings == []
    own.remove()
    assert torch.equal(llama.capture(PROMPTS).resid_post, plain.resid_post)


def _raiser(failure: type[BaseException]) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        raise failure

    return hook


def test_a_steering_that_changed_nothing_raises(llama: Extractor) -> None:
    def use(steering: Steering, ex: Extractor = llama) -> None:
        with steering.on(ex):
            ex.capture(PROMPTS)

    with pytest.raises(CaptureError, match="changed nothing.*positions='generated'"):
        use(Steering("resid_post", 1, vector(14), 1.0, "generated"))
    with pytest.raises(CaptureError, match="no pass"), Steering("resid_post", 1, vector(14)).on(llama):
        pass
    with pytest.raises(CaptureError, match="rounded back"):
        use(Steering("resid_post", 1, vector(14), 1e-30))
    plain = llama.capture(PROMPTS)
    for idle in (0.0, np.zeros(len(PROMPTS))):
        with Steering("resid_post", 1, vector(14), idle, "generated").on(llama):
            assert torch.equal(llama.capture(PROMPTS).resid_post, plain.resid_post)
    with pytest.raises(ZeroDivisionError), Steering("resid_post", 1, vector(14)).on(llama):
        raise ZeroDivisionError  # an error inside is not hidden behind "nothing ran"


def test_a_block_that_is_bypassed_is_found() -> None:
    ex = extractor()
    stale = ex.model.model.layers[1]
    ex.model.model.layers[1] = small_model("llama", dtype=torch.float64, layers=3, seed=1).model.layers[1]
    with pytest.raises(CaptureError, match="layer 1 was reached 0 times"), Steering("resid_post", 1, vector(15)).on(ex):
        ex.model(input_ids=torch.tensor([[5, 6, 7]]))
    assert not stale._forward_hooks


def test_a_block_run_outside_a_whole_pass_is_found(llama: Extractor) -> None:
    """Without the start of the pass its positions are those of the pass before."""
    x = torch.zeros(1, 3, WIDTH, dtype=torch.float64)
    with pytest.raises(CaptureError, match="did not go through LlamaModel"):
        with Steering("resid_post", 1, vector(15), 1.0, "boundary").on(llama):
            llama.capture("abc")
            rotary = llama.model.model.rotary_emb(x, torch.arange(3)[None])
            llama.model.model.layers[1](x, position_embeddings=rotary)


def test_overflow_is_said() -> None:
    ex = Extractor(small_model("llama", dtype=torch.float16), small_tokenizer(), check=False)
    with pytest.raises(CaptureError, match="not finite"), Steering("resid_post", 0, vector(16), 1e6).on(ex):
        ex.capture(PROMPTS)
    with pytest.raises(CaptureError, match="not finite"), Steering("resid_post", 0, vector(16), 1e6).on(ex):
        ex.model(input_ids=torch.tensor([[5, 6, 7]]))


# -- bad input -------------------------------------------------------------------------------------------------------

BAD: list[tuple[str, Callable[[Extractor], Any], str]] = [
    ("width", lambda ex: Steering("resid_post", 0, vector(1, 31)).on(ex).__enter__(), "31 values.*has 32"),
    ("layer", lambda ex: Steering("resid_post", 3, vector(1)).on(ex).__enter__(), "layer 3 does not exist.*0 to 2"),
    ("absent", lambda ex: Steering("attn_out", 0, vector(1)).on(ex).__enter__(), ""),
    ("nan", lambda ex: Steering("resid_post", 0, vector(1) * float("nan")), "32 values that are NaN"),
    ("site", lambda ex: Steering("resid", 0, vector(1)), "site 'resid' is unknown"),
    ("mode", lambda ex: Steering("resid_post", 0, vector(1), mode="plus"), "mode 'plus' is unknown"),
    ("positions", lambda ex: Steering("resid_post", 0, vector(1), 1.0, "last"), "positions 'last' are unknown"),
    ("twice", lambda ex: Steering("resid_post", 0, vector(1), 1.0, (1, 1)), "different whole numbers"),
    ("complex", lambda ex: Steering("resid_post", 0, torch.ones(32) * 1j), "no array of numbers .complex values"),
    ("kind", lambda ex: Steering("resid_post", 0, vector(1), 1.0, 3), "token numbers, found 3"),  # type: ignore[arg-type]
    ("no layer", lambda ex: Steering("resid_post", None, vector(1)), "needs one block number"),
    ("layers", lambda ex: Steering("resid_post", [0, 1], vector(1)), "needs one block number"),  # type: ignore[arg-type]
    ("final", lambda ex: Steering("final_norm", 1, vector(1)), "layer=None"),
    ("zero", lambda ex: Steering("resid_post", 0, vector(1) * 0), "all zeros"),
    ("text", lambda ex: Steering("resid_post", 0, "up"), "no array of numbers"),
    ("shape", lambda ex: Steering("resid_post", 0, torch.ones(2, 3, 32)), r"shape \[2, 3, 32\]"),
    ("scale", lambda ex: Steering("resid_post", 0, vector(1), float("inf")), "finite number"),
    ("scale text", lambda ex: Steering("resid_post", 0, vector(1), "4"), "must be a number"),
    (
        "counts",
        lambda ex: Steering("resid_post", 0, torch.ones(3, 32), [1.0, 2.0]),
        "2 scales were given for 3 vectors",
    ),
]


@pytest.mark.parametrize("make,message", [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_input_is_refused_and_the_model_left_as_found(
    llama: Extractor, make: Callable[[Extractor], Any], message: str
) -> None:
    before = hook_counts(llama.model)
    if not message:  # a family without that site
        mamba = extractor("mamba")
        with pytest.raises(RequestError, match="mamba models have no site 'attn_out'"):
            make(mamba)
        assert mamba.steerings == [] and sum(map(sum, hook_counts(mamba.model))) == 0
        return
    with pytest.raises(RequestError, match=message):
        make(llama)
    assert hook_counts(llama.model) == before and llama.steerings == []


def test_a_call_that_does_not_fit_is_refused_before_it_runs(llama: Extractor) -> None:
    with Steering("resid_post", 0, vector(1), [0.0, 0.0]).on(llama):
        with pytest.raises(RequestError, match="for 2 prompts, but 5 were given"):
            llama.capture(PROMPTS)
    with (
        Steering("resid_post", 0, vector(1), 0.0, (-3,)).on(llama),
        pytest.raises(RequestError, match="position -3 is outside prompt 4"),
    ):
        llama.capture(PROMPTS)
    steering = Steering("resid_post", 0, vector(1), 0.0)
    with steering.on(llama), pytest.raises(RequestError, match="already in place"), steering.on(llama):
        pass


# -- the real model --------------------------------------------------------------------------------------------------


def test_smollm2(embedded: Extractor) -> None:
    ex = embedded
    prompts = [
        [{"role": "user", "content": text}] for text in ("Name a colour.", "Write one short sentence about the sea.")
    ]
    base = ex.capture(prompts, layers=(14, 15))
    v = base.resid_post[1, 0] - base.resid_post[0, 0]
    with Steering("resid_post", 14, v, 1.5).on(ex):
        got = ex.capture(prompts, layers=(14, 15))
        texts = [
            o.text
            for c in ex.stream(ex.render(prompts), keep_cache=True)
            for o in continue_greedily(ex.model, ex.tokenizer, c, 8)
        ]
        own = []
        for r in ex.render(prompts):
            ids = torch.tensor([r.token_ids])
            out = ex.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, repetition_penalty=1.0
            )
            own.append(ex.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))
    np.testing.assert_allclose(got.resid_post[:, 0] - base.resid_post[:, 0], (1.5 * v).expand(2, -1), atol=2e-3)
    assert sorted(texts) == sorted(own)
