"""Named parts of a capture, timed when someone asks and free otherwise.

Guarantees that time inside an inner part is not counted in the outer one, so that the parts of a capture add up; and
that outside `recording` a part costs no more than a look at one variable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_recorder: Recorder | None = None


class Recorder:
    """Seconds spent in each part, its inner parts left out.

    Parameters
    ----------
    synchronise : callable, optional
        Waits for the device; called at both ends of every part, so that work is counted where it was asked for.
    """

    def __init__(self, synchronise: Callable[[], Any] | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._synchronise = synchronise
        self._open: list[list[Any]] = []

    def enter(self, name: str) -> None:
        if self._synchronise is not None:
            self._synchronise()
        mark = torch.profiler.record_function(f"precollapse: {name}")
        mark.__enter__()
        self._open.append([name, time.perf_counter(), 0.0, mark])

    def leave(self) -> None:
        if self._synchronise is not None:
            self._synchronise()
        name, start, inner, mark = self._open.pop()
        spent = time.perf_counter() - start
        mark.__exit__(None, None, None)
        self.seconds[name] = self.seconds.get(name, 0.0) + spent - inner
        if self._open:
            self._open[-1][2] += spent


class section:
    """`with section("taps"): ...` names a part of a capture."""

    __slots__ = ("_mine", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._mine: Recorder | None = None

    def __enter__(self) -> None:
        self._mine = _recorder
        if self._mine is not None:
            self._mine.enter(self._name)

    def __exit__(self, *exc: object) -> None:
        if self._mine is not None:
            self._mine.leave()


@contextmanager
def recording(synchronise: Callable[[], Any] | None = None) -> Iterator[Recorder]:
    """Time the parts of all captures inside the context; one recording at a time."""
    global _recorder
    before, _recorder = _recorder, Recorder(synchronise)
    try:
        yield _recorder
    finally:
        _recorder = before
