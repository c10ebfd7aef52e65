"""Tensors of saved files, read as the arrays of a run.

Guarantees that files which disagree with each other, or a tensor whose offsets do not fit its values, are refused by name before a row of
them is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import RequestError
from ..dtypes import ITEM_TYPES, to_returned
from ..geometry import ArraySpec
from .saved import Saved, Source

_LAYER = re.compile(r"(?:(?P<site>.+?)?[._-]+)??(?P<word>(?:layers?|blocks?|h)[._-]*)?(?P<layer>\d+)")
SIDES = (".offsets", ".shapes")


@dataclass(frozen=True)
class About:
    """What an export says of its tensors: layer numbers by array (None: no layer axis), column types, place fields."""

    layers: dict[str, tuple[int, ...] | None]
    columns: dict[str, str]
    places: tuple[str, str] | None

    @classmethod
    def read(cls, metadata: dict[str, str]) -> About:
        layers: dict[str, tuple[int, ...] | None] = {}
        for key, value in metadata.items():
            if key.startswith("layers."):
                numbers = json.loads(value)
                if numbers is not None and not all(type(number) is int for number in numbers):
                    raise ValueError(f"{key} is {value}, not a list of layer numbers")
                layers[key[7:]] = None if numbers is None else tuple(numbers)
        columns = dict(part.split(":") for part in metadata.get("columns", "").split(",") if part)
        file, _, row = metadata.get("places", "").partition(",")
        return cls(layers, columns, (file, row) if row else None)

    @classmethod
    def merged(cls, parts: list[About]) -> About:
        """That of the first file, with what only later ones say."""
        layers: dict[str, tuple[int, ...] | None] = {}
        columns: dict[str, str] = {}
        for about in reversed(parts):
            layers |= about.layers
            columns |= about.columns
        return cls(layers, columns, next((about.places for about in parts if about.places), None))


Part = tuple[Mapping[str, Source], About]
"""Tensors of a file by name, and what its metadata say of them."""


def about_of(root: Path, name: str, saved: Saved) -> About:
    """What a file's metadata say of its tensors."""
    try:
        return About.read(dict(saved.metadata))
    except (ValueError, TypeError, AttributeError) as error:
        raise RequestError(f"{root}/{name} is no whole safetensors file ({error}).") from None


def check_alike(
    root: Path,
    name: str,
    part: Part,
    other_name: str,
    other: Part,
) -> None:
    """Refuse two files whose tensors differ in more than their number of rows: they are read as one array."""
    sources, others = part[0], other[0]
    both = f"{root}: {name} and {other_name}"
    if sources.keys() != others.keys():
        odd = sorted(sources.keys() ^ others.keys())[0]
        raise RequestError(f"{both} do not hold the same tensors (tensor {odd!r}).")
    for key in sources:
        mine, theirs = ((source.dtype, source.shape[1:]) for source in (sources[key], others[key]))
        if mine != theirs:
            raise RequestError(
                f"{both} differ in tensor {key!r}: {mine[0]} [n, *{mine[1]}], {theirs[0]} [n, *{theirs[1]}]."
            )
    layers, others_layers = part[1].layers, other[1].layers
    for key in layers.keys() & others_layers.keys():
        if layers[key] != others_layers[key]:
            raise RequestError(f"{both} differ in the layer numbers of {key!r}: {layers[key]}, {others_layers[key]}.")


def arrays_of(
    root: Path, sources: Mapping[str, Source], plain: list[str], layers: dict[str, tuple[int, ...] | None]
) -> tuple[dict[str, ArraySpec], dict[str, str | list[str]]]:
    """Arrays of the run, and for each the tensor that it is, or the list of one tensor per layer that it is made of."""
    arrays: dict[str, ArraySpec] = {}
    keys: dict[str, str | list[str]] = {}
    per_layer: dict[str, dict[int, str]] = {}
    for key in plain:
        source = sources[key]
        match = _LAYER.fullmatch(key) if key not in layers else None
        if match and len(source.shape) == 2:
            site, number = (match["site"] or "activations").replace("/", "_"), int(match["layer"])
            twin = per_layer.setdefault(site, {}).setdefault(number, key)
            if twin != key:
                raise RequestError(
                    f"{root}: tensors {twin!r} and {key!r} are both layer {number} of {site!r}: rename one."
                )
        elif not source.shape:
            raise RequestError(f"{root}: tensor {key!r} is a single number, not one row per state.")
        elif match and match["word"]:
            raise RequestError(
                f"{root}: tensor {key!r} is one layer by its name, but has shape {list(source.shape)}: give [n, d], one "
                "row per state."
            )
        else:
            given = layers.get(key)
            if key not in layers and len(source.shape) == 3:
                given = tuple(range(source.shape[1]))
            arrays[key] = ArraySpec(source.shape[1:], source.dtype, given)
            keys[key] = key
    for site, of_site in per_layer.items():
        numbers = sorted(of_site)
        kinds = {(sources[of_site[number]].shape[1:], sources[of_site[number]].dtype) for number in numbers}
        if len(kinds) > 1 or site in arrays:
            raise RequestError(f"{root}: the layers of {site!r} differ in shape or type: {sorted(map(str, kinds))}.")
        shape, dtype = kinds.pop()
        arrays[site] = ArraySpec((len(numbers), *shape), dtype, tuple(numbers))
        keys[site] = [of_site[number] for number in numbers]
    return arrays, keys


