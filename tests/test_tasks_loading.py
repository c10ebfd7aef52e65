"""The nine tasks: releases as they come, in whole and in pieces, and everything that may be wrong with a file of one."""

from __future__ import annotations

import json
import math
import tarfile

import pytest

from precollapse.cli.main import main
from precollapse.errors import RequestError
from precollapse.studies import tasks

CHAIN = "First I look. Then I see."
FILES = {
    "datasets/1/prompts/train/q1.json": {"question_id": "q1", "prompt_text": "How many?"},
    "datasets/1/m/train/q1_rollout_000_prefix_0.json": {"question_id": "q1", "label": "yes", "cot_prefix": CHAIN},
    "datasets/1/m/val/q2_rollout_000_prefix_0.json": {"question_id": "q2", "label": False, "cot_prefix": CHAIN},
    "datasets/2/prompts/test/c.json": {"question_id": "c", "prompt_text": "Hi"},
    "datasets/2/m/test/c_0.json": {
        "question_id": "c",
        "label": 1,
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "text", "text": "Ho"}]},
        ],
    },
    "datasets/3/m/train/d_cot_000.json": {"question_id": "d", "label": "negative", "cot_text": CHAIN, "p_value": 0.01},
    "datasets/4/prompts/test/a_suggest_right.json": {
        "anecdote_id": "a",
        "variant": "suggest_right",
        "switch_rate": 0.4,
    },
    "datasets/4/m/test/a_suggest_right_intervention_0.json": {
        "anecdote_id": "a",
        "variant": "suggest_right",
        "label": "sycophantic",
        "thinking": CHAIN,
        "prompt": "Who is right?",
    },
    "datasets/5/m/test/h__suggest_minority_1.json": {
        "question_id": "h",
        "pair_key": "h__suggest_minority",
        "label": "hint_following",
        "thinking": [
            {"type": "reasoning.text", "text": "First I look. "},
            {"type": "reasoning.text", "text": "Then I see."},
        ],
        "question_text": "Which?",
        "choices": {"A": "this", "B": "that"},
        "intv_rate": 0.8,
        "ctrl_rate": 0.2,
    },
    "datasets/6/m/val/e_rollout_000.json": {"question_id": "e", "label": True, "cot_content": CHAIN},
    "datasets/7/m/ood_test/f_rollout_000.json": {"question_id": "f", "label": "long", "chain_of_thought": CHAIN},
    "datasets/8/prompts/ood_test_2/g.json": {"question_id": "g", "question": "Which?", "choices": ["x", "y"]},
    "datasets/8/m/ood_test_2/g_rollout_000.json": {
        "question_id": "g",
        "sentence_summaries": [
            {"sentence_idx": 0, "partial_cot_length": 12, "answer_distribution": {"A": 0.5, "B": 0.5}},
            {"sentence_idx": 3, "partial_cot_length": 40, "answer_distribution": {"A": 1.0, "B": 0.0}},
        ],
    },
    "datasets/9/m/baseline/k_pl9_m4.json": {
        "question_id": "k",
        "method": "baseline",
        "prefix_length": 9,
        "keep_m": 4,
        "kl_to_baseline": 0.0,
        "distribution": {"A": 0.9, "B": 0.1},
    },
    "datasets/9/m/last_m/k_pl9_m3.json": {
        "question_id": "k",
        "method": "last_m",
        "prefix_length": 9,
        "keep_m": 3,
        "kl_to_baseline": 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5),
        "distribution": {"A": 0.5, "B": 0.5},
    },
}


@pytest.fixture
def release(tmp_path):
    for name, content in FILES.items():
        path = tmp_path / "release" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return tmp_path / "release"


def only(release, number):
    (data,) = tasks.load_all(release, (number,))
    return data


