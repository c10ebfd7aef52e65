"""Runs that somebody else made: whatever their records say, nothing outside the run is read or written, and what is sound stays readable.

A checksum is no signature, so every record here is sealed anew after it was changed.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import shutil
import socket
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest

from precollapse import schema, store
from precollapse.cli.main import main
from precollapse.errors import PrecollapseError, StoreError
from precollapse.store.files.sealed import seal
from precollapse.store.formats import tensors
from precollapse.store.log.leases import identity

STATES = [
    {"id": f"b/{i}/{regime}", "benchmark": "b", "regime": regime, "item_id": f"item {i}"}
    for regime in ("baseline", "cot")
    for i in range(8)
]
SETTINGS = {
    "plan": store.Plan.build(STATES, 4),
    "config": {"model": "m"},
    "arrays": {"x": store.ArraySpec((3, 300), "float32", (0, 1, 2)), "k": store.ArraySpec((4,), "int64")},
    "columns": {"text": "string", "score": "float64"},
    "ragged": {"rows": "float32"},
}
N = SETTINGS["plan"].n_shards
BAD = 1
"""The shard whose records are made hostile."""


def contents(index):
    rng = np.random.default_rng(index)
    return {
        "arrays": {"x": rng.standard_normal((4, 3, 300)).astype(np.float32), "k": rng.integers(0, 9, (4, 4))},
        "table": {"text": ["a", None, "b", "c"], "score": [0.5, None, 1.0, float(index)]},
        "ragged": {"rows": [rng.random(n + 5).astype(np.float32) for n in range(4)]},
        "blobs": {"moments": rng.bytes(64)},
    }


def fill(path, shards=range(N), folds=False):
    with store.open_writer(path, **SETTINGS) as writer:
        for index in shards:
            assert writer.claim(index) and writer.write(index, **contents(index))
            if folds:
                writer.fold(index, "moments", 2, b"".join)
    return path


@pytest.fixture(scope="module")
def base():
    """A folder in memory where there is one, with a sound run, one with folds, and what lies beside them."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
    fill(folder / "sound.zarr")
    fill(folder / "folds.zarr", folds=True)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def place(base):
    """A folder that holds a run and a sentinel beside it."""
    folder = Path(tempfile.mkdtemp(dir=base))
    shutil.copytree(base / "sound.zarr", folder / "run.zarr")
    (folder / "outside").mkdir()
    (folder / "outside" / "sentinel").write_text("not yours\n")
    yield folder
    shutil.rmtree(folder)


def reseal(file, change):
    """Change the body of a record and seal it anew."""
    body = json.loads(file.read_bytes())["body"]
    change(body)
    file.write_bytes(seal(body))


def outside(folder):
    """Everything beside the run: names and bytes."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in sorted(folder.rglob("*"))
        if p.relative_to(folder).parts[0] != "run.zarr"
    }


def commit(run, shard=BAD):
    return run / "_commits" / f"{shard:08d}.json"


def rename_final(old, new):
    def change(body):
        name = next(name for name in body["files"] if name.startswith(old))
        body["files"][new] = body["files"].pop(name)

    return change


def restage(new):
    def change(body):
        for record in body["files"].values():
            record["staged"] = new

    return change


ESCAPES = {
    "a final name above the run": rename_final("tables/", "../outside/planted"),
    "an absolute final name": rename_final("tables/", "/tmp/precollapse-planted"),
    "a final name of the plan": rename_final("tables/", "plan.json"),
    "a final name of another shard": rename_final("tables/", "tables/00000000.safetensors"),
    "an array's name above the run": rename_final("cells/", "cells/../../outside/planted"),
    "a staged name above the run": restage("../outside/sentinel"),
    "a staged name that climbs from staging": restage("_staging/../../outside/sentinel"),
    "an absolute staged name": restage("/etc/hostname"),
    "a staged name in a folder": restage("_staging/a/b"),
    "a staged name that is another file of the run": restage("plan.json"),
    "a staged name of another shard": restage("_staging/00000000.a.b.0"),
    "a blob above the run": lambda body: body.update(blobs=["../../outside/planted"]),
    "a blob that is no text": lambda body: body.update(blobs=[3]),
}


def check_rest(run, lost=frozenset({BAD})):
    """The sound shards hold what was written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = store.open_run(run)
    left = [k for k in range(N) if k not in lost]
    assert sorted(opened.states["shard"].unique()) == left
    np.testing.assert_array_equal(opened.array("x"), np.concatenate([contents(k)["arrays"]["x"] for k in left]))
    np.testing.assert_array_equal(opened.array("k"), np.concatenate([contents(k)["arrays"]["k"] for k in left]))
    for at, k in enumerate(left):
        np.testing.assert_array_equal(opened.ragged("rows", 4 * at + 1), contents(k)["ragged"]["rows"][1])
    return opened


