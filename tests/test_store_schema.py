"""The schema of runs: docs/store.md shows it, and what real runs write is in it with the type it states."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from precollapse import RequestError, schema, store
from precollapse.studies import StudyConfig, run_study
from precollapse.studies.trajectories import run as trajectories

PAGE = Path(__file__).parents[1] / "docs" / "store.md"
COLUMN_DTYPES = {"float64": "float64", "int64": "Int64", "bool": "boolean", "string": "string"}
JSON_TYPES = {"text": str, "number": (int, float), "list": list, "object": dict}


@pytest.fixture(scope="module")
def runs(tiny_folder, tmp_path_factory) -> dict[str, store.Run]:
    """A small run of each kind that a model makes, with everything that can be asked for."""
    folder = tmp_path_factory.mktemp("schema")
    study = {"model": str(tiny_folder), "n": 2, "max_new_tokens": 3, "regimes": ("baseline", "cot")}
    made = {
        attention: run_study(
            StudyConfig(
                out=folder / f"{attention}.zarr",
                benchmarks=("builtin", "builtin_choice"),
                sites=schema.SITES if attention == "rows" else ("resid_post",),
                attention=attention,
                moments=True,
                after=("1", "####"),
                **study,
            ),
            progress=False,
        )
        for attention in ("rows", "summary")
    }
    rows = [
        {"id": f"c{i}", "question": f"Is {i} even?", "answer": "AB"[i % 2], "choices": ["yes", "no"]} for i in (0, 1)
    ]
    (folder / "parity.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made["trajectories"] = trajectories.run_trajectories(
        trajectories.TrajectoryConfig(
            out=folder / "trajectories.zarr", model=str(tiny_folder), benchmarks=("parity",),
            items={"parity": folder / "parity.jsonl"}, measures=("sampled", "forced"), chain_tokens=20,
            continuation_tokens=4, m=2, cap=2, rule="window-10", forced_rule="window-10", residual=True,
        ),
        progress=False,
    )  # fmt: skip
    return made


def test_the_page_shows_the_schema():
    page = PAGE.read_text(encoding="utf-8")
    assert schema.rewritten(page) == page, "write it anew: python -m precollapse.schema docs/store.md"


def test_a_page_without_marks_is_refused():
    with pytest.raises(RequestError, match="mark it with"):
        schema.rewritten("# Store\n")


@pytest.mark.parametrize("kind", schema.SCHEMAS)
def test_each_name_stands_once(kind):
    own = schema.SCHEMAS[kind]
    data = [entry.name for part in (schema.EVERY_RUN.columns, own.columns, own.arrays, own.ragged) for entry in part]
    assert kind == "import" or len(set(data)) == len(data)
    assert all(entry.meaning and entry.type for part in vars(own).values() if isinstance(part, tuple) for entry in part)


@pytest.mark.parametrize("name", ["rows", "summary", "trajectories"])
def test_what_a_run_writes_is_in_the_schema(runs, name):
    run = runs[name]
    own = schema.SCHEMAS[run.manifest["kind"]]
    assert run.columns == own.column_types, "columns, types and order"
    for column, dtype in run.states.dtypes.astype(str).items():
        if column not in own.column_types:
            assert schema.EVERY_RUN.entry("columns", column)
        else:
            assert dtype.startswith(COLUMN_DTYPES[own.column_types[column]]), column
    for array, spec in run.arrays.items():
        entry = own.entry("arrays", array)
        assert spec.dtype == (run.manifest["capture"]["dtype"] if entry.type == schema.STORED else entry.type), array
        assert len(spec.shape) == len(entry.axes) and (spec.layers is None) == ("layer" not in entry.axes), array
        assert run.array(array).dtype == np.dtype(spec.dtype)
    for array, dtype in run.ragged_arrays.items():
        entry = own.entry("ragged", array)
        row = run.ragged(array, 0)
        assert dtype == entry.type == str(row.dtype) and row.ndim == len(entry.axes), array
    for blob in {blob for commit in run.commits.values() for blob in commit.blobs}:
        assert own.entry("blobs", blob)
    stated = {entry.name: entry for entry in (*schema.EVERY_RUN.manifest, *own.manifest)}
    for key, value in run.manifest.items():
        assert value is None or isinstance(value, JSON_TYPES[stated[key].type]), key


def test_every_entry_of_the_schema_is_written_by_some_run(runs):
    for kind in ("study", "trajectories"):
        own, made = schema.SCHEMAS[kind], [run for run in runs.values() if run.manifest["kind"] == kind]
        written = {
            "arrays": {name for run in made for name in run.arrays},
            "ragged": {name for run in made for name in run.ragged_arrays},
            "blobs": {blob for run in made for commit in run.commits.values() for blob in commit.blobs},
            "manifest": {name for run in made for name in run.manifest},
        }
        for section, names in written.items():
            idle = [
                e.name
                for e in getattr(own, section)
                if not any(map(e.names, names)) and e.when not in ("some were declared", "of an earlier version")
            ]
            assert not idle, f"{kind}: {section} {idle}"


def test_an_unknown_name_is_refused_with_what_to_do():
    with pytest.raises(
        RequestError, match="A run of kind 'study' has no 'resid' among its arrays: add it to schema.py"
    ):
        schema.STUDY.entry("arrays", "resid")
