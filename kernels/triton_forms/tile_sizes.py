"""Which tiles the product kernel is tried with, by number of rows, dtype, GPU and what is done with the logits.

A tile that spills registers is several times slower, and nothing says so at run time: the sizes here are those that the
ahead-of-time tests compile without a spill.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
import triton

from .row_state import INTERPRETING
from .vocab_kernels import tiles_kernel

# The autotune table: bucket of n -> (M, [(N, K, warps, stages), ...]).
TABLE: dict[int, tuple[int, list[tuple[int, int, int, int]]]] = {
    16: (16, [(64, 128, 4, 4), (128, 128, 4, 3), (32, 256, 4, 4)]),
    32: (32, [(128, 128, 4, 3), (128, 64, 4, 4)]),
    64: (64, [(64, 128, 4, 3), (128, 128, 8, 3)]),
    128: (128, [(128, 64, 8, 4)]),
    4096: (128, [(128, 64, 8, 4)]),
}
# Many rows where products are warp-group wide (compute capability 9) and little is done with the logits: before, with a
# soft cap to compute, or with both a bias and the largest logits to find, this tile would spill registers.
LARGE_TILE = (256, 64, 8, 3)
# Before it, a tile of the table would spill registers when much is done with the logits.
SMALL_TILE = (64, 64, 8, 4)
# float32 rows take three products each, and twice the shared memory.
FLOAT32 = {16: (64, 64, 4, 3), 32: (64, 32, 4, 3), 64: (64, 32, 4, 3), 128: (64, 32, 8, 3), 4096: (64, 32, 8, 3)}


def bucket(n: int) -> int:
    """The key of `TABLE` for n rows."""
    return next((key for key in TABLE if n <= key), max(TABLE))


def choices(
    key: int, capability: int, light: bool, dtype: torch.dtype, crowded: bool = False
) -> list[tuple[int, int, int, int]]:
    """The (N, K, warps, stages) that are tried for a bucket on a GPU of this major compute capability.

    `light`: see `is_light`. `crowded`: the largest logits are to be found, and d is no multiple of 256, so that the end of
    each row has to be masked as well.
    """
    if dtype == torch.float32:
        return [FLOAT32[key]]
    if key > 64 and light and capability == 9:
        return [LARGE_TILE, *TABLE[key][1]]
    if key > 64 and (not light or crowded) and capability < 9:
        return [SMALL_TILE]
    return TABLE[key][1]


def is_light(flags: Mapping[str, object], top: bool) -> bool:
    """Whether what is done with the logits leaves registers for `LARGE_TILE`."""
    return not (flags["HAS_SOFTCAP"] or flags["ROUND"] or (flags["HAS_BIAS"] and top))


def multiprocessors(device: torch.device) -> int:
    """How many programs run side by side; a few under the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


def capability(device: torch.device) -> int:
    """Major compute capability of a GPU; 0 under the interpreter."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0


@functools.cache
def autotuned(key: int, capability: int, light: bool, dtype: torch.dtype, crowded: bool) -> triton.runtime.Autotuner:
    """The tile kernel with the configurations of one bucket; the interpreter takes a single small one."""
    tried = [(32, 32, 4, 1)] if INTERPRETING else choices(key, capability, light, dtype, crowded)
    configs = [triton.Config({"N": n, "K": k}, num_warps=warps, num_stages=stages) for n, k, warps, stages in tried]
    return triton.autotune(configs, key=["columns", "d", "GROUP"])(tiles_kernel)
