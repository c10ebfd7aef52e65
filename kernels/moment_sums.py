"""The sums that `Moments` keeps of rows it no longer has, and the forms that add a layer's rows to them.

Rows are centred by their own block's mean and blocks merged by Chan's formula, in float64, so that a mean that is large
beside the spread costs no digits. Sums about a fixed pivot give the fourth moments.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from numbers import Integral

import torch
from torch import Tensor

from . import native, precision
from .registry import LIBRARY, ROUNDED_PRODUCTS, TRITON, Operator, Tolerance

MOMENTS = Operator("Moments")

BLOCK = 256  # rows folded at once, so that float32 sums stay short
TILE = 512  # rows of the upper triangle computed at once

# Of the covariance in the Frobenius norm, and of the mean.
FLOAT32_PRODUCTS = {"covariance": Tolerance(5e-6), "mean": Tolerance(1e-12, 1e-12)}
FLOAT64_PRODUCTS = {"covariance": Tolerance(1e-11), "mean": Tolerance(1e-12, 1e-12)}


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Tensors made here may be changed later, whatever mode the caller is in: those of inference mode may not."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class MomentSums:
    """Sums of rows of L layers: all float64, on one device.

    Parameters
    ----------
    n_layers, d : int
        L and d.
    device : torch.device or str
        Where the sums live.

    Attributes
    ----------
    count : int
        Rows that are in the sums.
    mean : Tensor
        [L, d].
    m2 : Tensor, optional
        [L, d, d]: sums of (x - mean) (x - mean)', the upper triangle of each; None until `allocate`.
    pivot : Tensor, optional
        [L, d]: the mean of the first rows; None until there are any.
    square, cube, fourth : Tensor
        [L], [L, d] and [L]: sums of |y|^2, |y|^2 y and |y|^4 with y = x - pivot.
    """

    def __init__(self, n_layers: int, d: int, device: torch.device | str = "cpu") -> None:
        if not all(isinstance(size, Integral) and not isinstance(size, bool) and size >= 1 for size in (n_layers, d)):
            raise ValueError(
                f"Moments: n_layers and d must be whole numbers of at least 1, found {n_layers!r} and {d!r}."
            )
        self.n_layers, self.d = int(n_layers), int(d)
        self.device = torch.empty(0, dtype=torch.float64, device=device).device  # with its number
        self.count = 0
        self.m2: Tensor | None = None
        self.pivot: Tensor | None = None
        self.mean = self.zeros(n_layers, d)
        self.square = self.zeros(n_layers)
        self.cube = self.zeros(n_layers, d)
        self.fourth = self.zeros(n_layers)
        self.scratch: Tensor | None = None

    def zeros(self, *shape: int) -> Tensor:
        """Float64 zeros that may be changed later."""
        with lasting():
            return torch.zeros(*shape, dtype=torch.float64, device=self.device)

    def allocate(self) -> None:
        """The largest sum, before anything changes: where it cannot be had, all is as it was."""
        if self.m2 is None:
            self.m2 = self.zeros(self.n_layers, self.d, self.d)

    def add(self, parts: list[Tensor]) -> None:
        """Rows [n, L, d] in one or more parts join the sums."""
        assert self.m2 is not None
        double = any(rows.dtype == torch.float64 for rows in parts)
        if self.pivot is None:
            self.pivot = parts[0].double().mean(0)
        form = MOMENTS.choose("auto", self.device, torch.float64 if double else torch.float32)
        for layer in range(self.n_layers):
            rows = parts[0][:, layer] if len(parts) == 1 else torch.cat([part[:, layer] for part in parts])
            form.run(self, layer, rows)
        self.count += sum(len(rows) for rows in parts)

    def merge(self, other: MomentSums) -> None:
        """All that is in `other`, which holds some rows, joins these sums."""
        assert other.m2 is not None and other.pivot is not None
        device = self.device
        if not self.count:
            self.m2 = other.m2.to(device, copy=True)
            self.mean, self.pivot = other.mean.to(device, copy=True), other.pivot.to(device, copy=True)
            self.square, self.cube = other.square.to(device, copy=True), other.cube.to(device, copy=True)
            self.fourth, self.count = other.fourth.to(device, copy=True), other.count
            return
        assert self.m2 is not None and self.pivot is not None
        n, m = self.count, other.count
        for layer in range(self.n_layers):
            square, cube, fourth = (part.to(device) for part in other.about(layer, self.pivot[layer]))
            self.square[layer] += square
            self.cube[layer] += cube
            self.fourth[layer] += fourth
            delta = other.mean[layer].to(device) - self.mean[layer]
            self.m2[layer] += other.m2[layer].to(device)
            for low in range(0, self.d, TILE):
                high = min(low + TILE, self.d)
                self.m2[layer, low:high, low:].addr_(delta[low:high], delta[low:], alpha=n * m / (n + m))
            self.mean[layer] += delta * (m / (n + m))
        self.count += m

    def about(self, layer: int, point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sums of |y|^2, |y|^2 y and |y|^4 with y = x - point, from those about the pivot."""
        assert self.pivot is not None and self.m2 is not None
        n = self.count
        pivot = self.pivot[layer]
        delta = point.to(pivot.device) - pivot
        first = n * (self.mean[layer] - pivot)
        upper = self.m2[layer].triu()
        drift = self.mean[layer] - pivot
        second = upper @ delta + upper.triu(1).T @ delta + n * drift * (drift @ delta)
        square, cube, fourth = self.square[layer], self.cube[layer], self.fourth[layer]
        length = delta @ delta
        inner = first @ delta
        new_square = square - 2 * inner + n * length
        new_cube = cube - delta * square - 2 * second + 2 * delta * inner + length * first - n * length * delta
        new_fourth = (
            fourth
            - 4 * (cube @ delta)
            + 4 * (second @ delta)
            + 2 * length * square
            - 4 * length * inner
            + n * length**2
        )
        return new_square, new_cube, new_fourth

    def covariance(self, layer: int) -> Tensor:
        """Unbiased covariance of one layer, [d, d]."""
        assert self.m2 is not None
        upper = self.m2[layer].triu()
        return (upper + upper.triu(1).T) / (self.count - 1)

    def summary(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of one layer: tr C, |C|_F^2 and the sum of |x - mean|^4."""
        assert self.m2 is not None
        diagonal = self.m2[layer].diagonal()
        upper = self.m2[layer].triu(1)
        frobenius = (2 * upper.square().sum() + diagonal.square().sum()) / (self.count - 1) ** 2
        return diagonal.sum() / (self.count - 1), frobenius, self.about(layer, self.mean[layer])[2]


@MOMENTS.form(
    "cpu", rank=2, needs=LIBRARY, dtypes=ROUNDED_PRODUCTS, accuracy=dict.fromkeys(ROUNDED_PRODUCTS, FLOAT32_PRODUCTS)
)
def _cpu_form(sums: MomentSums, layer: int, rows: Tensor) -> None:
    assert sums.pivot is not None and sums.m2 is not None
    native.moments_update(
        rows if rows.stride(1) == 1 else rows.contiguous(),
        sums.count,
        sums.pivot[layer],
        sums.mean[layer],
        sums.m2[layer],
        sums.square[layer],
        sums.cube[layer],
        sums.fourth[layer],
    )


@MOMENTS.form("reference", rank=0, dtypes=(torch.float64,), accuracy={torch.float64: FLOAT64_PRODUCTS})
def _reference_form(sums: MomentSums, layer: int, rows: Tensor) -> None:
    for centred in _centred_blocks(sums, layer, rows):
        _add_product(sums, layer, centred)


@MOMENTS.form("torch", rank=1, dtypes=ROUNDED_PRODUCTS, accuracy=dict.fromkeys(ROUNDED_PRODUCTS, FLOAT32_PRODUCTS))
def _torch_form(sums: MomentSums, layer: int, rows: Tensor) -> None:
    compute = precision.product_dtype(sums.device)
    for centred in _centred_blocks(sums, layer, rows):
        _add_product(sums, layer, centred.to(compute))


@MOMENTS.form(
    "triton", rank=2, needs=TRITON, dtypes=ROUNDED_PRODUCTS, accuracy=dict.fromkeys(ROUNDED_PRODUCTS, FLOAT32_PRODUCTS)
)
def _triton_form(sums: MomentSums, layer: int, rows: Tensor) -> None:
    from .triton_forms import moments

    assert sums.m2 is not None
    for centred in _centred_blocks(sums, layer, rows):
        moments.add_product(centred.float(), sums.m2[layer])


def _centred_blocks(sums: MomentSums, layer: int, rows: Tensor) -> Iterator[Tensor]:
    """Rows of one layer a block at a time, float64 and centred; mean and sums about the pivot are brought up to date.

    A block's last row is the rank-one term of Chan's merge.
    """
    assert sums.pivot is not None
    seen = sums.count
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK].double()
        offset = block - sums.pivot[layer]
        squares = offset.square().sum(1)
        sums.square[layer] += squares.sum()
        sums.cube[layer] += squares @ offset
        sums.fourth[layer] += squares.square().sum()
        n = len(block)
        mean = block.mean(0)
        delta = mean - sums.mean[layer]
        step = delta * math.sqrt(seen * n / (seen + n))
        centred = torch.cat([block - mean, step[None]])
        sums.mean[layer] += delta * (n / (seen + n))
        yield centred
        seen += n


def _add_product(sums: MomentSums, layer: int, centred: Tensor) -> None:
    """m2 += centred' centred in its upper triangle, TILE rows of it at a time through one scratch tensor."""
    assert sums.m2 is not None
    m2, d = sums.m2[layer], sums.d
    if sums.scratch is None or sums.scratch.dtype != centred.dtype:
        sums.scratch = torch.empty(min(TILE, d) * d, dtype=centred.dtype, device=sums.device)
    for low in range(0, d, TILE):
        high = min(low + TILE, d)
        product = sums.scratch[: (high - low) * (d - low)].view(high - low, d - low)
        torch.mm(centred[:, low:high].T, centred[:, low:], out=product)
        m2[low:high, low:] += product
