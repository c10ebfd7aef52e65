"""A run gives back what was written to it, and nothing else."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from precollapse import store
from precollapse.errors import RequestError
from precollapse.store.reading import chunks

LAYERS, WIDTH = 4, 300
CELLS = {("gsm8k", "baseline"): 11, ("gsm8k", "cot"): 11, ("arc", "baseline"): 3}
STATES = [
    {"id": f"{b}/{i}/{r}", "benchmark": b, "regime": r, "item_id": f"{b}-{i}"}
    for (b, r), n in CELLS.items()
    for i in range(n)
]
ARRAYS = {
    "resid_post": store.ArraySpec((LAYERS, WIDTH), "float32", range(LAYERS)),
    "resid_mid": store.ArraySpec((2, WIDTH), "bfloat16", (1, 3)),
    "z": store.ArraySpec((LAYERS, 3, 100), "float16", range(LAYERS)),
    "final_norm": store.ArraySpec((WIDTH,), "float64"),
    "top_ids": store.ArraySpec((5,), "int64"),
    "depth": store.ArraySpec((), "int32"),
}
COLUMNS = {"entropy_bits": "float64", "prompt_tokens": "int64", "correct": "bool", "text": "string"}
RAGGED = {"token_ids": "int32", "attention_rows": "float32"}


def settings(**changes):
    given = {
        "plan": store.Plan.build(STATES, 4),
        "config": {"model": "m", "seed": 0},
        "config_defaults": {"seed": 0},
        "manifest": {"model_revision": "abc"},
        "arrays": ARRAYS,
        "columns": COLUMNS,
        "ragged": RAGGED,
    }
    return {**given, **changes}


def contents(shard):
    """Everything of a shard, a function of its number."""
    rng = np.random.default_rng(shard.index)
    n = len(shard)
    return {
        "arrays": {
            "resid_post": rng.standard_normal((n, LAYERS, WIDTH)).astype(np.float32),
            "resid_mid": rng.standard_normal((n, 2, WIDTH)).astype(np.float32),
            "z": rng.standard_normal((n, LAYERS, 3, 100)).astype(np.float16),
            "final_norm": rng.standard_normal((n, WIDTH)),
            "top_ids": rng.integers(0, 1 << 40, (n, 5)),
            "depth": rng.integers(0, 99, n).astype(np.int32),
        },
        "table": {
            "entropy_bits": [None if i == 1 else float(i) / 7 for i in range(n)],
            "prompt_tokens": [None if i == 0 else 1 << 60 for i in range(n)],
            "correct": [None if i == 2 else bool(i % 2) for i in range(n)],
            "text": [None if i == 1 else "né\n\x00\u4e2d" * i for i in range(n)],
        },
        "ragged": {
            "token_ids": [rng.integers(0, 9, i * shard.index).astype(np.int32) for i in range(n)],
            "attention_rows": [rng.random((LAYERS, 2, i + 1)).astype(np.float32) for i in range(n)],
        },
        "blobs": {"moments": bytes([shard.index]) * 5},
        "seconds": 0.5,
    }


def fill(path, **changes):
    with store.open_writer(path, **settings(**changes)) as writer:
        for index in writer.claimed():
            assert writer.write(index, **contents(writer.shard(index)))
    return store.open_run(path)


@pytest.fixture
def tmp_path():
    """A folder in memory where there is one: what is tested here does not depend on a disk, only waits for it."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("whole") / "run.zarr")


def written(name, part="arrays"):
    plan = store.Plan.build(STATES, 4)
    return [row for k in range(plan.n_shards) for row in contents(plan.shard(k))[part][name]]


def test_import_needs_neither_torch_nor_zarr():
    code = "import sys, precollapse.store; print([m for m in ('torch', 'transformers', 'zarr') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_plan_cuts_cells_into_even_shards_that_do_not_straddle():
    plan = store.Plan.build(STATES, 4)
    assert [len(plan.shard(k)) for k in range(plan.n_shards)] == [4, 4, 3, 4, 4, 3, 3]
    for k in range(plan.n_shards):
        shard = plan.shard(k)
        assert {(s["benchmark"], s["regime"]) for s in shard.states} == {(shard.benchmark, shard.regime)}
    assert [s for k in range(plan.n_shards) for s in plan.shard(k).states] == STATES


