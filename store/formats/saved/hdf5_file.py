"""An HDF5 file as saved tensors (needs h5py): one dataset a tensor, those of groups under `group/name`.

Guarantees that nothing outside the file is read (links to other files, external storage and virtual datasets are refused) and that
chunks which were never written are not taken for numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....errors import RequestError
from .source import Saved, as_texts, bits, named, type_name

_DEEPEST = 32


@dataclass(frozen=True)
class Dataset:
    """A dataset of an HDF5 file."""

    path: str
    file: str
    name: str
    dtype: str
    shape: tuple[int, ...]

    def read(self, first: int, out: np.ndarray) -> None:
        """Fill `out` with rows."""
        with _opened(self.path) as file:
            out[...] = bits(np.asarray(file[self.name][first : first + len(out)]), self.dtype)


def read(path: str, file: str) -> Saved:
    """What an HDF5 file holds; datasets of texts become fields.

    Raises
    ------
    RequestError
        h5py is not installed, the file is damaged, or something in it cannot be read as it stands.
    """
    sources: dict[str, Any] = {}
    fields: dict[str, list[Any]] = {}
    with _opened(path) as opened:
        for name, dataset in _datasets(opened, path):
            where = f"{path}: dataset {name!r}"
            if _is_text(dataset.dtype):
                if len(dataset.shape) != 1:
                    raise RequestError(f"{where} is text of shape {list(dataset.shape)}: one text a row can be read.")
                fields[name] = as_texts(np.asarray(dataset[:]))
                continue
            _refuse_unwritten(dataset, where)
            sources[name] = Dataset(path, file, name, type_name(dataset.dtype, where), tuple(dataset.shape))
    return Saved(sources, fields=named(fields))


def _datasets(group: Any, path: str, before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    import h5py

    for name in sorted(group):
        full = f"{before}{name}"
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise RequestError(f"{path}: {full!r} is a link, which is not followed: copy what it names into the file.")
        found = group[name]
        if isinstance(found, h5py.Group):
            if depth == _DEEPEST:
                raise RequestError(f"{path} has groups within one another more than {_DEEPEST} deep.")
            yield from _datasets(found, path, f"{full}/", depth + 1)
        elif isinstance(found, h5py.Dataset):
            if found.external is not None or found.is_virtual:
                raise RequestError(
                    f"{path}: {full!r} lies in other files, which are not read: copy its values into this one."
                )
            if found.shape is None:
                raise RequestError(f"{path}: {full!r} holds nothing.")
            yield full, found
        else:
            raise RequestError(f"{path}: {full!r} is neither a group nor a dataset.")


def _refuse_unwritten(dataset: Any, where: str) -> None:
    """Refuse a dataset of which a part was never written: it would be read as zeros."""
    if not math.prod(dataset.shape):
        return
    if dataset.chunks is not None:
        needed = math.prod(-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True))
        written = dataset.id.get_num_chunks()
    else:
        needed, written = math.prod(dataset.shape) * dataset.dtype.itemsize, dataset.id.get_storage_size()
    if written < needed:
        raise RequestError(
            f"{where} was written in part only ({written:,} of {needed:,} chunks or bytes): save it again."
        )


def _is_text(kind: np.dtype[Any]) -> bool:
    import h5py

    return h5py.check_string_dtype(kind) is not None or kind.kind == "S"


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    try:
        import h5py
    except ImportError:
        raise RequestError(f"{path} needs the package h5py to be read: install precollapse[hdf5].") from None
    try:
        with h5py.File(path, "r") as file:
            yield file
    except RequestError:
        raise
    except (OSError, KeyError, ValueError, RuntimeError, TypeError, UnicodeError) as error:
        text = " ".join(str(error).split())[:200]
        raise RequestError(f"{path} is no whole HDF5 file ({text}).") from None
