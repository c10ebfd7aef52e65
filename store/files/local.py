"""A run in a local folder.

Guarantees that whatever is reported as written has reached the disk: files and the folders that name them are fsynced. Put-if-absent
is a hard link to a finished file, so that a name appears with its whole content or not at all, whenever the process dies. Links that lead
out of the folder are not followed, neither to read nor to write, and nothing but a file is opened as one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ...atomic import sync_folder
from ...errors import StoreError
from ..layout import STAGING
from .errors import Irregular, too_large
from .protocol import Handle, attempt, between, is_litter

_AT_ONCE = 64
"""Files that are open at once. A process may have 256 on some systems, models and other readers included."""


class LocalFiles:
    """A folder on a local or network file system with hard links.

    Parameters
    ----------
    path : str
    owner : str
        Writer on whose behalf files are made.
    follow : bool
        Whether links that lead out of the folder are followed: for a folder of files that its user put together, which is no run.
    """

    immediate = True

    def __init__(self, path: str, owner: str = "", follow: bool = False) -> None:
        self.path = path
        self._root = Path(path).absolute()  # a later change of the working folder must not matter
        self._owner = owner
        self._follow = follow
        self._entered: set[str] = set()

    def probe(self) -> None:
        """`create` says so itself."""

    def entries(self) -> set[str] | None:
        return {entry.name for entry in self._root.iterdir()} if self._root.exists() else None

    def make(self, folders: Iterable[str]) -> None:
        wanted = [self._enter(folder) for folder in folders]
        missing = [folder for folder in wanted if not folder.is_dir()]
        parents = {place.parent for place in (self._root, *self._root.parents) if not place.exists()}
        for folder in missing:
            folder.mkdir(parents=True, exist_ok=True)
            parents.add(folder.parent)
        for folder in parents:
            with contextlib.suppress(PermissionError):  # a folder that may be entered but not read
                sync_folder(folder)

    def _enter(self, folder: str) -> Path:
        """The place of a folder of the run; Irregular where a link leads out of the run on the way."""
        place = self._root / folder
        if folder not in self._entered:
            if folder and not all(part not in ("", ".", "..") for part in folder.split("/")):
                raise Irregular(errno.EINVAL, "it is no name within the run", str(place))
            self._keep_inside(place)
            if place.is_dir():  # one that comes later is looked at then
                self._entered.add(folder)
        return place

    def _keep_inside(self, place: Path) -> None:
        real, root = os.path.realpath(place), os.path.realpath(self._root)
        if not self._follow and real != root and not real.startswith(os.path.join(root, "")):
            raise Irregular(errno.ELOOP, "it is a link that leads out of the run", str(place))

    def _place(self, name: str) -> Path:
        """The place of a file of the run, which may be a link itself; the folders on the way are within the run."""
        folder, _, last = name.rpartition("/")
        if last in ("", ".", ".."):
            raise Irregular(errno.EINVAL, "it is no name within the run", f"{self.path}/{name}")
        return self._enter(folder) / last

    def _descriptor(self, name: str) -> int:
        """An open file, opened without waiting for the other end of a pipe."""
        place = self._place(name)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            fd = os.open(place, flags | os.O_NOFOLLOW)
        except OSError as error:
            if not place.is_symlink():
                if error.errno == errno.ENXIO:  # a socket
                    raise _no_file(place, place.stat().st_mode) from None
                raise
            self._keep_inside(place)
            fd = os.open(place, flags)
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            os.close(fd)
            raise _no_file(place, mode)
        return fd

    def read(self, name: str, most: int | None = None) -> bytes:
        fd = self._descriptor(name)
        try:
            return _whole(fd, f"{self.path}/{name}", most)
        finally:
            os.close(fd)

    def read_many(self, names: list[str], most: int | None = None) -> list[bytes | None]:
        contents: list[bytes | None] = []
        for first in range(0, len(names), _AT_ONCE):
            handles: list[tuple[str, int | None]] = []
            try:
                for name in names[first : first + _AT_ONCE]:
                    handles.append((name, self._handle(name)))
                for _, fd in handles:
                    if fd is not None:  # the disk works on all of them at once
                        _expect(fd, 0, 0)
                contents += [None if fd is None else _whole(fd, f"{self.path}/{name}", most) for name, fd in handles]
            finally:
                for _, fd in handles:
                    if fd is not None:
                        os.close(fd)
        return contents

    def _handle(self, name: str) -> int | None:
        try:
            return self._descriptor(name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open(self, name: str) -> Handle:
        return _LocalHandle(self._descriptor(name), f"{self.path}/{name}")

    def read_into(self, name: str, offset: int, buffers: list[Any]) -> None:
        with contextlib.closing(self.open(name)) as handle:
            handle.read_into(offset, buffers)

    def size(self, name: str) -> int | None:
        try:
            place = self._place(name)
            found = os.lstat(place)
            if stat.S_ISLNK(found.st_mode):
                self._keep_inside(place)
                found = os.stat(place)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(found.st_mode):
            raise _no_file(place, found.st_mode)
        return found.st_size

    def list(self, folder: str, after: str = "", before: str = "") -> set[str]:
        try:
            with os.scandir(self._enter(folder)) as entries:
                return {e.name for e in entries if between(e.name, after, before) and not is_litter(e.name)}
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
        target = self._place(name)
        for left in range(3, -1, -1):
            record = f"{STAGING}/record.{self._owner}.{attempt()}"
            try:
                self._write_new(record, [data], durable)
                put(self._place(record), target)
                break
            except FileNotFoundError:
                if not left:
                    raise
            finally:
                self._place(record).unlink(missing_ok=True)
        if durable:
            sync_folder(target.parent)

    def stage(self, name: str, parts: Iterable[Any]) -> int:
        return self._write_new(name, parts, True)

    def _write_new(self, name: str, parts: Iterable[Any], durable: bool) -> int:
        fd = os.open(self._place(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
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
        sync_folder(self._enter(STAGING))

    def move(self, source: str, target: str) -> bool:
        try:
            os.replace(self._place(source), self._place(target))
        except FileNotFoundError:
            return False
        return True

    def remove(self, name: str) -> None:
        place = self._place(name)
        try:
            place.unlink(missing_ok=True)
        except OSError:
            if not place.is_dir():  # a folder is nobody's leftover: it stays, and who reads it says so
                raise


def _no_file(place: Path, mode: int) -> Irregular:
    kinds = {stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return Irregular(errno.EINVAL, f"it is a {kinds.get(stat.S_IFMT(mode), 'device')}, not a file", str(place))


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


def _whole(fd: int, place: str, most: int | None) -> bytes:
    """A file from its beginning to its end."""
    if most is not None and (size := os.fstat(fd).st_size) > most:
        raise too_large(place, size, most)
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
