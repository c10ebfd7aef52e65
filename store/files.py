"""What a run needs of a place that keeps files, and how a local folder gives it.

The rest of the package asks for seven things only: read, list, put-if-absent, atomic replacement, staging of new files,
moving a staged file to its final name, and removal. Whatever is reported as written has reached the disk: files and
the folders that name them are fsynced. Put-if-absent is a hard link to a finished file, so that a name appears with its
whole content or not at all, whenever the process dies.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from ..errors import RequestError, StoreError
from .layout import STAGING


class Handle(Protocol):
    """An open file."""

    def expect(self, offset: int, size: int) -> None:
        """Say that these bytes will be read, so that the disk may begin."""

    def read_into(self, offset: int, buffers: list[Any]) -> None:
        """As `Files.read_into`."""

    def close(self) -> None:
        """Close the file."""


class Files(Protocol):
    """A place that keeps the files of one run. Names are relative, with forward slashes."""

    path: str
    immediate: bool
    """Whether a call that failed or was interrupted surely has no effect later."""

    def probe(self) -> None:
        """Refuse a place that cannot put a file only if it is absent."""

    def entries(self) -> set[str] | None:
        """Names at the top of the place, None where there is nothing."""

    def make(self, folders: Iterable[str]) -> None:
        """Create the place and its folders where they are missing."""

    def read(self, name: str) -> bytes:
        """The whole file. FileNotFoundError where there is none."""

    def read_many(self, names: list[str]) -> list[bytes | None]:
        """Whole small files, None for each that is not there."""

    def read_into(self, name: str, offset: int, buffers: list[Any]) -> None:
        """Fill writable buffers, one after the other, from byte `offset` on. StoreError where the file is too short."""

    def open(self, name: str) -> Handle:
        """A file for many reads. FileNotFoundError where there is none."""

    def size(self, name: str) -> int | None:
        """Bytes of a file, None where there is none."""

    def list(self, folder: str) -> set[str]:
        """Names (without the folder) of the files in a folder, empty where there is none."""

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


def attempt() -> str:
    """A part of a name that no other attempt has."""
    return uuid.uuid4().hex[:12]


def open_files(path: str | os.PathLike[str], owner: str = "") -> Files:
    """The place at `path`: a local folder, or `s3://bucket/prefix` on S3-compatible storage.

    `owner` is the writer on whose behalf files are made; it is part of the names of its unfinished ones.

    Raises
    ------
    RequestError
        No path, or an address of another kind.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise RequestError(f"A run lies at a path, and {path!r} is none: give a folder, or s3://bucket/prefix.")
    text = re.sub(r"^s3:/(?!/)", "s3://", os.fspath(path))  # pathlib folds slashes
    if "://" in text and not text.startswith("file://"):
        from .objects import ObjectFiles

        return ObjectFiles(text)
    return LocalFiles(local_path(text), owner)


def local_path(text: str) -> str:
    """A path, also where it is given as a file:// address.

    Raises
    ------
    RequestError
        An address on another machine, or of another kind.
    """
    if "://" not in text:
        return text
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise RequestError(f"{text} is no place on this machine: give a folder.")
    return unquote(parts.path)


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
                _sync_folder(folder)

    def read(self, name: str) -> bytes:
        with open(self._root / name, "rb", buffering=0) as file:
            return file.read()

    def read_many(self, names: list[str]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for first in range(0, len(names), 256):
            handles = [self._handle(name) for name in names[first : first + 256]]
            try:
                for fd in handles:
                    if fd is not None:  # the disk works on all of them at once
                        _expect(fd, 0, 0)
                found += [None if fd is None else _whole(fd) for fd in handles]
            finally:
                for fd in handles:
                    if fd is not None:
                        os.close(fd)
        return found

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

    def list(self, folder: str) -> set[str]:
        try:
            with os.scandir(self._root / folder) as entries:
                return {entry.name for entry in entries if entry.is_file()}
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
            _sync_folder(target.parent)

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
        _sync_folder(self._root / STAGING)

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


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(fd)


def io_pool() -> ThreadPoolExecutor:
    """Threads that read: with two, the disk works while a checksum is computed."""
    return ThreadPoolExecutor(max_workers=2, thread_name_prefix="precollapse-read")


@contextlib.contextmanager
def explained(path: str, doing: str) -> Iterator[None]:
    """Turn the operating system's errors into one sentence each.

    A full disk, a folder that went away and a permission that was lost are failures of the job (StoreError); what was
    committed stays as it is.
    """
    try:
        yield
    except OSError as error:
        reason = {
            errno.ENOSPC: "the disk is full: free some space and run the same command again",
            errno.EDQUOT: "the disk quota is used up: free some space and run the same command again",
            errno.ENOENT: "its folder is gone: it was moved or removed while in use",
            errno.ENOTDIR: "its folder is gone: it was moved or removed while in use",
            errno.EACCES: "permission was denied: restore write access and run the same command again",
            errno.EPERM: "permission was denied: restore write access and run the same command again",
            errno.EROFS: "the file system is read-only: make it writable and run the same command again",
        }.get(error.errno or 0, f"{error.strerror or error}: see to it and run the same command again")
        raise StoreError(f"Could not {doing} {path}: {reason}. Nothing that was committed is lost.") from error


def unreadable(place: str, error: OSError) -> StoreError:
    """What to raise for a place that is there and cannot be read."""
    if isinstance(error, PermissionError):
        return StoreError(f"There is no permission to read {place}: change its rights.")
    return StoreError(f"{place} cannot be read ({error.strerror or error}): see to it and try again.")


@contextlib.contextmanager
def readable(path: str) -> Iterator[None]:
    """Turn the operating system's errors of a reader into one sentence each; a file that is not there stays its own."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(str(error.filename or path), error) from error


@contextlib.contextmanager
def refused_reading(path: str) -> Iterator[None]:
    """The same where what cannot be read was named in the request (RequestError)."""
    try:
        yield
    except OSError as error:
        raise RequestError(str(unreadable(str(error.filename or path), error))) from error


@contextlib.contextmanager
def refused(path: str) -> Iterator[None]:
    """The same at the start of a job, where a lack of permission is a wrong request (RequestError)."""
    try:
        yield
    except PermissionError as error:
        raise RequestError(f"There is no permission to write {path}: choose another place or change its rights.") from (
            error
        )
    except (FileExistsError, NotADirectoryError) as error:
        raise RequestError(f"{path} lies in or on a file, not a folder: choose another place.") from error
    except OSError as error:
        if error.errno == errno.EROFS:
            raise RequestError(f"{path} lies on a read-only file system: choose another place.") from error
        with explained(path, "write"):
            raise
