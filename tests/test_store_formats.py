"""A run on disk is what other people's tools take it for: zarr-python, TensorStore, safetensors, pyarrow, NumPy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from precollapse import store
from precollapse.errors import RequestError, StoreError

STATES = [
    {"id": f"b/{i}/{regime}", "benchmark": "b", "regime": regime, "item_id": f"item {i}"}
    for regime in ("baseline", "cot")
    for i in range(21)
]
ARRAYS = {
    "resid_post": store.ArraySpec((3, 512), "float32", (4, 5, 6)),
    "resid_mid": store.ArraySpec((3, 1024), "bfloat16", (4, 5, 6)),
    "final_norm": store.ArraySpec((700,), "float16"),
    "top_ids": store.ArraySpec((4,), "int64"),
}


def contents(shard):
    rng = np.random.default_rng(shard.index)
    n = len(shard)
    return {
        "arrays": {
            "resid_post": rng.standard_normal((n, 3, 512)).astype(np.float32),
            "resid_mid": rng.integers(0, 0x7F80, (n, 3, 1024)).astype(np.uint16),
            "final_norm": rng.standard_normal((n, 700)).astype(np.float16),
            "top_ids": rng.integers(0, 1000, (n, 4)),
        },
        "table": {
            "entropy_bits": rng.random(n),
            "prompt_tokens": list(range(n)),
            "correct": [None, *[True] * (n - 1)],
            "text": [f"τ{i}\n" if i else None for i in range(n)],
        },
        "ragged": {"rows": [rng.random((2, i)).astype(np.float32) for i in range(n)]},
    }


@pytest.fixture
def tmp_path():
    """A folder in memory where there is one: what is tested here does not depend on a disk, only waits for it."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("formats") / "run.zarr"
    with store.open_writer(
        folder,
        plan=store.Plan.build(STATES, 8),
        config={"model": "m"},
        arrays=ARRAYS,
        columns={"entropy_bits": "float64", "prompt_tokens": "int64", "correct": "bool", "text": "string"},
        ragged={"rows": "float32"},
    ) as writer:
        for index in writer.claimed():
            writer.write(index, **contents(writer.shard(index)))
    return folder


@pytest.fixture(scope="module")
def run(path):
    return store.open_run(path)


def array_folders(path, name):
    return {cell.regime: path / cell.folder / name for cell in store.open_run(path).plan.cells}


@pytest.mark.parametrize("name", ["resid_post", "final_norm"])
def test_zarr_python_reads_the_arrays(path, run, name):
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    group = zarr.open_group(path, mode="r")
    assert group.attrs["precollapse"]["format"] == store.FORMAT
    for cell in run.plan.cells:
        array = group[f"{cell.folder}/{name}"]
        np.testing.assert_array_equal(array[:], run.array(name, regime=cell.regime))
        np.testing.assert_array_equal(array[3:9, ..., -5:], run.array(name, regime=cell.regime)[3:9, ..., -5:])
        assert group[cell.folder].attrs["regime"] == cell.regime
        assert np.isnan(array.fill_value)
    if name == "resid_post":
        assert array.metadata.dimension_names == ("state", "layer", "axis_0")
        assert array.attrs["layers"] == [4, 5, 6]


