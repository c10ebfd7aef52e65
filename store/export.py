"""Copies of a run in formats that other tools read, shard by shard, so that a run larger than memory can be copied.

Every format gets the per-state table beside the arrays, in the same order. Files appear in the folder only when all of them are whole,
the table of the states last; what a killed export leaves is removed by the next one.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from .. import atomic
from ..errors import RequestError
from ..schema import ID, PLAN_KEYS, SHARD
from .dtypes import float32_to_bfloat16, returned_type, stored_type
from .files.errors import explained, refused
from .files.place import local_path
from .files.protocol import is_litter
from .formats.tensors import code_of, header
from .geometry import ArraySpec
from .reading.run import Run, open_run

FORMATS = ("safetensors", "parquet", "npz")


def export(path: str | os.PathLike[str], fmt: str, out: str | os.PathLike[str]) -> list[Path]:
    """Copy the committed states of a run into a new folder.

    Parameters
    ----------
    path : path
        The run.
    fmt : "safetensors", "parquet" or "npz"
        safetensors, npz: one file per benchmark and regime with every array [n, ...], ragged arrays as values, offsets
        and shapes, and `states.jsonl`. parquet: `states.parquet`, and one file per array with the id and one list
        column per layer. bfloat16 stays as it is in safetensors and becomes float32 elsewhere.
    out : path
        A folder that is new or empty, or holds what a killed export left.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    RequestError
        Unknown format, no run, no committed states, or a folder that is not empty.
    StoreError
        The run is damaged, or the disk is full.
    """
    if fmt not in FORMATS:
        raise RequestError(f"Unknown export format {fmt!r}: choose {', '.join(FORMATS)}.")
    run = open_run(path)
    if not len(run):
        raise RequestError(f"{run.path} has no committed states: there is nothing to export.")
    folder = _folder(out)
    with refused(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        stage = _begin(folder)
    written: list[Path] = []
    try:
        with explained(str(folder), "write"):
            if fmt == "parquet":
                _parquet(run, stage, written)
            else:
                _by_cell(run, stage, fmt, written)
            return _finish(folder, stage, written)
    except BaseException:  # half an export would be taken for a whole one, and stand in the way of the next
        _remove_unfinished(folder)
        raise


def _folder(out: str | os.PathLike[str]) -> Path:
    text = os.fspath(out)
    if "://" not in text and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text) and not text.startswith("file:"):
        text = text.replace(":/", "://", 1)  # pathlib folds slashes
    if "://" in text and not text.startswith("file://"):
        raise RequestError(f"An export is made in a local folder, and {text} is none: export to a folder and copy it.")
    return Path(local_path(text))


_STAGE = ".export.part"
"""Folder within that of an export, in which its files lie until all are whole; while it holds any, the export is not."""
_MOVED = ".export.moved"
"""File beside it that names those of the export, one a line, while they get their places; its removal, one step, ends the export."""


def _begin(folder: Path) -> Path:
    """A new folder for the files of an export, after what a killed one has left was removed."""
    stage = folder / _STAGE
    _remove_unfinished(folder)
    if not all(is_litter(entry.name) for entry in folder.iterdir()):
        raise RequestError(f"{folder} is not empty: give a new folder for the export.")
    stage.mkdir()
    return stage


def _finish(folder: Path, stage: Path, written: list[Path]) -> list[Path]:
    """Give all files their places, the table of the states last, without which the others are no export."""
    atomic.write(stage / _MOVED, "\n".join(file.name for file in written), durable=True)
    os.replace(stage / _MOVED, folder / _MOVED)
    for file in sorted(written, key=lambda file: file.stem == "states"):
        os.replace(file, folder / file.name)
    atomic.sync_folder(folder)
    shutil.rmtree(stage)
    (folder / _MOVED).unlink()
    return [folder / file.name for file in written]


def _remove_unfinished(folder: Path) -> None:
    """Remove an export that did not come to its end."""
    moved = folder / _MOVED
    if moved.is_file() and not moved.is_symlink():
        for name in moved.read_text("utf-8", "replace").split("\n"):
            if name == os.path.basename(name) and name not in ("", ".", "..", _MOVED) and not (folder / name).is_dir():
                (folder / name).unlink(missing_ok=True)
    stage = folder / _STAGE
    if stage.is_dir() and not stage.is_symlink():
        shutil.rmtree(stage)
    if moved.is_file() and not moved.is_symlink():
        moved.unlink()


def _by_cell(run: Run, folder: Path, fmt: str, written: list[Path]) -> None:
    write = _safetensors if fmt == "safetensors" else _npz
    places: list[tuple[str, int]] = []
    for cell in run.plan.cells:
        part = run.select(regime=cell.regime, benchmark=cell.benchmark)
        if len(part):
            file = folder / f"{cell.folder.rpartition('/')[2]}.{fmt}"
            _whole(file, written, lambda target, part=part: write(part, target))  # type: ignore[misc]
            places += [(file.name, row) for row in range(len(part))]
    _whole(folder / "states.jsonl", written, lambda target: _jsonl(run, places, target))


def _place_fields(run: Run) -> tuple[str, str]:
    """Fields of `states.jsonl` that say where a state lies: names that no column has."""
    taken = set(run.states.columns)
    return ("file", "row") if not taken & {"file", "row"} else ("_file", "_row")


def _whole(file: Path, written: list[Path], write: Callable[[IO[bytes]], None]) -> None:
    """Write a file whole, and add it to `written`."""
    with atomic.writing(file, durable=True) as target:
        write(target)
    written.append(file)


def _jsonl(run: Run, places: list[tuple[str, int]], target: IO[bytes]) -> None:
    fields = _place_fields(run)
    for place, record in zip(places, _records(run), strict=True):
        target.write(json.dumps({**record, **dict(zip(fields, place, strict=True))}).encode() + b"\n")


def _records(run: Run) -> Iterator[dict[str, Any]]:
    states = run.states.drop(columns=SHARD).astype(object)
    states = states.where(states.notna(), None)
    for record in states.to_dict("records"):
        yield {str(name): value for name, value in record.items()}


def _rows(run: Run, name: str) -> Iterator[np.ndarray]:
    for _, values in run.iter_shards(name):
        yield values


def _safetensors(run: Run, target: IO[bytes]) -> None:
    head: dict[str, Any] = {
        "__metadata__": {
            "columns": ",".join(f"{name}:{kind}" for name, kind in _column_types(run).items()),
            "places": ",".join(_place_fields(run)),
            **{
                f"layers.{name}": json.dumps(None if spec.layers is None else list(spec.layers))
                for name, spec in run.arrays.items()
            },
        }
    }
    offset = 0
    shapes = {name: _ragged_shapes(run, name) for name in run.ragged_arrays}

    def add(name: str, kind: str, shape: list[int]) -> None:
        nonlocal offset
        size = int(np.prod(shape, dtype=np.int64)) * stored_type(kind).itemsize
        head[name] = {"dtype": code_of(kind), "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size

    for name, spec in run.arrays.items():
        add(name, spec.dtype, [len(run), *spec.shape])
    for name, kind in run.ragged_arrays.items():
        add(f"{name}.offsets", "int64", [len(run) + 1])
        add(f"{name}.shapes", "int64", list(shapes[name].shape))
        add(name, kind, [int(shapes[name].prod(axis=1).sum())])
    target.write(header(head))
    for name, spec in run.arrays.items():
        for values in _rows(run, name):
            target.write(_bits(values, spec.dtype).data)
    for name, kind in run.ragged_arrays.items():
        target.write(_offsets(shapes[name]).data)
        target.write(shapes[name].data)
        for i in range(len(run)):
            target.write(_bits(run.ragged(name, i), kind).tobytes())


def _column_types(run: Run) -> dict[str, str]:
    """Type of each column that `states` has, those added after the run was begun included."""
    kinds = {"Int64": "int64", "boolean": "bool", "float64": "float64"}
    frame = run.states.drop(columns=[*PLAN_KEYS, SHARD])
    return {str(name): kinds.get(frame[name].dtype.name, "string") for name in frame.columns}


def _bits(values: np.ndarray, kind: str) -> np.ndarray:
    return np.ascontiguousarray(float32_to_bfloat16(values) if kind == "bfloat16" else values)


def _ragged_shapes(run: Run, name: str) -> np.ndarray:
    shapes = [run.ragged_shape(name, i) for i in range(len(run))]
    if len({len(shape) for shape in shapes}) > 1:
        raise RequestError(
            f"{name!r} of {run.path} has {' and '.join(map(str, sorted({len(s) for s in shapes})))} axes in different states, "
            "which one table of shapes cannot say: export it with --parquet."
        )
    return np.ascontiguousarray(shapes, dtype=np.int64)


def _offsets(shapes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(shapes.prod(axis=1))]).astype(np.int64)


def _npz(run: Run, target: IO[bytes]) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, spec in run.arrays.items():
            with _member(archive, name, returned_type(spec.dtype), (len(run), *spec.shape)) as member:
                for values in _rows(run, name):
                    member.write(np.ascontiguousarray(values).data)
            if spec.layers is not None:
                _put(archive, f"{name}.layers", np.array(spec.layers))
        for name, kind in run.ragged_arrays.items():
            shapes = _ragged_shapes(run, name)
            _put(archive, f"{name}.offsets", _offsets(shapes))
            _put(archive, f"{name}.shapes", shapes)
            with _member(archive, name, returned_type(kind), (int(shapes.prod(axis=1).sum()),)) as member:
                for i in range(len(run)):
                    member.write(run.ragged(name, i).tobytes())
        _put(archive, ID, np.array(run.states[ID].tolist(), dtype=np.str_))


def _member(archive: zipfile.ZipFile, name: str, kind: np.dtype[Any], shape: tuple[int, ...]) -> IO[bytes]:
    member = archive.open(f"{name}.npy", "w", force_zip64=True)
    np.lib.format.write_array_header_1_0(
        member, {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    )
    return member


def _put(archive: zipfile.ZipFile, name: str, values: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    archive.writestr(f"{name}.npy", buffer.getvalue())


def _parquet(run: Run, folder: Path, written: list[Path]) -> None:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise RequestError("The parquet export needs the package pyarrow: install precollapse[export].") from None

    def lists(values: np.ndarray) -> Any:
        values = np.ascontiguousarray(values).reshape(len(values), -1)
        return arrow.FixedSizeListArray.from_arrays(arrow.array(values.reshape(-1)), values.shape[1])

    def array_table(ids: list[str], values: np.ndarray, spec: ArraySpec) -> Any:
        columns = {ID: arrow.array(ids)}
        if spec.layers is None:
            columns["value"] = lists(values)
        else:
            columns.update({f"layer_{number}": lists(values[:, i]) for i, number in enumerate(spec.layers)})
        return arrow.table(columns)

    def ragged_table(part: Run, name: str) -> Any:
        rows = [part.ragged(name, i) for i in range(len(part))]
        ends = np.concatenate([[0], np.cumsum([row.size for row in rows])]).astype(np.int64)
        flat = np.concatenate([row.reshape(-1) for row in rows])
        return arrow.table(
            {
                ID: part.states[ID].tolist(),
                "shape": arrow.array([list(row.shape) for row in rows], arrow.list_(arrow.int64())),
                "value": arrow.LargeListArray.from_arrays(arrow.array(ends), arrow.array(flat)),
            }
        )

    def stream(tables: Iterator[Any], target: IO[bytes]) -> None:
        with contextlib.ExitStack() as closing:  # closed also when reading fails, while there is still a file to close
            writer = None
            for table in tables:
                if writer is None:
                    writer = parquet.ParquetWriter(target, table.schema, compression="none", use_dictionary=False)
                    closing.callback(writer.close)
                writer.write_table(table)

    states = arrow.Table.from_pandas(run.states, preserve_index=False)
    _whole(folder / "states.parquet", written, lambda target: parquet.write_table(states, target))
    for name, spec in run.arrays.items():
        tables = (
            array_table([state[ID] for state in shard.states], values, spec) for shard, values in run.iter_shards(name)
        )
        _whole(folder / f"{name}.parquet", written, lambda target, tables=tables: stream(tables, target))  # type: ignore[misc]
    for name in run.ragged_arrays:
        tables = (ragged_table(part, name) for part in run.by_shard())
        _whole(folder / f"{name}.parquet", written, lambda target, tables=tables: stream(tables, target))  # type: ignore[misc]
