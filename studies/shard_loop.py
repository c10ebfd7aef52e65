"""The loop that every study runs: take a shard, make it, commit it, until none is left.

Guarantees that a cell that fails is recorded and does not stop the others, that a full or failing disk does stop the work at
once, and that the first Ctrl-C lets the shard in hand be committed.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tqdm import tqdm

from .. import store
from ..errors import PrecollapseError, StoreError
from ..visible import one_line, visible


class StudyInterrupted(PrecollapseError):
    """Ctrl-C was pressed; what is committed is kept and the same command goes on from there."""

    exit_status = 130


def complete(
    writer: store.Writer,
    make: Callable[[store.Shard, tqdm[Any]], dict[str, Any]],
    *,
    unit: str,
    progress: bool,
    committed: Callable[[store.Writer, int], None] | None = None,
) -> None:
    """Make and commit every shard that has no commit yet.

    Parameters
    ----------
    writer : store.Writer
    make : callable (shard, bar) -> dict
        Returns what `Writer.write` takes (`arrays`, `table`, `ragged`, `blobs`) and may advance the bar, one a state.
    unit : str
        What a state is called on the bar.
    progress : bool
        Show the bar, with rate and time left, on stderr.
    committed : callable (writer, shard number), optional
        Called after each commit.

    Raises
    ------
    StoreError
        When the run cannot be written; what is committed stays.
    StudyInterrupted
        After Ctrl-C, once the shard in hand is committed.
    """
    total, began = writer.plan.n_states, time.perf_counter()
    failed: set[tuple[str, str]] = set()
    with (
        _stop_after_shard() as stopping,
        tqdm(
            total=total,
            initial=total - _states_left(writer),
            unit=unit,
            disable=not (progress and sys.stderr.isatty()),
            file=sys.stderr,
            dynamic_ncols=True,
            smoothing=0.1,
        ) as bar,
    ):
        for index in writer.claimed():
            shard = writer.shard(index)
            cell = (shard.benchmark, shard.regime)
            bar.set_description(one_line(" ".join(cell)))
            before, started = bar.n, time.perf_counter()
            if cell not in failed:
                try:
                    contents = make(shard, bar)
                except (StoreError, KeyboardInterrupt):
                    raise
                except (
                    Exception
                ) as error:  # whatever went wrong in one cell must not stop the others; it is kept with the run
                    reason = str(error) if isinstance(error, PrecollapseError) else f"{type(error).__name__}: {error}"
                    failed.add(cell)
                    writer.fail_cell(*cell, reason)
                    bar.write(visible(f"{shard.benchmark} x {shard.regime} failed: {reason}"), file=sys.stderr)
                else:
                    writer.write(index, **contents, seconds=time.perf_counter() - started)
                    if committed is not None:
                        committed(writer, index)
                    if progress and bar.disable:  # no terminal: a line a shard, not a bar
                        took, left = time.perf_counter() - began, _states_left(writer)
                        done = f"{total - left} of {total} {unit}s, {took:.0f} s"
                        print(one_line(f"{shard.benchmark} {shard.regime}: {done}"), file=sys.stderr, flush=True)
            bar.update(before + len(shard.states) - bar.n)
            left = _states_left(writer) if stopping.is_set() else 0
            if left:
                raise StudyInterrupted(
                    f"stopped after a shard at {total - left} of {total} {unit}s; the same command goes on from there"
                )


def _states_left(writer: store.Writer) -> int:
    return sum(len(writer.shard(k).states) for k in writer.pending())


@contextmanager
def _stop_after_shard() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into a flag that is looked at between shards; a second one interrupts at once."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = signal.getsignal(signal.SIGINT)

    def on_interrupt(_signal: int, _frame: FrameType | None) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()
        print(
            "\nstopping after this shard; press Ctrl-C again to stop at once (its states will be made again)",
            file=sys.stderr,
        )

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield stopping
    finally:
        signal.signal(signal.SIGINT, before)
