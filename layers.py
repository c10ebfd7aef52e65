"""Names of layers: one grammar for a capture of a model, for the layers that a run holds, and for how they are printed.

A leaf that any folder may import. Guarantees that "5,10-12,-1", "all" and "last" mean the same in every command, that a layer that does not
exist is refused with what does exist, and that nothing that was asked for is dropped.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .checks import is_whole
from .errors import RequestError


def resolve_layers(layers: Any, n_layers: int) -> tuple[int, ...]:
    """Turn a layer selection into block indices of a model.

    Parameters
    ----------
    layers : "all", "last", int, float, str, or iterable of int or float
        Integers may be negative (-1 is the last block). A float in [0, 1] is a fraction of the depth: 0.0 the first block, 1.0
        the last. A string may list them: "0,5,10-12,-1", "all", "last", "0.5".
    n_layers : int

    Returns
    -------
    tuple of int
        In the order asked for.

    Raises
    ------
    RequestError
        If a layer is out of range, given twice, or the selection is empty or of another type.

    Examples
    --------
    >>> resolve_layers("0,10-12,-1", 30)
    (0, 10, 11, 12, 29)
    >>> resolve_layers(0.5, 30)
    (14,)
    """

    def index(layer: Any) -> int:
        return _index(layer, n_layers)

    if isinstance(layers, str):
        parts = [part.strip() for part in layers.split(",")]
        return _each_once(_parse(parts, "layers", index, range(n_layers)), n_layers)
    layers = _plain(layers)
    if isinstance(layers, numbers.Real) and not isinstance(layers, bool):
        return _each_once([index(layers)], n_layers)
    if isinstance(layers, Iterable):
        return _each_once([index(layer) for layer in layers], n_layers)
    raise RequestError(f"layers must be 'all', block numbers or fractions, found {layers!r}.")


def held_layers(text: str, held: Sequence[int], what: str = "layers") -> tuple[int, ...]:
    """Layers named in text, of those that a run holds.

    Parameters
    ----------
    text : str
        As for `resolve_layers`, without fractions (a run does not say how deep its model was); negative numbers count back
        from the highest layer held.
    held : sequence of int
    what : str
        What a message calls the selection, as a flag.

    Returns
    -------
    tuple of int
        In the order asked for; a layer that is named twice is there once.

    Raises
    ------
    RequestError
        If the text is not understood, or names a layer that is not held.

    Examples
    --------
    >>> held_layers("10-12,-1", range(30))
    (10, 11, 12, 29)
    """

    def index(layer: int | float) -> int:
        if isinstance(layer, float):
            raise RequestError(f"{what} {text!r} gives a fraction; name the layers of a run by their numbers.")
        return layer if layer >= 0 or not held else max(held) + 1 + layer

    parts = [part.strip() for part in text.split(",") if part.strip()] or [""]
    chosen = _parse(parts, what, index, held)
    absent = [layer for layer in chosen if layer not in held]
    if absent or not chosen:
        raise RequestError(
            f"{what} {text!r} names layer {absent[0] if absent else 'none'}, which the run does not hold; it holds "
            f"{', '.join(map(str, held)) or 'none'}."
        )
    return tuple(dict.fromkeys(chosen))


def layer_text(layers: Sequence[int], between: str = " to ") -> str:
    """Layers as a reader is shown them: "0 to 29" for more than two in a row, else one by one.

    Examples
    --------
    >>> layer_text(range(30)), layer_text([0, 5, 7])
    ('0 to 29', '0, 5, 7')
    """
    in_a_row = len(layers) > 2 and list(layers) == list(range(layers[0], layers[0] + len(layers)))
    return f"{layers[0]}{between}{layers[-1]}" if in_a_row else ", ".join(map(str, layers))


def _parse(parts: Sequence[str], what: str, index: Callable[[Any], int], every: Sequence[int]) -> list[int]:
    """Layers that parts of a list name; `index` says which one a number is, `every` what "all" and "last" stand for."""
    layers: list[int] = []
    for part in parts:
        if part == "all":
            layers += every
        elif part == "last" and every:
            layers.append(max(every))
        else:
            layers += _numbers(part, what, index)
    return layers


def _numbers(part: str, what: str, index: Callable[[Any], int]) -> Sequence[int]:
    """Layers that a number, a fraction or a range names."""
    low, dash, high = part[1:].partition("-")
    ends: tuple[int | float, ...]
    try:
        if "." in part:
            ends = (float(part),)
        else:
            ends = (int(part[:1] + low), int(high)) if dash else (int(part),)
    except ValueError as error:
        raise RequestError(
            f"{what} {part!r} is not a number, a range such as 4-7, a fraction such as 0.5, 'all' or 'last'."
        ) from error
    bounds = [index(end) for end in ends]
    if bounds[-1] < bounds[0]:
        raise RequestError(
            f"{what} {part!r} runs backwards, from block {bounds[0]} to {bounds[-1]}; give the lower one first."
        )
    return range(bounds[0], bounds[-1] + 1)


def _plain(value: Any) -> Any:
    """A number out of whatever holds just one: a numpy scalar, a tensor without axes."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def _index(layer: Any, n_layers: int) -> int:
    layer = _plain(layer)
    if isinstance(layer, numbers.Real) and not isinstance(layer, numbers.Integral):
        layer = float(layer)  # numpy's narrow floats and fractions are no Python floats
    if isinstance(layer, float) and (0.0 <= layer <= 1.0 or not layer.is_integer()):
        if not 0.0 <= layer <= 1.0:
            raise RequestError(f"layer fraction {layer} is outside [0, 1]; 0.0 is the first block and 1.0 the last.")
        return round(layer * (n_layers - 1))
    try:
        if isinstance(layer, bool):
            raise TypeError
        number = int(layer) if isinstance(layer, float | str) else operator.index(layer)
    except (TypeError, ValueError) as error:
        raise RequestError(
            f"layer {layer!r} is not a block number; the model has layers 0 to {n_layers - 1}."
        ) from error
    if not is_whole(number, -n_layers, n_layers - 1):
        raise RequestError(f"layer {number} does not exist; the model has layers 0 to {n_layers - 1}.")
    return number % n_layers


def _each_once(layers: list[int], n_layers: int) -> tuple[int, ...]:
    if not layers:
        raise RequestError(f"no layers were asked for; the model has layers 0 to {n_layers - 1}.")
    twice = {layer for layer in layers if layers.count(layer) > 1}
    if twice:
        raise RequestError(f"layer {min(twice)} is asked for twice; name each layer once.")
    return tuple(layers)
