"""Imports of what NumPy, h5py, Zarr and pyarrow saved: equal to what these read themselves, and refused by name where it cannot be read."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile

import h5py
import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import zarr

from precollapse import store
from precollapse.cli.main import main
from precollapse.errors import RequestError

N = 11
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, 3, 8)).astype(np.float32)
H = RNG.standard_normal((N, 5)).astype(np.float16)
IDS = [f"b/{i}" for i in range(N)]
TEXT = [f"τ {i}" for i in range(N)]


def npz(folder, arrays, compressed=False):
    (np.savez_compressed if compressed else np.savez)(folder / "acts.npz", **arrays)
    return folder / "acts.npz"


def hdf5(folder, arrays, **options):
    with h5py.File(folder / "acts.h5", "w") as file:
        for name, values in arrays.items():
            if values.dtype.kind == "U":
                file.create_dataset(name, data=values.tolist(), dtype=h5py.string_dtype())
            else:
                file.create_dataset(name, data=values, **options)
    return folder / "acts.h5"


def zarr_group(folder, arrays, zarr_format=3):
    group = zarr.open_group(folder / "acts.zarr", mode="w", zarr_format=zarr_format)
    for name, values in arrays.items():
        group.create_array(name, data=values, chunks=(4, *values.shape[1:]))
    return folder / "acts.zarr"


def parquet_file(folder, arrays, groups=4):
    columns = {}
    for name, values in arrays.items():
        made = arrow.array(values.reshape(-1).tolist() if values.dtype.kind == "U" else values.reshape(-1))
        for size in reversed(values.shape[1:]):
            made = arrow.FixedSizeListArray.from_arrays(made, size)
        columns[name] = made
    parquet.write_table(arrow.table(columns), folder / "acts.parquet", row_group_size=groups)
    return folder / "acts.parquet"


ALL = {"id": np.array(IDS), "note": np.array(TEXT), "resid_post": X, "final_norm": H}
WAYS = {
    "npz": npz,
    "npz compressed": lambda folder, arrays: npz(folder, arrays, compressed=True),
    "hdf5": hdf5,
    "hdf5 in chunks": lambda folder, arrays: hdf5(folder, arrays, chunks=True, compression="gzip"),
    "zarr": zarr_group,
    "zarr 2": lambda folder, arrays: zarr_group(folder, arrays, 2),
    "parquet": parquet_file,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("given", ["file", "folder"])
@pytest.mark.filterwarnings("ignore")
def test_what_was_saved_is_the_run(tmp_path, way, given):
    saved = WAYS[way](tmp_path, ALL)
    run = store.import_activations(saved if given == "file" else tmp_path, tmp_path / "out" / "run.zarr", shard_size=4)
    assert run.states["id"].tolist() == IDS and run.states["note"].tolist() == TEXT
    np.testing.assert_array_equal(np.stack([run.resid(layer) for layer in range(3)], 1), X)
    np.testing.assert_array_equal(run.array("final_norm"), H)
    assert not store.verify(tmp_path / "out" / "run.zarr")


@pytest.mark.parametrize("way", ["npz", "hdf5", "zarr", "parquet"])
@pytest.mark.filterwarnings("ignore")
def test_ids_may_stand_beside_and_types_of_any_byte_order_are_taken(tmp_path, way):
    (tmp_path / "ids.json").write_text(json.dumps(IDS))
    values = X if way == "parquet" else X.astype(">f4")
    saved = WAYS[way](
        tmp_path, {"layer_4": np.ascontiguousarray(values[:, 0]), "layer_7": np.ascontiguousarray(values[:, 1])}
    )
    run = store.import_activations(tmp_path, tmp_path / "out" / "run.zarr")
    assert run.sites == {"activations": (4, 7)}
    np.testing.assert_array_equal(run.resid(7, site="activations"), X[:, 1])
    assert saved.exists()


def test_a_parquet_export_is_read_back(tmp_path):
    source = npz(tmp_path, {**ALL, "top_ids": np.arange(2 * N).reshape(N, 2)})
    run = store.import_activations(source, tmp_path / "out" / "run.zarr", shard_size=4)
    store.export(run.path, "parquet", tmp_path / "table")
    again = store.import_activations(tmp_path / "table", tmp_path / "again.zarr", shard_size=3)
    assert again.states.drop(columns=["shard"], errors="ignore").equals(
        run.states.drop(columns=["shard"], errors="ignore")
    )
    np.testing.assert_array_equal(again.resid(2), run.resid(2))


# --- what cannot be read ------------------------------------------------------------------------------------------------


def refused(folder, words):
    out = folder / "out" / "run.zarr"
    with pytest.raises(RequestError, match=words) as caught:
        store.import_activations(folder, out)
    assert "\n" not in str(caught.value) and not out.exists()


class Planted:
    def __reduce__(self):
        return (os.system, ("touch /tmp/precollapse-was-run",))


def test_an_npz_that_would_have_to_be_unpickled_is_refused_and_nothing_runs(tmp_path):
    array = np.array([Planted()] * N, dtype=object)
    np.savez(tmp_path / "acts.npz", x=array, id=np.array(IDS))
    refused(tmp_path, "holds Python objects, which only a pickle can")
    (tmp_path / "acts.npz").write_bytes(pickle.dumps(Planted()))
    refused(tmp_path, "is no whole .npz file")
    assert not os.path.exists("/tmp/precollapse-was-run")


def test_an_npz_that_claims_more_than_it_has_is_refused(tmp_path):
    for header in ("(1000000000000, 64)", "(11, -8)", "(11, 8)"):
        text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {header}, }}".ljust(117) + "\n"
        with zipfile.ZipFile(tmp_path / "acts.npz", "w") as archive:
            archive.writestr(
                "x.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + b"\0" * 4
            )
        refused(tmp_path, "which are not those of|is no whole .npz file")


@pytest.mark.parametrize("way", ["npz", "hdf5", "zarr", "parquet"])
@pytest.mark.parametrize("cut", [0, 10, 0.5, 0.9])
@pytest.mark.filterwarnings("ignore")
def test_a_cut_file_is_named(tmp_path, way, cut):
    saved = WAYS[way](tmp_path, ALL)
    for path in [saved] if saved.is_file() else [p for p in saved.rglob("zarr.json")]:
        raw = path.read_bytes()
        path.write_bytes(raw[: cut if isinstance(cut, int) else int(len(raw) * cut)])
    refused(tmp_path, "acts")


@pytest.mark.parametrize("way", ["npz", "hdf5", "parquet"])
def test_noise_is_named_and_costs_no_memory(tmp_path, way):
    saved = WAYS[way](tmp_path, ALL)
    sound = saved.read_bytes()
    rng = np.random.default_rng(3)
    for _ in range(60):
        raw = bytearray(sound)
        for place in rng.integers(0, len(raw), 12):
            raw[place] = rng.integers(0, 256)
        saved.write_bytes(bytes(raw))
        out = tmp_path / "out" / "run.zarr"
        try:
            store.import_activations(tmp_path, out)
        except RequestError as error:
            assert "acts" in str(error) or "row" in str(error)
        shutil.rmtree(out, ignore_errors=True)


def test_an_hdf5_file_is_read_within_itself(tmp_path):
    with h5py.File(tmp_path / "secret.hdf5", "w") as other:
        other["x"] = X
    (tmp_path / "given").mkdir()
    for plant in (
        lambda file: file.__setitem__("x", h5py.ExternalLink(str(tmp_path / "secret.hdf5"), "x")),
        lambda file: file.__setitem__("x", h5py.SoftLink("/y")),
        lambda file: file.create_dataset("x", X.shape, "f4", external=[("/etc/passwd", 0, X.nbytes)]),
    ):
        with h5py.File(tmp_path / "given" / "acts.h5", "w") as file:
            file.create_dataset("id", data=IDS, dtype=h5py.string_dtype())
            plant(file)
        refused(tmp_path / "given", "is a link, which is not followed|lies in other files")
    with h5py.File(tmp_path / "given" / "acts.h5", "w") as file:
        layout = h5py.VirtualLayout(X.shape, "f4")
        layout[:] = h5py.VirtualSource(str(tmp_path / "secret.hdf5"), "x", X.shape)
        file.create_virtual_dataset("x", layout)
    refused(tmp_path / "given", "lies in other files")


@pytest.mark.filterwarnings("ignore")
def test_chunks_that_were_never_written_are_no_numbers(tmp_path):
    group = zarr.open_group(tmp_path / "z" / "acts.zarr", mode="w")
    group.create_array("id", data=np.array(IDS))
    group.create_array("x", shape=(N, 8), chunks=(4, 8), dtype="f4")[:4] = 1
    refused(tmp_path / "z", r"was written in part only \(1 of 3 chunks\)")
    zarr.open_group(tmp_path / "y" / "acts.zarr", mode="w").create_array(
        "x", shape=(10**13, 64), chunks=(4, 64), dtype="f4"
    )
    refused(tmp_path / "y", "was written in part only")
    (tmp_path / "h").mkdir()
    with h5py.File(tmp_path / "h" / "acts.h5", "w") as file:
        file.create_dataset("x", (10**12, 64), "f4", chunks=(4, 64))
    refused(tmp_path / "h", "was written in part only")


@pytest.mark.filterwarnings("ignore")
def test_a_zarr_group_is_no_run_and_has_no_links(tmp_path):
    zarr_group(tmp_path, ALL)
    (tmp_path / "acts.zarr" / "resid_post" / "more").symlink_to("/etc")
    refused(tmp_path, "has a link")
    (tmp_path / "acts.zarr" / "resid_post" / "more").unlink()
    run = store.import_activations(tmp_path, tmp_path / "out" / "run.zarr")
    with pytest.raises(RequestError, match="is a run already"):
        store.import_activations(run.path, tmp_path / "again.zarr")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ([[1.0, 2.0]] * 10 + [[1.0]], "holds no tensors"),
        ([[1.0, None]] * N, "missing values"),
        ([[1.0, 2.0]] * 10 + [None], "holds no tensors"),
        ([["a"]] * N, "holds no tensors"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_parquet_columns_that_are_no_tensors(tmp_path, column, words):
    parquet.write_table(arrow.table({"id": IDS, "x": column}), tmp_path / "acts.parquet")
    out = tmp_path / "out" / "run.zarr"
    with pytest.raises(RequestError, match=words):
        store.import_activations(tmp_path, out)


def test_types_that_a_run_cannot_hold_and_two_formats_at_once(tmp_path, capsys):
    npz(tmp_path, {"id": np.array(IDS), "x": X.astype(np.complex64)})
    refused(tmp_path, "is complex64, which a run cannot hold: save it as one of float16")
    npz(tmp_path, {"id": np.array(IDS), "x": np.asfortranarray(H)})
    refused(tmp_path, "column by column")
    npz(tmp_path, {"id": np.array(IDS[:-1]), "x": H})
    refused(tmp_path, "'id' has 10 values for 11 rows")
    hdf5(tmp_path, ALL)
    refused(tmp_path, "holds files of several formats")
    assert main(["import", str(tmp_path), "--out", str(tmp_path / "run.zarr")]) == 2
    assert "several formats" in capsys.readouterr().err
