"""Reading a run: committed states only, by layer, regime or item, from runs larger than memory.

What a reader sees is fixed when the run is opened: the shards that had a sound commit at that moment. Every chunk that
is read is checked against the commit, so damaged or foreign bytes are not taken for numbers; only where a few rows are
picked out of a large chunk is the rest of it neither read nor checked.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import RequestError, StoreError
from . import folds, tables, tensors
from .commits import Commit, read_commits
from .dtypes import returned_type, stored_type, to_returned
from .files import Files, Handle, io_pool, open_files, readable, unreadable
from .layout import FAILED, ArraySpec, Geometry, blob_name, commit_name, ragged_name, table_name
from .notes import read_notes
from .opening import check_whole, read_plan
from .plan import Cell, Plan, RunPlan, Shard
from .sealed import crc32c, unseal

if TYPE_CHECKING:
    import pandas as pd

_FEW_LAYERS = 4
_SPARSE = 4
"""Rows are read one by one, and then unchecked, when fewer than one in this many rows of a chunk is wanted."""


@dataclass(frozen=True)
class CellProgress:
    """How far one benchmark under one regime is. `seconds` is the sum over its shards, None where none was timed."""

    benchmark: str
    regime: str
    states: int
    states_total: int
    shards: int
    shards_total: int
    seconds: float | None
    failed: str | None


@dataclass(frozen=True)
class Progress:
    """How far a run is: committed shards and states, in all and per cell."""

    shards: int
    shards_total: int
    states: int
    states_total: int
    cells: tuple[CellProgress, ...]

    @property
    def complete(self) -> bool:
        """Whether every shard is committed."""
        return self.shards == self.shards_total


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run for reading, also while it is being written.

    Shards whose commit is damaged are left out, with a warning that names them.

    Raises
    ------
    RequestError
        There is no run at `path`, or half of one, or one of a newer format.
    StoreError
        The plan is damaged.
    """
    return _open(open_files(path))


def _open(files: Files) -> Run:
    with readable(files.path):
        run = read_plan(files)
        commits, faults = read_commits(files, run)
        check_whole(files, run, bool(commits or faults))
    for fault in faults.values():
        warnings.warn(f"{fault} Its states are left out; run `precollapse verify`.", stacklevel=3)
    rows = [np.arange(*run.plan.bounds(shard), dtype=np.int64) for shard in commits]
    return Run(_Snapshot(files, run, commits, faults), np.concatenate(rows) if rows else np.zeros(0, np.int64))


