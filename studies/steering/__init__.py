"""Steering: a direction learnt from a finished run, put back into its model at several doses."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_LAZY = {
    "BASELINE": ".run",
    "SteerConfig": ".config",
    "VECTOR": ".run",
    "run_steer": ".run",
    "save": "...reports.steering",
    "steering_vector": ".vectors",
}

__all__ = list(_LAZY)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
