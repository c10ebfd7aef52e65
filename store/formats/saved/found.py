"""Which saved files a folder holds, of which format, and what they hold.

Guarantees that one format is read at a time, so that it is never in doubt which file a row is of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ....errors import RequestError
from ...files.local import LocalFiles
from ...files.protocol import is_litter
from . import hdf5_file, npz_file, parquet_file, safetensors_file, zarr_folder
from .source import Saved

FORMATS = {
    ".safetensors": "safetensors",
    ".npz": "npz",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".parquet": "parquet",
    ".zarr": "zarr",
}
"""Format by the end of a name."""


@dataclass(frozen=True)
class SavedFiles:
    """Files of one format in a folder, in the order in which their rows follow one another."""

    root: Path
    names: tuple[str, ...]
    format: str

    def read(self, files: LocalFiles, name: str) -> Saved:
        """What one of them holds.

        Raises
        ------
        RequestError
            It is damaged or not readable as it stands.
        """
        if self.format == "safetensors":
            return safetensors_file.read(files, name)
        readers: dict[str, Callable[[str, str], Saved]] = {
            "npz": npz_file.read,
            "hdf5": hdf5_file.read,
            "parquet": parquet_file.read,
            "zarr": zarr_folder.read,
        }
        return readers[self.format](str(self.root / name), name)

    def facts(self, name: str) -> list[int]:
        """Bytes of one of them and when it was last changed, in nanoseconds."""
        place = self.root / name
        paths = [p for p in place.rglob("*") if p.is_file()] if place.is_dir() else [place]
        stats = [path.stat() for path in paths]
        return [sum(stat.st_size for stat in stats), max((stat.st_mtime_ns for stat in stats), default=0)]


def saved_files(place: Path) -> SavedFiles:
    """The saved files of a folder, or the one that `place` is.

    Raises
    ------
    RequestError
        There are none, or of several formats.
    """
    ends = ", ".join(FORMATS)
    if place.suffix in FORMATS and (place.is_file() or _is_group(place)):
        return SavedFiles(place.parent, (place.name,), FORMATS[place.suffix])
    if _is_group(place):
        return SavedFiles(place.parent, (place.name,), "zarr")
    found = sorted(place.iterdir()) if place.is_dir() else []
    by_format: dict[str, list[str]] = {}
    for path in found:
        if path.suffix in FORMATS and not is_litter(path.name) and (path.is_file() or _is_group(path)):
            by_format.setdefault(FORMATS[path.suffix], []).append(path.name)
    if not by_format:
        raise RequestError(f"{place} has no saved activations ({ends}): give the folder that holds them.")
    if len(by_format) > 1:
        which = ", ".join(f"{names[0]} ({kind})" for kind, names in by_format.items())
        raise RequestError(f"{place} holds files of several formats ({which}): give a folder of one, or a single file.")
    ((kind, names),) = by_format.items()
    return SavedFiles(place, tuple(names), kind)


def _is_group(path: Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in zarr_folder.METADATA)
