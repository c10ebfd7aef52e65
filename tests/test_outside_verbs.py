"""A study that somebody else made: whatever its manifest and its settings say, `report`, `steer`, `export` and `import` end in a sentence.

Values inside entries are tried as well as entries. In the suite every 41st case runs; PRECOLLAPSE_ALL_HOSTILE=1 runs them all.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import shutil
import warnings

import pytest

from precollapse import store
from precollapse.cli.main import main
from precollapse.store.files.sealed import seal

EVERY = 1 if os.environ.get("PRECOLLAPSE_ALL_HOSTILE") else 41
GONE = object()
VALUES = {
    "missing": GONE,
    "null": None,
    "a list": [],
    "an object": {},
    "a text": "absurd",
    "a steering text": "\x1b[2J<script>alert(1)</script>=1+1",
    "a negative number": -1,
    "a huge number": 10**13,
    "a decimal": 0.5,
    "a name above": "../outside/sentinel",
    "an absolute name": "/etc/passwd",
    "a list of lists": [[["x"]]],
}


@pytest.fixture(scope="module")
def study(tmp_path_factory, tiny_folder):
    """A small study of two regimes beside a sentinel."""
    import precollapse as pc

    folder = tmp_path_factory.mktemp("hostile")
    items = folder / "items.jsonl"
    items.write_text("".join(json.dumps({"question": f"{n} + 1 =", "answer": str(n + 1)}) + "\n" for n in range(6)))
    config = pc.StudyConfig(
        model=str(tiny_folder),
        benchmarks=("sums",),
        items={"sums": str(items)},
        regimes=("baseline", "cot"),
        max_new_tokens=3,
        moments=True,
        out=str(folder / "run.zarr"),
    )
    pc.run_study(config, progress=False)
    (folder / "outside").mkdir()
    (folder / "outside" / "sentinel").write_text("not yours\n")
    return folder


def places(value, path=()):
    """Paths to every value of a record; of lists, and of objects with many alike, the first two entries."""
    if path:
        yield path
    if isinstance(value, dict):
        for key in list(value)[: None if len(path) < 2 else 6]:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(min(len(value), 1)):
            yield from places(value[index], (*path, index))


def changed(body, path, value):
    body = copy.deepcopy(body)
    holder = body
    for key in path[:-1]:
        holder = holder[key]
    if value is GONE:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return body


def said(words):
    """Exit status, and all that the command printed."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as told,
    ):
        warnings.simplefilter("ignore")
        status = main(words)
    return status, out.getvalue() + told.getvalue()


def verbs(run, folder):
    return {
        "report": ["report", str(run), "--resamples", "5", "--shuffles", "1", "--quiet"],
        "steer": [
            "steer",
            str(run),
            "--layer",
            "1",
            "--target",
            "entropy_bits",
            "--scales=-1,1",
            "--no-generate",
            "--quiet",
        ],
        "export": ["export", str(run), "--safetensors", "--out", str(folder / "copy")],
        "import": ["import", str(folder / "copy"), "--out", str(folder / "again.zarr")],
        "info": ["info", str(run)],
    }


def cases(run):
    for file in (*sorted((run / "_manifest").glob("*.json")), run / "plan.json"):
        body = json.loads(file.read_bytes())["body"]
        skipped = ("cells", "ids", "item_ids", "digest", "arrays", "columns", "ragged")
        for path in places(body):
            if file.name == "plan.json" and path[0] in skipped:
                continue  # held by `test_store_hostile.py`
            for what, value in VALUES.items():
                yield file, path, what, value


def test_the_verbs_end_in_a_sentence_whatever_a_study_says(study):
    run = study / "run.zarr"
    before = (study / "outside" / "sentinel").read_bytes()
    for name, words in verbs(run, study).items():
        status, text = said(words)
        assert status in (0, 2) and "unexpectedly" not in text, (name, text)
    shutil.rmtree(study / "copy")
    shutil.rmtree(study / "again.zarr")
    failures = []
    for number, (file, path, what, value) in enumerate(cases(run)):
        if number % EVERY:
            continue
        sound = file.read_bytes()
        file.write_bytes(seal(changed(json.loads(sound)["body"], path, value)))
        try:
            names = list(verbs(run, study))
            for name in (
                names if EVERY == 1 else [names[(number // EVERY) % 2], *(names[2:] if number % 5 == 0 else ())]
            ):
                status, text = said(verbs(run, study)[name])
                if status not in (0, 1, 2) or "unexpectedly" in text or "\x1b" in text or "root:" in text:
                    failures.append((file.name[:12], path, what, name, text[-300:]))
        finally:
            file.write_bytes(sound)
            shutil.rmtree(study / "copy", ignore_errors=True)
            shutil.rmtree(study / "again.zarr", ignore_errors=True)
    assert not failures, f"{len(failures)}: {failures[:40]}"
    assert (study / "outside" / "sentinel").read_bytes() == before and store.verify(run) == []
