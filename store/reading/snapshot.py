"""The committed shards of a run as they were when it was opened.

Guarantees that bytes which do not match their commit are not taken for numbers, and that a file is found under its final name or, after a
kill, still under its staged one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...errors import StoreError
from .. import records
from ..files.errors import readable, unreadable
from ..files.protocol import Files
from ..files.sealed import crc32c
from ..formats import contents_check, tensors
from ..layout import table_name
from ..log.commits import Commit
from ..run_plan import RunPlan


class Snapshot:
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
                contents = self.files.read_many([table_name(k) for k in some])
            for shard, data in zip(some, contents, strict=True):
                name = table_name(shard)
                data = self.whole(shard, name) if data is None else self.checked(shard, name, data)
                yield self._table(shard, f"{self.files.path}/{name}", data)

    def _table(self, shard: int, what: str, data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Tensors of a table file and the types of its columns, if they are those of the plan."""
        head, start = tensors.parse_header(data, len(data), what)
        values = {key: tensors.view(data, entry, start) for key, entry in head.items() if key != "__metadata__"}
        states = len(self.run.plan.shard_rows(shard))

        def kinds(head: dict[str, Any], _: str) -> dict[str, str]:
            contents_check.check_table(head, values.__getitem__, self.run.arrays, states)
            return contents_check.column_kinds(head)

        return values, records.sound(kinds, head, what)

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
            try:
                length = tensors.header_bytes(bytes(prefix))
            except ValueError:
                raise self.damaged(name) from None
            if not 8 <= length <= size:
                raise self.damaged(name)
            text = bytearray(length)
            self.fill(shard, name, 0, [text])
            if len(self._heads) >= 256:
                self._heads.clear()
            what, states = f"{self.files.path}/{name}", len(self.run.plan.shard_rows(shard))
            head, start = tensors.parse_header(bytes(text), size, what)
            records.sound(lambda head, _: contents_check.check_ragged(head, self.run.ragged, states), head, what)
            self._heads[name] = head, start
        return self._heads[name]
