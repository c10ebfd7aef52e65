"""Mean and covariance per layer of states that are never all kept.

Summing raw squares loses everything when the mean is large beside the spread, as it is in residual streams. `Moments`
centres every block of rows by its own mean and merges blocks by Chan's formula in float64, so neither the order of
updates nor the size of batches matters. While there are fewer rows than dimensions it keeps the rows instead, whose
n x n Gram matrix says the same as the d x d covariance for less.
"""

from __future__ import annotations

import contextlib
import io
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from . import checks, native, precision, registry

_BLOCK = 256  # rows folded at once, so that float32 sums stay short
_TILE = 512  # rows of the upper triangle computed at once
_FORMAT = 1


class Moments:
    """Streaming count, mean and second central moment of [n, L, d] states, per layer.

    Parameters
    ----------
    n_layers, d : int
        L and d.
    device : torch.device or str
        Where the accumulators live; updates must come from there.

    Notes
    -----
    Accumulators are float64; products of float32, float16 and bfloat16 rows are formed in float32 after centring in
    float64, those of float64 rows in float64. Memory: the first d rows (at least 256) as they come, L d numbers each;
    from then on L d (d + 3) float64 numbers, whose addresses stay, and fewer than 256 rows. For the moment of passing
    from one to the other there are both. Of the d x d numbers only the upper triangle is used.
    """

    def __init__(self, n_layers: int, d: int, device: torch.device | str = "cpu") -> None:
        if not all(isinstance(size, Integral) and not isinstance(size, bool) and size >= 1 for size in (n_layers, d)):
            raise ValueError(
                f"Moments: n_layers and d must be whole numbers of at least 1, found {n_layers!r} and {d!r}."
            )
        self.n_layers, self.d = int(n_layers), int(d)
        self.device = torch.empty(0, dtype=torch.float64, device=device).device  # with its number
        self._pending: list[Tensor] = []
        self._folded = 0
        self._m2: Tensor | None = None
        self._mean = self._zeros(n_layers, d)
        self._pivot: Tensor | None = None
        self._square = self._zeros(n_layers)  # sum of |x - pivot|^2
        self._cube = self._zeros(n_layers, d)  # sum of |x - pivot|^2 (x - pivot)
        self._fourth = self._zeros(n_layers)  # sum of |x - pivot|^4
        self._scratch: Tensor | None = None
        self._torn = False

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """What stops inside (memory that runs out, a key pressed) leaves sums of no set of states: never used again."""
        self._torn = True
        yield
        self._torn = False

    def _check_whole(self) -> None:
        if self._torn:
            raise RuntimeError(
                "Moments: an earlier update or merge stopped half way, so these are the sums of no set of states; read "
                "them again from where they were saved, or start anew."
            )

    def _zeros(self, *shape: int) -> Tensor:
        with _lasting():
            return torch.zeros(*shape, dtype=torch.float64, device=self.device)

    @property
    def count(self) -> int:
        """Number of states seen."""
        self._check_whole()
        return self._folded + self._held

    @property
    def _held(self) -> int:
        return sum(len(rows) for rows in self._pending)

    def update(self, x: Tensor) -> Moments:
        """Take in n more states.

        Parameters
        ----------
        x : Tensor
            [n, L, d], or [n, d] when there is one layer; any floating dtype; kept by value. n may be 0.

        Returns
        -------
        Moments
            Itself.

        Raises
        ------
        RuntimeError
            An earlier update stopped half way: its sums are those of no set of states.
        """
        self._check_whole()
        if isinstance(x, Tensor) and x.ndim == 2 and self.n_layers == 1:
            x = x[:, None]
        checks.tensor("Moments.update", "x", x, 3, checks.FLOATS)
        checks.size("Moments.update", "x", x, 1, self.n_layers, "number of layers")
        checks.size("Moments.update", "x", x, 2, self.d, "width of a state")
        if x.device != self.device:
            raise ValueError(f"Moments.update: x is on {x.device} but the accumulators on {self.device}; move x.")
        if len(x) == 0:
            return self
        with _lasting():
            return self._taken(x.detach())

    def _taken(self, x: Tensor) -> Moments:
        limit = max(self.d, 256) if self._m2 is None else 256
        if self._held + len(x) < limit:
            self._pending.append(x.clone())
            return self
        self._allocate()
        self._pending.append(x)
        self._fold()
        return self

    def _allocate(self) -> None:
        """The largest accumulator, before anything changes: where it cannot be had, all is as it was."""
        if self._m2 is None:
            self._m2 = self._zeros(self.n_layers, self.d, self.d)

    def _fold(self) -> None:
        """Move the held rows into the accumulators."""
        if not self._pending:
            return
        self._allocate()
        with self._changing(), _lasting(), precision.no_autocast(self.device):
            pending, self._pending = self._pending, []
            self._fold_rows(pending)

    def _fold_rows(self, pending: list[Tensor]) -> None:
        double = any(rows.dtype == torch.float64 for rows in pending)
        if self._pivot is None:
            self._pivot = pending[0].double().mean(0)
        total = sum(len(rows) for rows in pending)
        on_cpu = self.device.type == "cpu" and not self._by_triton(double)
        compiled = on_cpu and not double and native.load() is not None
        for layer in range(self.n_layers):
            rows = pending[0][:, layer] if len(pending) == 1 else torch.cat([part[:, layer] for part in pending])
            if compiled:
                self._fold_compiled(layer, rows)
                continue
            seen = self._folded
            for start in range(0, total, _BLOCK):
                block = rows[start : start + _BLOCK].double()
                self._fold_block(layer, block, seen, double)
                seen += len(block)
        self._folded += total

    def _fold_compiled(self, layer: int, rows: Tensor) -> None:
        assert self._pivot is not None and self._m2 is not None
        native.moments_update(
            rows if rows.stride(1) == 1 else rows.contiguous(),
            self._folded,
            self._pivot[layer],
            self._mean[layer],
            self._m2[layer],
            self._square[layer],
            self._cube[layer],
            self._fourth[layer],
        )

    def _fold_block(self, layer: int, block: Tensor, seen: int, double: bool) -> None:
        assert self._pivot is not None and self._m2 is not None
        offset = block - self._pivot[layer]
        squares = offset.square().sum(1)
        self._square[layer] += squares.sum()
        self._cube[layer] += squares @ offset
        self._fourth[layer] += squares.square().sum()
        n = len(block)
        mean = block.mean(0)
        delta = mean - self._mean[layer]
        # Chan's rank-one term rides along as one more row of the block.
        step = delta * math.sqrt(seen * n / (seen + n))
        centred = torch.cat([block - mean, step[None]])
        self._mean[layer] += delta * (n / (seen + n))
        m2 = self._m2[layer]
        if self._by_triton(double):
            from . import triton_moments

            triton_moments.add_product(centred.float(), m2)
            return
        compute = torch.float64 if double else precision.product_dtype(self.device)
        centred = centred.to(compute)
        if self._scratch is None or self._scratch.dtype != compute:
            self._scratch = torch.empty(min(_TILE, self.d) * self.d, dtype=compute, device=self.device)
        for low in range(0, self.d, _TILE):
            high = min(low + _TILE, self.d)
            product = self._scratch[: (high - low) * (self.d - low)].view(high - low, self.d - low)
            torch.mm(centred[:, low:high].T, centred[:, low:], out=product)
            m2[low:high, low:] += product

    def _by_triton(self, double: bool) -> bool:
        return self.device.type == "cuda" and not double and registry.has_triton()

    def merge(self, other: Moments) -> Moments:
        """Take in all that `other` has seen; `other` stays as it is.

        Raises
        ------
        TypeError, ValueError
            When it is no Moments, or L or d differ.
        """
        if not isinstance(other, Moments):
            raise TypeError(f"Moments.merge: other must be a Moments, found {type(other).__name__}.")
        if (other.n_layers, other.d) != (self.n_layers, self.d):
            raise ValueError(
                f"Moments.merge: other has L, d = {other.n_layers}, {other.d}; expected {self.n_layers}, {self.d}."
            )
        self._check_whole()
        other._check_whole()
        if other is self and self._folded:
            self._fold()
        with _lasting():
            pending = [
                rows.to(self.device) for rows in other._pending
            ]  # fails, if it must, before anything has changed
            if other._folded:
                self._fold()
                with self._changing():
                    self._merge_folded(other)
            for rows in pending:
                self.update(rows)
        return self

    def _merge_folded(self, other: Moments) -> None:
        assert other._m2 is not None and other._pivot is not None
        device = self.device
        if not self._folded:
            self._m2 = other._m2.to(device, copy=True)
            self._mean, self._pivot = other._mean.to(device, copy=True), other._pivot.to(device, copy=True)
            self._square, self._cube = other._square.to(device, copy=True), other._cube.to(device, copy=True)
            self._fourth, self._folded = other._fourth.to(device, copy=True), other._folded
            return
        assert self._m2 is not None and self._pivot is not None
        n, m = self._folded, other._folded
        for layer in range(self.n_layers):
            square, cube, fourth = (part.to(device) for part in other._about(layer, self._pivot[layer]))
            self._square[layer] += square
            self._cube[layer] += cube
            self._fourth[layer] += fourth
            delta = other._mean[layer].to(device) - self._mean[layer]
            self._m2[layer] += other._m2[layer].to(device)
            for low in range(0, self.d, _TILE):
                high = min(low + _TILE, self.d)
                self._m2[layer, low:high, low:].addr_(delta[low:high], delta[low:], alpha=n * m / (n + m))
            self._mean[layer] += delta * (m / (n + m))
        self._folded += m

    def _about(self, layer: int, point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sums of |y|^2, |y|^2 y and |y|^4 with y = x - point, from those about the pivot (folded rows only)."""
        assert self._pivot is not None and self._m2 is not None
        n = self._folded
        pivot = self._pivot[layer]
        delta = point.to(pivot.device) - pivot
        first = n * (self._mean[layer] - pivot)
        upper = self._m2[layer].triu()
        drift = self._mean[layer] - pivot
        second = upper @ delta + upper.triu(1).T @ delta + n * drift * (drift @ delta)
        square, cube, fourth = self._square[layer], self._cube[layer], self._fourth[layer]
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

    @property
    def mean(self) -> Tensor:
        """[L, d] float64; NaN before the first state."""
        if self.count == 0:
            return self._mean + math.nan
        total = self._mean * self._folded
        for rows in self._pending:
            total = total + rows.double().sum(0)
        return total / self.count

    def _rows(self, layer: int) -> Tensor:
        """The held rows of one layer, centred, [n, d] float64."""
        rows = torch.cat([part[:, layer].double() for part in self._pending])
        return rows - rows.mean(0)

    def covariance(self, layer: int) -> Tensor:
        """Unbiased covariance (divisor n - 1) of one layer, [d, d] float64; NaN for fewer than two states."""
        if not isinstance(layer, Integral) or not -self.n_layers <= layer < self.n_layers:
            raise ValueError(f"Moments.covariance: layer must lie in [0, {self.n_layers}), found {layer!r}.")
        if self.count < 2:
            return self._zeros(self.d, self.d) + math.nan
        if not self._folded:
            rows = self._rows(layer)
            return rows.T @ rows / (self.count - 1)
        self._fold()
        assert self._m2 is not None
        upper = self._m2[layer].triu()
        return (upper + upper.triu(1).T) / (self.count - 1)

    def trace(self) -> Tensor:
        """[L] float64: total variance of every layer."""
        return self._summary()[0]

    def participation_ratio(self, unbiased: bool = False) -> Tensor:
        """[L] float64: tr(C)^2 / |C|_F^2, the number of equal directions that would spread as much.

        Parameters
        ----------
        unbiased : bool
            Divide unbiased estimates of (tr C)^2 and tr(C^2) instead of the sample covariance's own, which is far too
            small when d is not small beside n. They hold for any distribution with fourth moments (Himeno and Yamada,
            Journal of Multivariate Analysis 130, 2014) and need n >= 4; NaN otherwise, or where an estimate is not
            positive or lies within its rounding, as when all states but one agree.
        """
        trace, frobenius, fourth = self._summary()
        if not unbiased:
            return trace.square() / frobenius
        n = self.count
        if n < 4:
            return trace + math.nan
        # Below its own rounding the estimate of tr(C^2) says nothing: products of folded rows are of float32.
        rounding = (1e-6 if self._folded else 1e-12) * n * n * frobenius
        q = fourth / (n - 1)
        square_of_trace = 2 * frobenius + (n * n - 3 * n + 1) * trace.square() - n * q
        trace_of_square = (n - 1) * (n - 2) * frobenius + trace.square() - n * q
        defined = (trace_of_square > rounding) & (square_of_trace > 0)
        return torch.where(defined, square_of_trace / trace_of_square, math.nan)

    def aggregate(self, unbiased: bool = False) -> float:
        """Participation ratio averaged over layers, each weighted by its trace; over those that have one."""
        trace, ratio = self.trace(), self.participation_ratio(unbiased)
        used = ratio.isfinite() & (trace > 0)
        return float((trace[used] * ratio[used]).sum() / trace[used].sum())

    def _summary(self) -> tuple[Tensor, Tensor, Tensor]:
        """Per layer: tr C, |C|_F^2 and the sum of |x - mean|^4."""
        n = self.count
        trace, frobenius, fourth = (self._zeros(self.n_layers) for _ in range(3))
        if n < 2:
            return trace + math.nan, frobenius + math.nan, fourth + math.nan
        if self._folded:
            self._fold()
        for layer in range(self.n_layers):
            if not self._folded:
                rows = self._rows(layer)
                gram = rows @ rows.T if n < self.d else rows.T @ rows
                squares = rows.square().sum(1)
                trace[layer] = squares.sum() / (n - 1)
                frobenius[layer] = gram.square().sum() / (n - 1) ** 2
                fourth[layer] = squares.square().sum()
            else:
                assert self._m2 is not None
                diagonal = self._m2[layer].diagonal()
                trace[layer] = diagonal.sum() / (n - 1)
                upper = self._m2[layer].triu(1)
                frobenius[layer] = (2 * upper.square().sum() + diagonal.square().sum()) / (n - 1) ** 2
                fourth[layer] = self._about(layer, self._mean[layer])[2]
        return trace, frobenius, fourth

    def to_bytes(self) -> bytes:
        """The whole state, to be read by `from_bytes`; an uncompressed .npz without pickles."""
        self._check_whole()
        arrays: dict[str, np.ndarray] = {"format": np.array([_FORMAT, self.n_layers, self.d, self._folded])}
        if self._folded:
            assert self._m2 is not None and self._pivot is not None
            for name in ("mean", "pivot", "square", "cube", "fourth"):
                arrays[name] = getattr(self, f"_{name}").cpu().numpy()
            for low in range(0, self.d, _TILE):
                arrays[f"m2_{low}"] = self._m2[:, low : low + _TILE, low:].cpu().numpy()
        if self._pending:
            with precision.no_autocast(torch.device("cpu")):
                rows = torch.cat([part.cpu() for part in self._pending])
            bits = rows.dtype == torch.bfloat16
            arrays["rows_bfloat16" if bits else "rows"] = (rows.view(torch.int16) if bits else rows).numpy()
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, device: torch.device | str = "cpu") -> Moments:
        """Read what `to_bytes` wrote.

        Raises
        ------
        ValueError
            When the bytes are not such a state, or of a newer format.
        """
        try:
            arrays = np.load(io.BytesIO(data), allow_pickle=False)
            version, n_layers, d, folded = (int(value) for value in arrays["format"])
        except Exception as error:
            raise _unreadable(data, error) from error
        if version > _FORMAT:
            raise ValueError(f"Moments.from_bytes: format {version} is newer than {_FORMAT}; update precollapse.")
        try:
            return cls._read(arrays, n_layers, d, folded, device)
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
            raise _unreadable(data, error) from error

    @classmethod
    def _read(
        cls, arrays: Mapping[str, np.ndarray], n_layers: int, d: int, folded: int, device: torch.device | str
    ) -> Moments:
        unread = set(arrays) - {"format"}

        def array(name: str, dtypes: tuple[str, ...], *shape: int | None) -> Tensor:
            found = arrays[name]
            unread.remove(name)
            fits = len(found.shape) == len(shape) and all(
                b in (None, a) for a, b in zip(found.shape, shape, strict=True)
            )
            if found.dtype not in dtypes or not fits:
                raise ValueError(f"{name} is {found.dtype} of shape {found.shape}")
            return torch.from_numpy(found)

        moments = cls(n_layers, d, device)
        moments._folded = folded
        if folded:
            for name in ("mean", "pivot", "cube"):
                setattr(moments, f"_{name}", array(name, ("float64",), n_layers, d).to(device))
            for name in ("square", "fourth"):
                setattr(moments, f"_{name}", array(name, ("float64",), n_layers).to(device))
            moments._m2 = moments._zeros(n_layers, d, d)
            for low in range(0, d, _TILE):
                part = array(f"m2_{low}", ("float64",), n_layers, min(_TILE, d - low), d - low)
                moments._m2[:, low : low + _TILE, low:] = part.to(device)
        if "rows" in arrays:
            rows = array("rows", ("float64", "float32", "float16"), None, n_layers, d)
            moments._pending = [rows.to(device)]
        elif "rows_bfloat16" in arrays:
            rows = array("rows_bfloat16", ("int16",), None, n_layers, d)
            moments._pending = [rows.view(torch.bfloat16).to(device)]
        if unread:  # rows under a damaged name would be lost without a word
            raise ValueError(f"{', '.join(sorted(unread))} unknown")
        return moments


@contextlib.contextmanager
def _lasting() -> Iterator[None]:
    """Tensors made here may be changed later, whatever mode the caller is in: those of inference mode may not."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _unreadable(data: bytes, error: Exception) -> ValueError:
    return ValueError(f"Moments.from_bytes: these {len(data)} bytes are not a saved Moments ({error}).")
