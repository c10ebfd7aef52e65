"""Sums in full precision, whatever a program allows for its own products.

A program may let float32 products be rounded to 10 or 7 bits (`set_float32_matmul_precision`, `allow_tf32`), or run under
autocast, which forms them in 16 bits; an entropy is then off by 1e-4. The first is a setting of the whole process, so it
is not changed and set back, which other threads would see: float64 products, which it leaves alone, are formed instead.
Autocast belongs to the thread and is switched off for the time of a call.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def product_dtype(device: torch.device) -> torch.dtype:
    """The narrowest dtype whose products keep float32's precision on this device: float32, or float64."""
    if device.type not in ("cuda", "cpu"):
        return torch.float32
    backend: Any = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    settings = backend.matmul
    return torch.float64 if settings.fp32_precision in ("tf32", "bf16") else torch.float32


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which operators on this device compute in the dtype of their arguments."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
