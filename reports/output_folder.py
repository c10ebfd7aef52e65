"""The folder that a report is written to: looked at before the work begins, and written whole or not at all.

Guarantees that a folder which cannot be made or written to is refused before hours of work are done for it, and that a reader
of the folder never sees half a file, nor half of a new report beside half of the one before because a write failed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..destination import for_results, local
from ..errors import RequestError


def writable_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder, made where it is missing.

    Raises
    ------
    RequestError
        If it cannot be made or written to.
    """
    place = for_results(folder, "the folder")
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise _refused(place, error) from None
    return place


@contextmanager
def staged(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to write files into; they appear in `folder` together, when all are written.

    Files of the same names are replaced, others stay. When the block fails, `folder` holds what it held before.

    Raises
    ------
    RequestError
        If a file cannot be written.
    """
    place = writable_folder(folder)
    try:
        with tempfile.TemporaryDirectory(dir=place, prefix=".report-") as temporary:
            stage = Path(temporary) / "files"  # an ordinary folder: a temporary one is private
            stage.mkdir()
            yield stage
            _refuse_folders_in_the_way(stage, place)
            for source in sorted(stage.rglob("*")):
                target = place / source.relative_to(stage)
                if source.is_dir():
                    target.mkdir(exist_ok=True)
                else:
                    os.replace(source, target)
    except OSError as error:
        raise _refused(place, error) from error


def write_folder(folder: str | os.PathLike[str], contents: Mapping[str, str | bytes]) -> tuple[Path, ...]:
    """Write files by name ("tables/after.csv" stands in a folder of its own), all of them or none.

    Returns
    -------
    tuple of Path
        Where they are, in the order given.

    Raises
    ------
    RequestError
        If one cannot be written.
    """
    with staged(folder) as stage:
        for name, content in contents.items():
            target = stage / name
            if not target.resolve().is_relative_to(stage.resolve()):
                raise RequestError(
                    f"{name!r} names a file outside of the folder of the report; rename what it is named after"
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)
    return tuple(local(folder) / name for name in contents)


def _refuse_folders_in_the_way(stage: Path, place: Path) -> None:
    """Everything that would stop the last step, found before it begins."""
    for source in stage.rglob("*"):
        target = place / source.relative_to(stage)
        if target.exists() and target.is_dir() != source.is_dir():
            kind = "a folder" if target.is_dir() else "a file"
            raise RequestError(f"{target} is {kind} where the report has another kind of entry; remove it")


def _refused(place: Path, error: OSError) -> RequestError:
    return RequestError(f"{place} cannot be written ({error.strerror or error}); give a folder that can")
