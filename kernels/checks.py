"""Checks of arguments shared by all operators: a message names the argument, what was found and what is expected."""

from __future__ import annotations

from numbers import Integral, Real

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def tensor(
    operator: str, name: str, value: object, ndim: int | tuple[int, ...], dtypes: tuple[torch.dtype, ...]
) -> None:
    """Raise unless `value` is a tensor of this many dimensions and one of these dtypes."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{operator}: {name} must be a torch.Tensor, found {type(value).__name__}.")
    wanted = (ndim,) if isinstance(ndim, int) else ndim
    if value.ndim not in wanted:
        raise ValueError(
            f"{operator}: {name} must have {' or '.join(map(str, wanted))} dimensions, found shape "
            f"{tuple(value.shape)}."
        )
    if value.layout != torch.strided:
        raise TypeError(f"{operator}: {name} must be a dense tensor, found {str(value.layout).removeprefix('torch.')}.")
    if value.dtype not in dtypes:
        raise TypeError(f"{operator}: {name} must be one of {_names(dtypes)}, found {_names((value.dtype,))}.")


def size(operator: str, name: str, value: Tensor, axis: int, expected: int, of: str) -> None:
    """Raise unless `value` is `expected` long along `axis`; `of` says where the expectation comes from."""
    if value.shape[axis] != expected:
        raise ValueError(
            f"{operator}: {name} has shape {tuple(value.shape)}; axis {axis} must be {expected}, the {of}."
        )


def same_device(operator: str, name: str, value: Tensor, like: str, other: Tensor) -> None:
    """Raise unless both tensors are on one device."""
    if value.device != other.device:
        raise ValueError(f"{operator}: {name} is on {value.device} but {like} on {other.device}; move one of them.")


def softcap(operator: str, value: float | None) -> None:
    """Raise unless the soft cap is absent or a positive number that float32 has in full."""
    if value is None:
        return
    _number(operator, "softcap", value)
    if not (1.2e-38 < value < 3.4e38):
        raise ValueError(
            f"{operator}: softcap must be None or a positive finite number that float32 can hold, found {value}."
        )


def whole(operator: str, name: str, value: object) -> None:
    """Raise unless the value is a whole number."""
    if isinstance(value, bool) or not isinstance(value, (Integral, torch.SymInt)):
        raise TypeError(f"{operator}: {name} must be an int, found {value!r}.")


def text(operator: str, name: str, value: object) -> None:
    """Raise unless the value is a string."""
    if not isinstance(value, str):
        raise TypeError(f"{operator}: {name} must be a string, found {value!r}.")


def _number(operator: str, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (Real, torch.SymInt, torch.SymFloat)):
        raise TypeError(f"{operator}: {name} must be a number, found {value!r}.")


def finite(operator: str, name: str, value: float) -> None:
    """Raise unless the number is finite."""
    _number(operator, name, value)
    if not (-float("inf") < value < float("inf")):
        raise ValueError(f"{operator}: {name} must be finite, found {value}.")
