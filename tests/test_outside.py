"""Files that somebody else wrote: YAML that stands for a billion values, rows that say a thing twice, numbers no file holds."""

from __future__ import annotations

import io
import json
import tarfile
import time

import pytest

from precollapse import RequestError, declared, strict_json, strict_yaml
from precollapse.analysis.trajectories.public import load_texts
from precollapse.cli import main
from precollapse.studies import SteerConfig, StudyConfig, TrajectoryConfig, benchmarks
from precollapse.studies.prompts import load_regimes

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
"""A billion values in ten lines."""
MERGED = "k: &k0 {x: 1}\n" + "".join(f"k{i}: &k{i} {{<<: [{', '.join([f'*k{i - 1}'] * 9)}]}}\n" for i in range(1, 10))
TOO_MUCH = {
    "aliases of aliases": BOMB,
    "merged aliases": MERGED,
    "a long text many times": "a: &a " + "x" * 100_000 + "\nb: [" + ", ".join(["*a"] * 1000) + "]",
    "an alias in itself": "a: &a [*a]",
    "depth": "[" * 10_000,
    "many values": "- 1\n" * 30_000,
    "a long number": "a: 0x" + "f" * 100_000,
    "a number to the base of sixty": "a: 1" + ":59" * 50_000,
    "a number of more than 64 bits": "a: 9223372036854775808",
}


@pytest.mark.parametrize("text", TOO_MUCH.values(), ids=TOO_MUCH)
def test_yaml_that_stands_for_too_much_is_refused_at_once(text):
    start = time.process_time()
    with pytest.raises(RequestError, match=r"^file\.yaml holds more than is read \(line \d+\): ") as refusal:
        strict_yaml.parse(text.encode(), "file.yaml")
    assert len(str(refusal.value)) < 400
    assert time.process_time() - start < 10


def test_a_yaml_file_of_too_many_bytes_is_refused_before_it_is_read():
    with pytest.raises(RequestError, match="1048577 bytes"):
        strict_yaml.parse(b"#" * (strict_yaml.BYTES + 1), "file.yaml")


def test_ordinary_aliases_and_numbers_are_read():
    content, _ = strict_yaml.parse(
        b"one: &one {a: 1}\ntwo: {<<: *one, b: -2.5}\nthree: [*one, *one, 0x10, 9223372036854775807]", "file.yaml"
    )
    assert content["two"] == {"a": 1, "b": -2.5}
    assert content["three"] == [{"a": 1}, {"a": 1}, 16, 2**63 - 1]


@pytest.mark.parametrize("text", ["a: !!bool 7", "a: !!int ''", "a: !!timestamp 7"])
def test_a_value_of_another_tag_is_refused_in_a_sentence(text):
    with pytest.raises(RequestError, match="does not fit the tag"):
        strict_yaml.parse(text.encode(), "file.yaml")


@pytest.mark.parametrize("text", [BOMB, MERGED], ids=["aliases", "merged"])
def test_every_reader_of_yaml_is_bounded(tmp_path, capsys, text):
    path = tmp_path / "file.yaml"
    path.write_text(text)
    for read in (load_regimes, declared.load):
        with pytest.raises(RequestError, match="holds more than is read"):
            read(path)
    for words in (["--config", str(path)], ["--regimes-file", str(path)], ["--hypotheses", str(path)]):
        assert main(["run", *words, "--out", str(tmp_path / "run.zarr")]) == 2
        assert "holds more than is read" in capsys.readouterr().err
    declaration, remark = declared.recorded([{"hypotheses": text}])
    assert declaration is None and "holds more than is read" in remark and len(remark) < 400


@pytest.mark.parametrize("manifest", [{"preregistration": {}}, {"hypotheses": "\ud800"}, {"hypotheses": ["a"] * 10**6}])
def test_absurd_recorded_hypotheses_are_a_remark(manifest):
    declaration, remark = declared.recorded([manifest])
    assert declaration is None and len(remark) < 400