class _Snapshot:
    """The committed shards of a run as they were when it was opened, and what was read of them."""

    def __init__(self, files: Files, run: RunPlan, commits: dict[int, Commit], faults: dict[int, str]) -> None:
        self.files = files
        self.run = run
        self.commits = commits
        self.faults = faults
        self._heads: dict[str, tuple[dict[str, Any], int]] = {}

    def located(self, shard: int, name: str, use: Callable[[str], Any]) -> Any:
        """`use(file name)` on a file of a shard, under its final name or, after a kill, still under its staged one."""
        file = self.commits[shard].files.get(name)
        if file is None:
            raise StoreError(f"Shard {shard} of {self.files.path} was committed without {name}.")
        for place in (name, file.staged, name):
            try:
                return use(place)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise unreadable(f"{self.files.path}/{place}", error) from error
        raise StoreError(f"{self.files.path}/{name} is gone. Run `precollapse repair` to have its shard done again.")

    def checksums(self, shard: int, name: str) -> str:
        """Checksums of the chunks of a Zarr shard, eight hexadecimal digits each."""
        file = self.commits[shard].files.get(name)
        return (file.chunks or "") if file else ""

    def fill(self, shard: int, name: str, offset: int, buffers: list[Any]) -> None:
        """Fill buffers from byte `offset` of a file of a shard."""
        self.located(shard, name, lambda place: self.files.read_into(place, offset, buffers))

    def whole(self, shard: int, name: str) -> bytes:
        """A file of a shard, checked."""
        return self.checked(shard, name, self.located(shard, name, self.files.read))

    def checked(self, shard: int, name: str, data: bytes) -> bytes:
        """The bytes of a file of a shard, if they are those of its commit."""
        file = self.commits[shard].files[name]
        if len(data) != file.size or f"{crc32c(data):08x}" != file.crc32c:
            raise self.damaged(name)
        return data

    def damaged(self, name: str) -> StoreError:
        return StoreError(
            f"{self.files.path}/{name} is damaged: its bytes do not match the commit. Run `precollapse verify`."
        )

    def tables(self, shards: Sequence[int]) -> Iterator[tuple[dict[str, np.ndarray], dict[str, str]]]:
        """Tensors of each shard's table and the types of its columns."""
        for first in range(0, len(shards), 64):
            some = shards[first : first + 64]
            with readable(self.files.path):
                found = self.files.read_many([table_name(k) for k in some])
            for shard, data in zip(some, found, strict=True):
                name = table_name(shard)
                data = self.whole(shard, name) if data is None else self.checked(shard, name, data)
                head, start = tensors.parse_header(data[: tensors.header_bytes(data)], len(data), name)
                listed = head.get("__metadata__", {}).get("columns", "")
                kinds = dict(part.split(":") for part in listed.split(",") if part)
                values = {key: tensors.view(data, entry, start) for key, entry in head.items() if key != "__metadata__"}
                yield values, kinds

    def part(self, shard: int, name: str, tensor: str, first: int, last: int, dtype: str = "int64") -> np.ndarray:
        """Elements `first` to `last` of a flattened tensor in a safetensors file of a shard; reads nothing else."""
        entry, start = self.entry(shard, name, tensor, 2 if tensor.endswith(".shapes") else 1)
        if entry["dtype"] != tensors.code_of(dtype):
            raise self.damaged(name)
        kind = tensors.kind_of(entry)
        out = np.empty(last - first, kind)
        if out.size:
            offset = start + entry["data_offsets"][0] + first * kind.itemsize
            self.fill(shard, name, offset, [out])
        return out

    def entry(self, shard: int, name: str, tensor: str, axes: int) -> tuple[dict[str, Any], int]:
        """Header entry of a tensor that a safetensors file must have, and where the file's data begin."""
        head, start = self.head(shard, name)
        entry = head.get(tensor)
        if entry is None or len(entry["shape"]) != axes:
            raise self.damaged(name)
        return entry, start

    def head(self, shard: int, name: str) -> tuple[dict[str, Any], int]:
        """Header of a safetensors file of a shard."""
        if name not in self._heads:
            size = self.commits[shard].files[name].size if name in self.commits[shard].files else 0
            prefix = bytearray(8)
            self.fill(shard, name, 0, [prefix])
            length = tensors.header_bytes(bytes(prefix))
            if not 8 <= length <= size:
                raise self.damaged(name)
            text = bytearray(length)
            self.fill(shard, name, 0, [text])
            if len(self._heads) >= 256:
                self._heads.clear()
            self._heads[name] = tensors.parse_header(bytes(text), size, f"{self.files.path}/{name}")
        return self._heads[name]


