"""The package's own cache folder, for what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The package's cache folder: `$PRECOLLAPSE_CACHE`, else `$XDG_CACHE_HOME/precollapse`, else `~/.cache/precollapse`."""
    chosen = os.environ.get("PRECOLLAPSE_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "precollapse"