def test_interleaved_states_are_grouped_and_duplicates_keep_the_first():
    mixed = [STATES[0], STATES[11], STATES[1], dict(STATES[0]), STATES[12]]
    plan = store.Plan.build(mixed, 10)
    assert [(c.regime, c.states) for c in plan.cells] == [("baseline", 2), ("cot", 2)]
    assert plan.duplicates == (STATES[0]["id"],)
    assert plan.item_ids[0] == STATES[0]["item_id"]


@pytest.mark.parametrize("other", ["item_id", "benchmark", "regime"])
def test_one_id_of_two_items_is_refused(other):
    with pytest.raises(RequestError, match="is given to two states: item .* and item"):
        store.Plan.build([STATES[0], {**STATES[0], other: "other"}], 10)


@pytest.mark.parametrize("bad", [[], [{"id": 1, "benchmark": "b", "regime": "r", "item_id": "i"}], [{"id": "x"}]])
def test_plan_refuses_what_is_no_state(bad):
    with pytest.raises(RequestError):
        store.Plan.build(bad, 4)


@pytest.mark.parametrize("name", ["resid_post", "z", "final_norm", "top_ids", "depth"])
def test_arrays_come_back_bit_for_bit(run, name):
    found = run.array(name)
    assert found.dtype == written(name)[0].dtype
    np.testing.assert_array_equal(found, np.stack(written(name)))


def test_bfloat16_rounds_as_ml_dtypes_does(run):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    wanted = np.stack(written("resid_mid")).astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(run.array("resid_mid"), wanted)
    np.testing.assert_array_equal(run.resid(3, "resid_mid"), wanted[:, 1])


def test_bfloat16_takes_bits_and_ml_dtypes_and_keeps_special_values(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(4, 1, -1)
    plan = store.Plan.build(STATES[:4], 2)
    spec = {"x": store.ArraySpec((1, bits.shape[2]), "bfloat16", (0,))}
    with store.open_writer(tmp_path / "r", plan=plan, config={}, arrays=spec) as writer:
        writer.write(0, arrays={"x": bits[:2]})
        writer.write(1, arrays={"x": bits[2:].view(ml_dtypes.bfloat16)})
    np.testing.assert_array_equal(
        store.open_run(tmp_path / "r").array("x").view(np.uint32), bits.astype(np.uint32) << 16
    )
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 3.4e38, 1e-45, -0.0], np.float32)
    special = np.concatenate([special, np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)])
    from precollapse.store.dtypes import bfloat16_to_float32, float32_to_bfloat16

    with np.errstate(all="ignore"):
        wanted = special.astype(ml_dtypes.bfloat16).astype(np.float32)
    found = bfloat16_to_float32(float32_to_bfloat16(special))
    np.testing.assert_array_equal(found, wanted)
    assert (np.signbit(found) == np.signbit(special)).all()


def test_layers_by_number(run):
    whole = np.stack(written("resid_post"))
    np.testing.assert_array_equal(run.resid(2), whole[:, 2])
    np.testing.assert_array_equal(run.resid(-1), whole[:, -1])
    np.testing.assert_array_equal(run.resid([3, 0, 3]), whole[:, [3, 0, 3]])
    np.testing.assert_array_equal(run.resid(), whole)
    assert run.sites == {"resid_post": (0, 1, 2, 3), "resid_mid": (1, 3), "z": (0, 1, 2, 3)}


