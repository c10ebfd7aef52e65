"""Reads the answer out of a text of whatever length and content, within a limit of time.

Guarantees that no text that a model writes stops a run: of a long one the end is read, where answers stand, and in a process that is
ended when it takes too long (the patterns that find answers look around, so that some texts take the square of their length). What
was not read in time is no answer. Ordinary texts are read here, as the readers do.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import threading
from collections.abc import Mapping

from .read_number import Number
from .readers import EXPLAIN, Answer, as_number, read
from .spelling.answer_text import after_thinking
from .worker import TIME_LIMIT, Worker

LONGEST = 100_000
"""Characters of a text that are read: its last ones."""
GOLD_LONGEST = 10_000
"""Most characters of a gold answer."""
_MANY_BLANKS = re.compile(r"[ \t]{4,}")
_SHORT = 4_000
"""Up to so many characters the slowest reading takes less than a second."""
_log = logging.getLogger(__name__)


def final_number(text: str, seconds: float = TIME_LIMIT) -> Number | None:
    """`read_number.final_number` within the limits."""
    return as_number(_read("final_number", text, None, seconds))


def whole_number(text: str, seconds: float = TIME_LIMIT) -> Number | None:
    """`read_number.whole_number` within the limits; what is longer than is read is no number."""
    return None if len(text) > LONGEST else as_number(_read("whole_number", text, None, seconds))


def final_expression(text: str, seconds: float = TIME_LIMIT) -> str | None:
    """`read_expression.final_expression` within the limits."""
    answer = _read("final_expression", text, None, seconds)
    return answer if isinstance(answer, str) else None


def final_phrase(text: str, seconds: float = TIME_LIMIT) -> str | None:
    """`read_expression.final_phrase` within the limits."""
    answer = _read("final_phrase", text, None, seconds)
    return answer if isinstance(answer, str) else None


def option(text: str, choices: Mapping[str, str], seconds: float = TIME_LIMIT) -> str | None:
    """`read_option.read_option` within the limits."""
    answer = _read("option", text, choices, seconds)
    return answer if isinstance(answer, str) else None


def each_rule(
    reader: str, text: str, choices: Mapping[str, str] | None, seconds: float = TIME_LIMIT
) -> list[tuple[str, bool, str | None, str]]:
    """What each rule of a reader reads: its name, whether it applies, the answer, the text that it read; [] where time ran out."""
    answer = _read(EXPLAIN + reader, text, choices, seconds)
    return [tuple(row) for row in json.loads(answer)] if isinstance(answer, str) else []


def _read(reader: str, text: str, choices: Mapping[str, str] | None, seconds: float) -> Answer:
    text = after_thinking(text).text[-LONGEST:]
    text = _MANY_BLANKS.sub("   ", text.replace("\0", " "))
    if len(text) + sum(map(len, (choices or {}).values())) <= _SHORT:
        return read(reader, text, choices)
    with _lock:
        request = {"reader": reader, "text": text, "choices": None if choices is None else dict(choices)}
        reply = _worker().ask(request, seconds)
    if reply is None:
        _log.warning("reading the answer in %.80r did not end within %g s: counted as no answer", text, seconds)
        return None
    answer: Answer = reply["answer"]
    return answer


_lock = threading.RLock()
_current: Worker | None = None


def _worker() -> Worker:
    """This process's worker, started if there is none, it died, or it belongs to the process that forked us."""
    global _current
    if _current is None or _current.owner != os.getpid() or not _current.alive:
        _current = Worker("read_worker.py", "answers in long texts cannot be read: the reader did not start")
    return _current


@atexit.register
def _stop_worker() -> None:
    if _current is not None and _current.owner == os.getpid():
        _current.stop()