@pytest.mark.parametrize("escape", ESCAPES)
def test_a_commit_that_names_what_is_not_its_own_is_no_commit(place, escape):
    run = place / "run.zarr"
    reseal(commit(run), ESCAPES[escape])
    (run / "tables" / f"{BAD:08d}.safetensors").unlink()  # so that the staged name would be read
    before = outside(place)
    opened = check_rest(run)
    assert "_commits/00000001.json" in opened.faults[BAD]
    assert [fault.shard for fault in store.verify(run) if fault.shard is not None] == [BAD]
    assert str(BAD) in store.describe(run)["faults"]
    with pytest.raises(StoreError, match=r"_commits/00000001\.json.*precollapse repair"):
        store.open_writer(run, **SETTINGS)
    assert store.repair(run).withdrawn == (BAD,)
    assert outside(place) == before and not Path("/tmp/precollapse-planted").exists()
    fill(run, [BAD])
    assert store.verify(run) == [] and outside(place) == before
    check_rest(run, lost=())


def test_a_staged_name_is_moved_within_the_run_only(place):
    """What a kill left under staged names is given final ones: of these alone."""
    run = place / "run.zarr"
    reseal(commit(run), rename_final("blobs/", "../outside/sentinel"))
    name = json.loads(commit(run).read_bytes())["body"]["files"]["../outside/sentinel"]["staged"]
    (run / name).write_bytes(b"planted")
    before = outside(place)
    for use in (lambda: store.open_writer(run, **SETTINGS), lambda: store.repair(run)):
        try:
            use()
        except PrecollapseError:
            pass
        assert outside(place) == before


LINKS = [
    "_commits/00000001.json",
    "tables/00000001.safetensors",
    "ragged/00000001.safetensors",
    "blobs/00000001.moments",
    "_commits",
    "tables",
    "cells",
    "cells/{cell}",
    "cells/{cell}/x",
    "cells/{cell}/x/c.1.0.0",
    "_staging",
    "_leases",
    "_manifest",
    "_failed",
    "folds",
    "plan.json",
    "zarr.json",
]


@pytest.mark.parametrize("kind", ["link", "pipe", "socket", "folder"])
@pytest.mark.parametrize("name", LINKS)
def test_what_is_no_file_of_the_run_is_neither_followed_nor_waited_for(place, name, kind):
    run = place / "run.zarr"
    target = run / name.format(cell=SETTINGS["plan"].cells[0].folder.rpartition("/")[2])
    if target.is_dir() and kind == "folder":
        return
    if kind == "link":
        shutil.move(target, place / "outside" / "taken")
        target.symlink_to(place / "outside" / "taken")
    else:
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        if kind == "pipe":
            os.mkfifo(target)
        elif kind == "socket":
            here = os.getcwd()
            os.chdir(target.parent)  # the names of sockets are short
            try:
                socket.socket(socket.AF_UNIX).bind(target.name)
            finally:
                os.chdir(here)
        else:
            target.mkdir()
    before = outside(place)
    told = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for use in (
            lambda: store.open_run(run).states,
            lambda: store.open_run(run).array("x"),
            lambda: store.open_run(run).ragged("rows", 5),
            lambda: list(store.open_run(run).blobs("moments")),
            lambda: store.describe(run),
            lambda: told.append(store.verify(run)),
            lambda: fill(run, []),
            lambda: store.repair(run),
        ):
            try:
                use()
            except PrecollapseError:
                pass
            assert outside(place) == before
    assert not told or told[0] or name in ("_staging", "_leases", "_failed", "folds")