def test_selection_gives_rows_in_the_order_of_states(run):
    whole, states = np.stack(written("resid_post")), run.states
    for asked in (
        {"regime": "cot"},
        {"benchmark": "gsm8k", "regime": ["baseline", "cot"]},
        {"items": ["gsm8k-10", "arc-0", "gsm8k-3"]},
        {"regime": "baseline", "items": ["gsm8k-3"]},
        {"benchmark": "arc", "regime": "cot"},
    ):
        part = run.select(**asked)
        keep = np.ones(len(states), bool)
        for key, value in asked.items():
            column = {"regime": "regime", "benchmark": "benchmark", "items": "item_id"}[key]
            keep &= states[column].isin([value] if isinstance(value, str) else value).to_numpy()
        assert list(part.states["id"]) == list(states["id"][keep])
        np.testing.assert_array_equal(part.resid(1), whole[keep, 1])
        np.testing.assert_array_equal(run.resid(1, **asked), whole[keep, 1])


def test_take_keeps_the_order_given(run):
    rows = [20, 3, 3, 0, 24]
    np.testing.assert_array_equal(run.take(rows).array("resid_post"), np.stack(written("resid_post"))[rows])
    assert list(run.take(rows).states["prompt_tokens"].isna()) == list(run.states["prompt_tokens"].isna().iloc[rows])
    np.testing.assert_array_equal(run.take(rows).attention(1), run.attention(3))


@pytest.mark.parametrize(
    "rows", [[0, 0, 1, 2], [0, 1, 2, 2, 3, 4, 5, 6], [3, 3, 3, 3, 3, 3, 3, 3], [7, 6, 5, 4, 3, 2, 1, 0]]
)
def test_rows_asked_twice_come_twice(run, rows):
    """As many rows as a chunk holds are not the chunk."""
    wanted = np.stack(written("resid_post"))[rows]
    np.testing.assert_array_equal(run.take(rows).array("resid_post"), wanted)
    for layer in range(wanted.shape[1]):
        np.testing.assert_array_equal(run.take(rows).resid(layer), wanted[:, layer])


def test_sparse_rows_of_large_chunks(tmp_path):
    states = [{"id": str(i), "benchmark": "b", "regime": "r", "item_id": str(i)} for i in range(500)]
    values = np.random.default_rng(0).standard_normal((500, 2, 256)).astype(np.float32)
    spec = {"x": store.ArraySpec((2, 256), "float32", (0, 1))}
    plan = store.Plan.build(states, 200)
    with store.open_writer(tmp_path / "r", plan=plan, config={}, arrays=spec) as writer:
        for k in writer.claimed():
            writer.write(k, arrays={"x": values[writer.shard(k).start : writer.shard(k).stop]})
    run = store.open_run(tmp_path / "r")
    rows = [4, 5, 6, 170, 499, 2]
    np.testing.assert_array_equal(run.take(rows).resid(1, "x"), values[rows, 1])


def test_table_keeps_types_and_missing_values(run):
    states = run.states
    assert list(states.columns[:5]) == ["id", "benchmark", "regime", "item_id", "shard"]
    assert list(states.columns[5:]) == list(COLUMNS)
    assert {n: str(states[n].dtype) for n in COLUMNS} == dict(
        zip(COLUMNS, ("float64", "Int64", "boolean", "string"), strict=True)
    )
    for name in COLUMNS:
        for found, wanted in zip(states[name], written(name, "table"), strict=True):
            assert (found is pd.NA or found != found) if wanted is None else found == wanted


def test_ragged_arrays_keep_their_shapes(run):
    for name in RAGGED:
        for i, wanted in enumerate(written(name, "ragged")):
            found = run.ragged(name, i)
            assert found.shape == wanted.shape and found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(run.attention(-1), written("attention_rows", "ragged")[-1])


def test_blobs_and_shards_in_plan_order(run):
    assert [(s.index, data) for s, data in run.blobs("moments")] == [(k, bytes([k]) * 5) for k in range(7)]
    assert [s.index for s, _ in run.select(regime="cot").blobs("moments")] == [3, 4, 5]
    for shard, values in run.iter_shards("resid_post", layer=2):
        np.testing.assert_array_equal(values, contents(shard)["arrays"]["resid_post"][:, 2])