def test_zarr_python_reads_bfloat16_in_a_process_of_its_own(path):
    """The one line that docs/store.md gives; and the entry point for versions of zarr-python that load those."""
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    pytest.importorskip("zarr", reason="zarr is not installed")
    folder = next(iter(array_folders(path, "resid_mid").values()))
    code = (
        "import importlib.metadata, zarr\n"
        "(entry,) = importlib.metadata.entry_points(group='zarr.data_type', name='bfloat16')\n"
        "from precollapse.store.formats import zarr_dtypes\n"
        "assert entry.load() is zarr_dtypes.BFloat16\n"
        "zarr_dtypes.register()\n"
        f"print(zarr.open_array({str(folder)!r}, mode='r')[:].dtype)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "bfloat16"


def test_zarr_python_reads_bfloat16(path, run):
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    from precollapse.store.formats import zarr_dtypes

    zarr_dtypes.register()
    for regime, folder in array_folders(path, "resid_mid").items():
        array = zarr.open_array(folder, mode="r")
        assert str(array.dtype) == "bfloat16"
        np.testing.assert_array_equal(array[:].astype(np.float32), run.array("resid_mid", regime=regime))


def test_zarr_python_writes_bfloat16_that_is_read_back(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    from precollapse.store.formats import zarr_dtypes

    zarr_dtypes.register()
    array = zarr.create_array(tmp_path / "a", shape=(5,), dtype=zarr_dtypes.BFloat16(), fill_value=float("-inf"))
    array[:3] = np.array([1.5, -2, np.nan]).astype(ml_dtypes.bfloat16)
    again = zarr.open_array(tmp_path / "a", mode="r")[:]
    np.testing.assert_array_equal(again.astype(np.float32), [1.5, -2, np.nan, -np.inf, -np.inf])


def test_tensorstore_reads_the_arrays(path, run):
    tensorstore = pytest.importorskip("tensorstore", reason="tensorstore is not installed")
    for name in ("resid_post", "resid_mid", "final_norm"):
        for regime, folder in array_folders(path, name).items():
            where = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}}
            array = tensorstore.open(where).result()
            assert array.dtype.name == ARRAYS[name].dtype
            found = array.read().result()
            np.testing.assert_array_equal(found.astype(run.array(name).dtype), run.array(name, regime=regime))


def test_zarr_notices_a_flipped_byte(path, tmp_path):
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    copy = tmp_path / "copy.zarr"
    shutil.copytree(path, copy)
    folder = array_folders(copy, "resid_post")["cot"]
    chunk = folder / "c.1.0.0"
    data = bytearray(chunk.read_bytes())
    data[1000] ^= 1
    chunk.write_bytes(data)
    array = zarr.open_array(folder, mode="r")
    array[:7]
    with pytest.raises(Exception, match="(?i)checksum"):
        array[7:14]


def test_zarr_shows_rows_that_were_never_written_as_nan(tmp_path):
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    spec = {"x": store.ArraySpec((2, 300), "float32", (0, 1))}
    with store.open_writer(tmp_path / "r", plan=store.Plan.build(STATES, 8), config={}, arrays=spec) as writer:
        writer.write(1, arrays={"x": np.ones((7, 2, 300), np.float32)})
    array = zarr.open_array(tmp_path / "r" / writer.plan.cells[0].folder / "x", mode="r")
    assert np.isnan(array[:7]).all() and (array[7:14] == 1).all()


def test_safetensors_reads_tables_and_ragged_arrays(path):
    numpy_api = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    table = numpy_api.load_file(path / "tables" / "00000001.safetensors")
    wanted = contents(store.open_run(path).plan.shard(1))
    np.testing.assert_array_equal(table["column.entropy_bits"], wanted["table"]["entropy_bits"])
    np.testing.assert_array_equal(table["column.correct.valid"], [False] + [True] * 6)
    np.testing.assert_array_equal(table["array.top_ids"], wanted["arrays"]["top_ids"])
    ragged = numpy_api.load_file(path / "ragged" / "00000001.safetensors")
    np.testing.assert_array_equal(ragged["ragged.rows"], np.concatenate([r.ravel() for r in wanted["ragged"]["rows"]]))


def test_export_to_safetensors_and_back(path, run, tmp_path):
    numpy_api = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    files = store.export(path, "safetensors", tmp_path / "out")
    loaded = [numpy_api.load_file(file) for file in files if file.suffix == ".safetensors"]
    for name in ("resid_post", "final_norm", "top_ids"):
        np.testing.assert_array_equal(np.concatenate([part[name] for part in loaded]), run.array(name))
    again = store.import_activations(tmp_path / "out", tmp_path / "again.zarr", shard_size=5)
    assert store.verify(tmp_path / "again.zarr") == []
    assert again.sites == run.sites
    for name in ARRAYS:
        np.testing.assert_array_equal(again.array(name), run.array(name))
    for i in range(len(run)):
        np.testing.assert_array_equal(again.ragged("rows", i), run.ragged("rows", i))
    for column in run.states.columns.drop("shard"):
        assert again.states[column].dtype == run.states[column].dtype
        assert again.states[column].equals(run.states[column])


