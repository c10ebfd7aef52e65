"""The operating system's errors in the words of the package.

Guarantees one sentence for each: what could not be read or written, why, and what to do; a failure of the job (StoreError) stays apart
from a wrong request (RequestError).
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from ...errors import RequestError, StoreError


class Irregular(OSError):
    """Under a name of the run lies what is no file of it: a link that leads out of the run, a folder, a pipe, a device; or far more
    bytes than a record has. It is neither followed nor read."""


def too_large(place: str, size: int, most: int) -> Irregular:
    """What to raise for a record of more bytes than any has."""
    return Irregular(errno.EFBIG, f"it has {size} bytes, and no record has more than {most}", place)


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