def test_manifest_tells_where_numbers_come_from(run):
    manifest = run.manifest
    assert manifest["model_revision"] == "abc"
    assert manifest["config"] == {"model": "m", "seed": 0}
    (writer,) = manifest["writers"].values()
    assert writer["libraries"]["numpy"] == np.__version__
    assert writer["config_hash"] == manifest["config_hash"] == run.config_hash
    assert manifest["wall_seconds"] == {"gsm8k/baseline": 1.5, "gsm8k/cot": 1.5, "arc/baseline": 0.5}
    json.dumps(manifest)


def test_source_tells_changed_files_from_untracked_ones(tmp_path):
    from precollapse.store.provenance import source

    def git(*arguments):
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(tmp_path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert source(tmp_path) is None
    git("init", "-q")
    (tmp_path / "a.py").write_text("1")
    git("add", "a.py")
    git("commit", "-qm", "one")
    assert source(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": [], "untracked": 0}
    (tmp_path / "b.py").write_text("2")
    assert source(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": [], "untracked": 1}
    (tmp_path / "a.py").write_text("3")
    assert source(tmp_path)["dirty"] == ["a.py"]


def test_a_reader_sees_a_growing_run_shard_by_shard(tmp_path):
    with store.open_writer(tmp_path / "r", **settings()) as writer:
        empty = store.open_run(tmp_path / "r")
        assert len(empty) == 0 and empty.states.empty and empty.resid(0).shape == (0, WIDTH)
        assert empty.array("resid_post").shape == (0, LAYERS, WIDTH)
        writer.write(5, **contents(writer.shard(5)))
        writer.write(1, **contents(writer.shard(1)))
        half = store.open_run(tmp_path / "r")
        assert list(half.states["shard"]) == [1] * 4 + [5] * 3
        np.testing.assert_array_equal(half.resid(0)[4:], contents(writer.shard(5))["arrays"]["resid_post"][:, 0])
        assert half.progress.shards == 2 and half.progress.states == 7 and not half.progress.complete
        assert [c.shards for c in half.progress.cells] == [1, 1, 0]
        assert len(empty) == 0 and len(empty.refresh()) == 7
        assert writer.pending() == [0, 2, 3, 4, 6]
    assert store.verify(tmp_path / "r") == []


def test_a_relative_path_survives_a_change_of_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with store.open_writer("run", **settings()) as writer:
        monkeypatch.chdir("elsewhere")
        writer.write(0, **contents(writer.shard(0)))
    assert len(store.open_run(tmp_path / "run")) == 4
    assert not list((tmp_path / "elsewhere").iterdir())


def test_failed_cells_are_told_until_they_are_completed(tmp_path):
    with store.open_writer(tmp_path / "r", **settings()) as writer:
        writer.fail_cell("arc", "baseline", "no labels")
        assert store.open_run(tmp_path / "r").failed_cells == {("arc", "baseline"): "no labels"}
        for index in writer.claimed():
            writer.write(index, **contents(writer.shard(index)))
    assert store.open_run(tmp_path / "r").failed_cells == {}
    assert store.describe(tmp_path / "r")["complete"]


def test_a_cell_that_is_given_up_does_not_hold_up_the_others(tmp_path):
    done = []
    with store.open_writer(tmp_path / "r", **settings()) as writer:
        for index in writer.claimed():
            if writer.shard(index).regime == "cot":
                continue
            writer.write(index, **contents(writer.shard(index)))
            done.append(index)
    assert done == [0, 1, 2, 6]


def test_small_cells_take_little_space(tmp_path):
    states = [{"id": str(i), "benchmark": "b", "regime": "r", "item_id": str(i)} for i in range(24)]
    spec = {"x": store.ArraySpec((30, 576), "float32", range(30))}
    values = np.ones((24, 30, 576), np.float32)
    plan = store.Plan.build(states, store.shard_size_for(spec))
    with store.open_writer(tmp_path / "r", plan=plan, config={}, arrays=spec) as writer:
        for k in writer.claimed():
            writer.write(k, arrays={"x": values})
    size = sum(file.stat().st_size for file in (tmp_path / "r").rglob("*") if file.is_file())
    assert size < 1.02 * values.nbytes


@pytest.mark.parametrize(
    ("layers", "width", "dtype"),
    [(32, 4096, "float16"), (30, 576, "float32"), (80, 8192, "bfloat16"), (16, 2048, "float32")],
)
def test_shards_and_chunks_have_the_sizes_that_disks_like(layers, width, dtype):
    from precollapse.store.geometry import Geometry

    spec = store.ArraySpec((layers, width), dtype, range(layers))
    rows = store.shard_size_for({"resid_post": spec, "top_ids": store.ArraySpec((10,), "int64")})
    geometry = Geometry.of(spec, rows)
    assert 0.5 <= geometry.chunk_bytes / 2**20 <= 2
    assert 16 <= geometry.file_bytes(rows) / 2**20 <= 64.01


def test_resume_takes_equal_settings_only(tmp_path):
    fill(tmp_path / "r")
    with store.open_writer(tmp_path / "r", **settings()) as writer:
        assert writer.pending() == []
    with pytest.raises(store.ConfigMismatch) as caught:
        store.open_writer(tmp_path / "r", **settings(config={"model": "other", "seed": 1, "new": 3}))
    found = {d.field: (d.stored, d.asked) for d in caught.value.differences}
    assert found == {"config.model": ("m", "other"), "config.seed": (0, 1), "config.new": ("(absent)", 3)}
    assert "config.model: stored 'm', asked 'other'" in str(caught.value)
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"plan": store.Plan.build(STATES, 5)}, "shard_size"),
        ({"plan": store.Plan.build(STATES[:-1], 4)}, "cells"),
        ({"plan": store.Plan.build([{**STATES[0], "id": "x"}, *STATES[1:]], 4)}, "ids[0]"),
        ({"arrays": {**ARRAYS, "z": store.ArraySpec((LAYERS, 3, 100), "float32", range(LAYERS))}}, "arrays.z.dtype"),
        ({"arrays": {k: v for k, v in ARRAYS.items() if k != "z"}}, "arrays.z"),
        ({"ragged": {"token_ids": "int32"}}, "ragged.attention_rows"),
        ({"columns": {**COLUMNS, "correct": "int64"}}, "columns.correct"),
    ],
)
def test_mismatch_names_what_differs(tmp_path, changes, field):
    fill(tmp_path / "r")
    with pytest.raises(store.ConfigMismatch) as caught:
        store.open_writer(tmp_path / "r", **settings(**changes))
    assert [d.field for d in caught.value.differences] == [field]


