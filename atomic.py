"""Files that are there whole or not at all.

A leaf that any folder may import. Guarantees that a reader, a full disk or a kill never leaves half a file under its own name: what is
written lies under a temporary name in the same folder (hidden, ending in `.part`) until it is finished, and the file that was there before stays
until then. The new file has the permissions of any new file, and the process's umask is not touched, which other threads share.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], durable: bool = False) -> Iterator[IO[bytes]]:
    """A binary stream whose bytes become the file when the block ends without an error.

    Parameters
    ----------
    path : path
    durable : bool
        Whether the file and its name are on the disk when this returns (fsync), not only in the system's memory.

    Raises
    ------
    OSError
        The file cannot be written. Nothing is left behind, and a file that was there is as it was.
    """
    file = Path(path)
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        with open(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "w+b") as stream:
            yield stream
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(file.parent)


def write(path: str | os.PathLike[str], data: bytes | str, durable: bool = False) -> None:
    """Write a whole file; text is UTF-8 with the line ends that it has.

    Raises
    ------
    OSError
        The file cannot be written. Nothing is left behind, and a file that was there is as it was.
    """
    with writing(path, durable) as stream:
        stream.write(data.encode("utf-8") if isinstance(data, str) else data)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Have the names in a folder on the disk, where the file system can be asked for it."""
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)
