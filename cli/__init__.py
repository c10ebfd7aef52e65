"""The command line: a file a command, one place for the options they share."""

from __future__ import annotations

from .main import main

__all__ = ["main"]