def row_count(root: Path, name: str, sources: Mapping[str, Source], plain: list[str], ragged: list[str]) -> int:
    counts = {key: sources[key].shape[0] for key in plain}
    for key in ragged:
        kinds = [(sources[key + side].dtype, len(sources[key + side].shape)) for side in ("", *SIDES)]
        if [kinds[0][1], *kinds[1:]] != [1, ("int64", 1), ("int64", 2)]:
            said = ", ".join(f"{sources[key + s].dtype} {list(sources[key + s].shape)}" for s in ("", *SIDES))
            raise RequestError(
                f"{root}/{name}: {key!r} with offsets and shapes is {said}: rows of unlike length are values [total], "
                "offsets int64 [n + 1] and shapes int64 [n, axes]."
            )
        counts[key] = sources[key + ".shapes"].shape[0]
    if len(set(counts.values())) != 1:
        raise RequestError(f"{root}/{name}: the tensors differ in their number of rows: {counts}.")
    return next(iter(counts.values()))


def check_ragged(root: Path, name: str, key: str, sources: Mapping[str, Source]) -> None:
    """Refuse offsets and shapes that disagree with each other or with the values: rows would be cut in the wrong place."""
    sides = []
    for side in SIDES:
        source = sources[key + side]
        sides.append(np.empty(source.shape, np.int64))
        if sides[-1].size:
            source.read(0, sides[-1])
    offsets, shapes = sides
    total = sources[key].shape[0]
    if (
        len(offsets) != len(shapes) + 1
        or (shapes < 0).any()
        or offsets[0] != 0
        or offsets[-1] != total
        or (np.diff(offsets) != shapes.prod(axis=1)).any()
    ):
        raise RequestError(
            f"{root}/{name}: {key}.offsets {list(offsets.shape)} and {key}.shapes {list(shapes.shape)} do not fit "
            f"the {total} values of {key!r}: offsets start at 0, grow by the size of each row, and end at {total}."
        )


def not_finite(bits: np.ndarray, kind: str) -> int:
    """How many rows hold a NaN or an infinite value."""
    values = to_returned(bits, kind)
    return 0 if values.dtype.kind != "f" else int((~np.isfinite(values.reshape(len(values), -1)).all(1)).sum())


def gather(
    parts: list[Part],
    tensor: str | list[str],
    starts: np.ndarray,
    rows: np.ndarray,
    spec: ArraySpec,
) -> np.ndarray:
    """Rows of an array out of the files, as stored bits."""
    kind = ITEM_TYPES[spec.dtype]
    per_layer = isinstance(tensor, list)
    keys = tensor if isinstance(tensor, list) else [tensor]
    shape = spec.inner_shape if per_layer else spec.shape
    out = np.empty((len(keys), len(rows), *shape), kind)
    for slot, key in enumerate(keys):
        for first, last in _stretches(rows, starts):
            part = int(np.searchsorted(starts, rows[first], side="right")) - 1
            parts[part][0][key].read(int(rows[first] - starts[part]), out[slot, first:last])
    return np.ascontiguousarray(np.moveaxis(out, 0, 1)) if per_layer else out[0]


def _stretches(rows: np.ndarray, starts: np.ndarray) -> Iterator[tuple[int, int]]:
    """Stretches of `rows` that follow one another within one file."""
    files = np.searchsorted(starts, rows, side="right")
    cuts = np.flatnonzero((np.diff(rows) != 1) | (np.diff(files) != 0)) + 1
    yield from zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True)


def ragged_row(parts: list[Part], name: str, starts: np.ndarray, row: int) -> np.ndarray:
    part = int(np.searchsorted(starts, row, side="right")) - 1
    local = row - int(starts[part])
    sources = parts[part][0]
    shape, offset = np.empty((1, sources[name + ".shapes"].shape[1]), np.int64), np.empty(1, np.int64)
    sources[name + ".shapes"].read(local, shape)
    sources[name + ".offsets"].read(local, offset)
    out = np.empty(shape[0], ITEM_TYPES[sources[name].dtype])
    if out.size:
        sources[name].read(int(offset[0]), out.reshape(-1))
    return out