def test_values_in_the_refusal_of_a_hypothesis_file_are_short():
    long = ", ".join(["x"] * 15_000)
    for text in (f"protocol: [{long}]\nhypotheses: [{{id: a}}]", f"hypotheses: [{{id: [{long}]}}]"):
        with pytest.raises(RequestError) as refusal:
            declared.parse(text.encode(), "file.yaml")
        assert len(str(refusal.value)) < 400


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"question": "a?", "answer": "1", "question": "b?"}', "line 2: .*the name 'question' appears twice"),
        ('{"question": "a?", "answer": "A", "choices": {"A": "1", "B": "2", "A": "3"}}', "the name 'A' appears twice"),
        ('{"question": "a?", "answer": 18446744073709551616}', "line 2: .*18446744073709551616 has more than 64 bits"),
        ('{"question": "a?", "answer": ' + "9" * 5000 + "}", "line 2: .*has more than 64 bits; put it into quotes"),
        ('{"question": "a?", "answer": ' + "[" * 100_000, "line 2: .*within one another"),
    ],
)
def test_rows_that_lose_something_are_refused_with_their_line(tmp_path, row, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"question": "q?", "answer": 9223372036854775807}}\n{row}\n')
    with pytest.raises(RequestError, match=message) as refusal:
        benchmarks.load("mine", path=path)
    assert len(str(refusal.value)) < 400


def test_the_largest_whole_number_of_64_bits_is_read():
    assert strict_json.loads("[9223372036854775807, -9223372036854775808]") == [2**63 - 1, -(2**63)]


def test_rows_of_chains_are_read_as_strictly(tmp_path):
    rows, chains = tmp_path / "rows.jsonl", tmp_path / "chains.jsonl"
    rows.write_text('{"id": "a", "question": "q?", "answer": "1"}\n')
    chains.write_text('{"id": "a", "chain": "one", "chain": "two"}\n')
    config = TrajectoryConfig(
        out=tmp_path / "run.zarr", benchmarks=("mine",), items={"mine": rows}, chains={"mine": chains}
    )
    from precollapse.studies import run_trajectories

    with pytest.raises(RequestError, match="line 1, is not JSON .the name 'chain' appears twice"):
        run_trajectories(config)


def test_an_archive_with_a_record_that_is_not_whole_is_refused_by_name(tmp_path):
    path = tmp_path / "tasks.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, record in (
            ("a/q.json", {"question_id": "q", "prompt_text": "?"}),
            ("a/c.json", {"chain_of_thought": 1}),
        ):
            content = json.dumps(record).encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    with pytest.raises(RequestError, match=r"a/c\.json is no whole record"):
        load_texts(path)


# --- whole numbers of more than 64 bits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["n", "seed", "top_k", "max_new_tokens", "shard_size", "batch_tokens"])
def test_a_study_refuses_whole_numbers_of_more_than_64_bits(tmp_path, name):
    with pytest.raises(RequestError, match=f"{name}.*64 bits"):
        StudyConfig(out=tmp_path / "run.zarr", **{name: 2**63})


@pytest.mark.parametrize("name", ["n", "seed", "m", "chain_tokens", "continuation_tokens", "cap", "shard_size"])
def test_trajectories_refuse_whole_numbers_of_more_than_64_bits(tmp_path, name):
    with pytest.raises(RequestError, match="64 bits"):
        TrajectoryConfig(out=tmp_path / "run.zarr", **{name: 2**63})


@pytest.mark.parametrize("name", ["n", "seed", "layer", "max_new_tokens", "controls"])
def test_steering_refuses_whole_numbers_of_more_than_64_bits(tmp_path, name):
    with pytest.raises(RequestError, match=f"{name}.*64 bits"):
        SteerConfig(run=tmp_path / "run.zarr", **{"layer": 1, name: 2**63})


@pytest.mark.parametrize("value", [str(2**63), "-" + str(2**70), "9" * 5000, "1_0x"])
def test_the_command_line_refuses_them_before_a_run_is_made(tmp_path, capsys, value):
    for words in (["run", f"--seed={value}"], ["run", f"--max-new-tokens={value}"], ["trajectories", f"--cap={value}"]):
        assert main([*words, "--out", str(tmp_path / "run.zarr")]) == 2
        assert len(capsys.readouterr().err) < 400
    assert not (tmp_path / "run.zarr").exists()