def test_a_later_version_may_add_a_setting_with_a_default(tmp_path):
    before = fill(tmp_path / "r")
    later = settings(config={"model": "m", "seed": 0, "probe": "last"}, config_defaults={"seed": 0, "probe": "last"})
    with store.open_writer(tmp_path / "r", **later) as writer:
        assert writer.pending() == []
    assert store.open_run(tmp_path / "r").config_hash == before.config_hash
    # ... but not if the setting is not at its default, nor if a default itself has changed
    for config, defaults in (({"probe": "first"}, {"probe": "last"}), ({"seed": 7}, {"seed": 7})):
        with pytest.raises(store.ConfigMismatch):
            store.open_writer(
                tmp_path / "r", **settings(config={"model": "m", "seed": 0, **config}, config_defaults=defaults)
            )


def test_a_later_version_may_drop_a_setting_that_was_at_its_default(tmp_path):
    fill(tmp_path / "r")
    with store.open_writer(tmp_path / "r", **settings(config={"model": "m"}, config_defaults={})) as writer:
        assert writer.pending() == []


def test_a_later_version_may_add_a_column(tmp_path):
    with store.open_writer(tmp_path / "r", **settings()) as writer:
        writer.write(0, **contents(writer.shard(0)))
    with store.open_writer(tmp_path / "r", **settings(columns={**COLUMNS, "margin": "float64"})) as writer:
        for index in writer.claimed():
            given = contents(writer.shard(index))
            given["table"]["margin"] = [1.5] * len(writer.shard(index))
            writer.write(index, **given)
    margin = store.open_run(tmp_path / "r").states["margin"]
    assert margin.isna().sum() == 4 and (margin.dropna() == 1.5).all()
    assert store.verify(tmp_path / "r") == []


