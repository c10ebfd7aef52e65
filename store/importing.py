"""Making a run out of activations that were saved by other means: a folder of safetensors files with ids.

The ids decide which row is which, so they are required, and every disagreement (a row too many, a tensor that one file
lacks, a torn line) is named rather than guessed around.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RequestError, StoreError
from . import tensors
from .dtypes import ITEM_TYPES, is_text, to_returned
from .files import LocalFiles, refused_reading
from .layout import ArraySpec, shard_size_for
from .plan import KEYS, Plan
from .reader import Run, open_run
from .settings import started_run
from .writer import open_writer

_LAYER = re.compile(r"(?:(?P<site>.+?)?[._-]+)??(?P<word>(?:layers?|blocks?|h)[._-]*)?(?P<layer>\d+)")
_NUMBER = re.compile(r"\d+")
_SAFETENSORS = {tensors.code_of(name): name for name in ITEM_TYPES}
_SIDE = (".offsets", ".shapes")


@dataclass(frozen=True)
class _Source:
    """A tensor in one file: where its bytes start, its type name and shape."""

    file: str
    offset: int
    dtype: str
    shape: tuple[int, ...]


def import_activations(
    folder: str | os.PathLike[str], out: str | os.PathLike[str], shard_size: int | None = None
) -> Run:
    """Copy saved activations into a new run; the same call continues an import that was interrupted.

    Parameters
    ----------
    folder : path
        Files `*.safetensors`, whose rows follow one another in the order of the file names, and the ids of the rows:
        `states.jsonl` (one JSON object a line: `id`, optionally `benchmark`, `regime`, `item_id`, every other field
        becomes a column), or `ids.json` (a list), or `ids.txt` (one a line). Tensors are `[n, ...]`, or one per layer
        `[n, d]` whose name ends in the layer number: `resid_post.3`, `hidden_states.layer_3` or `layer_3` (site
        `activations`). What `precollapse export --safetensors` writes is read back whole.
    out : path
        The run to make. Of ids that come more than once the first row is kept, with a warning.
    shard_size : int, optional
        States per shard; chosen from the shapes by default.

    Raises
    ------
    RequestError
        No files, no ids, a torn line (named), or files that disagree with each other or with the ids.
    """
    root = Path(folder)
    names = sorted(file.name for file in root.glob("*.safetensors") if file.is_file()) if root.is_dir() else []
    if not names:
        raise RequestError(f"{root} has no *.safetensors files: give the folder that holds them.")
    files = LocalFiles(str(root))
    with refused_reading(str(root)):
        parts = [_sources(files, name) for name in names]
    for name, part in zip(names[1:], parts[1:], strict=True):
        _check_alike(root, names[0], parts[0], name, part)
    about = _About.merged([found for _, found in parts])
    ragged = sorted(
        key for key in parts[0][0] if all(key + side in parts[0][0] for side in _SIDE) and not key.endswith(_SIDE)
    )
    plain = [key for key in parts[0][0] if not any(key == r or key in (r + _SIDE[0], r + _SIDE[1]) for r in ragged)]
    arrays, keys = _arrays(root, parts[0][0], plain, about.layers)
    counts = [_rows(root, name, sources, plain, ragged) for name, (sources, _) in zip(names, parts, strict=True)]
    for name, (sources, _) in zip(names, parts, strict=True):
        for key in ragged:
            _check_ragged(files, name, key, sources)
    with refused_reading(str(root)):
        source, records = _records(root)
    places = _places(records, names, about)
    states, columns = _states(root, records, sum(counts), {*KEYS, *(places or ())}, about.columns)
    _check_places(root, records, places, names, counts)
    ragged_kinds = {name: parts[0][0][name].dtype for name in ragged}
    starts = np.concatenate([[0], np.cumsum(counts)])
    plan = Plan.build(states, shard_size or shard_size_for(arrays))
    position = {state["id"]: row for row, state in reversed(list(enumerate(states)))}
    facts = {name: [found.st_size, found.st_mtime_ns] for name in names for found in [(root / name).stat()]}
    imported: dict[str, Any] = {"files": facts, "states": len(states)}
    begun = started_run(out)
    if begun is None or "ids" in begun.config.get("imported", {}):  # not so in runs of versions that did not note it
        imported["ids"] = hashlib.sha256(source).hexdigest()[:16]
    config = {"imported": imported}
    with open_writer(
        out,
        plan=plan,
        config=config,
        manifest={"imported_from": root.name},
        arrays=arrays,
        columns=columns,
        ragged=ragged_kinds,
    ) as writer:
        odd: dict[str, int] = {}
        for index in writer.claimed():
            shard = writer.shard(index)
            rows = np.array([position[state["id"]] for state in shard.states])
            gathered = {name: _gather(files, parts, keys[name], starts, rows, spec) for name, spec in arrays.items()}
            for name, found in gathered.items():
                odd[name] = odd.get(name, 0) + _not_finite(found, arrays[name].dtype)
            writer.write(
                index,
                arrays=gathered,
                table={name: [records[row].get(name) for row in rows] for name in columns},
                ragged={name: [_ragged_row(files, parts, name, starts, int(row)) for row in rows] for name in ragged},
            )
    for name, count in odd.items():
        if count:
            warnings.warn(
                f"{count} of the {len(plan.ids)} states have NaN or infinite values in {name!r}; they are kept as they "
                "were saved.",
                stacklevel=2,
            )
    return open_run(out)


def _not_finite(bits: np.ndarray, kind: str) -> int:
    """How many rows hold a NaN or an infinite value."""
    values = to_returned(bits, kind)
    return 0 if values.dtype.kind != "f" else int((~np.isfinite(values.reshape(len(values), -1)).all(1)).sum())


@dataclass(frozen=True)
class _About:
    """What an export says of its tensors: layer numbers by array (None: no layer axis), column types, place fields."""

    layers: dict[str, tuple[int, ...] | None]
    columns: dict[str, str]
    places: tuple[str, str] | None

    @classmethod
    def read(cls, metadata: dict[str, str]) -> _About:
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
    def merged(cls, found: list[_About]) -> _About:
        """That of the first file, with what only later ones say."""
        layers: dict[str, tuple[int, ...] | None] = {}
        columns: dict[str, str] = {}
        for about in reversed(found):
            layers |= about.layers
            columns |= about.columns
        return cls(layers, columns, next((about.places for about in found if about.places), None))


def _sources(files: LocalFiles, name: str) -> tuple[dict[str, _Source], _About]:
    """Tensors of a file by name, and what its metadata say of them."""
    size = files.size(name) or 0
    try:
        prefix = bytearray(8)
        files.read_into(name, 0, [prefix])
        text = bytearray(min(tensors.header_bytes(bytes(prefix)), size))
        files.read_into(name, 0, [text])
        head, start = tensors.parse_header(bytes(text), size, f"{files.path}/{name}")
        about = _About.read(head.pop("__metadata__", {}))
    except tensors.UnknownType as error:
        raise RequestError(str(error)) from None
    except (StoreError, ValueError, TypeError) as error:
        raise RequestError(f"{files.path}/{name} is no whole safetensors file ({error}).") from None
    found = {}
    for key, entry in head.items():
        if entry["dtype"] not in _SAFETENSORS:
            raise RequestError(f"{files.path}/{name}: tensor {key!r} is {entry['dtype']}, which a run cannot hold.")
        found[key] = _Source(
            name, start + entry["data_offsets"][0], _SAFETENSORS[entry["dtype"]], tuple(entry["shape"])
        )
    return found, about


def _check_alike(
    root: Path,
    name: str,
    part: tuple[dict[str, _Source], _About],
    other_name: str,
    other: tuple[dict[str, _Source], _About],
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


def _arrays(
    root: Path, sources: dict[str, _Source], plain: list[str], layers: dict[str, tuple[int, ...] | None]
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
    for site, found in per_layer.items():
        numbers = sorted(found)
        kinds = {(sources[found[number]].shape[1:], sources[found[number]].dtype) for number in numbers}
        if len(kinds) > 1 or site in arrays:
            raise RequestError(f"{root}: the layers of {site!r} differ in shape or type: {sorted(map(str, kinds))}.")
        shape, dtype = kinds.pop()
        arrays[site] = ArraySpec((len(numbers), *shape), dtype, tuple(numbers))
        keys[site] = [found[number] for number in numbers]
    return arrays, keys


def _rows(root: Path, name: str, sources: dict[str, _Source], plain: list[str], ragged: list[str]) -> int:
    counts = {key: sources[key].shape[0] for key in plain}
    for key in ragged:
        kinds = [(sources[key + side].dtype, len(sources[key + side].shape)) for side in ("", *_SIDE)]
        if [kinds[0][1], *kinds[1:]] != [1, ("int64", 1), ("int64", 2)]:
            said = ", ".join(f"{sources[key + s].dtype} {list(sources[key + s].shape)}" for s in ("", *_SIDE))
            raise RequestError(
                f"{root}/{name}: {key!r} with offsets and shapes is {said}: rows of unlike length are values [total], "
                "offsets int64 [n + 1] and shapes int64 [n, axes]."
            )
        counts[key] = sources[key + ".shapes"].shape[0]
    if len(set(counts.values())) != 1:
        raise RequestError(f"{root}/{name}: the tensors differ in their number of rows: {counts}.")
    return next(iter(counts.values()))


def _check_ragged(files: LocalFiles, name: str, key: str, sources: dict[str, _Source]) -> None:
    """Refuse offsets and shapes that disagree with each other or with the values: rows would be cut in the wrong place."""
    sides = []
    for side in _SIDE:
        source = sources[key + side]
        sides.append(np.empty(source.shape, np.int64))
        if sides[-1].size:
            files.read_into(source.file, source.offset, [sides[-1]])
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
            f"{files.path}/{name}: {key}.offsets {list(offsets.shape)} and {key}.shapes {list(shapes.shape)} do not fit "
            f"the {total} values of {key!r}: offsets start at 0, grow by the size of each row, and end at {total}."
        )


def _states(
    root: Path, records: list[dict[str, Any]], count: int, reserved: set[str], types: dict[str, str]
) -> tuple[list[dict[str, str]], dict[str, str]]:
    """Plan states, and column types (those that an export names, else guessed from the values)."""
    if len(records) != count:
        raise RequestError(f"{root} has {count} rows of tensors, but ids for {len(records)}.")
    states = []
    for number, record in enumerate(records):
        if not isinstance(record.get("id"), str) or not record["id"]:
            raise RequestError(f"{root}: row {number} has id {record.get('id')!r}: a string is needed.")
        own = {"benchmark": root.name or "imported", "regime": "imported", "item_id": record["id"]}
        for key in own:
            value = record.get(key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
                raise RequestError(f"{root}: row {number} has {key} {value!r}: a string is needed.")
            own[key] = own[key] if value is None else str(value)
        states.append({"id": record["id"], **own})
    columns: dict[str, str] = {}
    for name in dict.fromkeys(key for record in records for key in record):
        if name not in reserved:
            columns[name] = types.get(name) or _column_type(root, name, [record.get(name) for record in records])
    return states, columns


def _column_type(root: Path, name: str, values: list[Any]) -> str:
    kinds = {type(value) for value in values if value is not None}
    for kind, fits in (("bool", {bool}), ("int64", {int}), ("float64", {int, float}), ("string", {str})):
        if kinds and kinds <= fits:
            return kind
    if not kinds:
        return "string"
    raise RequestError(f"{root}: field {name!r} holds {', '.join(sorted(k.__name__ for k in kinds))}: use one type.")


def _records(root: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """The bytes of the file that names the rows, and its records."""
    for name, read in (("states.jsonl", _lines), ("ids.json", _json_ids), ("ids.txt", _text_ids)):
        file = root / name
        if file.exists():
            source = file.read_bytes()
            try:
                return source, list(read(file, source.decode("utf-8-sig")))
            except UnicodeDecodeError as error:
                raise RequestError(f"{file} is no UTF-8 text ({error}): save it as UTF-8.") from None
    raise RequestError(f"{root} gives no ids for its rows: add states.jsonl, ids.json or ids.txt.")


def _lines(file: Path, text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            torn = "is no JSON object" if text.count("\n") >= number else "is torn: it ends in the middle"
            raise RequestError(f"{file}, line {number}, {torn}: mend or remove it.") from None
        if not isinstance(record, dict):
            raise RequestError(f"{file}, line {number}, is no JSON object: give one object a line.")
        for key, value in record.items():
            if not is_text(key) or isinstance(value, str) and not is_text(value):
                raise RequestError(
                    f"{file}, line {number}, field {key!r} holds half of a surrogate pair, which is no character: mend it."
                )
        yield record


def _json_ids(file: Path, text: str) -> Iterator[dict[str, Any]]:
    try:
        ids = json.loads(text)
    except ValueError as error:
        raise RequestError(f"{file} is no JSON list of ids ({error}).") from None
    if not isinstance(ids, list):
        raise RequestError(f"{file} is no JSON list of ids.")
    yield from ({"id": name} for name in ids)


def _text_ids(_file: Path, text: str) -> Iterator[dict[str, Any]]:
    lines = text.split("\n")
    yield from ({"id": line.removesuffix("\r")} for line in (lines[:-1] if lines[-1] == "" else lines))


def _places(records: list[dict[str, Any]], names: list[str], about: _About) -> tuple[str, str] | None:
    """Names of the fields that say in which file and row a state lies; None where the records have none."""
    if about.places:
        return about.places
    known, said = set(names), (r.get("file") for r in records if "row" in r)
    return ("file", "row") if any(isinstance(file, str) and file in known for file in said) else None


def _check_places(
    root: Path, records: list[dict[str, Any]], fields: tuple[str, str] | None, names: list[str], counts: list[int]
) -> None:
    """The ids must agree with the order of the files, as far as they say where they lie; without that, the order of the
    files must be beyond doubt."""
    if fields is None:
        alike: dict[str, list[str]] = {}
        for name in names:
            alike.setdefault(_NUMBER.sub("#", name), []).append(name)
        for own in alike.values():
            for before, after in zip(own, own[1:], strict=False):
                if [int(n) for n in _NUMBER.findall(before)] > [int(n) for n in _NUMBER.findall(after)]:
                    raise RequestError(
                        f"{root}: files are read in the order of their names, and {before} comes before {after} there: "
                        "write the numbers with leading zeros, or give each id its file and row in states.jsonl."
                    )
        return
    places = [(name, row) for name, count in zip(names, counts, strict=True) for row in range(count)]
    for number, (record, place) in enumerate(zip(records, places, strict=True)):
        said = (record.get(fields[0], place[0]), record.get(fields[1], place[1]))
        if said != place:
            raise RequestError(f"{root}: row {number} of the ids lies in {said}, the files have {place} there.")


def _gather(
    files: LocalFiles,
    parts: list[tuple[dict[str, _Source], Any]],
    found: str | list[str],
    starts: np.ndarray,
    rows: np.ndarray,
    spec: ArraySpec,
) -> np.ndarray:
    """Rows of an array out of the files, as stored bits."""
    kind = ITEM_TYPES[spec.dtype]
    per_layer = isinstance(found, list)
    keys = found if isinstance(found, list) else [found]
    shape = spec.inner_shape if per_layer else spec.shape
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    out = np.empty((len(keys), len(rows), *shape), kind)
    for slot, key in enumerate(keys):
        for first, last in _stretches(rows, starts):
            part = int(np.searchsorted(starts, rows[first], side="right")) - 1
            source = parts[part][0][key]
            files.read_into(
                source.file, source.offset + int(rows[first] - starts[part]) * size, [out[slot, first:last]]
            )
    return np.ascontiguousarray(np.moveaxis(out, 0, 1)) if per_layer else out[0]


def _stretches(rows: np.ndarray, starts: np.ndarray) -> Iterator[tuple[int, int]]:
    """Stretches of `rows` that follow one another within one file."""
    files = np.searchsorted(starts, rows, side="right")
    cuts = np.flatnonzero((np.diff(rows) != 1) | (np.diff(files) != 0)) + 1
    yield from zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True)


def _ragged_row(
    files: LocalFiles, parts: list[tuple[dict[str, _Source], Any]], name: str, starts: np.ndarray, row: int
) -> np.ndarray:
    part = int(np.searchsorted(starts, row, side="right")) - 1
    local = row - int(starts[part])
    sources = parts[part][0]
    axes = sources[name + ".shapes"].shape[1]
    shape, offset = np.empty(axes, np.int64), np.empty(1, np.int64)
    files.read_into(sources[name + ".shapes"].file, sources[name + ".shapes"].offset + 8 * local * axes, [shape])
    files.read_into(sources[name + ".offsets"].file, sources[name + ".offsets"].offset + 8 * local, [offset])
    out = np.empty(shape, ITEM_TYPES[sources[name].dtype])
    if out.size:
        files.read_into(sources[name].file, sources[name].offset + int(offset[0]) * out.itemsize, [out])
    return out
