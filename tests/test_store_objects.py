"""The same protocol on S3-compatible storage, against a local server."""

from __future__ import annotations

import logging
import random
import signal
import subprocess
import sys
import time
import uuid

import numpy as np
import pytest

from precollapse import store
from precollapse.errors import RequestError, StoreError

obstore = pytest.importorskip("obstore", reason="obstore is not installed")
server_module = pytest.importorskip("moto.server", reason="moto[server] is not installed")
boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")

STATES = [{"id": f"b/{i}/r", "benchmark": "b", "regime": "r", "item_id": str(i)} for i in range(16)]
SETTINGS = {
    "plan": store.Plan.build(STATES, 4),
    "config": {"model": "m"},
    "arrays": {"x": store.ArraySpec((2, 300), "float16", (0, 1))},
    "columns": {"text": "string"},
    "ragged": {"rows": "int32"},
}


def contents(index, salt=0):
    rng = np.random.default_rng([index, salt])
    return {
        "arrays": {"x": rng.standard_normal((4, 2, 300)).astype(np.float16)},
        "table": {"text": [None, "a", "b", "c"]},
        "ragged": {"rows": [rng.integers(0, 9, n).astype(np.int32) for n in range(4)]},
        "blobs": {"moments": b"m" * 10},
    }


@pytest.fixture(scope="module")
def bucket():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_module.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    endpoint = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    settings = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="runs")
        yield client
    server.stop()


@pytest.fixture
def path(bucket):
    return f"s3://runs/{uuid.uuid4().hex}/run.zarr"


def keys(bucket, path):
    prefix = path.removeprefix("s3://runs/") + "/"
    pages = bucket.get_paginator("list_objects_v2").paginate(Bucket="runs", Prefix=prefix)
    return [entry["Key"].removeprefix(prefix) for page in pages for entry in page.get("Contents", [])]


def check(path, shards):
    assert store.verify(path) == []
    run = store.open_run(path)
    assert list(run.states["shard"].unique()) == list(shards)
    np.testing.assert_array_equal(run.array("x"), np.concatenate([contents(k)["arrays"]["x"] for k in shards]))
    return run


def test_a_run_on_s3_is_written_resumed_and_read(bucket, path):
    with store.open_writer(path, **SETTINGS) as writer:
        for index in (0, 2):
            assert writer.claim(index) and writer.write(index, **contents(index))
    check(path, [0, 2])
    with store.open_writer(path, **SETTINGS) as writer:
        assert writer.pending() == [1, 3]
        for index in writer.claimed():
            writer.write(index, **contents(index))
    run = check(path, range(4))
    np.testing.assert_array_equal(run.ragged("rows", 7), contents(1)["ragged"]["rows"][3])
    np.testing.assert_array_equal(run.take([13, 2]).resid(1, "x"), run.array("x")[[13, 2], 1])
    assert [data for _, data in run.blobs("moments")] == [b"m" * 10] * 4
    assert not [key for key in keys(bucket, path) if key.startswith(("_staging", "_leases", "_probe"))]
    with pytest.raises(store.ConfigMismatch, match="config.model"):
        store.open_writer(path, **{**SETTINGS, "config": {"model": "other"}})


def test_the_first_commit_on_s3_stays(bucket, path):
    with store.open_writer(path, **SETTINGS) as first, store.open_writer(path, **SETTINGS) as second:
        assert first.claim(0) and not second.claim(0)
        assert first.write(0, **contents(0)) is True
        assert second.write(0, **contents(0, salt=1)) is False
        assert not second.claim(0)
    check(path, [0])


def test_a_put_whose_answer_was_lost_counts(bucket, path, monkeypatch):
    """The client sends the commit again after a dropped answer, and is told that it exists: it is its own."""
    with store.open_writer(path, **SETTINGS) as writer:
        original = writer._files.create

        def twice(name, data, durable=True):
            original(name, data)
            return original(name, data)

        monkeypatch.setattr(writer._files, "create", twice)
        assert writer.write(0, **contents(0)) is True
    check(path, [0])


