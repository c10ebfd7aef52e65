"""One BLAS thread for many small factorisations.

A batch of 120 x 120 systems gains nothing from a second thread and loses several-fold when other processes use the
cores, because the library's threads then wait for each other.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any


@cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController  # comes with scikit-learn

    return ThreadpoolController()


def single_threaded() -> AbstractContextManager[Any]:
    """Context in which the linear algebra libraries use one thread."""
    return _controller().limit(limits=1)