def test_every_quirk_is_read_as_what_it_says(release):
    assert [(r.label, r.prompt) for r in only(release, 1).rows] == [(True, "How many?"), (False, "")]
    (conversation,) = only(release, 2).rows
    assert conversation.label and conversation.messages == (("user", "Hi"), ("assistant", "Ho"))
    assert conversation.chain == "user: Hi\n\nassistant: Ho"
    (followed,) = only(release, 3).rows
    assert followed.label is False and followed.about == {"p_value": 0.01}
    (preferred,) = only(release, 4).rows
    assert preferred.group == "a" and preferred.about["switch_rate"] == 0.4
    (hinted,) = only(release, 5).rows
    assert hinted.chain == CHAIN and hinted.prompt == "Which?\nA. this\nB. that"
    assert only(release, 6).rows[0].label and only(release, 7).rows[0].label
    first, second = only(release, 8).rows
    assert (first.target, second.target) == (pytest.approx(math.log(2)), 0.0) and first.chain is None
    assert (first.group, second.position, first.prompt) == ("g", 3, "Which?\nA. x\nB. y")
    assert tasks.count(only(release, 9)).remarks[2].startswith("by method: baseline 1, last_m 1")


@pytest.mark.parametrize(
    "form", ["folder", "datasets", "task folder", "archive", "archives in a folder", "below another"]
)
def test_a_release_is_found_in_whichever_form_it_lies(release, tmp_path, form):
    place = {"folder": release, "datasets": release / "datasets", "task folder": release / "datasets" / "5"}.get(form)
    if place is None:
        packed = tmp_path / "packed" / "all.tar.gz"
        packed.parent.mkdir()
        with tarfile.open(packed, "w:gz") as archive:
            archive.add(release / "datasets", "clone-1/datasets" if form == "below another" else "datasets")
        place = packed.parent if form == "archives in a folder" else packed
    assert [row.id for row in only(place, 5).rows] == ["test/h__suggest_minority_1"]


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("3/m/train/x.json", b"{", "it is not JSON"),
        ("3/m/train/x.json", b"[1]", "it holds a list where an object"),
        (
            "3/m/train/x.json",
            b'{"question_id": "d", "label": "up", "cot_text": "t"}',
            "its 'label' is 'up', where 'positive'",
        ),
        ("3/m/train/x.json", b'{"question_id": "d", "label": 2, "cot_text": "t"}', "its 'label' is 2"),
        ("3/m/train/x.json", b'{"question_id": "d", "label": 1}', "it has no field 'cot_text'"),
        (
            "3/m/train/x.json",
            b'{"question_id": "d", "label": 1, "cot_text": [{"image": 1}]}',
            "has a part without a text",
        ),
        (
            "3/m/train/x.json",
            b'{"question_id": "d", "question_id": "e", "label": 1}',
            "the name 'question_id' appears twice",
        ),
        ("3/m/train/x.json", b"\xff\xfe", "it is not JSON"),
        ("8/m/train/x.json", b'{"question_id": "g", "sentence_summaries": 3}', "where a list of objects"),
        (
            "8/m/train/x.json",
            b'{"question_id": "g", "sentence_summaries": [{"sentence_idx": 0, "answer_distribution": {"A": 0.5}}]}',
            "sums to 0.5",
        ),
        (
            "9/m/last_m/x.json",
            b'{"question_id": "k", "method": "other", "prefix_length": 9, "keep_m": 3, "kl_to_baseline": 0, "distribution": {"A": 1}}',
            "lies in the folder 'last_m'",
        ),
    ],
)
def test_a_broken_file_is_named_and_costs_its_own_rows_only(release, file, content, reason):
    number = int(file[0])
    before = len(only(release, number).rows)
    path = release / "datasets" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    data = only(release, number)
    assert len(data.rows) == before
    assert [fault.file for fault in data.faults] == [f"datasets/{file}"] and reason in data.faults[0].reason


