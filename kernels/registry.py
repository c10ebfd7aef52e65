"""The forms of every operator, and which of them runs.

A form is registered beside its function and says there what it needs, for which dtypes it is made, how exact it is and how
it ranks among the operator's forms. One chooser reads that for all operators, so that a caller never gets a slow or an
unavailable form by accident; a form that is named and cannot run is refused rather than silently replaced. The tests read
their tolerances here, so that what is promised and what is held are one number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NoReturn, TypeVar

import torch

from . import native
from .checks import FLOATS

Function = TypeVar("Function", bound=Callable[..., Any])

ROUNDED_PRODUCTS = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes whose products may be summed in float32."""


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Whether triton can be imported (it is not imported here)."""
    return find_spec("triton") is not None


@dataclass(frozen=True)
class Needs:
    """What must be there for a form to run.

    Attributes
    ----------
    devices : tuple of str
        Device types that ``"auto"`` takes the form for; empty for any.
    refusal : callable
        Given a device: why the form cannot run there, as the end of a sentence, or "" when it can. Compute capability
        and libraries are looked at here.
    """

    devices: tuple[str, ...]
    refusal: Callable[[torch.device], str]


def _no_library(device: torch.device) -> str:
    if device.type != "cpu":
        return f" tensors on {device}; use 'auto', or move them."
    return "" if native.load() is not None else f", but {native.why_missing()}"


def _no_triton(device: torch.device) -> str:
    if not has_triton():
        return ", but triton is not installed: pip install triton."
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return " tensors on the CPU; use 'auto', or move them."
    return ""


TORCH = Needs((), lambda device: "")
LIBRARY = Needs(("cpu",), _no_library)
TRITON = Needs(("cuda",), _no_triton)


@dataclass(frozen=True)
class Tolerance:
    """A bound on an error: `relative` times the true value plus `absolute`."""

    relative: float
    absolute: float = 0.0


@dataclass(frozen=True)
class Form:
    """One way to compute an operator.

    Attributes
    ----------
    name : str
        As callers give it for `backend`.
    run : callable
        What computes it; the arguments are the operator's own.
    needs : Needs
        Where it runs.
    dtypes : tuple of torch.dtype
        What it takes.
    accuracy : mapping of torch.dtype to mapping of str to Tolerance
        For each dtype that the form is made for: the bounds that it keeps, by the name of a result. ``"auto"`` gives it
        no other dtype, whatever it takes.
    rank : int
        Of the forms that can run, ``"auto"`` takes the one that ranks highest.
    """

    name: str
    run: Callable[..., Any]
    needs: Needs
    dtypes: tuple[torch.dtype, ...]
    accuracy: Mapping[torch.dtype, Mapping[str, Tolerance]]
    rank: int

    def suits(self, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether ``"auto"`` may take it for tensors of this dtype on this device."""
        if dtype not in self.accuracy or (self.needs.devices and device.type not in self.needs.devices):
            return False
        return not self.needs.refusal(device)


OPERATORS: dict[str, Operator] = {}
"""Every operator by its public name, as its module makes it."""


class Operator:
    """The forms of one operator.

    Parameters
    ----------
    name : str
        Its public name, for messages and in `OPERATORS`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.forms: dict[str, Form] = {}
        self._ranked: list[Form] = []
        OPERATORS[name] = self

    def form(
        self,
        name: str,
        *,
        rank: int,
        accuracy: Mapping[torch.dtype, Mapping[str, Tolerance]],
        needs: Needs = TORCH,
        dtypes: tuple[torch.dtype, ...] = FLOATS,
    ) -> Callable[[Function], Function]:
        """Register the function below as a form of this operator; the arguments are those of `Form`."""

        def register(function: Function) -> Function:
            self.forms[name] = Form(name, function, needs, dtypes, accuracy, rank)
            self._ranked = sorted(self.forms.values(), key=lambda form: -form.rank)
            return function

        return register

    def choose(self, backend: str, device: torch.device, dtype: torch.dtype) -> Form:
        """The form that runs.

        Parameters
        ----------
        backend : str
            ``"auto"`` or the name of a form.
        device, dtype : torch.device, torch.dtype
            Of the tensors given.

        Raises
        ------
        ValueError
            An unknown form, or one that cannot run on this device, in this installation or for this dtype.
        """
        if backend == "auto":
            best = next((form for form in self._ranked if form.suits(device, dtype)), None)
            if best is None:
                raise ValueError(f"{self.name}: no form is made for {dtype} on {device}; cast or move the tensors.")
            return best
        form = self.forms.get(backend)
        if form is None:
            raise ValueError(f"{self.name}: backend={backend!r} is not one of {('auto', *self.forms)}.")
        refusal = form.needs.refusal(device)
        if refusal:
            raise ValueError(f"{self.name}: backend={backend!r} was asked for{refusal}")
        if dtype not in form.dtypes:
            kind = str(dtype).removeprefix("torch.")
            raise ValueError(f"{self.name}: backend={backend!r} has no {kind} form; use 'reference' or 'auto'.")
        return form


def no_gradient(operator: str, advice: str) -> Callable[..., NoReturn]:
    """A backward function that refuses, for operators that have no gradient; `advice` says what to do."""

    def backward(context: Any, *gradients: Any) -> NoReturn:
        raise ValueError(f"{operator} has no gradient; {advice}.")

    return backward
