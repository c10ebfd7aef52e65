"""The package's own error types.

A leaf that any folder may import. Every message says what was wrong, what was found and what to do; the command line
prints it alone, without a traceback, and exits with the type's `exit_status`.
"""

from __future__ import annotations


class PrecollapseError(Exception):
    """Base of all errors that this package raises on purpose. Exit status 1: the job failed."""

    exit_status = 1


class RequestError(PrecollapseError, ValueError):
    """The request was wrong: an unknown name, a malformed file, settings that do not fit. Exit status 2."""

    exit_status = 2


class CaptureError(PrecollapseError, RuntimeError):
    """A capture did not get exactly the rows that were asked for, or the load gate found wrong numbers.

    Attributes
    ----------
    prompt : int or None
        Which prompt of the call it was, where it was one.
    """

    prompt: int | None = None


class StoreError(PrecollapseError, RuntimeError):
    """A run on disk could not be written or holds damaged data."""