def test_export_to_npz(path, run, tmp_path):
    files = store.export(path, "npz", tmp_path / "out")
    loaded = [np.load(file) for file in files if file.suffix == ".npz"]
    for name in ARRAYS:
        np.testing.assert_array_equal(np.concatenate([part[name] for part in loaded]), run.array(name))
    np.testing.assert_array_equal(loaded[0]["resid_post.layers"], [4, 5, 6])
    assert np.concatenate([part["id"] for part in loaded]).tolist() == list(run.states["id"])
    first = loaded[0]["rows"][loaded[0]["rows.offsets"][5] : loaded[0]["rows.offsets"][6]]
    np.testing.assert_array_equal(first.reshape(loaded[0]["rows.shapes"][5]), run.ragged("rows", 5))
    lines = [json.loads(line) for line in (tmp_path / "out" / "states.jsonl").read_text().splitlines()]
    texts = [
        None if missing else text for text, missing in zip(run.states["text"], run.states["text"].isna(), strict=True)
    ]
    assert [line["text"] for line in lines] == texts


def test_export_to_parquet(path, run, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    store.export(path, "parquet", tmp_path / "out")
    states = pandas.read_parquet(tmp_path / "out" / "states.parquet")
    assert list(states["id"]) == list(run.states["id"])
    assert list(states["correct"].isna()) == list(run.states["correct"].isna())
    frame = pandas.read_parquet(tmp_path / "out" / "resid_post.parquet")
    assert list(frame["id"]) == list(run.states["id"])
    np.testing.assert_array_equal(np.stack(frame["layer_5"]), run.resid(5))
    rows = pandas.read_parquet(tmp_path / "out" / "rows.parquet")
    np.testing.assert_array_equal(rows["value"][5], run.ragged("rows", 5).ravel())


def test_export_refuses_what_it_cannot_do(path, tmp_path):
    with pytest.raises(RequestError, match="Unknown export format"):
        store.export(path, "hdf5", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    with pytest.raises(RequestError, match="not empty"):
        store.export(path, "npz", tmp_path / "full")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fmt", ["safetensors", "npz", "parquet"])
def test_an_export_that_fails_leaves_nothing_behind(path, tmp_path, fmt):
    """Whole files of the first cell would look like an export, and keep the next one out."""
    shutil.copytree(path, tmp_path / "run.zarr")
    last = sorted((tmp_path / "run.zarr" / "ragged").iterdir())[-1]
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(StoreError, match="verify"):
        store.export(tmp_path / "run.zarr", fmt, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def save(folder, ids=None, **files):
    numpy_api = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    folder.mkdir(exist_ok=True)
    for name, arrays in files.items():
        numpy_api.save_file(arrays, folder / f"{name}.safetensors")
    if ids is not None:
        (folder / "ids.json").write_text(json.dumps(ids))
    return folder


def test_import_of_one_tensor_per_layer_over_several_files(tmp_path):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 5, 64)).astype(np.float32), rng.standard_normal((2, 3, 64)).astype(np.float32)
    folder = save(
        tmp_path / "saved",
        [f"x{i}" for i in range(8)],
        part0={"hidden_states.layer_2": a[0], "hidden_states.layer_10": a[1]},
        part1={"hidden_states.layer_2": b[0], "hidden_states.layer_10": b[1]},
    )
    run = store.import_activations(folder, tmp_path / "run.zarr", shard_size=3)
    assert run.sites == {"hidden_states": (2, 10)}
    np.testing.assert_array_equal(run.resid(10, "hidden_states"), np.concatenate([a[1], b[1]]))
    assert list(run.states["id"]) == [f"x{i}" for i in range(8)]
    # the same call again is a resume with nothing to do
    assert len(store.import_activations(folder, tmp_path / "run.zarr", shard_size=3)) == 8


def test_import_names_what_is_wrong(tmp_path):
    x = np.zeros((3, 2, 8), np.float32)
    with pytest.raises(RequestError, match="no saved activations"):
        store.import_activations(tmp_path, tmp_path / "r")
    with pytest.raises(RequestError, match="gives no ids"):
        store.import_activations(save(tmp_path / "a", a={"x": x}), tmp_path / "r")
    with pytest.raises(RequestError, match="3 rows of tensors, but ids for 2"):
        store.import_activations(save(tmp_path / "b", ["1", "2"], a={"x": x}), tmp_path / "r")
    with pytest.raises(RequestError, match="do not hold the same tensors"):
        store.import_activations(save(tmp_path / "d", ["1"] * 6, a={"x": x}, b={"y": x}), tmp_path / "r")
    with pytest.raises(RequestError, match="differ in their number of rows"):
        store.import_activations(save(tmp_path / "e", ["1"] * 3, a={"x": x, "y": x[:2]}), tmp_path / "r")
    folder = save(tmp_path / "f", a={"x": x})
    (folder / "states.jsonl").write_bytes(b'{"id": "1"}\n{"id": "2"}\n{"id": "3", "te')
    with pytest.raises(RequestError, match="states.jsonl, line 3, is torn"):
        store.import_activations(folder, tmp_path / "r")
    (folder / "states.jsonl").write_bytes(b'{"id": "1"}\nnot json\n{"id": "3"}\n')
    with pytest.raises(RequestError, match="line 2"):
        store.import_activations(folder, tmp_path / "r")
    (folder / "states.jsonl").write_bytes(b'{"id": "1", "a": 1}\n{"id": "2", "a": "x"}\n{"id": "3"}\n')
    with pytest.raises(RequestError, match="field 'a' holds int, str"):
        store.import_activations(folder, tmp_path / "r")
    whole = folder / "a.safetensors"
    whole.write_bytes(whole.read_bytes()[:-9])
    with pytest.raises(RequestError, match="no whole safetensors file"):
        store.import_activations(folder, tmp_path / "r")
    assert not (tmp_path / "r").exists()


RAGGED = {"r": np.arange(5.0), "r.offsets": np.array([0, 2, 5]), "r.shapes": np.array([[2], [3]])}


@pytest.mark.parametrize(
    "changed",
    [
        {"r.offsets": np.array([0.0, 2.0, 5.0])},
        {"r.shapes": np.array([[2.0], [3.0]])},
        {"r.offsets": np.array([0, 3, 5])},
        {"r.offsets": np.array([0, 2, 6])},
        {"r.offsets": np.array([1, 2, 5])},
        {"r.offsets": np.array([0, 2])},
        {"r.shapes": np.array([[3], [2]])},
        {"r.shapes": np.array([[-2], [-3]])},
        {"r.shapes": np.array([2, 3])},
        {"r": np.arange(4.0)},
        {"r": np.arange(6.0).reshape(2, 3)},
    ],
    ids=lambda changed: f"{next(iter(changed))}-{next(iter(changed.values())).tolist()}",
)
def test_import_refuses_offsets_that_do_not_fit_their_values(tmp_path, changed):
    """Rows would be cut out of the wrong places, or the run would stop half way through."""
    run = store.import_activations(save(tmp_path / "good", ["a", "b"], a=RAGGED), tmp_path / "good.zarr")
    np.testing.assert_array_equal(run.ragged("r", 1), [2.0, 3.0, 4.0])
    with pytest.raises(RequestError, match="a.safetensors: .*'r'"):
        store.import_activations(save(tmp_path / "bad", ["a", "b"], a={**RAGGED, **changed}), tmp_path / "bad.zarr")
    assert not (tmp_path / "bad.zarr").exists()


@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16])
def test_import_says_how_many_states_are_not_finite(tmp_path, kind):
    x = np.ones((3, 2, 64), kind)
    x[1, 0, 3], x[2, 1, 0] = np.nan, np.inf
    folder = save(tmp_path / "saved", ["a", "b", "c"], a={"x": x, "fine": x[:1].repeat(3, 0)})
    with pytest.warns(UserWarning, match="2 of the 3 states have NaN or infinite values in 'x'") as told:
        run = store.import_activations(folder, tmp_path / "run.zarr", shard_size=1)
    assert len(told) == 1
    np.testing.assert_array_equal(run.array("x"), x.astype(np.float32))


