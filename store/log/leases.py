"""Which live writer works on which shard, without trusting any clock but one's own.

A lease is advice: it keeps two workers from doing the same work, while the commit alone decides whose result counts.
The holder counts a beat up in its lease file. Another writer calls the lease dead when the beat has stood still for
the lease time on its own monotonic clock, or at once when the holder was a process of the same machine that no longer
exists; clocks that differ or go back do not matter. A dead lease is taken over by creating its next generation, which
only one can.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import PrecollapseError, StoreError
from .. import records
from ..files.errors import Irregular
from ..files.protocol import RECORD_BYTES, Files
from ..files.sealed import seal, unseal
from ..layout import LEASES, lease_name, lease_of

REPAIR = "repair"
"""How the name of a repair begins, where writers have theirs."""


def identity() -> dict[str, Any]:
    """What tells this process from every other one: host, boot, process namespace, process id and its start."""
    pid = os.getpid()
    return {
        "host": socket.gethostname(),
        "boot": _text("/proc/sys/kernel/random/boot_id"),
        "namespace": _link("/proc/self/ns/pid"),
        "pid": pid,
        "started": _started(pid),
    }


_WORD = records.optional(records.text(wanted="text or null"))
IDENTITY = records.fields(
    {"host": _WORD, "boot": _WORD, "namespace": _WORD, "pid": records.whole(1, (1 << 31) - 1), "started": _WORD}
)
_LEASE = records.fields({"writer": records.text(), "who": IDENTITY, "beat": records.whole()})


def read_lease(files: Files, name: str) -> dict[str, Any]:
    """What a lease says: `writer`, `who`, `beat`.

    Raises
    ------
    StoreError
        It is damaged, or is no lease.
    FileNotFoundError
        There is none of this name.
    """
    return lease_record(files.read(name, RECORD_BYTES), f"The lease {files.path}/{name}")


def lease_record(record: bytes, what: str) -> dict[str, Any]:
    """What the bytes of a lease say; StoreError where they are damaged or no lease."""
    return records.sound(_LEASE, unseal(record, what), what)


def surely_dead(who: Mapping[str, Any]) -> bool:
    """Whether the process (see `IDENTITY`) was one of this very machine and no longer exists. False where that cannot be told."""
    here = identity()
    if not here["boot"] or any(who[key] != here[key] for key in ("host", "boot", "namespace")):
        return False
    try:
        os.kill(who["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    started = _started(who["pid"])
    return started is not None and started != who["started"]


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """Start of a process in clock ticks since boot; a zombie process counts as gone."""
    text = _text(f"/proc/{pid}/stat")
    if text is None:
        return None
    fields = text.rpartition(")")[2].split()
    return "gone" if fields[0] in ("Z", "X") else fields[19]


class Leases:
    """The leases of one writer.

    Parameters
    ----------
    files : Files
    writer : str
        Id of this writer.
    seconds : float
        Time without a beat after which a lease is dead.
    """

    def __init__(self, files: Files, writer: str, seconds: float) -> None:
        self._files = files
        self._writer = writer
        self._seconds = seconds
        self._identity = identity()
        self._held: dict[int, str] = {}
        self._beat = 0
        self._seen: dict[str, tuple[bytes, float]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def claim(self, shard: int) -> bool:
        """Take the lease of a shard: True if this writer holds it now, False if a live one does or may."""
        with self._lock:
            if shard in self._held:
                return True
            generation, name = self._last(shard)
            if name is not None and not self._dead(name):
                return False
            new = lease_name(shard, generation + 1)
            if not self._files.create(new, self._record(), durable=False):
                return False
            self._held[shard] = new
            if name is not None:
                self._files.remove(name)
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, name="precollapse-leases", daemon=True)
                self._thread.start()
            return True

    def release(self, shard: int) -> None:
        """Give a lease back."""
        with self._lock:
            name = self._held.pop(shard, None)
            if name is not None:
                self._files.remove(name)

    def holder(self, shard: int) -> str | None:
        """Who holds the lease of a shard, in words, or None."""
        _, name = self._last(shard)
        if name is None:
            return None
        try:
            who = read_lease(self._files, name)["who"]
        except (OSError, StoreError):
            return None
        return f"process {who['pid']} on {who['host']}"

    def close(self) -> None:
        """Give all leases back."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for shard in list(self._held):
            self.release(shard)

    def _last(self, shard: int) -> tuple[int, str | None]:
        """Highest generation of a shard's lease and its file."""
        leases = [found for name in self._files.list(LEASES) if (found := lease_of(name)) and found[0] == shard]
        generation = max((number for _, number in leases), default=0)
        return generation, lease_name(shard, generation) if leases else None

    def _dead(self, name: str) -> bool:
        try:
            record = self._files.read(name, RECORD_BYTES)
            if surely_dead(lease_record(record, name)["who"]):
                return True
        except FileNotFoundError:
            return False
        except Irregular as error:  # something that is no file never beats either
            record = str(error).encode()
        except StoreError:
            pass  # a damaged lease never beats, so it dies by time
        now = time.monotonic()
        before, since = self._seen.get(name, (record, now))
        if before != record:
            before, since = record, now
        self._seen[name] = (before, since)
        return now - since >= self._seconds

    def _record(self) -> bytes:
        return seal({"writer": self._writer, "who": self._identity, "beat": self._beat})

    def _keep(self) -> None:
        while not self._stop.wait(max(self._seconds / 4, 0.05)):
            with self._lock:
                self._beat += 1
                for name in self._held.values():
                    try:
                        self._files.replace(name, self._record(), durable=False)
                    except (OSError, PrecollapseError):
                        pass  # a beat that is missed costs at most double work; the commit decides
