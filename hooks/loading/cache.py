"""The package's own cache folder, for what can be made again."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The package's cache folder: `$PRECOLLAPSE_CACHE`; else, for a checkout that runs from a virtual environment inside it,
    `cache` in that environment; else `$XDG_CACHE_HOME/precollapse`; else `~/.cache/precollapse`."""
    chosen = os.environ.get("PRECOLLAPSE_CACHE")
    if chosen:
        return Path(chosen)
    checkout, environment = Path(__file__).resolve().parents[2], Path(sys.prefix).resolve()
    if (checkout / "pyproject.toml").is_file() and environment.is_relative_to(checkout):
        return environment / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "precollapse"