@pytest.mark.parametrize(
    ("part", "name", "value", "says"),
    [
        ("arrays", "resid_post", np.zeros((4, LAYERS, WIDTH), np.float64), "float64"),
        ("arrays", "resid_post", np.zeros((3, LAYERS, WIDTH), np.float32), "shape"),
        ("arrays", "resid_mid", np.zeros((4, 2, WIDTH), np.float16), "float16"),
        ("arrays", "other", np.zeros(4), "other"),
        ("arrays", "z", None, "z"),
        ("table", "entropy_bits", [0.0] * 3, "3 values for 4"),
        ("table", "prompt_tokens", [1, 2.5, 3, 4], "2.5"),
        ("table", "prompt_tokens", [1, True, 3, 4], "True"),
        ("table", "prompt_tokens", [1, 1 << 70, 3, 4], "64 bits"),
        ("table", "correct", [1, 0, 1, 0], "bool"),
        ("table", "text", ["a", 3, "b", "c"], "3"),
        ("table", "text", "abcd", "sequence"),
        ("ragged", "token_ids", [np.zeros(2, np.int64)] * 4, "int64"),
        ("ragged", "attention_rows", [np.zeros((1,) * (i + 1), np.float32) for i in range(4)], "axes"),
    ],
)
def test_a_shard_that_does_not_fit_the_plan_is_refused_whole(tmp_path, part, name, value, says):
    with store.open_writer(tmp_path / "r", **settings()) as writer:
        given = contents(writer.shard(0))
        given[part] = {**given[part], name: value}
        if value is None:
            del given[part][name]
        with pytest.raises(RequestError, match=says):
            writer.write(0, **given)
        assert 0 in writer.pending()
        assert not list((tmp_path / "r" / "_staging").iterdir())


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda run: run.resid(9), "no layer 9: it has 0 to 3"),
        (lambda run: run.resid(-5), "no layer -5"),
        (lambda run: run.resid(0, "resid_mid"), "no layer 0: it has 1, 3"),
        (lambda run: run.resid(0, "attn_out"), "no array 'attn_out': it has resid_post"),
        (lambda run: run.resid(0, "final_norm"), "no layers"),
        (lambda run: run.select(regime="cott"), "no regime 'cott': it has baseline, cot"),
        (lambda run: run.select(benchmark=["arc", "x"]), "no benchmark 'x'"),
        (lambda run: run.select(items=["gsm8k-1", "nope"]), "no item 'nope'"),
        (lambda run: run.ragged("rows", 0), "no ragged array 'rows'"),
        (lambda run: run.attention(99), "no state 99"),
        (lambda run: run.attention(0.5), "no state 0.5"),
        (lambda run: run.resid("x"), "a whole number, not 'x'.*0 to 3"),
        (lambda run: run.resid(1.5), "a whole number, not 1.5"),
        (lambda run: run.resid(np.array(9)), "no layer 9"),
        (lambda run: run.resid([0, True]), "a whole number, not True"),
        (lambda run: run.select(regime=3), "A regime is a name, not 3: the run has baseline, cot"),
        (lambda run: run.select(benchmark=["arc", None]), "no benchmark None"),
        (lambda run: run.select(items=7), "An item is named by its id, a string, not 7"),
        (lambda run: run.select(items=[7]), "no item 7"),
        (lambda run: run.take([99]), "no such row"),
        (lambda run: run.take(3), "a list of positions or a mask"),
        (lambda run: run.take([0.5]), "a list of positions or a mask, not float64"),
        (lambda run: run.take(["x"]), "a list of positions or a mask"),
        (lambda run: run.take([True]), "no such row"),
        (lambda run: store.open_run(None), "None is none: give a folder"),
        (lambda run: store.open_run(""), "'' is none: give a folder"),
    ],
)
def test_bad_selections_say_what_there_is(run, ask, says):
    with pytest.raises(RequestError, match=says):
        ask(run)


