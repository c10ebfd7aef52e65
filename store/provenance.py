"""Where numbers came from: library versions, machine, and the exact source of this package."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

_LIBRARIES = (
    "precollapse",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "zarr",
    "pandas",
    "triton",
    "nnsight",
    "transformer-lens",
    "vllm",
)


@cache
def provenance() -> dict[str, Any]:
    """Versions of the libraries that are installed (none is imported), Python, platform, processors, and `source()`.

    Found once per process, since what runs is what was loaded.
    """
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "libraries": versions,
        "source": source(),
    }


def source(folder: Path | None = None) -> dict[str, Any] | None:
    """Git commit of the package's folder, and whether it is what ran.

    Returns
    -------
    dict or None
        `commit`; `dirty`, the tracked files that were changed; `untracked`, the number of files git does not know (they
        may or may not matter). None where the package does not lie at the root of a git checkout.
    """
    root = folder or Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "HEAD").strip()
        status = _git(root, "status", "--porcelain=v1", "--untracked-files=all").splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    return {
        "commit": commit,
        "dirty": sorted(line[3:] for line in status if not line.startswith("??")),
        "untracked": sum(line.startswith("??") for line in status),
    }


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "--no-optional-locks", "-C", str(root), *arguments],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    return done.stdout
