"""Mean and covariance per layer of states that are never all kept.

Summing raw squares loses everything when the mean is large beside the spread, as it is in residual streams; the sums are
therefore those of `moment_sums`, and neither the order of updates nor the size of batches matters. While there are fewer
rows than dimensions the rows are kept instead, whose n x n Gram matrix says the same as the d x d covariance for less.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from numbers import Integral

import torch
from torch import Tensor

from . import checks, moment_bytes, precision
from .moment_sums import BLOCK, MomentSums, lasting


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

    Examples
    --------
    >>> import torch
    >>> from precollapse.kernels import Moments
    >>> x = torch.tensor([[[0.0, 0.0]], [[2.0, 0.0]], [[0.0, 2.0]], [[2.0, 2.0]]])  # four states of one layer
    >>> moments = Moments(1, 2)
    >>> _ = moments.update(x[:1])
    >>> _ = moments.update(x[1:])  # the same in one batch or in several
    >>> moments.count, moments.mean.tolist(), moments.participation_ratio().tolist()
    (4, [[1.0, 1.0]], [2.0])
    """

    def __init__(self, n_layers: int, d: int, device: torch.device | str = "cpu") -> None:
        self._sums = MomentSums(n_layers, d, device)
        self._held: list[Tensor] = []
        self._torn = False

    @property
    def n_layers(self) -> int:
        """L."""
        return self._sums.n_layers

    @property
    def d(self) -> int:
        """Width of a state."""
        return self._sums.d

    @property
    def device(self) -> torch.device:
        """Where the accumulators live."""
        return self._sums.device

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

    @property
    def count(self) -> int:
        """Number of states seen."""
        self._check_whole()
        return self._sums.count + self._rows_held()

    def _rows_held(self) -> int:
        return sum(len(rows) for rows in self._held)

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
        with lasting():
            return self._taken(x.detach())

    def _taken(self, x: Tensor) -> Moments:
        limit = max(self.d, BLOCK) if self._sums.m2 is None else BLOCK
        if self._rows_held() + len(x) < limit:
            self._held.append(x.clone())
            return self
        self._sums.allocate()
        self._held.append(x)
        self._fold()
        return self

    def _fold(self) -> None:
        """Move the held rows into the sums."""
        if not self._held:
            return
        self._sums.allocate()
        with self._changing(), lasting(), precision.no_autocast(self.device):
            held, self._held = self._held, []
            self._sums.add(held)

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
        if other is self and self._sums.count:
            self._fold()
        with lasting():
            held = [rows.to(self.device) for rows in other._held]  # fails, if it must, before anything has changed
            if other._sums.count:
                self._fold()
                with self._changing():
                    self._sums.merge(other._sums)
            for rows in held:
                self.update(rows)
        return self

    @property
    def mean(self) -> Tensor:
        """[L, d] float64; NaN before the first state."""
        if self.count == 0:
            return self._sums.mean + math.nan
        total = self._sums.mean * self._sums.count
        for rows in self._held:
            total = total + rows.double().sum(0)
        return total / self.count

    def _centred(self, layer: int) -> Tensor:
        """The held rows of one layer, centred, [n, d] float64."""
        rows = torch.cat([part[:, layer].double() for part in self._held])
        return rows - rows.mean(0)

    def covariance(self, layer: int) -> Tensor:
        """Unbiased covariance (divisor n - 1) of one layer, [d, d] float64; NaN for fewer than two states."""
        if not isinstance(layer, Integral) or not -self.n_layers <= layer < self.n_layers:
            raise ValueError(f"Moments.covariance: layer must lie in [0, {self.n_layers}), found {layer!r}.")
        if self.count < 2:
            return self._sums.zeros(self.d, self.d) + math.nan
        if not self._sums.count:
            rows = self._centred(layer)
            return rows.T @ rows / (self.count - 1)
        self._fold()
        return self._sums.covariance(layer)

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
            positive or lies within its rounding, as when all states but one agree. States that do not vary have no ratio (NaN).
        """
        trace, frobenius, fourth = self._summary()
        # a variance below the rounding of the values themselves is none; sums of folded rows are of float32 products
        rounding = 2.0**-23 if self._sums.count else 2.0**-51
        varies = trace > rounding**2 * self.mean.square().sum(-1)
        trace = torch.where(varies, trace, math.nan)
        if not unbiased:
            return trace.square() / frobenius
        n = self.count
        if n < 4:
            return trace + math.nan
        # Below its own rounding the estimate of tr(C^2) says nothing: products of folded rows are of float32.
        least = (1e-6 if self._sums.count else 1e-12) * n * n * frobenius
        q = fourth / (n - 1)
        square_of_trace = 2 * frobenius + (n * n - 3 * n + 1) * trace.square() - n * q
        trace_of_square = (n - 1) * (n - 2) * frobenius + trace.square() - n * q
        defined = (trace_of_square > least) & (square_of_trace > 0)
        return torch.where(defined, square_of_trace / trace_of_square, math.nan)

    def aggregate(self, unbiased: bool = False) -> float:
        """Participation ratio averaged over layers, each weighted by its trace; over those that have one."""
        trace, ratio = self.trace(), self.participation_ratio(unbiased)
        used = ratio.isfinite() & (trace > 0)
        return float((trace[used] * ratio[used]).sum() / trace[used].sum())

    def _summary(self) -> tuple[Tensor, Tensor, Tensor]:
        """Per layer: tr C, |C|_F^2 and the sum of |x - mean|^4."""
        n = self.count
        trace, frobenius, fourth = (self._sums.zeros(self.n_layers) for _ in range(3))
        if n < 2:
            return trace + math.nan, frobenius + math.nan, fourth + math.nan
        if self._sums.count:
            self._fold()
        for layer in range(self.n_layers):
            if self._sums.count:
                trace[layer], frobenius[layer], fourth[layer] = self._sums.summary(layer)
                continue
            rows = self._centred(layer)
            gram = rows @ rows.T if n < self.d else rows.T @ rows
            squares = rows.square().sum(1)
            trace[layer] = squares.sum() / (n - 1)
            frobenius[layer] = gram.square().sum() / (n - 1) ** 2
            fourth[layer] = squares.square().sum()
        return trace, frobenius, fourth

    def to_bytes(self) -> bytes:
        """The whole state, to be read by `from_bytes`; an uncompressed .npz without pickles."""
        self._check_whole()
        return moment_bytes.to_bytes(self._sums, self._held)

    @classmethod
    def from_bytes(cls, data: bytes, device: torch.device | str = "cpu") -> Moments:
        """Read what `to_bytes` wrote.

        Raises
        ------
        ValueError
            When the bytes are not such a state, or of a newer format.
        """
        sums, held = moment_bytes.from_bytes(data, device)
        moments = cls(sums.n_layers, sums.d, device)
        moments._sums, moments._held = sums, held
        return moments
