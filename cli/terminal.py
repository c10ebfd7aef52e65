"""Standard output and standard error, whatever they are: a terminal, a pipe, a full disk, closed, or not UTF-8.

Guarantees that nothing in a run acts on the terminal that shows it (`visible`), that a character which an encoding lacks is written
out (\\u2014, as JSON writes it) instead of ending a command after hours of work, and that an output which cannot be written to is
told apart from a fault of the package.
"""

from __future__ import annotations

import codecs
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from ..errors import RequestError
from ..visible import visible, written_out

_LONGEST = 4000
"""Most characters of a message."""
_ENCODING_ERRORS = "precollapse.written_out"
_WORDS = {"—": "-", "…": "...", "·": "-", "−": "-", "Δ": "d", "→": "->", "×": "x"}
"""What stands for our own signs where an encoding lacks them."""


class OutputFailed(OSError):
    """Standard output could not be written."""


def _for_the_encoding(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_WORDS.get(character) or written_out(character) for character in missing), error.end


codecs.register_error(_ENCODING_ERRORS, _for_the_encoding)


class Output:
    """A text stream that shows steering characters instead of passing them on; all else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text."""
        with _telling_failures():
            self._stream.write(visible(text))
        return len(text)

    def flush(self) -> None:
        """Write what waits in the buffer."""
        with _telling_failures():
            self._stream.flush()


@contextmanager
def _telling_failures() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:  # ValueError: it was closed
        raise OutputFailed(
            getattr(error, "errno", None) or errno.EIO, getattr(error, "strerror", None) or str(error)
        ) from error


@contextmanager
def guarded() -> Iterator[None]:
    """Standard output made safe inside, and both streams able to write every character; as they were afterwards."""
    output, errors = sys.stdout, sys.stderr
    if errors is None:  # closed when the process began
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    with _able_to_write(output), _able_to_write(errors):
        sys.stdout = Output(output if output is not None else _Closed())  # type: ignore[assignment,arg-type]
        try:
            yield
        finally:
            sys.stdout, sys.stderr = output, errors


@contextmanager
def _able_to_write(stream: TextIO | None) -> Iterator[None]:
    """A stream whose encoding lacks no character."""
    before = getattr(stream, "errors", None)
    reconfigure = getattr(stream, "reconfigure", None)
    if before is None or reconfigure is None:
        yield
        return
    reconfigure(errors=_ENCODING_ERRORS)
    try:
        yield
    finally:
        try:
            reconfigure(errors=before)
        except (OSError, ValueError):  # what waits in it cannot be written; that was said
            pass


class _Closed:
    """What stands for a standard output that was closed when the process began."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "standard output is closed")

    def flush(self) -> None:
        """There is nothing to write."""


def say(message: str) -> None:
    """One message on standard error, with the program's name before it."""
    shown = visible(message)
    if len(shown) > _LONGEST:
        shown = f"{shown[:_LONGEST]}... ({len(shown) - _LONGEST} more characters)"
    try:
        print(f"precollapse: {shown}", file=sys.stderr, flush=True)
    except (OSError, ValueError):  # closed or full: there is nowhere to say so
        pass


def close_output() -> None:
    """Let what is still in the buffer of standard output go nowhere, so that the interpreter does not fail on it at its end."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
        os.close(nowhere)
    except (OSError, ValueError):
        pass


def has_working_folder() -> bool:
    """Whether the folder that the process works in is still there."""
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def check_arguments(argv: Sequence[str]) -> None:
    """Refuse arguments whose bytes are no text in the encoding of this system.

    Raises
    ------
    RequestError
        Names the first one.
    """
    for argument in argv:
        try:
            argument.encode("utf-8")
        except UnicodeEncodeError:
            raise RequestError(
                f"the argument {argument!r} holds bytes that are no text in the encoding of this system "
                f"({sys.getfilesystemencoding()}); use names that are"
            ) from None
