"""One BLAS thread for many small factorisations, and threads of our own over independent ones.

A batch of 120 x 120 systems gains nothing from a second thread and loses several-fold when other processes use the
cores, because the library's threads then wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController  # comes with scikit-learn

    return ThreadpoolController()


def single_threaded() -> AbstractContextManager[Any]:
    """Context in which the linear algebra libraries use one thread."""
    limits: AbstractContextManager[Any] = _controller().limit(limits=1)
    return limits


def in_threads(work: Callable[[int], T], count: int) -> list[T]:
    """[work(0), ..., work(count - 1)], on as many threads as the linear algebra libraries are allowed."""
    allowed = max((pool["num_threads"] for pool in _controller().info()), default=1)
    if count < 2 or allowed < 2:
        return [work(k) for k in range(count)]
    with single_threaded(), ThreadPoolExecutor(min(allowed, count)) as pool:
        return list(pool.map(work, range(count)))
