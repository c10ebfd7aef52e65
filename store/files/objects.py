"""A run on S3-compatible storage, under the same protocol as on a disk.

Put-if-absent is a conditional put (If-None-Match: *), which is tried out when a run is opened for writing: a service
that accepts and ignores the condition would let two writers overwrite each other's commits, so it is refused. A staged
object gets its final name by a copy within the service. Needs obstore; settings come from the usual AWS_* variables
(AWS_ENDPOINT_URL and AWS_ALLOW_HTTP for services other than Amazon's).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from ...errors import RequestError, StoreError
from . import service
from .errors import too_large
from .protocol import Handle, attempt, between, is_litter

_THREADS = 32
_ONE_PUT = 4 << 20
"""Bytes of a file that is put in one request; a larger one goes in parts, which take two requests more."""
_PAGE = 1000
"""Names that a service lists in one answer."""


class ObjectFiles:
    """The objects below a prefix of a bucket.

    Parameters
    ----------
    path : str
        "s3://bucket/prefix".

    Raises
    ------
    RequestError
        obstore is not installed, or the address is of another kind.
    """

    immediate = False
    RETRY_SECONDS = 60.0
    """Time over which a request that fails is tried again."""
    REQUEST_SECONDS = 30.0
    """Time after which one request counts as unanswered."""

    def __init__(self, path: str) -> None:
        if not re.match("s3://[^/]", path):
            raise RequestError(f"Unknown address {path!r}: give a folder, or s3://bucket/prefix.")
        odd = re.search(r"[#?%\\]|//|/\.{1,2}(/|$)", path.rstrip("/").removeprefix("s3://"))
        if odd:  # the address is read as a URL, in which these mean something else, or name another place
            raise RequestError(
                f"{path!r} has {odd[0]!r}, which an address of a bucket cannot have: choose another prefix."
            )
        try:
            import obstore
            from obstore.store import S3Store
        except ImportError:
            raise RequestError(f"{path} needs the package obstore: install precollapse[s3].") from None
        self.path = path.rstrip("/")
        self._api = obstore
        service.check_settings(self.path)
        with self._errors(), self._refused():
            if not service.names_credentials():
                self._check_credentials(S3Store)
            self._store = S3Store.from_url(
                self.path,
                retry_config=_retry(self.RETRY_SECONDS),
                client_options=service.client_options(self.REQUEST_SECONDS),
            )

    def _check_credentials(self, kind: Any) -> None:
        """Ask once whether the machine itself has credentials: without any, every request would be tried for a minute."""
        store = kind.from_url(self.path, retry_config=_retry(min(2.0, self.RETRY_SECONDS)))
        try:
            self._api.head(store, "zarr.json")
        except (self._api.exceptions.BaseError, FileNotFoundError) as error:
            lacking = service.lacks_credentials(self.path, error)
            if lacking is not None:
                raise lacking from error

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """The service's errors in words, or as those of the operating system."""
        kinds = self._api.exceptions
        try:
            yield
        except (RequestError, StoreError):
            raise
        except (kinds.PermissionDeniedError, kinds.UnauthenticatedError) as error:
            said = service.explanation(self.path, error, self.RETRY_SECONDS)
            permission = PermissionError(errno.EACCES, service.first_line(error))
            raise (said if isinstance(said, RequestError) else permission) from error
        except (kinds.BaseError, FileNotFoundError) as error:
            raise service.explanation(self.path, error, self.RETRY_SECONDS) from error

    def _send(self, request: Callable[[], Any]) -> Any:
        """A write, sent again while the service stays silent: the client library repeats none that may have arrived."""
        until = time.monotonic() + self.RETRY_SECONDS
        while True:
            try:
                return request()
            except self._api.exceptions.BaseError as error:
                if not service.is_silence(error) or time.monotonic() > until:
                    raise
                time.sleep(0.1)

    @contextlib.contextmanager
    def _refused(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RequestError(f"{self.path} cannot be reached ({error.strerror}): check the address.") from error

    def probe(self) -> None:
        name = f"_probe.{attempt()}"
        with self._errors():
            try:
                self._api.put(self._store, name, b"1", mode="create")
                self._api.put(self._store, name, b"2", mode="create")
                honoured = False
            except self._api.exceptions.AlreadyExistsError:
                honoured = True
            except (self._api.exceptions.NotSupportedError, NotImplementedError):
                honoured = False
            self._api.delete(self._store, name)
        if not honoured:
            raise RequestError(
                f"The service behind {self.path} does not honour conditional puts (If-None-Match), without which two "
                "writers could overwrite each other: use another service, or write to a disk and copy the finished run."
            )

    def entries(self) -> set[str] | None:
        with self._errors():
            listed = self._api.list_with_delimiter(self._store)
        names = {*listed["common_prefixes"], *(entry["path"] for entry in listed["objects"])}
        return {name.strip("/").rpartition("/")[2] for name in names} or None

    def make(self, folders: Iterable[str]) -> None:
        """Object stores have no folders."""

    def read(self, name: str, most: int | None = None) -> bytes:
        with self._errors():
            found = self._api.get(self._store, name)
            if most is not None and found.meta["size"] > most:
                raise too_large(f"{self.path}/{name}", found.meta["size"], most)
            return bytes(found.bytes())

    def read_many(self, names: list[str], most: int | None = None) -> list[bytes | None]:
        def one(name: str) -> bytes | None:
            try:
                return self.read(name, most)
            except FileNotFoundError:
                return None

        if len(names) < 2:
            return [one(name) for name in names]
        with ThreadPoolExecutor(min(_THREADS, len(names))) as pool:
            return list(pool.map(one, names))

    def open(self, name: str) -> Handle:
        if self.size(name) is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", f"{self.path}/{name}")
        return _ObjectHandle(self, name)

    def read_into(self, name: str, offset: int, buffers: list[Any]) -> None:
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        wanted = sum(len(view) for view in views)
        try:
            with self._errors():
                data = memoryview(self._api.get_range(self._store, name, start=offset, length=wanted))
        except FileNotFoundError:
            raise
        except OSError:
            size = self.size(name)
            if size is None or size > offset:
                raise
            raise StoreError(f"{self.path}/{name} is cut short: it ends at byte {size}.") from None
        if len(data) != wanted:
            raise StoreError(f"{self.path}/{name} is cut short: it ends at byte {offset + len(data)}.")
        for view in views:
            view[:] = data[: len(view)]
            data = data[len(view) :]

    def size(self, name: str) -> int | None:
        try:
            with self._errors():
                return int(self._api.head(self._store, name)["size"])
        except FileNotFoundError:
            return None

    def list(self, folder: str, after: str = "", before: str = "") -> set[str]:
        names: set[str] = set()
        with self._errors():
            offset = f"{folder}/{after}" if after else None
            for batch in self._api.list(self._store, f"{folder}/", offset=offset, chunk_size=_PAGE):
                page = [entry["path"][len(folder) + 1 :] for entry in batch]
                names |= {
                    name for name in page if "/" not in name and between(name, after, before) and not is_litter(name)
                }
                if before and page and page[-1] >= before:  # a service lists in the order of the names
                    break
        return names

    def create(self, name: str, data: bytes, durable: bool = True) -> bool:
        sent = 0

        def put() -> None:
            nonlocal sent
            sent += 1
            self._api.put(self._store, name, data, mode="create")

        with self._errors():
            try:
                self._send(put)
            except self._api.exceptions.AlreadyExistsError:
                return sent > 1 and self.read(name) == data  # it had arrived, and its answer had not
        return True

    def replace(self, name: str, data: bytes, durable: bool = True) -> None:
        with self._errors():
            self._send(lambda: self._api.put(self._store, name, data, use_multipart=False))

    def stage(self, name: str, parts: Iterable[Any]) -> int:
        size = 0

        def copies() -> Iterator[bytes]:
            nonlocal size
            for part in parts:
                size += memoryview(part).nbytes
                yield bytes(part)

        source = copies()
        begun: list[bytes] = []
        with self._errors():
            for copy in source:
                begun.append(copy)
                if size > _ONE_PUT:
                    self._api.put(self._store, name, itertools.chain(begun, source))
                    return size
            self._send(lambda: self._api.put(self._store, name, b"".join(begun), use_multipart=False))
        return size

    def settle(self) -> None:
        """What was put is durable already."""

    def move(self, source: str, target: str) -> bool:
        try:
            with self._errors():
                self._send(lambda: self._api.copy(self._store, source, target))
        except FileNotFoundError:
            return False
        self.remove(source)
        return True

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._errors():
            self._send(lambda: self._api.delete(self._store, name))


class _ObjectHandle:
    def __init__(self, files: ObjectFiles, name: str) -> None:
        self._files = files
        self._name = name

    def expect(self, offset: int, size: int) -> None:
        """A service has no read-ahead."""

    def read_into(self, offset: int, buffers: list[Any]) -> None:
        self._files.read_into(self._name, offset, buffers)

    def close(self) -> None:
        """Nothing is held."""


def _retry(seconds: float) -> Any:
    """Try again for that time: the library's own bound of ten tries is over in two seconds."""
    backoff = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2}
    return {"retry_timeout": timedelta(seconds=seconds), "max_retries": 100_000, "backoff": backoff}
