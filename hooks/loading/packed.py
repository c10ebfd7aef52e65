"""Whether packed weights (bitsandbytes) are as many numbers as their layers have, with every scale that they are unpacked by.

Guarantees that no model runs whose packed weights, blocks or scales are not those of its layers' sizes. It prevents wrong numbers without a
word (scales that are left out are taken for none) and reading beyond a tensor's end: the kernels that unpack take the sizes from a
record beside the weights, and nobody compares the two.
"""

from __future__ import annotations

import math
from typing import Any

from ...errors import RequestError


def refuse_mispacked(model: Any, name: str) -> None:
    """Refuse a loaded model of which a packed weight does not fit its layer.

    Parameters
    ----------
    model : torch.nn.Module
    name : str
        What a message calls the model.

    Raises
    ------
    RequestError
        Naming the first such layer.
    """
    for place, module in model.named_modules():
        weight, shape = getattr(module, "weight", None), _shape(module)
        if weight is None or shape is None:
            continue
        state, scales = getattr(weight, "quant_state", None), getattr(weight, "SCB", None)
        fault = ""
        if state is not None:
            fault = _fault_of_4_bits(weight, state, shape)
        elif scales is not None:
            fault = _fault_of_8_bits(weight, scales, shape)
        if fault:
            raise RequestError(
                f"the packed weights of model {name!r} do not fit its config.json: {place}.weight, {shape[0]}x{shape[1]} numbers, has {fault}. "
                "Likely cause: a cut checkpoint or a config of another size; get all files of the checkpoint again"
            )


def _shape(module: Any) -> tuple[int, int] | None:
    rows, columns = getattr(module, "out_features", None), getattr(module, "in_features", None)
    return (rows, columns) if isinstance(rows, int) and isinstance(columns, int) else None


def _fault_of_4_bits(weight: Any, state: Any, shape: tuple[int, int]) -> str:
    numbers = shape[0] * shape[1]
    if tuple(state.shape or ()) not in (shape, shape[::-1]):
        return f"a record of {'x'.join(map(str, state.shape or ())) or 'no'} numbers"
    elements = (numbers + 1) // (2 * weight.element_size())
    if weight.numel() != elements:
        return f"{weight.numel():,} packed elements, not {elements:,}"
    blocks = _blocks(numbers, state.blocksize)
    if state.absmax.numel() != blocks:
        return f"{state.absmax.numel():,} scales, not {blocks:,}"
    if state.code is None or state.code.numel() != 16:
        return "no table of 16 values"
    if not state.nested:
        return "" if state.absmax.is_floating_point() else "packed scales without the scales that unpack them"
    outer = state.state2
    if outer.absmax.numel() != _blocks(blocks, outer.blocksize):
        return f"{outer.absmax.numel():,} scales of scales, not {_blocks(blocks, outer.blocksize):,}"
    return "" if outer.code is not None and outer.code.numel() == 256 else "no table of 256 values for its scales"


def _fault_of_8_bits(weight: Any, scales: Any, shape: tuple[int, int]) -> str:
    if tuple(weight.shape) != shape:
        return f"{'x'.join(map(str, weight.shape))} packed numbers"
    return "" if scales.numel() == shape[0] else f"{scales.numel():,} scales, not {shape[0]:,}"


def _blocks(numbers: int, size: Any) -> int:
    return math.ceil(numbers / size) if isinstance(size, int) and size > 0 else -1