def test_a_death_between_commit_and_final_names(bucket, path, monkeypatch):
    writer = store.open_writer(path, **SETTINGS)

    def dead(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(writer._files, "move", dead)
    with pytest.raises(KeyboardInterrupt):
        writer.write(0, **contents(0))
    check(path, [0])  # read under the staged names
    assert any(key.startswith("_staging/") for key in keys(bucket, path))
    store.open_writer(path, **SETTINGS).close()
    assert not any(key.startswith("_staging/") for key in keys(bucket, path))
    check(path, [0])


def test_files_of_a_commit_that_may_still_arrive_are_kept(bucket, path, monkeypatch):
    """An interrupted put may reach the service later; its files must still be there then."""
    writer = store.open_writer(path, **SETTINGS)
    late = []

    def interrupted(name, data, durable=True):
        late.append((name, data))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writer._files, "create", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.write(0, **contents(0))
    store.open_writer(path, **SETTINGS).close()
    assert writer._files.create(*late[0])
    check(path, [0])


def test_a_flipped_byte_on_s3_is_found(bucket, path):
    with store.open_writer(path, **SETTINGS) as writer:
        writer.write(0, **contents(0))
        name = f"{writer.plan.cells[0].folder}/x/c.0.0.0"
    key = path.removeprefix("s3://runs/") + "/" + name
    data = bytearray(bucket.get_object(Bucket="runs", Key=key)["Body"].read())
    data[5] ^= 1
    bucket.put_object(Bucket="runs", Key=key, Body=bytes(data))
    assert [fault.where for fault in store.verify(path)] == [name]
    with pytest.raises(StoreError, match="damaged"):
        store.open_run(path).resid(0, "x")
    bucket.delete_object(Bucket="runs", Key=key)
    assert [fault.what for fault in store.verify(path)] == ["it is missing."]
    assert store.repair(path).withdrawn == (0,)
    assert store.verify(path) == []


def test_a_service_without_conditional_puts_is_refused(bucket, path, monkeypatch):
    original = obstore.put
    monkeypatch.setattr(obstore, "put", lambda place, name, data, **options: original(place, name, data))
    with pytest.raises(RequestError, match="does not honour conditional puts"):
        store.open_writer(path, **SETTINGS)
    assert keys(bucket, path) == []


def test_wrong_addresses(bucket, path):
    for bad, says in ((path, "no run at"), ("s3://nowhere/run", "cannot be read"), ("gs://runs/x", "Unknown address")):
        with pytest.raises(RequestError, match=says):
            store.open_run(bad)
    with pytest.raises(RequestError, match="no such bucket"):
        store.open_writer("s3://nowhere/run", **SETTINGS)
    bucket.put_object(Bucket="runs", Key=path.removeprefix("s3://runs/") + "/notes.txt", Body=b"x")
    with pytest.raises(RequestError, match="not a precollapse run"):
        store.open_run(path)
    with pytest.raises(RequestError, match="holds notes.txt"):
        store.open_writer(path, **SETTINGS)


def test_a_service_that_cannot_be_reached(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    from precollapse.store.files.objects import ObjectFiles

    monkeypatch.setattr(ObjectFiles, "RETRY_SECONDS", 0.2)
    with pytest.raises(StoreError, match="does not answer"):
        store.open_run("s3://runs/x")


WORK = """
import sys, numpy as np
from precollapse import store
states = [{"id": f"b/{i}/r", "benchmark": "b", "regime": "r", "item_id": str(i)} for i in range(16)]
settings = dict(plan=store.Plan.build(states, 4), config={}, arrays={"x": store.ArraySpec((2, 300), "float32", (0, 1))})
print("ready", flush=True)
with store.open_writer(sys.argv[1], **settings) as writer:
    for index in writer.claimed(poll_seconds=0.05):
        writer.write(index, arrays={"x": np.full((4, 2, 300), index, np.float32)})
"""


def test_kills_on_s3(bucket, path):
    """Writers killed at random instants, then a resume: every row is there once and right."""
    command = [sys.executable, "-c", WORK, path]
    rng = random.Random(0)
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        time.sleep(rng.uniform(0.1, 1.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
    assert store.verify(path) == []
    run = store.open_run(path)
    assert list(run.states["id"]) == [state["id"] for state in STATES]
    np.testing.assert_array_equal(run.array("x")[:, 0, 0], np.repeat(np.arange(4), 4))
    assert not [key for key in keys(bucket, path) if key.startswith(("_staging/0", "_leases/"))]


@pytest.mark.parametrize("name", ["run#1", "run?x=1", "p%41", "a//b", "../c", "a/./b", "a\\b"])
def test_an_address_that_means_another_place_is_refused(bucket, name):
    """Read as a URL, run#1 and run#2 are one place: the second run would go on with the first."""
    for use in (
        lambda: store.open_run(f"s3://runs/{name}"),
        lambda: store.open_writer(f"s3://runs/{name}", **SETTINGS),
    ):
        with pytest.raises(RequestError, match="which an address of a bucket cannot have"):
            use()


def test_a_probe_that_a_kill_left_does_not_keep_a_run_from_beginning(bucket, path):
    bucket.put_object(Bucket="runs", Key=f"{path.removeprefix('s3://runs/')}/_probe.0123", Body=b"1")
    with store.open_writer(path, **SETTINGS) as writer:
        writer.write(0, **contents(0))
    assert len(store.open_run(path)) == 4


@pytest.mark.parametrize("size", [0, 700, 1500])
def test_an_object_that_is_cut_short_is_named(bucket, path, size):
    with store.open_writer(path, **SETTINGS) as writer:
        writer.write(0, **contents(0))
    run = store.open_run(path)
    prefix = path.removeprefix("s3://runs/")
    for name in ("cells", "ragged"):
        listed = bucket.list_objects_v2(Bucket="runs", Prefix=f"{prefix}/{name}/")["Contents"]
        key = next(o["Key"] for o in listed if "/c." in o["Key"] or name == "ragged")
        body = bucket.get_object(Bucket="runs", Key=key)["Body"].read()
        bucket.put_object(Bucket="runs", Key=key, Body=body[: min(size, len(body) - 60)])
    with pytest.raises(StoreError, match="is cut short|is damaged"):
        run.resid(1, "x")
    with pytest.raises(StoreError, match="is cut short|is damaged"):
        run.ragged("rows", 3)
