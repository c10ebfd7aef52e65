"""A Zarr group as saved tensors: one array a tensor, those of groups under `group/name`.

Guarantees that chunks which were never written are not taken for numbers (Zarr would give its fill value), and that no link leads
to something outside the group.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import RequestError
from .source import Saved, as_texts, bits, named, type_name

METADATA = ("zarr.json", ".zgroup")
"""What makes a folder a Zarr group (format 3, format 2)."""
_METADATA_OF_ARRAYS = {"zarr.json", ".zarray", ".zattrs"}


@dataclass(frozen=True)
class ZarrArray:
    """An array of a Zarr group."""

    path: str
    file: str
    name: str
    dtype: str
    shape: tuple[int, ...]

    def read(self, first: int, out: np.ndarray) -> None:
        """Fill `out` with rows."""
        with _opened(self.path) as group:
            out[...] = bits(np.asarray(group[self.name][first : first + len(out)]), self.dtype)


def read(path: str, file: str) -> Saved:
    """What a Zarr group holds; arrays of texts become fields.

    Raises
    ------
    RequestError
        It is damaged, has a link, or an array of which chunks are missing.
    """
    if (Path(path) / "plan.json").exists():
        raise RequestError(f"{path} is a run already: open it, or export it and import that.")
    for folder, folders, names in os.walk(path):
        for name in (*folders, *names):
            if os.path.islink(os.path.join(folder, name)):
                raise RequestError(
                    f"{path} has a link ({name}), which is not followed: copy what it names into the group."
                )
    sources: dict[str, Any] = {}
    fields: dict[str, list[Any]] = {}
    with _opened(path) as group:
        for name, array in _arrays(group):
            where = f"{path}: array {name!r}"
            _refuse_unwritten(array, Path(path, name), where)
            if array.dtype.kind in "UTOS":
                if len(array.shape) != 1:
                    raise RequestError(f"{where} is text of shape {list(array.shape)}: one text a row can be read.")
                texts = np.asarray(array[:])
                if not all(isinstance(text, str | bytes) for text in texts.tolist()):
                    raise RequestError(f"{where} holds objects, which a run cannot: save it as numbers or text.")
                fields[name] = as_texts(texts)
                continue
            sources[name] = ZarrArray(path, file, name, type_name(array.dtype, where), tuple(array.shape))
    return Saved(sources, fields=named(fields))


def _refuse_unwritten(array: Any, place: Path, where: str) -> None:
    """Refuse an array of which chunks were never written. Files are counted first: a claimed size may have more chunks than memory has."""
    pieces = array.shards or array.chunks
    needed = math.prod(-(-size // piece) for size, piece in zip(array.shape, pieces, strict=True))
    files = sum(name not in _METADATA_OF_ARRAYS for _, _, names in os.walk(place) for name in names)
    written, wanted = (array.nchunks_initialized, array.nchunks) if needed <= files else (files, needed)
    if written < wanted:
        raise RequestError(f"{where} was written in part only ({written:,} of {wanted:,} chunks): save it again.")


def _arrays(group: Any) -> Iterator[tuple[str, Any]]:
    import zarr

    for name, member in sorted(group.members(max_depth=None), key=lambda pair: pair[0]):
        if isinstance(member, zarr.Array):
            yield str(name), member


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    import zarr

    from ..zarr_dtypes import register

    register()
    try:
        yield zarr.open_group(path, mode="r")
    except RequestError:
        raise
    except Exception as error:  # zarr and its codecs raise what they like on metadata that are not theirs
        text = " ".join(str(error).split())[:200]
        raise RequestError(f"{path} is no whole Zarr group ({type(error).__name__}: {text}).") from None
