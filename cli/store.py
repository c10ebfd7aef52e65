"""`precollapse info | verify | repair | export | import`: runs as files, without a model."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from .options import command
from .output import print_json


def add_info(commands: Any) -> None:
    p = command(commands, "info", _info, "what a run holds and how far it is")
    p.add_argument("run", metavar="RUN.zarr")


def _info(a: argparse.Namespace) -> int:
    from ..reports.overview import as_text, overview
    from ..store import describe, open_run

    facts = describe(a.run)
    table = overview(open_run(a.run))
    if a.json:
        print_json({**facts, "cells": json.loads(table.to_json(orient="records"))})
        return 0
    capture = facts["manifest"].get("capture", {})
    rate = facts["states_per_second"]
    lines = {
        "run": f"{facts['path']} (format {facts['format']}, {facts['bytes'] / 1e6:.1f} MB)",
        "progress": f"{facts['states']['committed']} of {facts['states']['total']} states, {facts['shards']['committed']} of {facts['shards']['total']} shards"
        + (f", {rate:.2f} states/s" if rate else ""),
        "model": " ".join(str(capture[k]) for k in ("model", "dtype", "device", "backend") if capture.get(k)),
        "arrays": ", ".join(f"{name} {tuple(spec['shape'])} {spec['dtype']}" for name, spec in facts["arrays"].items()),
        "moments": f"mean and covariance of resid_post by layer, of {len(facts['manifest']['moments'])} finished cells"
        if facts["manifest"].get("moments")
        else "",
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


def add_verify(commands: Any) -> None:
    p = command(
        commands, "verify", _verify, "read every committed byte of a run again and compare it with its checksums"
    )
    p.add_argument("run", metavar="RUN.zarr")


def _verify(a: argparse.Namespace) -> int:
    from ..store import open_run, verify

    faults = verify(a.run)
    if a.json:
        print_json({"run": a.run, "sound": not faults, "faults": [str(fault) for fault in faults]})
        return 1 if faults else 0
    for fault in faults:
        print(fault)
    if faults:
        if any(fault.where == "plan.json" for fault in faults):
            advice = "nothing can be repaired without the plan: restore plan.json from a copy"
        else:
            advice = f"`precollapse repair {a.run}` has the damaged shards made again by the next run"
        print(f"{a.run}: {len(faults)} {'fault' if len(faults) == 1 else 'faults'}; {advice}", file=sys.stderr)
        return 1
    progress = open_run(a.run).progress
    print(
        f"{a.run}: sound; {progress.shards} of {progress.shards_total} shards and {progress.states} states are committed"
    )
    return 0


def add_repair(commands: Any) -> None:
    p = command(
        commands,
        "repair",
        _repair,
        "take damaged shards of a run back, so that the next run makes them again, and sweep leftovers",
    )
    p.add_argument("run", metavar="RUN.zarr")


def _repair(a: argparse.Namespace) -> int:
    import dataclasses

    from ..store import repair

    done = repair(a.run)
    if a.json:
        print_json(dataclasses.asdict(done))
        return 0
    print(
        f"{a.run}: {len(done.withdrawn)} damaged shards taken back, {len(done.rewritten)} metadata files written anew, "
        f"{done.moved} files moved to their place, {len(done.aside)} files of no shard moved to _damaged, "
        f"{done.removed} leftovers removed, {done.kept} left alone"
    )
    if done.withdrawn:
        print("the command that made the run makes the missing shards again")
    return 0


_FORMATS = {
    "safetensors": "one file per benchmark and regime, and states.jsonl; `precollapse import` reads it back",
    "parquet": "a table of the states, and one file per array",
    "npz": "one file per benchmark and regime, and states.jsonl",
}


def add_export(commands: Any) -> None:
    p = command(commands, "export", _export, "copy the committed states of a run into files of another format")
    p.add_argument("run", metavar="RUN.zarr")
    formats = p.add_mutually_exclusive_group(required=True)
    for name in ("safetensors", "parquet", "npz"):
        formats.add_argument(f"--{name}", dest="format", action="store_const", const=name, help=_FORMATS[name])
    p.add_argument(
        "--out", metavar="DIR", help="a new folder (default: beside the run; in the working folder for a bucket)"
    )


def _export(a: argparse.Namespace) -> int:
    from ..store import export

    beside = Path(a.run.rstrip("/").rpartition("/")[2]) if "://" in a.run else Path(a.run)
    beside = beside if beside.name not in ("", "..") else Path(os.path.abspath(beside))
    out = Path(a.out) if a.out else beside.with_suffix(f".{a.format}")
    files = export(a.run, a.format, out)
    if a.json:
        print_json({"files": [str(path) for path in files]})
    else:
        print(f"{out}: {len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB")
    return 0


def add_import(commands: Any) -> None:
    p = command(commands, "import", _import, "make a run of saved activations: a folder of safetensors files with ids")
    p.add_argument(
        "folder",
        metavar="DIR",
        help="*.safetensors and the ids of their rows: states.jsonl, ids.json or ids.txt; or what export --safetensors wrote",
    )
    p.add_argument("--out", required=True, metavar="RUN.zarr", help="the run to make")


def _import(a: argparse.Namespace) -> int:
    from ..store import import_activations

    run = import_activations(a.folder, a.out)
    if a.json:
        print_json({"run": a.out, "states": len(run.states)})
    else:
        print(f"{a.out}: {len(run.states)} states")
    return 0
