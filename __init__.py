"""precollapse: what a language model already knows before it says its first word.

Names are loaded on first use, so that `import precollapse` needs neither torch nor transformers: reading a run and fitting
probes works on a laptop without them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from . import moved

moved.install()

__version__ = "0.1.0"

_LAZY = {
    "Extractor": ".hooks",
    "run_study": ".studies",
    "StudyConfig": ".studies",
    "open_run": ".store",
    "verify": ".store",
    "PrecollapseError": ".errors",
    "RequestError": ".errors",
    "CaptureError": ".errors",
    "StoreError": ".errors",
}
_SUBPACKAGES = ("analysis", "hooks", "kernels", "reports", "store", "studies")
_ROOMS_WITHIN = {"tasks": ".studies.tasks"}
"""Names of `precollapse.` that stand for a room within another."""

__all__ = [*_LAZY, *_SUBPACKAGES, *_ROOMS_WITHIN]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(import_module(_LAZY[name], __name__), name)
    elif name in _SUBPACKAGES or name in _ROOMS_WITHIN:
        value = import_module(_ROOMS_WITHIN.get(name, f".{name}"), __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