@pytest.mark.parametrize(
    "second, told",
    [
        ({"x": np.ones((3, 64))}, "differ in tensor 'x': float32"),
        ({"x": np.ones((3, 32), np.float32)}, r"differ in tensor 'x': float32 \[n, \*\(64,\)\]"),
    ],
)
def test_import_refuses_files_that_are_not_alike(tmp_path, second, told):
    """Read with the first file's row size, the second would give numbers that nobody saved."""
    save_file({"x": np.ones((5, 64), np.float32)}, tmp_path / "a.safetensors")
    save_file(second, tmp_path / "b.safetensors")
    (tmp_path / "ids.txt").write_text("\n".join("abcdefgh"))
    with pytest.raises(RequestError, match=told):
        store.import_activations(tmp_path, tmp_path / "run.zarr")


@pytest.mark.parametrize(
    "name, site",
    [
        ("layer_3", "activations"),
        ("h.3", "activations"),
        ("3", "activations"),
        ("_3", "activations"),
        ("resid__3", "resid"),
        ("resid.layer.3", "resid"),
        ("resid_layer__3", "resid"),
        ("hidden_states.layer_3", "hidden_states"),
        ("hidden_states_3", "hidden_states"),
        ("resid_post.3", "resid_post"),
        ("model.layers.3", "model"),
        ("my-site.block-3", "my-site"),
    ],
)
def test_import_takes_the_layer_from_the_name(tmp_path, name, site):
    save_file({name: np.ones((2, 4), np.float32)}, tmp_path / "a.safetensors")
    (tmp_path / "ids.txt").write_text("a\nb")
    assert store.import_activations(tmp_path, tmp_path / "run.zarr").sites == {site: (3,)}


