"""What a forward pass holds: which prompts its rows are, and which columns are prompt tokens or generated ones.

Guarantees that whoever changes a running model (steering) is told by the code that runs it, instead of guessing from
shapes: capture regroups prompts into batches and pads them, and generation drops the rows that have finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Pass:
    """One forward pass.

    Attributes
    ----------
    rows : tuple of int
        For each row of the batch, which prompt of the call it is.
    start, end : int64 tensor [B] or None
        First and last column of each row's prompt; None where every column holds a generated token.
    written : int
        Columns after the prompt that hold generated tokens.
    """

    rows: tuple[int, ...]
    start: torch.Tensor | None = None
    end: torch.Tensor | None = None
    written: int = 0


_current: ContextVar[Pass | None] = ContextVar("precollapse_pass", default=None)


def current() -> Pass | None:
    """The pass that the running code has declared, if it has."""
    return _current.get()


@contextmanager
def prompt_pass(rows: Sequence[int], lengths: Sequence[int], boundary: torch.Tensor) -> Iterator[None]:
    """Declare that the pass inside holds whole prompts.

    Parameters
    ----------
    rows : sequence of int
        Which prompt of the call each row is.
    lengths : sequence of int
        Tokens of each row's prompt.
    boundary : int64 tensor [B]
        Column of each row's last prompt token.
    """
    start = boundary + 1 - torch.as_tensor(list(lengths), device=boundary.device)
    with _declared(Pass(tuple(rows), start, boundary)):
        yield


@contextmanager
def generated_pass(rows: Sequence[int]) -> Iterator[None]:
    """Declare that every column of the pass inside is a generated token of these prompts."""
    with _declared(Pass(tuple(rows))):
        yield


@contextmanager
def whole_pass(rows: Sequence[int], length: int, written: int, device: torch.device) -> Iterator[None]:
    """Declare that the pass inside holds prompts of `length` tokens, each followed by `written` generated ones."""
    start = torch.zeros(len(rows), dtype=torch.int64, device=device)
    with _declared(Pass(tuple(rows), start, start + length - 1, written)):
        yield


@contextmanager
def _declared(what: Pass) -> Iterator[None]:
    token = _current.set(what)
    try:
        yield
    finally:
        _current.reset(token)
