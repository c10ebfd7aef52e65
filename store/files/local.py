"""A run in a local folder.

Guarantees that whatever is reported as written has reached the disk: files and the folders that name them are fsynced. Put-if-absent
is a hard link to a finished file, so that a name appears with its whole content or not at all, whenever the process dies.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ...atomic import sync_folder
from ...errors import StoreError
from ..layout import STAGING
from .protocol import Handle, attempt, between


class LocalFiles:
    """A folder on a local or network file system with hard links.

    Parameters
    ----------
    path : str
    owner : str
        Writer on whose behalf files are made.
    """

    immediate = True

    def __init__(self, path: str, owner: str = "") -> None:
        self.path = path
        self._root = Path(path).absolute()  # a later change of the working folder must not matter
        self._owner = owner

    def probe(self) -> None:
        """`create` says so itself."""

    def entries(self) -> set[str] | None:
        return {entry.name for entry in self._root.iterdir()} if self._root.exists() else None

    def make(self, folders: Iterable[str]) -> None:
        missing = [self._root / folder for folder in folders if not (self._root / folder).is_dir()]
        parents = {place.parent for place in (self._root, *self._root.parents) if not place.exists()}
        for folder in missing:
            folder.mkdir(parents=True, exist_ok=True)
            parents.add(folder.parent)
        for folder in parents:
            with contextlib.suppress(PermissionError):  # a folder that may be entered but not read
                sync_folder(folder)

    def read(self, name: str) -> bytes:
        with open(self._root / name, "rb", buffering=0) as file:
            return file.read()

    def read_many(self, names: list[str]) -> list[bytes | None]:
        contents: list[bytes | None] = []
        for first in range(0, len(names), 256):
            handles = [self._handle(name) for name in names[first : first + 256]]
            try:
                for fd in handles:
                    if fd is not None:  # the disk works on all of them at once
                        _expect(fd, 0, 0)
                contents += [None if fd is None else _whole(fd) for fd in handles]
            finally:
                for fd in handles:
                    if fd is not None:
                        os.close(fd)
        return contents

    def _handle(self, name: str) -> int | None:
        try:
            return os.open(f"{self._root}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open(self, name: str) -> Handle:
        return _LocalHandle(os.open(self._root / name, os.O_RDONLY | os.O_CLOEXEC), f"{self.path}/{name}")

    def read_into(self, name: str, offset: int, buffers: list[Any]) -> None:
        with contextlib.closing(self.open(name)) as handle:
            handle.read_into(offset, buffers)

    def size(self, name: str) -> int | None:
        try:
            return os.stat(self._root / name).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, folder: str, after: str = "", before: str = "") -> set[str]:
        try:
            with os.scandir(self._root / folder) as entries:
                return {entry.name for entry in entries if between(entry.name, after, before) and entry.is_file()}
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def create(self, name: str, data: bytes, durable: bool = True) -> bool:
        try:
            self._publish(os.link, name, data, durable)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                raise StoreError(
                    f"The file system of {self.path} refused a hard link ({error.strerror}), which a run needs to "
                    "commit a shard once: put the run on another file system."
                ) from error
            raise
        return True

    def replace(self, name: str, data: bytes, durable: bool = True) -> None:
        self._publish(os.replace, name, data, durable)

    def _publish(self, put: Callable[[Path, Path], None], name: str, data: bytes, durable: bool) -> None:
        """Give a finished file its name. A sweep may take the file before that; then it is written again."""
        target = self._root / name
        for left in range(3, -1, -1):
            record = f"{STAGING}/record.{self._owner}.{attempt()}"
            try:
                self._write_new(record, [data], durable)
                put(self._root / record, target)
                break
            except FileNotFoundError:
                if not left:
                    raise
            finally:
                (self._root / record).unlink(missing_ok=True)
        if durable:
            sync_folder(target.parent)

    def stage(self, name: str, parts: Iterable[Any]) -> int:
        return self._write_new(name, parts, True)

    def _write_new(self, name: str, parts: Iterable[Any], durable: bool) -> int:
        fd = os.open(self._root / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        size = begun = 0
        try:
            for part in parts:
                data = memoryview(part)
                size += len(data)
                while data:
                    data = data[os.write(fd, data) :]
                if durable and size - begun >= _BEGIN_WRITING:
                    _begin_writing(fd, begun, size - begun)
                    begun = size
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        return size

    def settle(self) -> None:
        sync_folder(self._root / STAGING)

    def move(self, source: str, target: str) -> bool:
        try:
            os.replace(self._root / source, self._root / target)
        except FileNotFoundError:
            return False
        return True

    def remove(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)


class _LocalHandle:
    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    def expect(self, offset: int, size: int) -> None:
        _expect(self._fd, offset, size)

    def read_into(self, offset: int, buffers: list[Any]) -> None:
        for first in range(0, len(buffers), 512):
            some = buffers[first : first + 512]
            wanted = sum([memoryview(buffer).nbytes for buffer in some])
            if os.preadv(self._fd, some, offset) != wanted:
                _fill(self._fd, offset, some, self._path)
            offset += wanted

    def close(self) -> None:
        os.close(self._fd)


def _expect(fd: int, offset: int, size: int) -> None:
    """Tell the system what will be read (0: to the end), where it can be told."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):  # some file systems take no advice
            os.posix_fadvise(fd, offset, size, os.POSIX_FADV_WILLNEED)


_BEGIN_WRITING = 8 << 20
"""Bytes of a file after which the disk is told to start, while the next ones are still being put together."""


def _begin_writing(fd: int, offset: int, size: int) -> None:
    """Have the system start to write these bytes, without waiting for it, where it can be told.

    Linux does so on being advised that they will not be needed; bytes not yet on the disk stay in memory.
    """
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)


def _whole(fd: int) -> bytes:
    """A file from its beginning to its end."""
    parts = []
    while part := os.read(fd, 1 << 20):
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _fill(fd: int, offset: int, buffers: list[Any], path: str) -> None:
    """preadv until the buffers are full."""
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    wanted = sum(len(view) for view in views)
    done = 0
    while done < wanted:
        count = os.preadv(fd, views, offset + done)
        if count == 0:
            raise StoreError(f"{path} is cut short: it ends at byte {offset + done}. Run `precollapse verify`.")
        done += count
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if views and count:
            views[0] = views[0][count:]