def test_import_refuses_one_layer_under_two_names(tmp_path):
    save_file(
        {"layer_3": np.ones((2, 4), np.float32), "layers.3": np.zeros((2, 4), np.float32)}, tmp_path / "a.safetensors"
    )
    (tmp_path / "ids.txt").write_text("a\nb")
    with pytest.raises(RequestError, match="are both layer 3 of 'activations'"):
        store.import_activations(tmp_path, tmp_path / "run.zarr")


def test_import_does_not_mix_files_that_changed_between_two_calls(tmp_path):
    folder = tmp_path / "saved"
    folder.mkdir()
    save_file({"x": np.ones((2, 4), np.float32)}, folder / "a.safetensors")
    (folder / "ids.txt").write_text("a\nb")
    store.import_activations(folder, tmp_path / "run.zarr")
    store.import_activations(folder, tmp_path / "run.zarr")
    save_file({"x": np.zeros((2, 4), np.float32)}, folder / "a.safetensors")
    with pytest.raises(store.ConfigMismatch, match="imported"):
        store.import_activations(folder, tmp_path / "run.zarr")


def test_import_keeps_the_first_of_duplicate_ids_and_says_so(tmp_path):
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    with pytest.warns(UserWarning, match="1 ids came more than once, first 'a': the first of each is kept"):
        run = store.import_activations(save(tmp_path / "c", ["a", "b", "a"], a={"x": x}), tmp_path / "r")
    assert run.plan.duplicates == ("a",) and run.manifest["duplicates"] == ["a"]
    np.testing.assert_array_equal(run.array("x"), x[:2])


