"""Says whether two mathematical expressions are equal, within a time limit that always holds.

math-verify's own limits are Python signal handlers: they work on the main thread only and cannot stop a single long
operation (`9^{9^{9^9}}` runs until memory is gone). Comparisons therefore run in one worker process, started on first
use and shared by all threads, which is killed and started anew when a comparison exceeds its limit.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

from ...errors import PrecollapseError
from .read_number import whole_number

TIME_LIMIT = 5.0
"""Seconds of processor time that one comparison may use."""

_WALL_CLOCK_FACTOR = 12
"""A worker that is starved by other processes gets this many times its processor-time limit before it is killed."""

_START_LIMIT = 180.0
_log = logging.getLogger(__name__)


def expressions_equal(gold: str, answer: str, seconds: float = TIME_LIMIT) -> bool:
    """Say whether `answer` is mathematically equal to `gold`.

    Two plain numbers (`1,000`, `0.5`, `\\frac{1}{2}`) are compared exactly. All else is compared by math-verify, which
    evaluates numerically to six decimals where it cannot decide symbolically.

    Parameters
    ----------
    gold, answer : str
        LaTeX or plain mathematical expressions, without dollar signs around them.
    seconds : float
        Processor time that the comparison may use. When it runs out the answer counts as not shown equal.
    """
    gold, answer = gold.strip(), answer.strip()
    if not gold or not answer:
        return False
    if "".join(gold.split()) == "".join(answer.split()):
        return True
    if "%" not in gold + answer:
        numbers = whole_number(gold), whole_number(answer)
        if numbers[0] and numbers[1]:
            return numbers[0].value == numbers[1].value
    return _compared_by_worker(gold, answer, seconds)


@lru_cache(maxsize=4096)
def _compared_by_worker(gold: str, answer: str, seconds: float) -> bool:
    with _lock:
        return _worker().ask(gold, answer, seconds)


class _Worker:
    """One `math_worker` process and the conversation with it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        script = Path(__file__).with_name("math_worker.py")
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script)],  # -P: this folder must not shadow standard modules in the worker
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        first = self._line(_START_LIMIT) or {"error": f"it did not start within {_START_LIMIT:.0f} s"}
        if "error" in first:
            raise PrecollapseError(
                f"mathematical answers cannot be compared: math-verify failed to load ({first['error']})"
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, gold: str, answer: str, seconds: float) -> bool:
        request = json.dumps({"gold": gold, "answer": answer, "seconds": seconds})
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
            reply = self._line(seconds * _WALL_CLOCK_FACTOR)
        except OSError:
            reply = None
        except BaseException:  # interrupted between question and reply: the next reply would answer the wrong question
            self.stop()
            raise
        if reply is None:
            self.stop()
            _log.warning(
                "comparing %.80r with gold %.80r did not end within %g s: counted as not equal", answer, gold, seconds
            )
            return False
        return bool(reply["equal"])

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:
                pass

    def _line(self, seconds: float) -> dict[str, object] | None:
        assert self._process.stdout is not None
        alarm = threading.Timer(seconds, self._process.kill)
        alarm.daemon = True
        alarm.start()
        try:
            line = self._process.stdout.readline()
        finally:
            alarm.cancel()
        return json.loads(line) if line.endswith("\n") else None


_lock = threading.RLock()
_current: _Worker | None = None


def _worker() -> _Worker:
    """Return this process's worker, started if there is none, it died, or it belongs to the process that forked us."""
    global _current
    if _current is None or _current.owner != os.getpid() or not _current.alive:
        _current = _Worker()
    return _current


@atexit.register
def _stop_worker() -> None:
    if _current is not None and _current.owner == os.getpid():
        _current.stop()
