"""Making a run out of activations that were saved by other means: files of tensors with ids.

The ids decide which row is which, so they are required, and every disagreement (a row too many, a tensor that one file
lacks, a torn line) is named rather than guessed around.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import RequestError
from ...schema import ID, PLAN_KEYS
from ..files.errors import refused_reading
from ..files.local import LocalFiles
from ..geometry import shard_size_for
from ..plan import Plan
from ..reading.run import Run, open_run
from ..settings import started_run
from ..writer import open_writer
from .import_files import (
    SIDES,
    About,
    about_of,
    arrays_of,
    check_alike,
    check_ragged,
    gather,
    not_finite,
    ragged_row,
    row_count,
)
from .import_records import check_places, fields_as_records, place_fields, read_records, states_of
from .saved import saved_files
from .saved.parquet_file import STATES_FILE, side_by_side


def import_activations(
    folder: str | os.PathLike[str], out: str | os.PathLike[str], shard_size: int | None = None
) -> Run:
    """Copy saved activations into a new run; the same call continues an import that was interrupted.

    Parameters
    ----------
    folder : path
        Files of one format, `.safetensors`, `.npz`, `.h5` (needs h5py), `.parquet` (needs pyarrow) or Zarr groups, whose rows
        follow one another in the order of the file names; or a single such file. And the ids of the rows: an array of texts (a
        column, in Parquet) `id` in every file, with other texts and, in Parquet, numbers as columns; or
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
    saved = saved_files(Path(folder))
    root, names = saved.root, list(saved.names)
    files = LocalFiles(str(root), follow=True)
    with refused_reading(str(root)):
        if saved.format == "parquet" and STATES_FILE in names:
            contents, names = [side_by_side(saved, files)], [STATES_FILE]
        else:
            contents = [saved.read(files, name) for name in names]
    for name, content in zip(names, contents, strict=True):
        if content.left_out:
            warnings.warn(
                f"{root / name}: {', '.join(map(repr, content.left_out))} cannot become part of a run and is left out.",
                stacklevel=2,
            )
        if not content.sources:
            raise RequestError(f"{root / name} holds no tensors with a row for each state.")
    parts = [(content.sources, about_of(root, name, content)) for name, content in zip(names, contents, strict=True)]
    for name, part in zip(names[1:], parts[1:], strict=True):
        check_alike(root, names[0], parts[0], name, part)
    about = About.merged([metadata for _, metadata in parts])
    ragged = sorted(
        key for key in parts[0][0] if all(key + side in parts[0][0] for side in SIDES) and not key.endswith(SIDES)
    )
    plain = [key for key in parts[0][0] if not any(key == r or key in (r + SIDES[0], r + SIDES[1]) for r in ragged)]
    arrays, keys = arrays_of(root, parts[0][0], plain, about.layers)
    counts = [row_count(root, name, sources, plain, ragged) for name, (sources, _) in zip(names, parts, strict=True)]
    for name, (sources, _) in zip(names, parts, strict=True):
        for key in ragged:
            check_ragged(root, name, key, sources)
    with refused_reading(str(root)):
        source, records = fields_as_records(root, names, contents, counts) or read_records(root)
    places = place_fields(records, names, about)
    states, columns = states_of(root, records, sum(counts), {*PLAN_KEYS, *(places or ())}, about.columns)
    check_places(root, records, places, names, counts)
    ragged_kinds = {name: parts[0][0][name].dtype for name in ragged}
    starts = np.concatenate([[0], np.cumsum(counts)])
    plan = Plan.build(states, shard_size or shard_size_for(arrays))
    position = {state[ID]: row for row, state in reversed(list(enumerate(states)))}
    facts = {name: saved.facts(name) for name in saved.names}
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
            rows = np.array([position[state[ID]] for state in shard.states])
            gathered = {name: gather(parts, keys[name], starts, rows, spec) for name, spec in arrays.items()}
            for name, bits in gathered.items():
                odd[name] = odd.get(name, 0) + not_finite(bits, arrays[name].dtype)
            writer.write(
                index,
                arrays=gathered,
                table={name: [records[row].get(name) for row in rows] for name in columns},
                ragged={name: [ragged_row(parts, name, starts, int(row)) for row in rows] for name in ragged},
            )
    for name, count in odd.items():
        if count:
            warnings.warn(
                f"{count} of the {len(plan.ids)} states have NaN or infinite values in {name!r}; they are kept as they "
                "were saved.",
                stacklevel=2,
            )
    return open_run(out)
