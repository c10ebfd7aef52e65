"""Names of devices and of number formats to torch's own, refused by name where there are none such."""

from __future__ import annotations

from typing import Any

from ...errors import RequestError
from .refusals import first_line


def torch_device(name: str | None) -> Any:
    """The torch device of that name; None is the first CUDA device, else the CPU.

    Raises
    ------
    RequestError
        If there is no such kind of device, or not on this machine.
    """
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise RequestError(
            f"device {name!r} cannot be used here ({first_line(error)}); choose cpu, or a device that this machine has"
        ) from error
    return device


def torch_dtype(name: str, device_type: str) -> Any:
    """The torch dtype of that name; "auto" is float32 on a CPU, and else stays "auto": the checkpoint's own.

    Raises
    ------
    RequestError
        The name is unknown.
    """
    import torch

    if name == "auto":
        return torch.float32 if device_type == "cpu" else "auto"
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
    if name not in dtypes:
        raise RequestError(f"dtype {name!r} is unknown; choose one of auto, {', '.join(dtypes)}")
    return dtypes[name]