def test_import_keeps_fields_as_columns(tmp_path):
    folder = save(tmp_path / "saved", a={"act": np.arange(6, dtype=np.float32).reshape(3, 2)})
    lines = [
        {"id": "q", "regime": "cot", "benchmark": "b", "score": 1, "ok": True, "note": None},
        {"id": "r", "regime": "plain", "benchmark": "b", "score": 2.5, "ok": None, "note": "x"},
        {"id": "s", "regime": "cot", "benchmark": "b", "ok": False},
    ]
    (folder / "states.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = store.import_activations(folder, tmp_path / "run.zarr")
    assert list(run.states["id"]) == ["q", "s", "r"]  # cells in order of first appearance
    np.testing.assert_array_equal(run.array("act"), [[0, 1], [4, 5], [2, 3]])
    assert run.states["score"].tolist()[0] == 1.0 and np.isnan(run.states["score"].tolist()[1])
    assert run.states["ok"].tolist()[:2] == [True, False] and run.states["note"].tolist()[2] == "x"


def labelled(folder, lines, n=None, **arrays):
    """A folder of activations with `states.jsonl`."""
    x = np.arange(2 * (n or len(lines)), dtype=np.float32).reshape(-1, 2)
    save(folder, a=arrays or {"x": x})
    (folder / "states.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_import_takes_numbers_for_items_and_0_for_one(tmp_path):
    """Item 0 under two regimes is one item: as two it would stand on both sides of a split."""
    lines = [{"id": f"q{i}-{r}", "item_id": i, "regime": r} for i in range(3) for r in ("a", "b")]
    run = store.import_activations(labelled(tmp_path / "f", lines), tmp_path / "r")
    assert run.states.groupby("item_id").size().to_dict() == {"0": 2, "1": 2, "2": 2}
    for value in (1.5, True, ["x"]):
        with pytest.raises(RequestError, match="row 0 has item_id .*: a string is needed"):
            store.import_activations(labelled(tmp_path / "g", [{"id": "a", "item_id": value}]), tmp_path / "s")


def test_import_notices_that_the_labels_changed(tmp_path):
    folder = labelled(tmp_path / "f", [{"id": str(i), "y": i} for i in range(4)])
    store.import_activations(folder, tmp_path / "r")
    labelled(folder, [{"id": str(i), "y": 9 - i} for i in range(4)])
    os.utime(folder / "a.safetensors", ns=(0, 0))
    shutil.rmtree(tmp_path / "r")
    store.import_activations(folder, tmp_path / "r")
    labels = (folder / "states.jsonl").read_text()
    (folder / "states.jsonl").write_text(labels.replace('"y": 9', '"y": 8'))
    with pytest.raises(store.ConfigMismatch, match="imported"):
        store.import_activations(folder, tmp_path / "r")
    (folder / "states.jsonl").write_text(labels)
    assert store.import_activations(folder, tmp_path / "r").states["y"].tolist() == [9, 8, 7, 6]


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        ([f"part-{i}" for i in range(1, 12)], True),
        ([f"part-{i:02}" for i in range(1, 12)], False),
        (["a", "a1", "a-2"], False),
        ([f"{j}-of-{i}" for i in (2, 10) for j in (1, 2)], True),
    ],
    ids=["unpadded", "padded", "unlike", "two numbers"],
)
def test_import_does_not_guess_the_order_of_files(tmp_path, names, refused):
    """part-10 comes before part-2 in the order of names: the ids would belong to other rows."""
    folder = save(tmp_path / "f", [f"i{k}" for k in range(len(names))], **{n: {"x": np.ones((1, 2))} for n in names})
    if refused:
        with pytest.raises(RequestError, match="leading zeros"):
            store.import_activations(folder, tmp_path / "r")
        files = sorted(names)
        lines = [{"id": f"i{k}", "file": f"{name}.safetensors", "row": 0} for k, name in enumerate(files)]
        (folder / "states.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(store.import_activations(folder, tmp_path / "r")) == len(names)


@pytest.mark.parametrize("value", ["elsewhere.txt", ["x"]])
def test_import_takes_a_field_called_file_for_what_it_is(tmp_path, value):
    """Only the names of the files beside it make it a place; before, a list there ended in a traceback."""
    folder = labelled(tmp_path / "f", [{"id": "a", "file": value, "row": 7}])
    if isinstance(value, list):
        with pytest.raises(RequestError, match="field 'file' holds list"):
            store.import_activations(folder, tmp_path / "r")
    else:
        assert store.import_activations(folder, tmp_path / "r").states["row"].tolist() == [7]


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        ("a\nb\n", ["a", "b"]),
        ("\ufeffa\r\nb", ["a", "b"]),
        ("a\u2028x\nb\x85", ["a\u2028x", "b\x85"]),
        ("a\n\nb", None),
        ("", None),
    ],
)
def test_import_reads_ids_a_line(tmp_path, content, ids):
    folder = save(tmp_path / "f", a={"x": np.ones((3 if content == "a\n\nb" else 2, 2))})
    (folder / "ids.txt").write_bytes(content.encode())
    if ids is None:
        with pytest.raises(RequestError, match="row 1 has id ''|ids for 0"):
            store.import_activations(folder, tmp_path / "r")
    else:
        assert store.import_activations(folder, tmp_path / "r").states["id"].tolist() == ids