class Run:
    """The committed states of a run, or of a part of it. Made by `open_run`.

    All methods give rows in the order of `states`.
    """

    def __init__(self, snapshot: _Snapshot, rows: np.ndarray) -> None:
        self._snapshot = snapshot
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        done = self.progress
        return f"<Run {self.path}: {len(self)} states, {done.shards}/{done.shards_total} shards committed>"

    @property
    def path(self) -> str:
        """Where the run lies."""
        return self._snapshot.files.path

    @property
    def plan(self) -> Plan:
        """The plan of the whole run."""
        return self._snapshot.run.plan

    @property
    def config(self) -> dict[str, Any]:
        """The settings that the run was started with."""
        return dict(self._snapshot.run.config)

    @property
    def config_hash(self) -> str:
        """SHA-256 of the settings that differ from their defaults."""
        return self._snapshot.run.config_hash

    @property
    def arrays(self) -> dict[str, ArraySpec]:
        """What each state has of each array."""
        return dict(self._snapshot.run.arrays)

    @property
    def sites(self) -> dict[str, tuple[int, ...]]:
        """Model layer numbers of each array that has layers."""
        return {name: spec.layers for name, spec in self.arrays.items() if spec.layers is not None}

    @property
    def ragged_arrays(self) -> dict[str, str]:
        """Type of each array whose length differs between states."""
        return dict(self._snapshot.run.ragged)

    @property
    def columns(self) -> dict[str, str]:
        """Type of each table column of the plan."""
        return dict(self._snapshot.run.columns)

    @property
    def commits(self) -> dict[int, Commit]:
        """The commit of each committed shard of the whole run."""
        return dict(self._snapshot.commits)

    @property
    def faults(self) -> dict[int, str]:
        """What is wrong with the commit of each shard that was left out for it."""
        return dict(self._snapshot.faults)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """How the run came about: what its writers noted, settings, format, and wall time per cell."""
        snapshot = self._snapshot
        with readable(self.path):
            notes, faults, _ = read_notes(snapshot.files)
        for fault in faults.values():
            warnings.warn(f"{fault} Its entries are left out.", stacklevel=2)
        seconds = {f"{c.benchmark}/{c.regime}": c.seconds for c in self.progress.cells if c.seconds is not None}
        return {
            **notes,
            "format": self._snapshot.run.format,
            "config": self.config,
            "config_hash": self.config_hash,
            "duplicates": list(self.plan.duplicates),
            "wall_seconds": seconds,
        }

    @cached_property
    def failed_cells(self) -> dict[tuple[str, str], str]:
        """Reason by (benchmark, regime) for cells that could not be finished."""
        files = self._snapshot.files
        with readable(self.path):
            names = sorted(files.list(FAILED))
            records = files.read_many([f"{FAILED}/{name}" for name in names])
        found = {}
        for name, record in zip(names, records, strict=True):
            if record is None:
                continue
            try:
                body = unseal(record, f"{files.path}/{FAILED}/{name}")
            except StoreError as error:
                warnings.warn(str(error), stacklevel=2)
                continue
            cell = self.plan.cell(body["benchmark"], body["regime"])
            if any(shard not in self._snapshot.commits for shard in cell.shards):
                found[cell.benchmark, cell.regime] = str(body["reason"])
        return found

    @cached_property
    def progress(self) -> Progress:
        """How far the whole run is."""
        commits, plan = self._snapshot.commits, self.plan
        done = np.fromiter(commits, np.int64, len(commits))
        sizes = np.diff(plan.starts)
        failed = self.failed_cells
        cells = []
        for cell in plan.cells:
            inside = done[(done >= cell.shards.start) & (done < cell.shards.stop)]
            times = [commits[int(k)].seconds for k in inside]
            timed = [t for t in times if t is not None]
            cells.append(
                CellProgress(
                    cell.benchmark,
                    cell.regime,
                    int(sizes[inside].sum()),
                    cell.states,
                    len(inside),
                    len(cell.shards),
                    sum(timed) if timed else None,
                    failed.get((cell.benchmark, cell.regime)),
                )
            )
        return Progress(len(done), plan.n_shards, int(sizes[done].sum()), plan.n_states, tuple(cells))

    def refresh(self) -> Run:
        """The run as it is now, without any selection."""
        return _open(self._snapshot.files)

    def select(
        self,
        regime: str | Sequence[str] | None = None,
        benchmark: str | Sequence[str] | None = None,
        items: Iterable[str] | None = None,
    ) -> Run:
        """The states of these regimes, benchmarks and items, in plan order.

        Raises
        ------
        RequestError
            A name that the plan does not have.
        """
        plan, rows = self.plan, self._rows
        if regime is not None or benchmark is not None:
            regimes = _names(regime, [cell.regime for cell in plan.cells], "regime")
            benchmarks = _names(benchmark, [cell.benchmark for cell in plan.cells], "benchmark")
            kept = np.array([c.regime in regimes and c.benchmark in benchmarks for c in plan.cells])
            rows = rows[kept[self._cell_index(rows)]]
        if items is not None:
            if not isinstance(items, str | Iterable):
                raise RequestError(f"An item is named by its id, a string, not {items!r}: see run.states['item_id'].")
            wanted = {items} if isinstance(items, str) else set(items)
            unknown = wanted.difference(plan.item_ids)
            if unknown:
                raise RequestError(
                    f"The run has no item {min(map(repr, unknown))} ({len(unknown)} of {len(wanted)} are unknown): "
                    "see run.states['item_id']."
                )
            rows = rows[np.fromiter((plan.item_ids[row] in wanted for row in rows), bool, len(rows))]
        return Run(self._snapshot, rows)

    def take(self, rows: Any) -> Run:
        """The states at these positions of `states`, in the order given.

        Parameters
        ----------
        rows : array-like
            Integers [k], negative ones from the end, repeated as often as given; or a boolean mask [n].

        Raises
        ------
        RequestError
            Anything else, or a position that is not there.
        """
        wanted = np.asarray(rows)
        if wanted.size == 0 and wanted.ndim == 1 and wanted.dtype != bool:
            wanted = wanted.astype(np.int64)
        if wanted.ndim != 1 or wanted.dtype.kind not in "biu":
            raise RequestError(
                f"take needs a list of positions or a mask, not {wanted.dtype} of shape {list(wanted.shape)}."
            )
        try:
            return Run(self._snapshot, self._rows[wanted])
        except IndexError as error:
            raise RequestError(f"There is no such row among {len(self)} states ({error}).") from None

    @property
    def states(self) -> pd.DataFrame:
        """One row per state: `id`, `benchmark`, `regime`, `item_id`, `shard`, and every column.

        Missing values are NaN in float64 columns and pandas' NA in the others (Int64, boolean, string). A frame of its
        own each time: what is done to it does not change the order of the run.
        """
        return self._frame.copy(deep=False)

    @cached_property
    def _frame(self) -> pd.DataFrame:
        import pandas as pd

        plan, rows = self.plan, self._rows
        cells = self._cell_index(rows).tolist()
        listed = rows.tolist()
        frame = {
            "id": [plan.ids[row] for row in listed],
            "benchmark": [plan.cells[c].benchmark for c in cells],
            "regime": [plan.cells[c].regime for c in cells],
            "item_id": [plan.item_ids[row] for row in listed],
            "shard": self._shard_index(rows),
        }
        return pd.DataFrame({**frame, **self._columns()})

    def _columns(self) -> dict[str, Any]:
        kinds = dict(self._snapshot.run.columns)
        groups = list(self._groups())
        loaded = []
        for values, own in self._snapshot.tables([shard for shard, _, _ in groups]):
            for name, kind in own.items():
                if {kinds.setdefault(name, kind), kind} == {"int64", "float64"}:
                    kinds[name] = "float64"
                elif kinds[name] != kind:
                    raise StoreError(
                        f"Column {name!r} of {self.path} is {kinds[name]} in some shards, {kind} in others."
                    )
            loaded.append({key: value.copy() for key, value in values.items() if key.startswith("column.")})
        order = np.concatenate([out for _, _, out in groups]) if groups else np.zeros(0, np.int64)
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        found = {}
        for name, kind in kinds.items():
            parts = []
            for (shard, local, _), values in zip(groups, loaded, strict=True):
                start, stop = self.plan.bounds(shard)
                data, mask = tables.decode_column(values, name, kind, stop - start)
                picked = [data[i] for i in local] if isinstance(data, list) else data[local]
                parts.append((picked, mask[local]))
            found[name] = tables.series(kind, parts)[back]
        return found

    def resid(
        self,
        layer: int | Sequence[int] | None = None,
        site: str = "resid_post",
        regime: str | Sequence[str] | None = None,
        benchmark: str | Sequence[str] | None = None,
        items: Iterable[str] | None = None,
    ) -> np.ndarray:
        """A site at one layer or several.

        Parameters
        ----------
        layer : int, sequence of int or None
            Model layer numbers; negative ones count back from the last captured layer. None: all captured layers.
        site : str
        regime, benchmark, items
            As in `select`.

        Returns
        -------
        ndarray
            [n, d] for one layer, [n, number of layers, d] otherwise; bfloat16 as float32. In memory the layers follow one
            another, as on the disk, so that `x[:, i]` is contiguous.

        Raises
        ------
        RequestError
            Unknown site, layer, regime, benchmark or item.
        StoreError
            The bytes do not match their checksum, or a file is gone.
        """
        spec = self._spec(site)
        if spec.layers is None:
            raise RequestError(f"{site!r} has no layers: read it with run.array({site!r}).")
        chosen = self._selected(regime, benchmark, items)
        if layer is None:
            return chosen._read(site, None)
        if isinstance(layer, np.ndarray):
            layer = layer.tolist()
        if isinstance(layer, str | bytes) or not isinstance(layer, Iterable):
            return chosen._read(site, [_layer_axis(layer, spec, site)])[:, 0]
        return chosen._read(site, [_layer_axis(number, spec, site) for number in layer])

    def array(
        self,
        name: str,
        regime: str | Sequence[str] | None = None,
        benchmark: str | Sequence[str] | None = None,
        items: Iterable[str] | None = None,
    ) -> np.ndarray:
        """A whole array [n, *shape], in memory layer by layer; bfloat16 as float32. Raises as `resid` does."""
        self._spec(name)
        return self._selected(regime, benchmark, items)._read(name, None)

    def by_shard(self) -> Iterator[Run]:
        """The part of the selection that lies in each shard, in plan order."""
        for _, _, positions in self._groups():
            yield Run(self._snapshot, self._rows[np.sort(positions)])

    def iter_shards(self, name: str, layer: int | Sequence[int] | None = None) -> Iterator[tuple[Shard, np.ndarray]]:
        """(shard, its selected rows of an array) one shard at a time, for runs larger than memory."""
        for part in self.by_shard():
            values = part.array(name) if layer is None else part.resid(layer, name)
            yield self.plan.shard(int(self._shard_index(part._rows[:1])[0])), values

    def ragged(self, name: str, i: int) -> np.ndarray:
        """The array `name` of state `i` (a position in `states`), in its own shape; bfloat16 as float32."""
        shard, local, shape = self._ragged_place(name, i)
        file, key, snapshot = ragged_name(shard), f"ragged.{name}", self._snapshot
        first, last = snapshot.part(shard, file, f"{key}.offsets", local, local + 2).tolist()
        checksum = int(snapshot.part(shard, file, f"{key}.crc32c", local, local + 1, "uint32")[0])
        kind = snapshot.run.ragged[name]
        if (
            not 0 <= first <= last <= snapshot.entry(shard, file, key, 1)[0]["shape"][0]
            or math.prod(shape) != last - first
        ):
            raise snapshot.damaged(file)
        bits = snapshot.part(shard, file, key, first, last, kind)
        return tables.ragged_row(bits, shape, checksum, kind, f"{self.path}/{file}, state {local},")

    def ragged_shape(self, name: str, i: int) -> tuple[int, ...]:
        """Shape of the array `name` of state `i`, without reading it."""
        return self._ragged_place(name, i)[2]

    def _ragged_place(self, name: str, i: int) -> tuple[int, int, tuple[int, ...]]:
        """Shard, row within it, and shape of a state's ragged array."""
        kinds = self._snapshot.run.ragged
        if name not in kinds:
            raise RequestError(f"The run has no ragged array {name!r}: it has {_listing(kinds)}.")
        if not isinstance(i, int | np.integer) or not -len(self) <= i < len(self):
            raise RequestError(f"There is no state {i!r}: the selection has {len(self)}, counted from 0.")
        row = int(self._rows[i])
        shard = int(self._shard_index(np.array([row]))[0])
        local = row - self.plan.bounds(shard)[0]
        file, key = ragged_name(shard), f"ragged.{name}.shapes"
        axes = self._snapshot.entry(shard, file, key, 2)[0]["shape"][1]
        shape = self._snapshot.part(shard, file, key, local * axes, (local + 1) * axes)
        return shard, local, tuple(shape.tolist())

    def attention(self, i: int) -> np.ndarray:
        """Attention row of state `i` at its boundary: [L, H, T_i]."""
        return self.ragged("attention_rows", i)

    def blobs(self, name: str) -> Iterator[tuple[Shard, bytes]]:
        """The blob `name` of each shard with a state in this selection, checked, in plan order.

        Blobs that were folded into one per cell are not among them: see `parts`.
        """
        files, upto = self._snapshot.files, folds.folded(self._snapshot.files, name)
        for shard, _, _ in self._groups():
            key = (self.plan.cell_of(shard).index, name)
            if shard < upto.get(key, 0) or name not in self._snapshot.commits[shard].blobs:
                continue
            try:
                data = self._snapshot.whole(shard, blob_name(name, shard))
            except StoreError:
                upto = folds.folded(files, name)
                if shard < upto.get(key, 0):  # a writer has folded it meanwhile
                    continue
                raise
            yield self.plan.shard(shard), data

    def parts(self, name: str) -> Iterator[tuple[Cell, list[bytes]]]:
        """What was kept under the blob name `name` of each cell of the whole run, checked, in plan order.

        First the fold of a cell, where it has one, then the blobs of the committed shards after it; so every committed
        shard counts once, also while a writer is folding. A cell whose fold holds a shard that was taken out of the run
        is left out, with a warning, until the shard is there again.
        """
        snapshot = self._snapshot
        for cell in self.plan.cells:
            shards = [k for k in cell.shards if k in snapshot.commits and name in snapshot.commits[k].blobs]
            for left in range(9, -1, -1):
                upto = folds.folded(snapshot.files, name).get((cell.index, name), cell.first_shard)
                try:
                    found = [folds.read_fold(snapshot.files, cell.index, upto, name)] if upto > cell.first_shard else []
                    found += [snapshot.whole(k, blob_name(name, k)) for k in shards if k >= upto]
                    break
                except (FileNotFoundError, StoreError):
                    if not left or folds.folded(snapshot.files, name).get((cell.index, name), cell.first_shard) == upto:
                        raise
            lost = [k for k in range(cell.first_shard, upto) if k not in snapshot.commits]
            if any(snapshot.files.size(commit_name(k)) is None for k in lost):
                warnings.warn(
                    f"{cell.benchmark}/{cell.regime} of {self.path} is left out: its {name} hold a shard that was taken "
                    "out of the run. Continue the run to have it done again.",
                    stacklevel=2,
                )
            elif found:
                yield cell, found

    def to_xarray(self) -> Any:
        """The states as an xarray.Dataset whose arrays are read when they are used.

        Raises
        ------
        RequestError
            xarray is not installed.
        """
        try:
            from .lazy_xarray import to_xarray
        except ImportError:
            raise RequestError("to_xarray needs the package xarray: install precollapse[export].") from None
        return to_xarray(self)

    def _selected(self, regime: Any, benchmark: Any, items: Any) -> Run:
        return self if regime is None and benchmark is None and items is None else self.select(regime, benchmark, items)

    def _spec(self, name: str) -> ArraySpec:
        specs = self._snapshot.run.arrays
        if name not in specs:
            raise RequestError(f"The run has no array {name!r}: it has {_listing(specs)}.")
        return specs[name]

    def _shard_index(self, rows: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.plan.starts, rows, side="right") - 1

    def _cell_index(self, rows: np.ndarray) -> np.ndarray:
        return np.searchsorted([cell.start for cell in self.plan.cells], rows, side="right") - 1

    def _groups(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """(shard, rows within it ascending, their positions in the selection), in plan order."""
        order = np.argsort(self._rows, kind="stable")
        shards = self._shard_index(self._rows[order])
        cuts = np.flatnonzero(np.diff(shards)) + 1
        for positions in np.split(order, cuts) if len(order) else []:
            shard = int(self._shard_index(self._rows[positions[:1]])[0])
            yield shard, self._rows[positions] - self.plan.starts[shard], positions

    def _read(self, name: str, layers: list[int] | None) -> np.ndarray:
        """Rows of an array; `layers` are positions on its layer axis, None for all of it."""
        spec = self._spec(name)
        wanted = list(range(spec.n_layers)) if layers is None else layers
        width = int(np.prod(spec.inner_shape, dtype=np.int64))
        # Layer by layer, as on the disk: chunks are read to where they stay, and each layer is contiguous.
        out = np.empty((len(wanted), len(self), width), returned_type(spec.dtype)).transpose(1, 0, 2)
        if spec.small:
            groups = list(self._groups())
            tensors_of = self._snapshot.tables([shard for shard, _, _ in groups])
            for (_, local, positions), (table, _) in zip(groups, tensors_of, strict=True):
                values = table[f"array.{name}"]
                flat = values.reshape(len(values), spec.n_layers, width)
                out[positions] = to_returned(flat[local][:, wanted], spec.dtype)
        else:
            self._read_jobs([self._job(name, spec, group) for group in self._groups()], wanted, out)
        shape = spec.shape if layers is None else (len(wanted), *spec.inner_shape)
        return out.reshape(len(self), *shape)

    def _job(self, name: str, spec: ArraySpec, group: tuple[int, np.ndarray, np.ndarray]) -> _Job:
        shard, local, positions = group
        cell = self.plan.cell_of(shard)
        geometry = self._snapshot.run.geometry[cell.index, name]
        file = f"{cell.folder}/{name}/{geometry.chunk_key(shard - cell.first_shard)}"
        parts = []
        numbers, states = local // geometry.chunk_rows, len(self.plan.shard_rows(shard))
        for number in np.unique(numbers).tolist():
            inside = numbers == number
            parts.append((number, local[inside] - number * geometry.chunk_rows, positions[inside]))
        return _Job(
            shard=shard,
            file=file,
            geometry=geometry,
            parts=parts,
            sparse=len(local) * _SPARSE
            < sum(min(geometry.chunk_rows, states - k * geometry.chunk_rows) for k, _, _ in parts),
            checksums=self._snapshot.checksums(shard, file),
        )

    def _read_jobs(self, jobs: list[_Job], layers: list[int], out: np.ndarray) -> None:
        """Few layers: tell the disk of all reads, then do them. Many: whole files, several at a time."""
        files, read = self._snapshot.files, partial(self._read_job, layers=layers, out=out)
        if files.immediate and len(layers) <= _FEW_LAYERS:
            for first in range(0, len(jobs), 64):
                some = jobs[first : first + 64]
                with contextlib.ExitStack() as stack:
                    handles = []
                    for job in some:
                        handle = self._snapshot.located(job.shard, job.file, files.open)
                        stack.callback(handle.close)
                        handles.append(handle)
                        for offset, size in job.ranges(layers):
                            handle.expect(offset, size)
                    for job, handle in zip(some, handles, strict=True):
                        self._fill_job(job, handle, layers, out)
        elif len(jobs) == 1:
            read(jobs[0])
        elif jobs:
            with io_pool() as pool:
                for _ in pool.map(read, jobs):
                    pass

    def _read_job(self, job: _Job, layers: list[int], out: np.ndarray) -> None:
        handle = self._snapshot.located(job.shard, job.file, self._snapshot.files.open)
        with contextlib.closing(handle):
            self._fill_job(job, handle, layers, out)

    def _fill_job(self, job: _Job, handle: Handle, layers: list[int], out: np.ndarray) -> None:
        """Fill `out[positions]` with the layers of one shard, front to back through one handle."""
        for number, rows, targets in job.parts:
            source, target = _span(rows), _span(targets)
            for slot, layer in enumerate(layers):
                if job.sparse:
                    _fill_rows(handle, job.geometry, number, layer, rows, out, targets, slot)
                else:
                    self._fill_chunk(handle, job, number, layer, source, out, target, slot)

    def _fill_chunk(
        self,
        handle: Handle,
        job: _Job,
        number: int,
        layer: int,
        rows: slice | np.ndarray,
        out: np.ndarray,
        targets: slice | np.ndarray,
        slot: int,
    ) -> None:
        """Read a chunk, check it against the commit, and put its `rows` to `out[targets, slot]`."""
        geometry, spec = job.geometry, job.geometry.spec
        straight = (
            isinstance(rows, slice)
            and isinstance(targets, slice)
            and rows == slice(0, geometry.chunk_rows)
            and spec.dtype != "bfloat16"
        )
        data = out[targets, slot].reshape(-1).view(np.uint8) if straight else _scratch(geometry.chunk_bytes)
        handle.read_into(geometry.chunk_offset(number, layer), [data])
        index = number * spec.n_layers + layer
        if f"{crc32c(data):08x}" != job.checksums[8 * index : 8 * index + 8]:
            raise self._snapshot.damaged(job.file)
        if not straight:
            bits = data.view(stored_type(spec.dtype)).reshape(geometry.chunk_rows, -1)
            out[targets, slot] = to_returned(bits[rows], spec.dtype)


@dataclass(frozen=True)
class _Job:
    """What is wanted of one shard of one array: for each row group its number, the rows in it, and where they go."""

    shard: int
    file: str
    geometry: Geometry
    parts: list[tuple[int, np.ndarray, np.ndarray]]
    sparse: bool
    checksums: str

    def ranges(self, layers: list[int]) -> Iterator[tuple[int, int]]:
        """(byte, size) of each read."""
        for number, rows, _ in self.parts:
            for layer in layers:
                start, size = self.geometry.chunk_offset(number, layer), self.geometry.spec.inner_bytes
                if self.sparse:
                    yield from ((start + first * size, (last - first) * size) for first, last in _stretches(rows))
                else:
                    yield start, self.geometry.chunk_bytes


_LOCAL = threading.local()


def _scratch(size: int) -> np.ndarray:
    """A buffer of this thread, used anew for every chunk: fresh memory costs more than reading into it."""
    buffer: np.ndarray | None = getattr(_LOCAL, "buffer", None)
    if buffer is None or len(buffer) < size:
        buffer = _LOCAL.buffer = np.empty(size, np.uint8)
    return buffer[:size]


def _span(rows: np.ndarray) -> slice | np.ndarray:
    """The rows as a slice where they follow one another."""
    return slice(int(rows[0]), int(rows[-1]) + 1) if bool((np.diff(rows) == 1).all()) else rows


def _stretches(rows: np.ndarray) -> Iterator[tuple[int, int]]:
    """[first, last) of each stretch of ascending rows that follow one another."""
    cuts = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
    for first, last in zip(cuts[:-1], cuts[1:], strict=True):
        yield int(rows[first]), int(rows[last - 1]) + 1


def _fill_rows(
    handle: Handle,
    geometry: Geometry,
    number: int,
    layer: int,
    rows: np.ndarray,
    out: np.ndarray,
    targets: np.ndarray,
    slot: int,
) -> None:
    """Read single rows of a chunk to `out[targets, slot]`, without reading the rest."""
    spec = geometry.spec
    start = geometry.chunk_offset(number, layer)
    kind = stored_type(spec.dtype)
    bits = np.empty((len(rows), spec.inner_bytes // kind.itemsize), kind)
    done = 0
    for first, last in _stretches(rows):
        handle.read_into(start + first * spec.inner_bytes, [bits[done : done + last - first]])
        done += last - first
    out[targets, slot] = to_returned(bits, spec.dtype)


def _names(asked: str | Sequence[str] | None, known: list[str], what: str) -> set[str]:
    if asked is None:
        return set(known)
    if not isinstance(asked, str | Iterable):
        raise RequestError(f"A {what} is a name, not {asked!r}: the run has {', '.join(dict.fromkeys(known))}.")
    wanted = {asked} if isinstance(asked, str) else set(asked)
    unknown = sorted(wanted.difference(known), key=str)
    if unknown:
        raise RequestError(f"The run has no {what} {unknown[0]!r}: it has {', '.join(dict.fromkeys(known))}.")
    return wanted


def _layer_axis(asked: Any, spec: ArraySpec, site: str) -> int:
    layers = spec.layers or ()
    if isinstance(asked, bool | np.bool_) or not isinstance(asked, int | np.integer):
        raise RequestError(f"A layer is a whole number, not {asked!r}: {site!r} has {_ranges(layers)}.")
    number = int(asked)
    if number < 0 and -number <= len(layers):
        return len(layers) + number
    if number not in layers:
        raise RequestError(f"{site!r} has no layer {number}: it has {_ranges(layers)}.")
    return layers.index(number)


def _ranges(layers: Sequence[int]) -> str:
    whole = list(layers) == list(range(layers[0], layers[0] + len(layers)))
    return f"{layers[0]} to {layers[-1]}" if whole else ", ".join(map(str, layers))


def _listing(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
