"""What a run needs of a place that keeps files.

The rest of the package asks for seven things only: read, list, put-if-absent, atomic replacement, staging of new files,
moving a staged file to its final name, and removal. Whatever is reported as written has reached the disk, so that a commit never
names a file that a power cut takes away.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from .errors import Irregular


class Handle(Protocol):
    """An open file."""

    def expect(self, offset: int, size: int) -> None:
        """Say that these bytes will be read, so that the disk may begin."""

    def read_into(self, offset: int, buffers: list[Any]) -> None:
        """As `Files.read_into`."""

    def close(self) -> None:
        """Close the file."""


class Files(Protocol):
    """A place that keeps the files of one run. Names are relative, with forward slashes.

    Nothing outside the place is read, written, moved or removed, whatever links lie in it: `errors.Irregular` (an OSError) is raised
    for a name that leads out of it, and for one under which there is something else than a file.
    """

    path: str
    immediate: bool
    """Whether a call that failed or was interrupted surely has no effect later."""

    def probe(self) -> None:
        """Refuse a place that cannot put a file only if it is absent."""

    def entries(self) -> set[str] | None:
        """Names at the top of the place, None where there is nothing."""

    def make(self, folders: Iterable[str]) -> None:
        """Create the place and its folders where they are missing."""

    def read(self, name: str, most: int | None = None) -> bytes:
        """The whole file, of at most so many bytes. FileNotFoundError where there is none."""

    def read_many(self, names: list[str], most: int | None = None) -> list[bytes | None]:
        """Whole small files, None for each that is not there."""

    def read_into(self, name: str, offset: int, buffers: list[Any]) -> None:
        """Fill writable buffers, one after the other, from byte `offset` on. StoreError where the file is too short."""

    def open(self, name: str) -> Handle:
        """A file for many reads. FileNotFoundError where there is none."""

    def size(self, name: str) -> int | None:
        """Bytes of a file, None where there is none."""

    def list(self, folder: str, after: str = "", before: str = "") -> set[str]:
        """Names (without the folder) of all that lies in a folder, empty where there is none.

        With `after` and `before` only the names that sort between the two: what a part of a folder costs does not grow with the rest.
        """

    def create(self, name: str, data: bytes, durable: bool = True) -> bool:
        """Put-if-absent, whole: True if this call made the file, False if it was there."""

    def replace(self, name: str, data: bytes, durable: bool = True) -> None:
        """Write or overwrite, whole."""

    def stage(self, name: str, parts: Iterable[Any]) -> int:
        """Write a new file out of buffers (each used before the next is asked for); returns its size in bytes."""

    def settle(self) -> None:
        """Make the names of staged files durable."""

    def move(self, source: str, target: str) -> bool:
        """Give a staged file its final name; False where there is no such staged file (any more)."""

    def remove(self, name: str) -> None:
        """Remove a file; no error where there is none."""


RECORD_BYTES = 1 << 30
"""The most bytes of a record other than the plan: a commit or a note is a few thousand."""


def read_records(files: Files, names: list[str]) -> Sequence[bytes | OSError | None]:
    """Whole records; where one of them cannot be read, each by itself, so that it does not hide the others."""
    try:
        return files.read_many(names, RECORD_BYTES)
    except (PermissionError, Irregular):
        pass
    records: list[bytes | OSError | None] = []
    for name in names:
        try:
            records.append(files.read(name, RECORD_BYTES))
        except FileNotFoundError:
            records.append(None)
        except (PermissionError, Irregular) as error:
            records.append(error)
    return records


def attempt() -> str:
    """A part of a name that no other attempt has."""
    return uuid.uuid4().hex[:12]


def between(name: str, after: str, before: str) -> bool:
    """Whether a name sorts between two others; an empty one is no bound."""
    return name > after and not (before and name >= before)


_LITTER = frozenset((".ds_store", "thumbs.db", "desktop.ini", ".localized"))


def is_litter(name: str) -> bool:
    """Whether a file is one that a system's file manager leaves in any folder it shows: no file of ours, and no fault.

    Examples
    --------
    >>> [name for name in (".DS_Store", "._c0", "Thumbs.db", "c0") if not is_litter(name)]
    ['c0']
    """
    return name.lower() in _LITTER or name.startswith("._")