def test_links_within_the_run_and_to_the_run_are_followed(place):
    run = place / "run.zarr"
    table = run / "tables" / "00000001.safetensors"
    table.rename(table.with_suffix(".real"))
    table.symlink_to(table.with_suffix(".real").name)
    check_rest(run, lost=())
    (place / "link.zarr").symlink_to(run)
    check_rest(place / "link.zarr", lost=())
    (place / "link.zarr").unlink()


# ---------------------------------------------------------------------------------------------------------------------- folds


def folded(base, folder):
    shutil.copytree(base / "folds.zarr", folder / "folded.zarr")
    return folder / "folded.zarr"


def test_a_fold_is_sound_under_its_own_name_only(base, place):
    run = folded(base, place)
    assert {len(parts) for _, parts in store.open_run(run).parts("moments")} == {1}
    first, second = sorted((run / "folds").iterdir())
    data = first.read_bytes(), second.read_bytes()
    first.write_bytes(data[1])
    second.write_bytes(data[0])
    assert sorted(fault.where for fault in store.verify(run)) == [f"folds/{file.name}" for file in (first, second)]
    with pytest.raises(StoreError, match="another cell's"):
        list(store.open_run(run).parts("moments"))
    assert store.repair(run).withdrawn == tuple(range(N))


@pytest.mark.parametrize(
    "name", ["9999.00000004.moments", "0000.00000009.moments", "0000.00000000.moments", "²³¹¹.00000002.moments", "x"]
)
def test_a_stray_fold_is_named_and_stops_nothing(base, place, name):
    run = folded(base, place)
    wanted = store.describe(run)
    shutil.copy(next((run / "folds").iterdir()), run / "folds" / name)
    assert store.describe(run)["bytes"] == wanted["bytes"]
    assert [len(parts) for _, parts in store.open_run(run).parts("moments")] == [1, 1]
    assert [fault.where for fault in store.verify(run)] == [f"folds/{name}"]
    assert store.repair(run).aside == (f"folds/{name}",)
    assert store.verify(run) == []


def test_folds_of_the_first_format_are_read_and_gone_on_with(place, monkeypatch):
    monkeypatch.setattr("precollapse.store.run_plan.FORMAT", 1)
    run = place / "run.zarr"
    shutil.rmtree(run)
    fill(run, range(2), folds=True)
    monkeypatch.undo()
    fill(run, range(2, N), folds=True)
    assert store.verify(run) == [] and [len(parts) for _, parts in store.open_run(run).parts("moments")] == [1, 1]
    for file in (run / "folds").iterdir():
        data = file.read_bytes()
        assert store.verify.__globals__["crc32c"](data[4:]).to_bytes(4, "little") == data[:4]


# ------------------------------------------------------------------------------------------------------------------------ ids


def test_two_states_never_have_one_id():
    parts = ["a", "b", "1", "a/b", "b/1", "%", "%2F", "%25", "a%2Fb", "/", "", "%252F", "50%", "%/", "%2"]
    keys = [(a, b, c) for a in parts for b in parts for c in parts]
    assert len({schema.state_id(*key) for key in keys}) == len(keys)
    assert {schema.joined_id(schema.state_id(*key)) == "/".join(key) for key in keys} == {True}
    assert schema.state_id("gsm8k", "15 (50%)", "cot") == "gsm8k/15 (50%)/cot"  # as in every version


def test_a_run_whose_ids_were_joined_as_they_are_is_continued(tmp_path, monkeypatch):
    """A run of the first format calls item 1 of benchmark a/b what it calls item b/1 of benchmark a."""

    def plan(name):
        keys = [("a/b", str(i), "r") for i in range(4)]
        return store.Plan.build([{"id": name(*k), "benchmark": k[0], "regime": k[2], "item_id": k[1]} for k in keys], 2)

    settings = {"config": {}, "columns": {"text": "string"}}
    monkeypatch.setattr("precollapse.store.run_plan.FORMAT", 1)
    with store.open_writer(tmp_path / "old.zarr", plan=plan(lambda *k: "/".join(k)), **settings) as writer:
        writer.write(0, table={"text": ["x", "y"]})
    monkeypatch.undo()
    with store.open_writer(tmp_path / "old.zarr", plan=plan(schema.state_id), **settings) as writer:
        assert writer.pending() == [1] and writer.shard(1).states[0]["id"] == "a/b/2/r"
        writer.write(1, table={"text": ["x", "y"]})
    assert store.verify(tmp_path / "old.zarr") == []
    with store.open_writer(tmp_path / "new.zarr", plan=plan(schema.state_id), **settings):
        pass
    with pytest.raises(store.ConfigMismatch):
        store.open_writer(tmp_path / "new.zarr", plan=plan(lambda *k: "/".join(k)), **settings)


