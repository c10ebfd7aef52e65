"""The compiled CPU forms: found once, loaded once; when absent, torch does the work and one warning says so."""

from __future__ import annotations

import ctypes
import math
import warnings
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .vocab_arguments import ROUNDINGS, VocabArguments

FORMS = ("portable", "avx2", "avx512", "avx512_bf16")
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

ABI = 2  # PC_ABI of csrc/precollapse.h
TOP_K = 256  # larger k is left to torch: candidates are kept per block of columns

_REMEDY = "install a C++ compiler (g++) and reinstall precollapse"


def declare(library: ctypes.CDLL) -> None:
    """Tell ctypes the argument types of the C interface (csrc/precollapse.h)."""
    pointer, int64, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    single, double = ctypes.c_float, ctypes.c_double
    start: list[Any] = [number, number, number, pointer]
    library.pc_forms.argtypes = []
    library.pc_vocab_stats.argtypes = (
        start + [int64] * 3 + [pointer, int64, int64, pointer, single, double, double] + [number, int64] + [pointer] * 4
    )
    library.pc_logits_stats.argtypes = start + [int64] * 4 + [pointer] * 4
    library.pc_moments_update.argtypes = start + [int64] * 4 + [pointer] * 6


def read(path: Path) -> ctypes.CDLL | str:
    """The library in this file, or why it cannot be used."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return f"{path.name} cannot be loaded ({error}); {_REMEDY}."
    interface = library.pc_abi() if hasattr(library, "pc_abi") else 1
    if interface != ABI:
        return (
            f"{path.name} was built from other sources (interface {interface}, expected {ABI}); reinstall precollapse."
        )
    declare(library)
    return library


@lru_cache(maxsize=1)
def _open() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).parent / f"_native{suffix}"
        if path.exists():
            return read(path)
    return f"the C++ forms were not built; {_REMEDY}."


@lru_cache(maxsize=1)
def load() -> ctypes.CDLL | None:
    """The shared library of csrc, or None, with one warning, when there is none."""
    library = _open()
    if isinstance(library, str):
        message = f"precollapse.kernels uses slower torch forms on the CPU: {library}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return None
    return library


def why_missing() -> str:
    """Why `load` gives None, and what to do."""
    library = _open()
    return library if isinstance(library, str) else ""


def forms() -> tuple[str, ...]:
    """The instruction-set forms that were built and run on this processor, slowest first."""
    library = _open()
    bits = 0 if isinstance(library, str) else library.pc_forms()
    return tuple(name for i, name in enumerate(FORMS) if bits >> i & 1)


def _outputs(n: int, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def empty(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device="cpu")  # never the program's defaults: C writes these

    return empty(torch.float64, n), empty(torch.float64, n), empty(torch.float32, n, k), empty(torch.int64, n, k)


def _check(status: int) -> None:
    if status != 0:
        raise MemoryError("precollapse.kernels: the C++ form could not allocate its working memory.")


def vocab_stats(arguments: VocabArguments, form: str | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Entropy, logsumexp, top logits and ids by the C++ form; `form` names an instruction set, the best by default.

    hidden is brought to a unit inner stride, weight must have one; options are not looked at.
    """
    library = _open()
    assert isinstance(library, ctypes.CDLL)
    hidden, weight, bias = arguments.contiguous_rows(), arguments.weight, arguments.bias
    out = _outputs(arguments.n, arguments.top_k)
    pivot = 0.0
    if bias is not None:
        bias = bias.float().contiguous()
        largest = bias.max().item()
        # Shifting all logits changes nothing but the digits left for their differences.
        if not arguments.bends_logits and 64.0 < abs(largest) < math.inf:
            pivot = largest
    status = library.pc_vocab_stats(
        FORMS.index(form or forms()[-1]),
        torch.get_num_threads(),
        DTYPES[hidden.dtype],
        hidden.data_ptr(),
        hidden.shape[0],
        hidden.shape[1],
        hidden.stride(0),
        weight.data_ptr(),
        weight.shape[0],
        weight.stride(0),
        None if bias is None else bias.data_ptr(),
        pivot,
        0.0 if arguments.softcap is None else arguments.softcap,
        arguments.scale,
        ROUNDINGS[arguments.logits_dtype],
        arguments.top_k,
        *(part.data_ptr() for part in out),
    )
    _check(status)
    return out


def logits_stats(logits: Tensor, k: int, form: str | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same of logits [n, V] with a unit inner stride."""
    library = _open()
    assert isinstance(library, ctypes.CDLL)
    out = _outputs(len(logits), k)
    status = library.pc_logits_stats(
        FORMS.index(form or forms()[-1]),
        torch.get_num_threads(),
        DTYPES[logits.dtype],
        logits.data_ptr(),
        logits.shape[0],
        logits.shape[1],
        logits.stride(0),
        k,
        *(part.data_ptr() for part in out),
    )
    _check(status)
    return out


def moments_update(
    x: Tensor,
    seen: int,
    pivot: Tensor,
    mean: Tensor,
    m2: Tensor,
    square: Tensor,
    cube: Tensor,
    fourth: Tensor,
    form: str | None = None,
) -> None:
    """Rows x [n, d] of one layer join its accumulators (contiguous float64) in place; see `moment_sums`."""
    library = _open()
    assert isinstance(library, ctypes.CDLL)
    status = library.pc_moments_update(
        FORMS.index(form or forms()[-1]),
        torch.get_num_threads(),
        DTYPES[x.dtype],
        x.data_ptr(),
        x.shape[0],
        x.shape[1],
        x.stride(0),
        seen,
        *(part.data_ptr() for part in (pivot, mean, m2, square, cube, fourth)),
    )
    _check(status)