def test_nothing_taken_is_an_empty_run(run):
    assert len(run.take([])) == len(run.take(np.zeros(25, bool))) == 0
    assert run.take([]).resid(0).shape == (0, *run.resid(0).shape[1:])


def test_names_must_be_usable_and_stand_for_one_thing(tmp_path):
    for changes in (
        {"arrays": {"a/b": ARRAYS["z"]}},
        {"columns": {"id": "string"}},
        {"columns": {"z": "string"}},
        {"columns": {"text": "varchar"}},
        {"config": {"x": object()}},
        {"config": {"x": float("nan")}},
    ):
        with pytest.raises(RequestError):
            store.open_writer(tmp_path / "r", **settings(**changes))
    assert not (tmp_path / "r").exists()


def test_describe_is_json_and_counts_bytes(run):
    about = json.loads(json.dumps(store.describe(run.path)))
    assert about["states"] == {"committed": 25, "total": 25} and about["complete"]
    assert about["states_per_second"] == pytest.approx(25 / 3.5)
    assert about["bytes"] > sum(np.stack(written(n)).nbytes for n in ARRAYS if n != "resid_mid")


def test_xarray_reads_only_what_is_used(run, monkeypatch):
    pytest.importorskip("xarray", reason="xarray is not installed")
    reads = []
    original = chunks._job
    monkeypatch.setattr(
        chunks, "_job", lambda selection, name, *rest: (reads.append(name), original(selection, name, *rest))[1]
    )
    data = run.to_xarray()
    assert reads == []
    whole = np.stack(written("resid_post"))
    np.testing.assert_array_equal(data["resid_post"].sel(resid_post_layer=2)[3:9].values, whole[3:9, 2])
    assert set(reads) == {"resid_post"}
    found = data["resid_post"].isel(state=[7, 2], resid_post_axis_0=[5, 1])[:, 1:3]
    np.testing.assert_array_equal(found.values, whole[[7, 2]][:, 1:3][:, :, [5, 1]])
    np.testing.assert_array_equal(data["final_norm"][-1].values, written("final_norm")[-1])
    np.testing.assert_array_equal(data["z"][1, 2, 1, ::7].values, written("z")[1][2, 1, ::7])
    assert list(data["id"].values) == [s["id"] for s in STATES]
    assert list(data["text"].isnull().values) == list(run.states["text"].isna())
    assert list(data["correct"].isnull().values) == list(run.states["correct"].isna())