def test_links_are_not_followed_and_a_cut_archive_is_a_fault(release, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps(FILES["datasets/3/m/train/d_cot_000.json"]))
    (release / "datasets/3/m/train/link.json").symlink_to(secret)
    data = only(release, 3)
    assert len(data.rows) == 1 and "links are not followed" in data.faults[0].reason
    packed = tmp_path / "part.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        for i in range(200):
            (release / "datasets/3/m/train" / f"d_cot_{i:03d}.json").write_text(
                json.dumps({"question_id": f"d{i}", "label": i % 2, "cot_text": f"{i} {hash(i * 7919)}" * 20})
            )
        archive.add(release / "datasets", "datasets")
    packed.write_bytes(packed.read_bytes()[:4000])
    data = only(packed, 3)
    assert data.rows and "cannot be read to its end" in data.faults[-1].reason


def test_a_question_in_two_splits_is_named(release):
    for split in ("train", "test"):
        path = release / "datasets/6/m" / split / "e_rollout_009.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"question_id": "e", "label": "minority", "cot_content": CHAIN}))
    assert only(release, 6).shared_questions() == {"e": ("train", "val", "test")}
    assert any(
        "question e stands in train and val and test" in remark for remark in tasks.count(only(release, 6)).remarks
    )


def test_what_is_not_there_is_refused_in_a_sentence(tmp_path, capsys, release):
    for words, sentence in (
        ((str(tmp_path / "none"),), "there is nothing at"),
        ((str(tmp_path),), "holds no tasks"),
        ((str(release), "--task", "10"), "--task takes numbers from 1 to 9, got '10'"),
        ((str(release / "datasets/5"), "--task", "6"), "holds no file of task 6"),
    ):
        if words[-1] == "6":
            (release / "datasets/6/m/val/e_rollout_000.json").unlink()
        assert main(["tasks", "list", *words]) == 2
        assert sentence in capsys.readouterr().err
    with pytest.raises(RequestError, match="there is no task 11"):
        tasks.load(release, 11)


def test_the_list_prints_counts_and_remarks(release, capsys):
    assert main(["tasks", "list", str(release), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["tasks"]
    assert [one["number"] for one in found] == list(range(1, 10))
    train = next(split for split in found[0]["splits"] if split["split"] == "train")
    assert (train["rows"], train["published"], train["positive"], train["questions"]) == (1, 46160, 1, 1)
    assert main(["tasks", "list", str(release)]) == 0
    assert "train has 1 chains, where 46,160 are published" in capsys.readouterr().out


# --- the public release, where it is ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def public(shared_data):
    if not list(shared_data.glob("cot-proxy-tasks-*.tar.gz")):
        pytest.skip("the public tasks are not in shared/data")
    return {data.number: data for data in tasks.load_all(shared_data)}


def test_public_counts(public):
    rows = {number: {split: len(data.of(split)) for split in data.splits} for number, data in public.items()}
    assert rows[4]["train"] == 6456 and rows[6]["val"] == 1290
    assert rows[7] == {"train": 2444, "val": 200, "test": 200, "ood_test": 200}
    assert not any(data.faults for data in public.values())
    assert all(row.prompt for data in public.values() for row in data.rows)
    assert sum(isinstance(row.chain, str) for row in public[5].rows) == len(public[5].rows)


def test_public_answer_kls_follow_from_the_stored_distributions(public):
    from precollapse.studies.tasks.kl import stored_kl_error

    error = stored_kl_error(public[9])
    assert error.rows == len(public[9].rows) and not error.missing and error.largest < 1e-6


def test_public_switch_rates_follow_from_the_rows_that_were_kept(public):
    """Positive prompts of task 4 keep what matched of 50 rollouts; the rate without the intervention is below 15 % by its rule."""
    import numpy as np

    from precollapse.studies.tasks.effects import explained

    for split in ("train", "test", "ood_test"):
        shares = explained(4, public[4].of(split))
        known = shares[np.isfinite(shares)]
        assert (
            len(known) == sum(bool(row.label) for row in public[4].of(split)) and known.min() > 0.6 and known.max() <= 1
        )
