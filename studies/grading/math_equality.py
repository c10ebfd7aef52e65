"""Says whether two mathematical expressions are equal, within a time limit that always holds.

Guarantees an equivalence: each expression has one key (`equality.keys`), beside the gold answer of its item, and equal means the same
key, whether answers are graded or counted. Keys are found in one worker process, started on first use and shared by all threads, which
is killed and started anew when an expression exceeds its limit: limits inside a process cannot stop a single long operation
(`9^{9^{9^9}}` runs until memory is gone). Parsing counts.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from functools import lru_cache

from .worker import TIME_LIMIT, Worker

LONGEST = 10_000
"""Characters of an expression that is compared by its value; a longer one by its spelling."""
_log = logging.getLogger(__name__)


def expressions_equal(gold: str, answer: str, seconds: float = TIME_LIMIT) -> bool:
    """Say whether `answer` is mathematically equal to `gold`.

    Rational numbers (`1,000`, `0.5`, `\\frac{1}{2}`, `0.\\overline{3}`) are compared exactly, all else by its value to 50 digits, with
    symbols at fixed points. A decimal is never equal to a number that is not rational.

    Parameters
    ----------
    gold, answer : str
        LaTeX or plain mathematical expressions, without dollar signs around them.
    seconds : float
        Processor time that each of the two may use. When it runs out the answer counts as not shown equal.
    """
    gold, answer = gold.strip(), answer.strip()
    if not gold or not answer:
        return False
    if "".join(gold.split()) == "".join(answer.split()):
        return True
    keys = answer_key(gold, gold, seconds), answer_key(answer, gold, seconds)
    return keys[0] is not None and keys[0] == keys[1]


def answer_key(answer: str, gold: str | None = None, seconds: float = TIME_LIMIT) -> str | None:
    """The key of an answer: answers of one item are equal when their keys are the same.

    Parameters
    ----------
    answer : str
    gold : str, optional
        The gold answer of the item. An answer without the gold answer's unit, percent sign or base means it with them.
    seconds : float
        Processor time that it may take.

    Returns
    -------
    str or None
        None where time ran out.
    """
    if len(answer) > LONGEST or (gold is not None and len(gold) > LONGEST):
        return "spelled " + "".join(answer.split())
    return _found_by_worker(answer, gold, seconds)


@lru_cache(maxsize=4096)
def _found_by_worker(answer: str, gold: str | None, seconds: float) -> str | None:
    with _lock:
        reply = _worker().ask({"expression": answer, "gold": gold}, seconds)
    if reply is None:
        _log.warning("comparing %.80r did not end within %g s: counted as not equal", answer, seconds)
        return None
    return str(reply["key"])


_lock = threading.RLock()
_current: Worker | None = None


def _worker() -> Worker:
    """Return this process's worker, started if there is none, it died, or it belongs to the process that forked us."""
    global _current
    if _current is None or _current.owner != os.getpid() or not _current.alive:
        _current = Worker(
            "math_worker.py", "mathematical answers cannot be compared: the parser of LaTeX failed to load"
        )
    return _current


@atexit.register
def _stop_worker() -> None:
    if _current is not None and _current.owner == os.getpid():
        _current.stop()
