"""Shared prefixes: the plan against brute force, states against whole prompts, and what must take the plain way."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from precollapse import Extractor
from precollapse.errors import RequestError
from precollapse.hooks.decoding.greedy import continue_greedily
from precollapse.hooks.decoding.shared_prompts import plan
from precollapse.hooks.prompts.boundary import PASS_COST, group
from precollapse.perf.small_models import small_model, small_tokenizer

HEAD = "Solve it. " * 4
PROMPTS = [HEAD + f"q{i} " * (1 + i % 4) + "=" for i in range(6)] + ["other text", "x"]
FAMILIES = (
    "llama",
    "mistral",
    "gemma2",
    "gemma3",
    "gpt2",
    "gpt_neo",
    "opt",
    "bloom",
    "falcon",
    "falcon-alibi",
    "falcon-new",
    "deepseek_v3",
    "gpt_oss",
)


def extractor(family: str = "llama", share_prefix: str = "always", **settings) -> Extractor:
    kept = {"check": False, "batch_tokens": 256} | settings
    return Extractor(small_model(family), small_tokenizer(), share_prefix=share_prefix, **kept)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(((a - b).abs().amax(-1) / b.abs().amax(-1)).max())


def saved(prompts, groups, cost):
    return sum((len(g.rows) - 1) * g.length - cost for g in groups if g.length)


def best_saving(prompts, cost):
    """Exhaustive: every prefix is a candidate for all prompts that go on after it; best disjoint choice."""
    heads = {tuple(p[:k]) for p in prompts for k in range(1, len(p))}
    candidates = []
    for head in sorted(heads):
        rows = frozenset(i for i, p in enumerate(prompts) if len(p) > len(head) and tuple(p[: len(head)]) == head)
        gain = (len(rows) - 1) * len(head) - cost
        if gain > 0:
            candidates.append((rows, gain))

    def best(i, free):
        if i == len(candidates):
            return 0.0
        rows, gain = candidates[i]
        taken = gain + best(i + 1, free - rows) if rows <= free else 0.0
        return max(taken, best(i + 1, free))

    return best(0, frozenset(range(len(prompts))))


@hypothesis.settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), min_size=1, max_size=6), st.sampled_from([0, 8, 24])
)
def test_plan_saves_as_much_as_an_exhaustive_search(prompts, budget):
    groups = plan(prompts, budget, "auto", least_gain=0.0)
    assert sorted(i for g in groups for i in g.rows) == list(range(len(prompts)))
    for g in groups:
        assert len({tuple(prompts[i][: g.length]) for i in g.rows}) == 1
        assert all(g.length < len(prompts[i]) for i in g.rows)
    assert saved(prompts, groups, budget / 8) == pytest.approx(best_saving(prompts, budget / 8))


def test_plan_depends_on_the_prompts_and_not_on_their_order():
    prompts = [[*range(50), 100 + i] for i in range(5)] + [[*range(20), *range(200, 240), i] for i in range(4)] + [[7]]
    order = [6, 0, 9, 3, 8, 1, 2, 7, 5, 4]

    def shown(given, groups):
        return sorted((g.length, sorted(tuple(given[i]) for i in g.rows)) for g in groups)

    shuffled = [prompts[i] for i in order]
    assert shown(prompts, plan(prompts, 64)) == shown(shuffled, plan(shuffled, 64))
    assert [g.length for g in plan(prompts, 64)] == [60, 50, 0]


def test_plan_leaves_short_heads_alone_and_obeys_limits():
    chat = [[*range(10), *([100 + i] * 90)] for i in range(8)]
    assert [g.length for g in plan(chat, 2048)] == [0]  # 70 tokens saved do not pay for a pass of their own
    assert [g.length for g in plan(chat, 2048, "always")] == [10]
    assert [g.length for g in plan(chat, 2048, "never")] == [0]
    assert [g.length for g in plan(chat, 2048, "always", limits=[4] * 8)] == [4]


@pytest.mark.parametrize("family", FAMILIES)
def test_states_after_a_shared_prefix_equal_those_of_whole_prompts(family):
    """Grouped heads, windows shorter than the prefix, softcaps, sinks, ALiBi, learnt positions, latent attention."""
    shared, plain = extractor(family), extractor(family, "never")
    asked = {"sites": ("resid_post", "final_norm"), "attention": "rows", "options": ("1", "2")}
    a, b = shared.capture(PROMPTS, **asked), plain.capture(PROMPTS, **asked)
    assert a.manifest["passes"]["shared_prefixes"] == [{"tokens": 41, "prompts": 6}]
    assert b.manifest["passes"]["shared_prefixes"] == []
    for site in ("resid_post", "final_norm"):
        assert relative(a[site], b[site]) < 1e-5
    np.testing.assert_allclose(a.entropy_bits, b.entropy_bits, rtol=1e-5)
    np.testing.assert_allclose(a.option_logprobs, b.option_logprobs, rtol=1e-4)
    for own, whole in zip(a.attention_rows, b.attention_rows, strict=True):
        assert own.shape == whole.shape
        torch.testing.assert_close(own, whole, rtol=1e-4, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "bloom"])
def test_generation_goes_on_from_a_shared_prefix(family):
    """The cache comes back as a left-padded pass would have left it; windows of 5 are shorter than what was padded."""
    texts = []
    for own in (extractor(family, check=True), extractor(family, "never", check=True)):
        out = {}
        for captured in own.stream(own.render(PROMPTS), sites=(), keep_cache=True):
            written = continue_greedily(own.model, own.tokenizer, captured, 8)
            out |= {row: o.token_ids for row, o in zip(captured.batch.rows, written, strict=True)}
            assert bool(captured.states.manifest["passes"]["shared_prefixes"]) == (own.share_prefix == "always")
        texts.append([out[i] for i in range(len(PROMPTS))])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("family", ["mamba", "jamba"])
def test_recurrent_families_take_the_plain_way_by_themselves(family):
    a, b = extractor(family).capture(PROMPTS), extractor(family, "never").capture(PROMPTS)
    assert a.manifest["passes"]["shared_prefixes"] == []
    assert "more of their past than keys and values" in a.manifest["passes"]["not_shared"]
    assert torch.equal(a.resid_post, b.resid_post)


def test_a_model_that_loses_its_cache_is_found_out_by_the_probe():
    own = extractor()
    backbone = own.backend.architecture.backbone
    whole = backbone.forward

    def forgets(past_key_values=None, **inputs):
        return whole(**inputs)

    backbone.forward = forgets
    own.backend._cache_name = "past_key_values"
    got = own.capture(PROMPTS)
    assert (
        "differ by" in got.manifest["passes"]["not_shared"]
        or "cannot be shared" in got.manifest["passes"]["not_shared"]
    )
    assert relative(got.resid_post, extractor(share_prefix="never").capture(PROMPTS).resid_post) < 1e-6


def test_the_prefix_is_computed_once():
    own = extractor()
    own.capture(PROMPTS)  # the probe runs here
    seen = []
    embedding = own.model.get_input_embeddings()
    plain = embedding.forward
    embedding.forward = lambda ids: (seen.append(ids.numel()), plain(ids))[1]  # a hook would keep prompts from sharing
    own.capture(PROMPTS)  # a forward that was exchanged is a changed model: it is checked, and probed, again
    seen.clear()
    own.capture([HEAD + f"{i}" for i in range(9)])
    del embedding.forward
    assert sum(seen) == len(HEAD) + 9


def test_a_hook_of_someone_elses_sees_whole_prompts():
    """Set after the first capture, it would see the prefix once and each suffix as a text of its own."""
    own, whole = extractor(), extractor(share_prefix="never")
    prompts = [HEAD + f"{i}" for i in range(9)]
    assert own.capture(prompts).manifest["passes"]["shared_prefixes"]

    def shifts_the_last_but_one(_module, _args, output):
        hidden = output[0] if isinstance(output, tuple) else output
        hidden[:, -2] += 3.0

    for ex in (own, whole):
        block = ex.backend.architecture.blocks[0]
        block.register_forward_hook(shifts_the_last_but_one)
    a, b = own.capture(prompts), whole.capture(prompts)
    assert "0 has a hook of someone else's" in a.manifest["passes"]["not_shared"]
    assert torch.equal(a.resid_post, b.resid_post)


def test_same_prompts_and_prompts_that_begin_another():
    own, plain = extractor(), extractor(share_prefix="never")
    prompts = [HEAD, HEAD, HEAD + "more", HEAD]
    a, b = own.capture(prompts), plain.capture(prompts)
    assert a.manifest["passes"]["shared_prefixes"] == [{"tokens": len(HEAD) - 1, "prompts": 4}]
    assert relative(a.resid_post, b.resid_post) < 1e-5


def test_several_heads_each_share_their_own():
    prompts = [f"{'first head ' * 5}{i}" for i in range(4)] + [f"{'second one ' * 6}{i}" for i in range(3)]
    a = extractor().capture(prompts)
    assert a.manifest["passes"]["shared_prefixes"] == [{"tokens": 66, "prompts": 3}, {"tokens": 55, "prompts": 4}]
    assert relative(a.resid_post, extractor(share_prefix="never").capture(prompts).resid_post) < 1e-5


def test_many_suffixes_are_split_into_batches_that_fit():
    own = extractor(batch_tokens=64)
    prompts = [HEAD + "s" * (1 + i % 9) for i in range(60)]
    rows = []
    for captured in own.stream(own.render(prompts)):
        width = max(len(own.render(prompts[i])[0].token_ids) for i in captured.batch.rows) - len(HEAD)
        assert width * len(captured.batch.rows) <= 64
        rows += captured.batch.rows
    assert sorted(rows) == list(range(60))


def compositions(n):
    if n == 0:
        yield ()
    for first in range(1, n + 1):
        for rest in compositions(n - first):
            yield (first, *rest)


@hypothesis.settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8), st.sampled_from([16, 64, 128]), st.sampled_from([None, 96])
)
def test_batches_have_the_fewest_padded_tokens_of_all_cuts(lengths, budget, columns):
    """Against all ways to cut the sorted prompts."""
    extra = 10

    def cost(parts):
        total = 0.0
        for part in parts:
            longest, rows = max(lengths[i] for i in part), len(part)
            fits = rows * longest <= budget and (columns is None or rows * (longest + extra) <= columns)
            if rows > 1 and not fits:
                return float("inf")
            total += rows * longest + budget / PASS_COST
        return total

    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    cuts = []
    for sizes in compositions(len(lengths)):
        ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
        cuts.append([order[end - size : end] for size, end in zip(sizes, ends, strict=True)])
    got = group(lengths, budget, extra=extra, column_budget=columns)
    assert sorted(i for part in got for i in part) == list(range(len(lengths)))
    assert cost(got) == min(map(cost, cuts))


def test_modes_are_recorded_and_an_unknown_one_is_refused():
    assert extractor(share_prefix="auto").capture(PROMPTS).manifest["share_prefix"] == "auto"
    with pytest.raises(RequestError, match="share_prefix='maybe' is unknown; choose from auto, never, always"):
        extractor(share_prefix="maybe")


def test_solved_examples_on_the_embedded_model(embedded, shared_data):
    """Real prompts, real weights: a solved item before each question."""
    import json

    rows = [json.loads(line) for line in (shared_data / "gsm8k.jsonl").open()][:3]
    head = f"Problem: {rows[2]['question']}\nSolution: {rows[2]['answer']}\n\n"
    prompts = [f"{head}Problem: {r['question'][:80]}\nSolution:" for r in rows[:2]]
    plain = Extractor(embedded.model, embedded.tokenizer, check=False, share_prefix="never").capture(prompts)
    shared = Extractor(embedded.model, embedded.tokenizer, check=False, share_prefix="always").capture(prompts)
    assert shared.manifest["passes"]["shared_prefixes"][0]["prompts"] == 2
    assert relative(shared.resid_post, plain.resid_post) < 1e-4
    np.testing.assert_allclose(shared.entropy_bits, plain.entropy_bits, rtol=1e-4)


def test_batches_to_generate_from_are_as_few_as_can_be():
    from precollapse.hooks.prompts.boundary import group

    lengths = [100] * 3 + [40] * 20 + [7]
    few = group(lengths, 2400, fewest=True)
    assert [len(b) for b in few] == [24] and sorted(few[0]) == list(range(24))
    assert len(group(lengths, 2400)) > 1
    few = group(lengths, 1000, fewest=True)
    assert len(few) == 2 and all(len(b) * lengths[b[0]] <= 1000 for b in few)