def test_import_refuses_what_is_no_text_no_layer_and_no_type(tmp_path):
    x = np.ones((1, 2), np.float32)
    folder = save(tmp_path / "f", a={"x": x})
    (folder / "b.safetensors").mkdir()
    (folder / "ids.txt").write_bytes("é".encode("latin-1"))
    with pytest.raises(RequestError, match="ids.txt is no UTF-8 text"):
        store.import_activations(folder, tmp_path / "r")
    (folder / "ids.txt").unlink()
    (folder / "states.jsonl").write_text('{"id": "b", "text": "cut \\ud83d"}\n')
    with pytest.raises(RequestError, match="line 1, field 'text' holds half of a surrogate pair"):
        store.import_activations(folder, tmp_path / "r")
    for tensors, told in (
        ({"m": np.ones((1, 2), np.int16)}, "tensor 'm' is I16, which a run cannot hold"),
        ({"layer_3": np.ones((1, 4, 2), np.float32)}, r"'layer_3' is one layer by its name, but has shape \[1, 4, 2\]"),
    ):
        with pytest.raises(RequestError, match=told):
            store.import_activations(save(tmp_path / "g", ["a"], a=tensors), tmp_path / "r")
    for layers in ("[null]", "[1.7]", '["1"]', "1"):
        save_file({"h": x[:, None]}, tmp_path / "g" / "a.safetensors", {"layers.h": layers})
        with pytest.raises(RequestError, match="no whole safetensors file"):
            store.import_activations(tmp_path / "g", tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_an_export_is_read_back_with_its_names_types_and_axes(tmp_path):
    """Names that look like layers, columns without any value, and columns named as the export's own fields."""
    arrays = {
        "probe_1": store.ArraySpec((5,), "float32"),
        "grid": store.ArraySpec((2, 3), "float32"),
        "scalar_by_layer": store.ArraySpec((3,), "float32", (0, 4, 2)),
        "resid_post": store.ArraySpec((2, 4), "float32", (7, 2)),
    }
    columns = {"file": "string", "row": "int64", "correct": "bool", "tokens": "int64", "score": "float64"}
    states = [{"id": str(i), "benchmark": "b", "regime": "", "item_id": ""} for i in range(3)]
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal((3, *spec.shape)).astype(np.float32) for name, spec in arrays.items()}
    none = [None] * 3
    table = {"file": ["x", None, "y"], "row": [5, 6, 7], "correct": none, "tokens": none, "score": none}
    plan = store.Plan.build(states, 4)
    with store.open_writer(tmp_path / "r", plan=plan, config={}, arrays=arrays, columns=columns) as writer:
        writer.write(0, arrays=values, table=table)
    run = store.open_run(tmp_path / "r")
    store.export(tmp_path / "r", "safetensors", tmp_path / "out")
    again = store.import_activations(tmp_path / "out", tmp_path / "again")
    assert again.arrays == run.arrays and again.columns == run.columns
    assert again.states.equals(run.states)
    for name in arrays:
        np.testing.assert_array_equal(again.array(name), values[name])


def test_rows_of_unlike_axes_are_exported_where_that_can_be_said(tmp_path):
    states = [{"id": str(i), "benchmark": "b", "regime": "r", "item_id": str(i)} for i in range(2)]
    with store.open_writer(
        tmp_path / "r", plan=store.Plan.build(states, 1), config={}, ragged={"a": "int32"}
    ) as writer:
        writer.write(0, ragged={"a": [np.ones(3, np.int32)]})
        writer.write(1, ragged={"a": [np.ones((2, 2), np.int32)]})
    for fmt in ("safetensors", "npz"):
        with pytest.raises(RequestError, match="'a' of .* has 1 and 2 axes"):
            store.export(tmp_path / "r", fmt, tmp_path / fmt)
    assert len(store.export(tmp_path / "r", "parquet", tmp_path / "parquet")) == 2
