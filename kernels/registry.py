"""Which form of an operator runs, and why.

Every operator of this package has the same few forms: ``reference`` (float64 torch, the truth), ``torch`` (plain torch
calls, streamed), ``cpu`` (C++, built from csrc) and ``triton``. ``backend="auto"`` chooses by device, so that a caller
never gets a slow or an unavailable form by accident; a form that is asked for by name and cannot run is refused rather
than silently replaced.
"""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.util import find_spec

import torch

from . import native


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Whether triton can be imported (it is not imported here)."""
    return find_spec("triton") is not None


def choose(operator: str, backend: str, device: torch.device, dtype: torch.dtype, forms: tuple[str, ...]) -> str:
    """Name of the form that runs.

    Parameters
    ----------
    operator : str
        Public name, for messages.
    backend : str
        ``"auto"`` or one of `forms`.
    device, dtype : torch.device, torch.dtype
        Of the tensors given; float64 always goes to the reference under ``"auto"``.
    forms : tuple of str
        The forms that this operator has.

    Raises
    ------
    ValueError
        An unknown form, or one that cannot run on this device or installation.
    """
    if backend == "auto":
        if dtype == torch.float64 and "reference" in forms:
            return "reference"
        if device.type == "cpu":
            if "cpu" in forms and native.load() is not None:
                return "cpu"
            return "torch" if "torch" in forms else "reference"
        if device.type == "cuda" and "triton" in forms and has_triton():
            return "triton"
        return "torch" if "torch" in forms else "reference"
    if backend not in forms:
        raise ValueError(f"{operator}: backend={backend!r} is not one of {('auto', *forms)}.")
    if backend == "cpu" and device.type != "cpu":
        raise ValueError(f"{operator}: backend='cpu' was asked for tensors on {device}; use 'auto', or move them.")
    if backend == "cpu" and native.load() is None:
        raise ValueError(f"{operator}: backend='cpu' was asked for, but {native.why_missing()}")
    if backend == "triton" and not has_triton():
        raise ValueError(
            f"{operator}: backend='triton' was asked for, but triton is not installed: pip install triton."
        )
    if backend == "triton" and device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(f"{operator}: backend='triton' was asked for tensors on the CPU; use 'auto', or move them.")
    if backend in ("cpu", "triton") and dtype == torch.float64:
        raise ValueError(f"{operator}: backend={backend!r} has no float64 form; use 'reference' or 'auto'.")
    return backend
