"""`precollapse info | verify | repair | export | import`: runs as files; none of these needs a model."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..destination import for_a_run, for_results, is_address
from . import options
from .command import Command, Option
from .output import print_json
from .values import Value


def _entry(manifest: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An entry of a manifest that is an object; an empty one where it is missing, or somebody made something else of it."""
    value = manifest.get(name)
    return value if isinstance(value, Mapping) else {}


def _info(arguments: argparse.Namespace) -> int:
    from ..reports.overview import as_text, overview
    from ..store import describe, open_run

    facts = describe(arguments.run)
    table = overview(open_run(arguments.run))
    if arguments.json:
        print_json({**facts, "cells": json.loads(table.to_json(orient="records"))})
        return 0
    capture, moments = (_entry(facts["manifest"], name) for name in ("capture", "moments"))
    rate = facts["states_per_second"]
    lines = {
        "run": f"{facts['path']} (format {facts['format']}, {facts['bytes'] / 1e6:.1f} MB)",
        "progress": f"{facts['states']['committed']} of {facts['states']['total']} states, {facts['shards']['committed']} of {facts['shards']['total']} shards"
        + (f", {rate:.2f} states/s" if rate else ""),
        "model": " ".join(str(capture[k]) for k in ("model", "dtype", "device", "backend") if capture.get(k)),
        "arrays": ", ".join(f"{name} {tuple(spec['shape'])} {spec['dtype']}" for name, spec in facts["arrays"].items()),
        "moments": f"mean and covariance of resid_post by layer, of {len(moments)} finished cells" if moments else "",
        "faults": "; ".join(
            map(str, facts["faults"].values() if isinstance(facts["faults"], dict) else facts["faults"])
        )
        or "none seen (precollapse verify reads every byte)",
    }
    for name, value in lines.items():
        if value:
            print(f"{name:<10} {value}")
    print(f"\n{as_text(table)}")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from ..store import open_run, verify

    faults = verify(arguments.run)
    if arguments.json:
        print_json({"run": arguments.run, "sound": not faults, "faults": [str(fault) for fault in faults]})
        return 1 if faults else 0
    for fault in faults:
        print(fault)
    if faults:
        if any(fault.where == "plan.json" for fault in faults):
            advice = "nothing can be repaired without the plan: restore plan.json from a copy"
        else:
            advice = f"`precollapse repair {arguments.run}` has the damaged shards made again by the next run"
        print(f"{arguments.run}: {len(faults)} {'fault' if len(faults) == 1 else 'faults'}; {advice}", file=sys.stderr)
        return 1
    progress = open_run(arguments.run).progress
    print(
        f"{arguments.run}: sound; {progress.shards} of {progress.shards_total} shards and {progress.states} states are committed"
    )
    return 0


def _repair(arguments: argparse.Namespace) -> int:
    import dataclasses

    from ..store import repair

    done = repair(arguments.run)
    if arguments.json:
        print_json(dataclasses.asdict(done))
        return 0
    print(
        f"{arguments.run}: {len(done.withdrawn)} damaged shards taken back, {len(done.rewritten)} metadata files written anew, "
        f"{done.moved} files moved to their place, {len(done.aside)} files of no shard moved to _damaged, "
        f"{done.removed} leftovers removed, {done.kept} left alone"
    )
    if done.withdrawn:
        print("the command that made the run makes the missing shards again")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from ..store import export

    beside = Path(arguments.run.rstrip("/").rpartition("/")[2]) if "://" in arguments.run else Path(arguments.run)
    beside = beside if beside.name not in ("", "..") else Path(os.path.abspath(beside))
    wanted = arguments.out or beside.with_suffix(f".{arguments.format}")
    out = wanted if is_address(wanted) else for_results(wanted)
    files = export(arguments.run, arguments.format, out)
    if arguments.json:
        print_json({"files": [str(path) for path in files]})
    else:
        print(f"{out}: {len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB")
    return 0


def _import(arguments: argparse.Namespace) -> int:
    from ..store import import_activations

    run = import_activations(arguments.folder, for_a_run(arguments.out))
    if arguments.json:
        print_json({"run": arguments.out, "states": len(run.states)})
    else:
        print(f"{arguments.out}: {len(run.states)} states")
    return 0


def _format(name: str, text: str) -> Option:
    """A format to export to."""
    return Option(f"--{name}", text, Value(name, str, {"action": "store_const", "const": name}), setting="format")


COMMANDS = (
    Command(
        "info",
        "what a run holds and how far it is",
        _info,
        {"": (options.RUN, options.JSON)},
        examples=(
            ("arrays, cells and progress", "precollapse info run.zarr"),
            ("the same of a run in a bucket, for a script", "precollapse info s3://bucket/run.zarr --json"),
        ),
    ),
    Command(
        "verify",
        "read every committed byte of a run again and compare it with its checksums",
        _verify,
        {"": (options.RUN, options.JSON)},
        examples=(
            ("after a copy", "precollapse verify run.zarr"),
            ("the faults as a list, for a script", "precollapse verify run.zarr --json"),
        ),
    ),
    Command(
        "repair",
        "take damaged shards of a run back, so that the next run makes them again, and sweep leftovers",
        _repair,
        {"": (options.RUN, options.JSON)},
        examples=(
            ("take back what verify found", "precollapse repair run.zarr"),
            ("what was done, for a script", "precollapse repair run.zarr --json"),
        ),
    ),
    Command(
        "export",
        "copy the committed states of a run into files of another format",
        _export,
        {
            "": (
                options.RUN,
                options.JSON,
                replace(
                    options.OUT_FOLDER,
                    text="a new folder",
                    default="beside the run; in the working folder for a bucket",
                ),
            ),
        },
        examples=(
            ("states as a table, arrays as files beside it", "precollapse export run.zarr --parquet --out tables"),
            ("for other tools, and for import", "precollapse export run.zarr --safetensors"),
        ),
        one_of=(
            _format(
                "safetensors",
                "one file per benchmark and regime, and states.jsonl; `precollapse import` reads it back",
            ),
            _format("parquet", "a table of the states, and one file per array"),
            _format("npz", "one file per benchmark and regime, and states.jsonl"),
        ),
    ),
    Command(
        "import",
        "make a run of saved activations: safetensors, .npz, HDF5, Parquet or Zarr, with ids",
        _import,
        {
            "": (
                Option(
                    "folder",
                    "files of one format, or one file, with an array id or states.jsonl, ids.json or ids.txt beside them; or what export wrote",
                    metavar="DIR",
                ),
                options.JSON,
                replace(options.OUT_RUN, text="the run to make (required)"),
            ),
        },
        examples=(
            ("what export wrote", "precollapse import run.safetensors --out again.zarr"),
            (
                "activations of another tool, with ids.txt beside them",
                "precollapse import activations --out theirs.zarr",
            ),
        ),
    ),
)
