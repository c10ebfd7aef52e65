"""What a caller may ask for: layers by number, list, range, fraction or "all", and sites by name.

Guarantees that a layer or site that does not exist is refused with what does exist, and that nothing asked for is dropped.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import RequestError
from .architectures import Architecture


def resolve_layers(layers: Any, n_layers: int) -> tuple[int, ...]:
    """Turn a layer selection into block indices.

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
    """
    if isinstance(layers, str):
        return _checked([i for part in layers.split(",") for i in _parse(part.strip(), n_layers)], n_layers)
    layers = _plain(layers)
    if isinstance(layers, bool | np.bool_) or layers is None:
        raise RequestError(f"layers must be 'all', block numbers or fractions, found {layers!r}")
    if isinstance(layers, numbers.Real):
        return _checked([_index(layers, n_layers)], n_layers)
    if isinstance(layers, Iterable):
        return _checked([_index(layer, n_layers) for layer in layers], n_layers)
    raise RequestError(f"layers must be 'all', block numbers or fractions, found {layers!r}")


def resolve_sites(sites: Any, architecture: Architecture, available: Iterable[str], backend: str) -> tuple[str, ...]:
    """Check the asked sites against the model and the backend; a single name stands for itself.

    Raises
    ------
    RequestError
        If a site is unknown, absent from this model, not given by this backend, or named twice.
    """
    if sites is None or not isinstance(sites, str | Iterable):
        raise RequestError(f"sites must be names such as ('resid_post',), or () for none, found {sites!r}")
    names = (sites,) if isinstance(sites, str) else tuple(sites)
    available = tuple(available)
    for name in names:
        architecture.require(name)
        if name not in available:
            raise RequestError(
                f"backend {backend!r} cannot give site {name!r} of this model; it gives {', '.join(available)}, and backend 'hf' gives {', '.join(architecture.sites)}"
            )
    if len(set(names)) != len(names):
        raise RequestError(f"sites {list(names)} name one site twice; name each once")
    return names


def _parse(text: str, n_layers: int) -> list[int]:
    if text == "all":
        return list(range(n_layers))
    if text == "last":
        return [n_layers - 1]
    try:
        if "." in text:
            return [_index(float(text), n_layers)]
        low, dash, high = text[1:].partition("-")
        if dash:
            first, last = _index(int(text[0] + low), n_layers), _index(int(high), n_layers)
            if last < first:
                raise RequestError(
                    f"layers {text!r} runs backwards, from block {first} to {last}; give the lower one first"
                )
            return list(range(first, last + 1))
        return [_index(int(text), n_layers)]
    except ValueError as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(
            f"layers {text!r} is not a number, a range such as 4-7, a fraction such as 0.5, 'all' or 'last'"
        ) from error


def _plain(value: Any) -> Any:
    """A number out of whatever holds just one: a numpy scalar, a tensor without axes."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def _index(layer: Any, n_layers: int) -> int:
    layer = _plain(layer)
    if isinstance(layer, numbers.Real) and not isinstance(layer, numbers.Integral):
        layer = float(layer)  # numpy's narrow floats and fractions are no Python floats
    if isinstance(layer, float) and (0.0 <= layer <= 1.0 or not layer.is_integer()):
        if not 0.0 <= layer <= 1.0:
            raise RequestError(f"layer fraction {layer} is outside [0, 1]; 0.0 is the first block and 1.0 the last")
        return round(layer * (n_layers - 1))
    try:
        if isinstance(layer, bool):
            raise TypeError
        number = int(layer) if isinstance(layer, float | str) else operator.index(layer)
    except (TypeError, ValueError) as error:
        raise RequestError(
            f"layer {layer!r} is not a block number; the model has layers 0 to {n_layers - 1}"
        ) from error
    if not -n_layers <= number < n_layers:
        raise RequestError(f"layer {number} does not exist; the model has layers 0 to {n_layers - 1}")
    return number % n_layers


def _checked(found: list[int], n_layers: int) -> tuple[int, ...]:
    if not found:
        raise RequestError(f"no layers were asked for; the model has layers 0 to {n_layers - 1}")
    twice = {layer for layer in found if found.count(layer) > 1}
    if twice:
        raise RequestError(f"layer {min(twice)} is asked for twice; name each layer once")
    return tuple(found)
