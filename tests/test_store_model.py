"""Any interleaving of writing, killing, resuming, reading and damage keeps what was promised.

The machine holds what should be there, and drives the real store: several writers at once, each of which may die at any
of its system calls (all its further calls then fail, as if the process were gone).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings, strategies
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from precollapse import atomic, store
from precollapse.errors import RequestError
from precollapse.store.files import local as store_files
from precollapse.store.log import leases as store_leases
from precollapse.store.log import sweep as store_sweep

store_repair = sys.modules[store.repair.__module__]  # in the package, the function hides its module
SIZES = {("b", "baseline"): 7, ("b", "cot"): 5}
STATES = [
    {"id": f"{benchmark}/{i}/{regime}", "benchmark": benchmark, "regime": regime, "item_id": str(i)}
    for (benchmark, regime), n in SIZES.items()
    for i in range(n)
]
PLAN = store.Plan.build(STATES, 3)
SETTINGS = {
    "plan": PLAN,
    "config": {"model": "m"},
    "arrays": {"x": store.ArraySpec((2, 150), "float32", (0, 1)), "k": store.ArraySpec((2,), "int32")},
    "columns": {"n": "int64"},
    "ragged": {"rows": "float32"},
}
SHARDS = strategies.integers(0, PLAN.n_shards - 1)


def contents(index, salt):
    rng = np.random.default_rng([index, salt])
    n = len(PLAN.shard(index))
    return {
        "arrays": {
            "x": rng.standard_normal((n, 2, 150)).astype(np.float32),
            "k": rng.integers(0, 9, (n, 2)).astype(np.int32),
        },
        "table": {"n": [None, *rng.integers(0, 9, n - 1).tolist()]},
        "ragged": {"rows": [rng.random(i).astype(np.float32) for i in range(n)]},
    }


class Died(BaseException):
    """The process of a writer is gone."""


class Mortal:
    """`os`, for a process that dies after a number of calls: the last one may or may not have taken effect."""

    COUNTED = ("open", "write", "fsync", "link", "replace")

    def __init__(self):
        self.left = None

    def __getattr__(self, name):
        original = getattr(os, name)
        if name not in self.COUNTED:
            return original

        def call(*arguments, **options):
            if self.left is None:
                return original(*arguments, **options)
            self.left -= 1
            if self.left < 0 or (self.left == 0 and arguments and name == "write"):
                if name == "write":
                    original(arguments[0], bytes(arguments[1][: len(arguments[1]) // 2]))
                raise Died
            result = original(*arguments, **options)
            if self.left == 0:
                raise Died
            return result

        return call


class StoreMachine(RuleBasedStateMachine):
    """Writers come, write, die; readers must always see a sound part of one truth that only grows."""

    writers = Bundle("writers")

    def __init__(self):
        super().__init__()
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
        self.path = self.folder / "run"
        self.mortal = Mortal()
        self.dead = set()
        self.truth = {}  # shard -> salt of the write that won
        self.pending_truth = {}  # shard -> salts of writes that may have got through before their writer died
        store_files.os = atomic.os = self.mortal
        self.surely_dead = store_leases.surely_dead
        alive = lambda who: who.get("pid") in self.dead  # noqa: E731
        store_leases.surely_dead = store_sweep.surely_dead = store_repair.surely_dead = alive
        self.opened = 0

    def teardown(self):
        store_files.os = atomic.os = os
        store_leases.surely_dead = store_sweep.surely_dead = store_repair.surely_dead = self.surely_dead
        shutil.rmtree(self.folder, ignore_errors=True)

    def open(self):
        self.opened += 1
        number = 10_000_000 + self.opened
        original = store_leases.identity
        from precollapse.store import writer as store_writer

        def fake():
            return {**original(), "pid": number}

        store_leases.identity = store_writer.identity = fake
        try:
            writer = store.open_writer(self.path, **SETTINGS, lease_seconds=3600)
        except Died:
            self.dead.add(number)
            raise
        finally:
            store_leases.identity = store_writer.identity = original
        writer.number = number
        return writer

    def kill(self, writer):
        self.dead.add(writer.number)
        writer._leases._stop.set()

    def settle(self):
        """Of the writes whose writer died, the one that is committed now is the truth."""
        if not (self.path / "plan.json").exists():
            return
        run = store.open_run(self.path)
        for shard, salts in list(self.pending_truth.items()):
            if shard in run.commits:
                found = [v for s, v in run.iter_shards("x") if s.index == shard][0]
                match = [salt for salt in salts if np.array_equal(found, contents(shard, salt)["arrays"]["x"])]
                assert match, f"shard {shard} holds what nobody wrote"
                assert self.truth.setdefault(shard, match[0]) == match[0]
            del self.pending_truth[shard]

    @rule(target=writers)
    def start(self):
        return self.open()

    @rule(calls=strategies.integers(1, 60))
    def start_and_die(self, calls):
        self.mortal.left = calls
        try:
            self.kill(self.open())
        except Died:
            pass
        finally:
            self.mortal.left = None

    @rule(writer=writers, shard=SHARDS, salt=strategies.integers(0, 3))
    def write(self, writer, shard, salt):
        if writer.number in self.dead or writer._closed:
            return
        won = writer.write(shard, **contents(shard, salt))
        assert won == (shard not in self.truth)
        self.truth.setdefault(shard, salt)
        assert not writer.claim(shard)

    @rule(writer=consumes(writers), shard=SHARDS, salt=strategies.integers(0, 3), calls=strategies.integers(1, 40))
    def write_and_die(self, writer, shard, salt, calls):
        if writer.number in self.dead or writer._closed:
            return
        self.pending_truth.setdefault(shard, []).append(salt)
        if shard in self.truth:
            self.pending_truth[shard].append(self.truth[shard])
        self.mortal.left = calls
        original = writer._withdraw
        writer._withdraw = lambda *arguments: None  # a killed process cleans nothing up
        try:
            writer.write(shard, **contents(shard, salt))
        except Died:
            pass
        finally:
            self.mortal.left = None
            writer._withdraw = original
        self.kill(writer)
        self.settle()

    @rule(writer=writers, shard=SHARDS)
    def claim(self, writer, shard):
        if writer.number in self.dead or writer._closed:
            return
        if writer.claim(shard):
            assert shard not in self.truth

    @rule(writer=consumes(writers))
    def close(self, writer):
        if writer.number not in self.dead:
            writer.close()

    @rule()
    def repair(self):
        try:
            done = store.repair(self.path)
        except RequestError as error:
            assert any(text in str(error) for text in ("no run at", "may be in use", "is not a precollapse run"))
        else:
            assert done.withdrawn == ()

    @rule(shard=SHARDS, at=strategies.integers(0, 1000))
    def damage_and_repair(self, shard, at):
        """A flipped byte costs its shard, after a repair, and nothing else."""
        if shard not in self.truth:
            return
        cell = PLAN.cell_of(shard)
        file = self.path / cell.folder / "x" / f"c.{shard - cell.first_shard}.0.0"
        if not file.exists():  # still under its staged name
            return
        data = bytearray(file.read_bytes())
        data[at % len(data)] ^= 1
        file.write_bytes(data)
        assert {fault.shard for fault in store.verify(self.path)} == {shard}
        try:
            assert store.repair(self.path).withdrawn == (shard,)
        except RequestError:  # a writer is alive: put the byte back
            data[at % len(data)] ^= 1
            file.write_bytes(data)
        else:
            del self.truth[shard]

    @invariant()
    def readers_see_the_truth(self):
        if not (self.path / "plan.json").exists():
            assert not self.truth
            return
        run = store.open_run(self.path)
        assert set(run.commits) == set(self.truth)
        expected = [state["id"] for shard in sorted(self.truth) for state in PLAN.shard(shard).states]
        states = run.states
        assert list(states["id"]) == expected
        for shard, values in run.iter_shards("x"):
            wanted = contents(shard.index, self.truth[shard.index])
            np.testing.assert_array_equal(values, wanted["arrays"]["x"])
        if expected:
            np.testing.assert_array_equal(
                run.array("k"),
                np.concatenate([contents(k, self.truth[k])["arrays"]["k"] for k in sorted(self.truth)]),
            )
        assert store.verify(self.path) == []


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
