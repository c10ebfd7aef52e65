"""One row per sequence into a preallocated capture buffer: the tap that sits inside a forward hook.

It is an operator with a fake form, so a compiled backbone keeps its hooks in one graph, and it writes to a buffer whose
address never changes, so a CUDA graph may replay it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import checks
from .registry import TRITON, Operator, Tolerance

GATHER_ROWS = Operator("gather_rows")

ACCURACY = dict.fromkeys(checks.FLOATS, {"rows": Tolerance(0.0)})  # copied, and rounded once where `out` is narrower


def gather_rows(x: Tensor, index: Tensor, out: Tensor, layer: int, *, backend: str = "auto") -> None:
    """Write ``x[b, index[b]]`` into ``out[b, layer]`` for every b, cast to the dtype of `out`.

    Parameters
    ----------
    x : Tensor
        [B, T, d].
    index : Tensor
        [B] int64, each in [0, T), on the device of `x`.
    out : Tensor
        [B, L, d], changed in place. It is a buffer: no gradient flows into it.
    layer : int
        Which of the L rows of every sequence.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was found and what is expected. On a GPU a position outside [0, T) cannot be refused
        without waiting for the device; its row becomes NaN.

    Examples
    --------
    >>> import torch
    >>> from precollapse.kernels import gather_rows
    >>> x = torch.arange(12.0).reshape(2, 3, 2)  # two sequences of three positions
    >>> out = torch.zeros(2, 4, 2)  # room for four layers
    >>> gather_rows(x, torch.tensor([2, 1]), out, layer=0)
    >>> out[:, 0]
    tensor([[4., 5.],
            [8., 9.]])
    """
    name = "gather_rows"
    checks.tensor(name, "x", x, 3, checks.FLOATS)
    checks.tensor(name, "out", out, 3, checks.FLOATS)
    checks.tensor(name, "index", index, 1, (torch.int64,))
    checks.size(name, "index", index, 0, x.shape[0], "batch size of x")
    checks.size(name, "out", out, 0, x.shape[0], "batch size of x")
    checks.size(name, "out", out, 2, x.shape[2], "width of x")
    checks.same_device(name, "index", index, "x", x)
    checks.same_device(name, "out", out, "x", x)
    checks.whole(name, "layer", layer)
    checks.text(name, "backend", backend)
    if not 0 <= layer < out.shape[1]:
        raise ValueError(f"{name}: layer must lie in [0, {out.shape[1]}), the buffer's layers, found {layer}.")
    if out.requires_grad:
        raise ValueError(f"{name}: out requires a gradient, but gather_rows has none; allocate it without.")
    torch.ops.precollapse.gather_rows(x, index, out, layer, backend)


# Defined by hand: `torch.library.custom_op` costs several times the work of a row here, once per layer.
_library = torch.library.Library("precollapse", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("gather_rows(Tensor x, Tensor index, Tensor(a!) out, SymInt layer, str backend) -> ()")  # type: ignore[no-untyped-call]


@GATHER_ROWS.form("torch", rank=0, accuracy=ACCURACY)
def _torch_form(x: Tensor, index: Tensor, out: Tensor, layer: int) -> None:
    if x.device.type == "cpu":
        positions = index.tolist()
        if positions and not (min(positions) >= 0 and max(positions) < x.shape[1]):
            outside = next(p for p in positions if not 0 <= p < x.shape[1])
            raise ValueError(f"gather_rows: index holds {outside}; positions run from 0 to {x.shape[1] - 1}.")
    with torch.no_grad():  # else the buffer would join the graph of x, and keep it
        out[:, layer].copy_(x[torch.arange(x.shape[0], device=x.device), index])


@GATHER_ROWS.form("triton", rank=1, needs=TRITON, accuracy=ACCURACY)
def _triton_form(x: Tensor, index: Tensor, out: Tensor, layer: int) -> None:
    from .triton_forms import gather

    gather.gather_rows(x, index, out, layer)


def _gather_rows(x: Tensor, index: Tensor, out: Tensor, layer: int, backend: str) -> None:
    GATHER_ROWS.choose(backend, x.device, x.dtype).run(x, index, out, layer)


_library.impl("gather_rows", _gather_rows, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]


@torch.library.register_fake("precollapse::gather_rows", lib=_library)
def _(x, index, out, layer, backend):  # type: ignore[no-untyped-def]
    return None
