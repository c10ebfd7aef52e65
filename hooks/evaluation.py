"""Evaluation mode for the time of a pass: dropout in a captured state would be a silent fault.

Guarantees that each module's own training flag is put back afterwards, also where only some modules were training.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Switch a model to evaluation mode inside the context."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
