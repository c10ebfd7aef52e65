"""What other libraries say of a checkpoint, made fit to be passed on.

Guarantees that no advice to run a checkpoint's code or to read pickles reaches a user through us, that nothing escapes into a
terminal, and that whatever a library raises over a file, down to a panic of its Rust parts, ends as one sentence.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

from ...errors import PrecollapseError, RequestError

_ADVICE = re.compile(
    r"trust_remote_code|weights_only|ignore_mismatched_sizes|use_safetensors|pickle|allow_pickle|add_safe_globals"
    r"|custom code|torch\.load|upgrade torch",
    re.IGNORECASE,
)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")


def printable(text: object, length: int = 200) -> str:
    """Text from outside as one line of a message: no control characters, no end of line, not endless."""
    line = _UNPRINTABLE.sub(" ", str(text)).strip()
    return line if len(line) <= length else f"{line[:length]}..."


def first_line(error: BaseException) -> str:
    """The first line of an error's text that says something, without advice that is not ours; else the error's name."""
    lines = [printable(line) for line in str(error)[:4000].splitlines() if line.strip()]
    return next((line for line in lines[:2] if line and not _ADVICE.search(line)), type(error).__name__)


@contextlib.contextmanager
def refused(sentence: Callable[[str], str]) -> Iterator[None]:
    """Turn whatever is raised inside, except our own errors and what stops a program, into a RequestError.

    Parameters
    ----------
    sentence : callable
        Makes the message from the reason.
    """
    try:
        yield
    except (PrecollapseError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of a Rust library is no Exception
        reason = "it nests too deep" if isinstance(error, RecursionError) else first_line(error)
        if isinstance(error, MemoryError) or "out of memory" in reason.lower():
            reason = "there is not enough memory"
        raise RequestError(sentence(reason)) from error
