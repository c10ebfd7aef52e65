"""A process that works for this one under a limit of processor time which always holds.

Limits inside a process are Python signal handlers: they work on the main thread only, and cannot stop one long operation, be it an
integer power or a regular expression. A worker that exceeds its limit is killed, and the next request starts another.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import PrecollapseError

TIME_LIMIT = 5.0
"""Seconds of processor time that one request may use."""

_WALL_CLOCK_FACTOR = 12
"""A worker that is starved by other processes gets this many times its processor-time limit before it is killed."""

_START_LIMIT = 180.0


class Worker:
    """One process of a script of this folder, and the conversation with it.

    The script reads one JSON object a line from its standard input, with the limit under "seconds", and answers each in a line.
    Its first line is `{"ready": true}`, or `{"error": str}`.

    Parameters
    ----------
    script : str
        Name of the file.
    without : str
        What cannot be done without the worker, for a message.
    """

    def __init__(self, script: str, without: str) -> None:
        self.owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name(script))],  # -P: no module here shadows a standard one
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        first = self._line(_START_LIMIT) or {"error": f"it did not start within {_START_LIMIT:.0f} s"}
        if "error" in first:
            raise PrecollapseError(f"{without} ({first['error']})")

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        """The answer to a request; None where it did not come within the limit (the worker is ended then)."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({**request, "seconds": seconds}) + "\n")
            self._process.stdin.flush()
            reply = self._line(seconds * _WALL_CLOCK_FACTOR)
        except OSError:
            reply = None
        except BaseException:  # interrupted between question and reply: the next reply would answer the wrong question
            self.stop()
            raise
        if reply is None:
            self.stop()
        return reply

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:
                pass

    def _line(self, seconds: float) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        alarm = threading.Timer(seconds, self._process.kill)
        alarm.daemon = True
        alarm.start()
        try:
            line = self._process.stdout.readline()
        finally:
            alarm.cancel()
        return json.loads(line) if line.endswith("\n") else None
