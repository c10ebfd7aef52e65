"""Checks of arguments shared by all operators: a message names the argument, what was found and what is expected."""

from __future__ import annotations

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
    """Raise unless the soft cap is absent or a positive finite number."""
    if value is not None and not (0.0 < value < float("inf")):
        raise ValueError(f"{operator}: softcap must be a positive finite number or None, found {value}.")


def finite(operator: str, name: str, value: float) -> None:
    """Raise unless the number is finite."""
    if not (-float("inf") < value < float("inf")):
        raise ValueError(f"{operator}: {name} must be finite, found {value}.")
