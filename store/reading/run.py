"""Reading a run: committed states only, by layer, regime or item, from runs larger than memory.

What a reader sees is fixed when the run is opened: the shards that had a sound commit at that moment. Every chunk that
is read is checked against the commit, so damaged or foreign bytes are not taken for numbers; only where a few rows are
picked out of a large chunk is the rest of it neither read nor checked.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import RequestError
from ...schema import ATTENTION_ROWS, RESID_POST
from ..files.errors import readable
from ..files.place import open_files
from ..files.protocol import Files
from ..log.commits import read_commits
from ..opening import check_whole, read_plan
from ..plan import Cell, Shard
from . import blobs
from .chunks import layer_axis, read_array
from .facts import RunFacts
from .ragged import ragged_row, ragged_shape
from .selection import Selection
from .snapshot import Snapshot
from .table import states_table

if TYPE_CHECKING:
    import pandas as pd


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run for reading, also while it is being written.

    Shards whose commit is damaged are left out, with a warning that names them.

    Raises
    ------
    RequestError
        There is no run at `path`, or half of one, or one of a newer format.
    StoreError
        The plan is damaged.

    Examples
    --------
    >>> import precollapse as pc
    >>> run = pc.open_run("run.zarr")
    >>> sorted(run.states["regime"].unique())
    ['baseline', 'cot']
    >>> run.select(benchmark="builtin").resid(1, regime="cot").shape[0]  # [n, d] of block 1
    8
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
    committed_rows = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    return Run(Selection(Snapshot(files, run, commits, faults), committed_rows))


class Run(RunFacts):
    """The committed states of a run, or of a part of it. Made by `open_run`.

    All methods give rows in the order of `states`.
    """

    def __init__(self, selection: Selection) -> None:
        super().__init__(selection.snapshot)
        self._selection = selection

    def __len__(self) -> int:
        return len(self._selection)

    def __repr__(self) -> str:
        done = self.progress
        return f"<Run {self.path}: {len(self)} states, {done.shards}/{done.shards_total} shards committed>"

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
        return Run(self._selection.named(regime, benchmark, items))

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
        return Run(self._selection.at(rows))

    @property
    def states(self) -> pd.DataFrame:
        """One row per state: `id`, `benchmark`, `regime`, `item_id`, `shard`, and every column.

        Missing values are NaN in float64 columns and pandas' NA in the others (Int64, boolean, string). A frame of its
        own each time: what is done to it does not change the order of the run.
        """
        return self._frame.copy(deep=False)

    @cached_property
    def _frame(self) -> pd.DataFrame:
        return states_table(self._selection)

    def resid(
        self,
        layer: int | Sequence[int] | None = None,
        site: str = RESID_POST,
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
        spec = self._selection.spec(site)
        if spec.layers is None:
            raise RequestError(f"{site!r} has no layers: read it with run.array({site!r}).")
        chosen = self._selection.named(regime, benchmark, items)
        if layer is None:
            return read_array(chosen, site, None)
        if isinstance(layer, np.ndarray):
            layer = layer.tolist()
        if isinstance(layer, str | bytes) or not isinstance(layer, Iterable):
            return read_array(chosen, site, [layer_axis(layer, spec, site)])[:, 0]
        return read_array(chosen, site, [layer_axis(number, spec, site) for number in layer])

    def array(
        self,
        name: str,
        regime: str | Sequence[str] | None = None,
        benchmark: str | Sequence[str] | None = None,
        items: Iterable[str] | None = None,
    ) -> np.ndarray:
        """A whole array [n, *shape], in memory layer by layer; bfloat16 as float32. Raises as `resid` does."""
        self._selection.spec(name)
        return read_array(self._selection.named(regime, benchmark, items), name, None)

    def by_shard(self) -> Iterator[Run]:
        """The part of the selection that lies in each shard, in plan order."""
        for part in self._selection.by_shard():
            yield Run(part)

    def iter_shards(self, name: str, layer: int | Sequence[int] | None = None) -> Iterator[tuple[Shard, np.ndarray]]:
        """(shard, its selected rows of an array) one shard at a time, for runs larger than memory."""
        for part in self._selection.by_shard():
            run = Run(part)
            values = run.array(name) if layer is None else run.resid(layer, name)
            yield self.plan.shard(int(part.shards()[0])), values

    def ragged(self, name: str, i: int) -> np.ndarray:
        """The array `name` of state `i` (a position in `states`), in its own shape; bfloat16 as float32."""
        return ragged_row(self._selection, name, i)

    def ragged_shape(self, name: str, i: int) -> tuple[int, ...]:
        """Shape of the array `name` of state `i`, without reading it."""
        return ragged_shape(self._selection, name, i)

    def attention(self, i: int) -> np.ndarray:
        """Attention row of state `i` at its boundary: [L, H, T_i]."""
        return self.ragged(ATTENTION_ROWS, i)

    def blobs(self, name: str) -> Iterator[tuple[Shard, bytes]]:
        """The blob `name` of each shard with a state in this selection, checked, in plan order.

        Blobs that were folded into one per cell are not among them: see `parts`.
        """
        return blobs.shard_blobs(self._selection, name)

    def parts(self, name: str) -> Iterator[tuple[Cell, list[bytes]]]:
        """What was kept under the blob name `name` of each cell of the whole run, checked, in plan order.

        First the fold of a cell, where it has one, then the blobs of the committed shards after it; so every committed
        shard counts once, also while a writer is folding. A cell whose fold holds a shard that was taken out of the run
        is left out, with a warning, until the shard is there again.
        """
        return blobs.cell_blobs(self._snapshot, name)

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