# ------------------------------------------------------------------------------------------------- every field of every record

GONE = object()


def deep(levels):
    value = "x"
    for _ in range(levels):
        value = [value]
    return value


VALUES = {
    "missing": GONE,
    "null": None,
    "true": True,
    "a list": [],
    "an object": {},
    "a text": "absurd",
    "a negative number": -1,
    "a huge number": 10**13,
    "a number of 80 bits": 1 << 80,
    "a decimal": 0.5,
    "a name above": "../outside/sentinel",
    "an absolute name": "/etc/passwd",
    "deep lists": deep(200),
}
VALUES["half a character"] = "\ud800"
LEASE = "_leases/00000003.000001.json"
RECORDS = {
    "plan": "plan.json",
    "commit": f"_commits/{BAD:08d}.json",
    "lease": LEASE,
    "note": "_manifest/*.json",
    "failed": "_failed/0001.json",
}


@pytest.fixture(scope="module")
def whole():
    """A run with a record of every kind: shard 3 is not done, its cell has failed, and a writer elsewhere holds it."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    run = fill(folder / "run.zarr", range(N - 1))
    with store.open_writer(run, **SETTINGS) as writer:
        writer.fail_cell("b", "cot", "no memory")
    who = {**identity(), "host": "elsewhere", "boot": None}
    (run / LEASE).write_bytes(seal({"writer": "abc", "who": who, "beat": 3}))
    (folder / "outside").mkdir()
    (folder / "outside" / "sentinel").write_text("not yours\n")
    yield folder
    shutil.rmtree(folder)


OPENED: list[str] = []
WATCHED: list[str] = []


def _watch(event, arguments):
    if WATCHED and event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(tuple(WATCHED)):
        OPENED.append(arguments[0])


sys.addaudithook(_watch)


def places(value, path=()):
    """Paths to every field of a record: of lists, and of objects with many alike, the first entry."""
    if path:
        yield path
    if isinstance(value, dict):
        for key in list(value)[: 4 if path and path[-1] in ("files",) else None]:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


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


@contextlib.contextmanager
def quiet():
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as told,
    ):
        warnings.simplefilter("ignore")
        yield told


def rest_is_right(run, kind):
    """What can be read is what was written, and only the shard of the changed commit may be missing."""
    opened = store.open_run(run)
    shards = sorted(opened.states["shard"].unique())
    assert kind == "plan" or set(range(N - 1)) - set(shards) <= ({BAD} if kind in ("commit", "table") else set())
    if kind != "plan":
        np.testing.assert_array_equal(opened.array("x"), np.concatenate([contents(k)["arrays"]["x"] for k in shards]))
        np.testing.assert_array_equal(opened.array("k"), np.concatenate([contents(k)["arrays"]["k"] for k in shards]))
        states = opened.states
        if kind == "table":  # what the changed table says of its own shard is its own affair
            states = states[states["shard"] != BAD]
        texts = [text for k in states["shard"].unique() for text in contents(k)["table"]["text"]]
        assert [
            None if text is not text or text is None else str(text)
            for text in states["text"].astype(object).where(states["text"].notna(), None)
        ] == texts


def look(run, kind):
    """The verbs that change nothing."""
    for use in (
        lambda: rest_is_right(run, kind),
        lambda: store.describe(run),
        lambda: store.verify(run),
        lambda: [store.open_run(run).ragged("rows", i) for i in range(8)],
        lambda: (list(store.open_run(run).blobs("moments")), list(store.open_run(run).parts("moments"))),
    ):
        with contextlib.suppress(PrecollapseError):
            use()


def act(run, base):
    """The verbs of the command line, and those that write."""
    for words in (
        ["info", str(run)],
        ["verify", str(run)],
        ["export", str(run), "--npz", "--out", str(run.parent / "copy")],
    ):
        with quiet() as told:
            status = main(words)
        assert status in (0, 1, 2) and "unexpectedly" not in told.getvalue(), (words, told.getvalue())
        shutil.rmtree(run.parent / "copy", ignore_errors=True)
    with quiet():
        for _ in range(2):
            with contextlib.suppress(PrecollapseError):
                with store.open_writer(run, **SETTINGS, lease_seconds=0.01) as writer:
                    for index in writer.claimed(wait=False):
                        writer.write(index, **contents(index))
            with contextlib.suppress(PrecollapseError):
                store.repair(run)


@pytest.mark.parametrize("kind", RECORDS)
def test_any_field_may_say_anything(whole, kind):
    run = whole / "run.zarr"
    file = next(run.glob(RECORDS[kind]))
    sound = file.read_bytes()
    body = json.loads(sound)["body"]
    before = outside(whole)
    WATCHED[:] = [str(whole / "outside"), "/etc/passwd"]
    OPENED.clear()
    try:
        for number, path in enumerate(places(body)):
            for turn, (what, value) in enumerate(VALUES.items()):
                file.write_bytes(seal(changed(body, path, value)))
                try:
                    with quiet():
                        look(run, kind)
                    if (turn + number) % 21 == 0:
                        again = whole / "again"
                        again.mkdir()
                        shutil.copytree(run, again / "run.zarr")
                        act(again / "run.zarr", whole)
                        shutil.rmtree(again)
                except BaseException:
                    print(f"{kind}: {path} was {what}")
                    raise
        assert not OPENED
        WATCHED.clear()
        assert outside(whole) == before
    finally:
        WATCHED.clear()
        file.write_bytes(sound)


HEADS = {
    "shape": ([-1, -4], [10**13], ["a"], "ab", [0] * 200, [1 << 80], None, [4.0]),
    "dtype": ("F16", "X", 3, None, [], "I64"),
    "data_offsets": ([0, 10**13], [-8, 0], ["a", "b"], [1], None, "ab", [8, 0]),
}


@pytest.mark.parametrize("folder", ["tables", "ragged"])
def test_a_table_may_say_anything(whole, folder):
    """Its header changed, and its checksum in the commit with it."""
    run = whole / "run.zarr"
    file, record = run / folder / f"{BAD:08d}.safetensors", commit(run)
    sound, stated = file.read_bytes(), record.read_bytes()
    start = tensors.header_bytes(sound)
    head = json.loads(sound[8:start])
    heads = [
        b"",
        b"x",
        b"[1]",
        b"[" * 5000,
        b"null",
        b'{"a":1}',
        b'{"__metadata__":3}',
        b'{"__metadata__":{"columns":"a:b:c,../x:string"}}',
    ]
    for name in head:
        heads.append(json.dumps({key: entry for key, entry in head.items() if key != name}).encode())
        for field, values in HEADS.items():
            heads += [
                json.dumps({**head, name: {**head[name], field: value}}).encode()
                for value in values
                if name != "__metadata__"
            ]
    try:
        for text in heads:
            data = len(text).to_bytes(8, "little") + text + sound[start:] if text else b"abc"
            file.write_bytes(data)
            body = json.loads(stated)["body"]
            entry = body["files"][f"{folder}/{file.name}"]
            entry["size"], entry["crc32c"] = len(data), f"{store.verify.__globals__['crc32c'](data):08x}"
            record.write_bytes(seal(body))
            with quiet():
                look(run, "table")
                faults = store.verify(run)
                assert {fault.shard for fault in faults} <= {BAD, None}
                if faults:
                    opened = store.open_run(run)
                    sound_rows = np.flatnonzero(opened.take(range(len(opened)))._selection.shards() != BAD)
                    assert len(opened.take(sound_rows).states) == 4 * (N - 2)
    except BaseException:
        print(text[:200])
        raise
    finally:
        file.write_bytes(sound)
        record.write_bytes(stated)
