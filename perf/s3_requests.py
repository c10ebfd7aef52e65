"""Requests that a run costs on S3-compatible storage: how many a shard, at 10, 100 and 1,000 shards.

    python perf/s3_requests.py [--shards 10 100 1000] [--group 10] [--writers 1] [--json]

Runs of tiny shards are written to the server of the package moto as a study with moments writes them: claim, write, fold. The server's own
log is counted, so that every page of a listing and every retry counts. What is printed goes into docs/store.md.
"""

from __future__ import annotations

import argparse
import collections
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from precollapse import store

_LINE = re.compile(r'"(?P<method>[A-Z]+) /runs(?P<name>[^ "]*)')


class Counter(logging.Handler):
    """Counts the requests in a server's log by what they do."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: collections.Counter[str] = collections.Counter()

    def emit(self, record: logging.LogRecord) -> None:
        match = _LINE.search(re.sub(r"\x1b\[[0-9;]*m", "", record.getMessage()))
        if match:
            listing = match["method"] == "GET" and "list-type" in match["name"]
            self.counts["LIST" if listing else match["method"]] += 1


@contextmanager
def counted_server() -> Iterator[Counter]:
    """A local server with the bucket `runs`, to which the AWS_* variables point meanwhile."""
    import boto3
    from moto.server import ThreadedMotoServer

    log = logging.getLogger("werkzeug")
    log.setLevel(logging.INFO)
    log.propagate = False
    counter = Counter()
    log.addHandler(counter)
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    endpoint = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    before = dict(os.environ)
    os.environ.update(
        AWS_ENDPOINT_URL=endpoint,
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",
        AWS_REGION="us-east-1",
        AWS_ALLOW_HTTP="true",
    )
    try:
        boto3.client("s3").create_bucket(Bucket="runs")
        yield counter
    finally:
        os.environ.clear()
        os.environ.update(before)
        log.removeHandler(counter)
        server.stop()


def write_run(path: str, shards: int, group: int) -> None:
    """Write what is left of a run of one cell, folding a blob as it grows."""
    states = [{"id": f"b/{i}/r", "benchmark": "b", "regime": "r", "item_id": str(i)} for i in range(shards)]
    plan = store.Plan.build(states, 1)
    arrays = {"x": store.ArraySpec((2, 300), "float16", (0, 1))}
    with store.open_writer(path, plan=plan, config={}, arrays=arrays, ragged={"ids": "int32"}) as writer:
        for index in writer.claimed(poll_seconds=0.05):
            writer.write(
                index,
                arrays={"x": np.full((1, 2, 300), index % 100, np.float16)},
                ragged={"ids": [np.arange(3, dtype=np.int32)]},
                blobs={"moments": index.to_bytes(4, "little")},
            )
            writer.fold(index, "moments", group, lambda parts: parts[-1])


def measure(counter: Counter, shards: int, group: int = 10, writers: int = 1) -> dict[str, float]:
    """Requests a shard, by kind and in all, of writing a run of so many shards."""
    counter.counts.clear()
    path = f"s3://runs/{shards}-{writers}-{time.time_ns()}/run.zarr"
    threads = [threading.Thread(target=write_run, args=(path, shards, group)) for _ in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = dict(counter.counts)
    return {
        **{kind: round(count / shards, 2) for kind, count in sorted(counts.items())},
        "all": round(sum(counts.values()) / shards, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--group", type=int, default=10, help="shards that are folded together")
    parser.add_argument("--writers", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with counted_server() as counter:
        for shards in options.shards:
            cost = measure(counter, shards, options.group, options.writers)
            if options.json:
                print(json.dumps({"shards": shards, "writers": options.writers, **cost}), flush=True)
            else:
                kinds = ", ".join(f"{kind} {count:g}" for kind, count in cost.items() if kind != "all")
                print(f"{shards:>6} shards: {cost['all']:g} requests a shard ({kinds})", flush=True)


if __name__ == "__main__":
    main()
