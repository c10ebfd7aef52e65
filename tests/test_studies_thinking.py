"""What a model thinks before it answers is told from its answer by token ids, and never graded; options without mass choose nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import precollapse as pc
from precollapse.analysis import options
from precollapse.analysis.cells import Settings
from precollapse.errors import RequestError
from precollapse.hooks.decoding.greedy import Output
from precollapse.reports import study as report
from precollapse.reports.tables import boundaries_table
from precollapse.studies import StudyConfig, benchmarks, run_study
from precollapse.studies.study import shards, thinking

from .conftest import byte_tokenizer


def _tokenizer(*tags):
    made = byte_tokenizer()
    if tags:
        made.add_special_tokens({"additional_special_tokens": list(tags)})
    return made


def _parts(tokenizer, output, prompt="Q:", named=()):
    def ids(text):
        return tokenizer.encode(text, add_special_tokens=False)

    tags = thinking.tags_of(tokenizer, named)
    found = thinking.split(tokenizer, tags, ids(prompt), ids(output))
    assert list(found.thinking + found.answer) == ids(output)
    return tokenizer.decode(list(found.answer), skip_special_tokens=True).strip(), found.ended


THINK = ("<think>", "</think>")
CHANNELS = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>")


@pytest.mark.parametrize(
    "tags, prompt, output, answer, ended",
    [
        (THINK, "Q:", "<think>Maybe A? no</think>\n\nB", "B", True),
        (THINK, "Q:<think>\n", "Maybe A? no</think>B", "B", True),
        (THINK, "Q:<think>\n", "The answer is A. Wait", "", False),
        (THINK, "Q:", "<think>The answer is A.", "", False),
        (THINK, "Q:<think>\n\n</think>\n\n", "The answer is B.", "The answer is B.", None),
        (THINK, "Q:", "The answer is B.", "The answer is B.", None),
        (THINK, "Q:", "<think></think>B", "B", True),
        (THINK, "Q:", "<think>A</think>B<think>C?</think>D", "D", True),
        (THINK, "Q:", "<think>A</think>B<think>C?", "", False),
        (("[THINK]", "[/THINK]"), "Q:", "[THINK]A?[/THINK]The answer is C", "The answer is C", True),
        (
            CHANNELS,
            "Q:<|start|>assistant",
            "<|channel|>analysis<|message|>A?<|end|><|start|>assistant<|channel|>final<|message|>B",
            "B",
            True,
        ),
        (CHANNELS, "Q:", "<|channel|>final<|message|>B", "B", True),
        (CHANNELS, "Q:", "<|channel|>analysis<|message|>the answer is A", "", False),
        (("<|channel>", "<channel|>"), "Q:", "<|channel>thought\nA?<channel|>B", "B", True),
    ],
)
def test_the_end_of_thinking_is_found_in_token_ids(tags, prompt, output, answer, ended):
    assert _parts(_tokenizer(*tags), output, prompt) == (answer, ended)


def test_a_model_without_tags_thinks_only_where_they_are_named():
    plain = _tokenizer()
    assert _parts(plain, "a <b>A</b> B") == ("a <b>A</b> B", None)
    assert _parts(plain, "<b>A</b> B", named=("<b>", "</b>")) == ("B", True)


def test_tags_are_two_texts():
    for wrong in (("<think>",), ("<think>", ""), ("a", "b", "c")):
        with pytest.raises(RequestError, match="thinking_tags takes two texts"):
            StudyConfig("x.zarr", thinking_tags=wrong)


def test_options_without_mass_choose_nothing():
    states = pd.DataFrame(
        {
            "option_choice": ["A", None, None, "A"],
            "option_mass": [0.5, 0.001, 0.009, 0.003],  # the last as runs of earlier versions kept it
            "option_entropy_bits": [1.0, 2.0, 2.0, 2.0],
            "option_margin": [1.0] * 4,
            "answer": ["A"] * 4,
            "gold": ["A"] * 4,
            "text": ["A"] * 4,
            "choices": ['{"A": "1", "B": "2", "C": "3", "D": "4"}'] * 4,
        }
    )
    some = options.summary(states, resamples=50)
    assert (some.n, some.too_little_mass, some.entropy_bits.estimate) == (1, 3, 1.0)
    assert some.mass.estimate == pytest.approx(0.513 / 4)
    none = options.summary(states[1:], resamples=50)
    assert none.n == 0 and none.mass.defined and not none.entropy_bits.defined and not none.choice_accuracy.defined
    assert "not meaningful" in none.entropy_bits.reason and np.isnan(none.test.p_value)


# -- a scripted model, end to end ----------------------------------------------------------------------------------------

STYLES = (
    ("<think>It cannot be {wrong}.</think>The answer is {gold}.", True),
    ("<think>The answer is {wrong}? Wait, no.</think>\n\n**{gold}**", True),
    ("<think>The answer is {gold}.</think>The answer is {wrong}.", False),
    ("<think>The answer is {gold}. But let me check", False),
    ("<think></think>{gold}", True),
    ("The answer is {gold}.", True),
    ("<think>Hm, {wrong}.</think>Hmm, I would say ({gold}).", True),
    ("<think>{gold}</think>", False),
    ("<think>{wrong}</think>Answer: {gold}", True),
    ("<think>a</think>Perhaps.<think>The answer is {gold}", False),
)


@pytest.fixture(scope="module")
def scripted(tiny_folder):
    extractor = pc.Extractor.from_pretrained(str(tiny_folder))
    extractor.tokenizer.add_special_tokens({"additional_special_tokens": list(THINK)})
    return extractor


def _scripted(extractor, out, **settings):
    items = benchmarks.load("builtin_choice", n=len(STYLES), seed=0)
    config = StudyConfig(
        out=out,
        model=extractor.manifest()["model"],
        benchmarks=("builtin_choice",),
        regimes=("baseline",),
        n=len(STYLES),
        boundaries=("thinking", "answer"),
        shard_size=3,
        **settings,
    )

    def write(model, tokenizer, begun, *_):
        outputs = []
        for ids in begun.states.token_ids:
            prompt = tokenizer.decode(list(ids))
            (k,) = (k for k, item in enumerate(items) if item.question in prompt)
            wrong = next(label for label in items[k].choices if label != items[k].answer)
            text = STYLES[k][0].format(gold=items[k].answer, wrong=wrong)
            written = tokenizer.encode(text, add_special_tokens=False)
            outputs.append(Output(tuple(written), tokenizer.decode(written, skip_special_tokens=True), False))
        return outputs

    return config, write, items


@pytest.fixture(scope="module")
def run(scripted, tmp_path_factory):
    config, write, items = _scripted(scripted, tmp_path_factory.mktemp("thinking") / "run.zarr")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "continue_greedily", write)
        return run_study(config, progress=False, extractor=scripted), items


def test_ten_styles_are_graded_as_a_person_would(run):
    made, items = run
    states = made.states.set_index("item_id").loc[[item.id for item in items]]
    assert states["correct"].tolist() == [right for _, right in STYLES]
    ended = [None if "<think>" not in text else text.rfind("</think>") > text.rfind("<think>") for text, _ in STYLES]
    assert [None if pd.isna(value) else bool(value) for value in states["thinking_ended"]] == ended
    cut = states[states["thinking_ended"].eq(False).fillna(False)]
    assert len(cut) == 2 and cut["answer"].isna().all() and (cut["text"] == "").all()
    assert (cut["thinking_tokens"] == cut["output_tokens"]).all()


def test_the_answer_boundary_is_a_fresh_capture_of_prompt_and_thinking(run, scripted):
    made, _ = run
    states, found = made.states, 0
    for i in range(len(states)):
        rows = np.stack([made.resid(layer, site="resid_post_after_thinking")[i] for layer in range(3)])
        if states["thinking_ended"].iloc[i] is not pd.NA and bool(states["thinking_ended"].iloc[i]):
            ids = (
                made.ragged("token_ids", i).tolist()
                + made.ragged("output_ids", i).tolist()[: states["thinking_tokens"].iloc[i]]
            )
            with torch.no_grad():
                own = scripted.model(torch.tensor([ids]), output_hidden_states=True)
            p = torch.log_softmax(own.logits[0, -1].double(), -1)
            bits = float(-(p.exp() * p).sum() / np.log(2))
            assert states["answer_entropy_bits"].iloc[i] == pytest.approx(bits, rel=1e-5)
            for layer in (0, 1):  # hidden_states[-1] is after the final norm
                want = own.hidden_states[layer + 1][0, -1].numpy()
                np.testing.assert_allclose(rows[layer], want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
            found += 1
        else:
            assert np.isnan(rows).all() and np.isnan(states["answer_entropy_bits"].iloc[i])
    assert found == 7


def test_the_report_compares_both_boundaries(run):
    made, _ = run
    made_report = report.write_report(made, None, settings=Settings(resamples=20, n_splits=1, shuffles=1))
    assert "Before thinking, before answering" in {table.title for table in made_report.shown}
    table = boundaries_table(made_report.analyses)
    assert table["boundary"].tolist() == ["thinking", "answer"] and (table["n"] == 7).all()
    assert (table["never_ended"] == 2).all()
    ended = made.states["answer_entropy_bits"].notna()
    assert table["entropy_bits"].tolist() == pytest.approx(
        [made.states[name][ended].mean() for name in ("entropy_bits", "answer_entropy_bits")]
    )


def test_a_run_stopped_between_shards_is_the_same_run(run, scripted, tmp_path, monkeypatch):
    whole, _ = run
    config, write, _ = _scripted(scripted, tmp_path / "run.zarr")
    calls = []

    def stopping(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return write(*arguments)

    monkeypatch.setattr(shards, "continue_greedily", stopping)
    with pytest.raises(KeyboardInterrupt):  # within a shard, which is lost
        run_study(config, progress=False, extractor=scripted)
    assert len(pc.open_run(config.out).states) == 3
    monkeypatch.setattr(shards, "continue_greedily", write)
    again = run_study(config, progress=False, extractor=scripted)
    pd.testing.assert_frame_equal(again.states, whole.states)
    for layer in range(3):
        name = "resid_post_after_thinking"
        np.testing.assert_array_equal(again.resid(layer, site=name), whole.resid(layer, site=name))


def test_boundaries_are_the_first_or_both():
    for wrong in (("answer",), ("thinking", "end"), ()):
        with pytest.raises(RequestError, match="boundaries names"):
            StudyConfig("x.zarr", boundaries=wrong)
    with pytest.raises(RequestError, match="needs outputs"):
        StudyConfig("x.zarr", boundaries=("thinking", "answer"), generate=False)
