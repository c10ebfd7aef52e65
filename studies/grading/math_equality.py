"""Says whether two mathematical expressions are equal, within a time limit that always holds.

math-verify's own limits are Python signal handlers: they work on the main thread only and cannot stop a single long
operation (`9^{9^{9^9}}` runs until memory is gone). Comparisons therefore run in one worker process, started on first
use and shared by all threads, which is killed and started anew when a comparison exceeds its limit. Parsing counts.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from functools import lru_cache

from .reading import whole_number
from .worker import TIME_LIMIT, Worker

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
        numbers = whole_number(gold, seconds), whole_number(answer, seconds)
        if numbers[0] and numbers[1]:
            return numbers[0].value == numbers[1].value
    return _compared_by_worker(gold, answer, seconds)


@lru_cache(maxsize=4096)
def _compared_by_worker(gold: str, answer: str, seconds: float) -> bool:
    with _lock:
        reply = _worker().ask({"gold": gold, "answer": answer}, seconds)
    if reply is None:
        _log.warning(
            "comparing %.80r with gold %.80r did not end within %g s: counted as not equal", answer, gold, seconds
        )
    return reply is not None and bool(reply["equal"])


_lock = threading.RLock()
_current: Worker | None = None


def _worker() -> Worker:
    """Return this process's worker, started if there is none, it died, or it belongs to the process that forked us."""
    global _current
    if _current is None or _current.owner != os.getpid() or not _current.alive:
        _current = Worker("math_worker.py", "mathematical answers cannot be compared: math-verify failed to load")
    return _current


@atexit.register
def _stop_worker() -> None:
    if _current is not None and _current.owner == os.getpid():
        _current.stop()