def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch):
    page = (Path(__file__).parents[1] / "docs" / "store.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(code, "docs/store.md", "exec"), names)
    assert len(names["run"].states) == 2000
    assert names["run"].select(items=["gsm8k-3", "gsm8k-5"]).resid([0, 12]).shape == (4, 2, 576)


@pytest.mark.parametrize(
    "changes",
    [
        {"columns": {"score": "float64", "score.valid": "bool"}},
        {"columns": {"t": "string", "t.offsets": "int64"}},
        {"ragged": {"t": "int32", "t.offsets": "int64"}},
        {"ragged": {"t": "int32", "t.shapes": "int64"}},
        {"ragged": {"t": "int32", "t.crc32c": "int64"}},
        {"columns": {"z.layers": "string"}},
        {"columns": {"z_layer": "int64"}},
    ],
    ids=str,
)
def test_a_name_of_what_is_kept_beside_another_is_refused(tmp_path, changes):
    """The two would overwrite each other in the files of a shard, in an export or in xarray."""
    with pytest.raises(RequestError, match="is taken: "):
        store.open_writer(tmp_path / "r", **settings(**changes))
    assert not (tmp_path / "r").exists()


def test_half_a_character_is_refused_and_leaves_the_rest_readable(tmp_path):
    """A text cut inside an emoji: no text type holds it, so one such row made every row unreadable."""
    with store.open_writer(tmp_path / "r", **settings()) as writer:
        given = contents(writer.shard(0))
        given["table"]["text"][2] = "cut \ud83d"
        with pytest.raises(RequestError, match="'text', row 2, holds half of a surrogate pair"):
            writer.write(0, **given)
        assert writer.write(np.int64(1), **{**contents(writer.shard(1)), "seconds": float("nan")})
    run = store.open_run(tmp_path / "r")
    assert len(run.states) == 4 and run.commits[1].seconds is None
    with pytest.raises(RequestError, match="whole characters"):
        store.Plan.build([{**STATES[0], "id": "\ud83d"}], 4)


def test_a_column_is_added_with_one_type(tmp_path):
    """Two resumes that add it with different types left a run whose table could not be read."""
    fill(tmp_path / "r")
    with store.open_writer(tmp_path / "r", **settings(columns={**COLUMNS, "b": "int64"})):
        pass
    with pytest.raises(RequestError, match="Column 'b' was added to .* as int64, and float64 is asked"):
        store.open_writer(tmp_path / "r", **settings(columns={**COLUMNS, "b": "float64"}))
    with store.open_writer(tmp_path / "r", **settings(columns={**COLUMNS, "b": "int64"})):
        pass
    with store.open_writer(tmp_path / "r", **settings()):
        pass


def test_whole_and_decimal_numbers_of_one_column_are_read_together(tmp_path, monkeypatch):
    """As runs are that were made before the type of an added column was held to."""
    with store.open_writer(tmp_path / "r", **settings()):
        pass
    monkeypatch.setattr("precollapse.store.writer.read_notes", lambda _files: ({}, {}, 0))
    for kind, value, shards in (("int64", 3, [0, 1]), ("float64", 0.5, [2])):
        with store.open_writer(tmp_path / "r", **settings(columns={**COLUMNS, "b": kind})) as writer:
            for index in shards:
                given = contents(writer.shard(index))
                given["table"]["b"] = [value] * len(writer.shard(index))
                assert writer.claim(index) and writer.write(index, **given)
    found = store.open_run(tmp_path / "r").states["b"]
    assert found.dtype == float and found.tolist() == [3.0] * 8 + [0.5] * 3


def test_what_is_done_to_a_table_does_not_reorder_the_run(run):
    table = run.states
    table.drop(index=table.index[0], inplace=True)
    table["entropy_bits"] = 0.0
    again = run.states
    assert len(again) == 25 and again["entropy_bits"].sum() > 0


def test_a_refresh_finds_the_run_from_another_folder(tmp_path, monkeypatch):
    fill(tmp_path / "r")
    monkeypatch.chdir(tmp_path)
    opened = store.open_run("r")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(opened.refresh()) == 25 and store.describe(tmp_path / "r")["bytes"] > 0


def test_addresses_of_local_files(tmp_path, monkeypatch):
    (tmp_path / "a b").mkdir()
    fill(tmp_path / "a b" / "r")
    for text in ((tmp_path / "a b" / "r").as_uri(), f"file://localhost{tmp_path}/a%20b/r"):
        assert len(store.open_run(text)) == 25
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="no place on this machine"):
        store.open_writer("file://elsewhere/tmp/r", **settings())
    with pytest.raises(RequestError, match="made in a local folder, and s3://bucket/out is none"):
        store.export(tmp_path / "a b" / "r", "npz", "s3://bucket/out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a b"]


def test_xarray_goes_to_another_process(run):
    pytest.importorskip("xarray", reason="xarray is not installed")
    sent = pickle.loads(pickle.dumps(run.to_xarray()))
    np.testing.assert_array_equal(sent["resid_post"][4, 2].values, run.resid(2)[4])
