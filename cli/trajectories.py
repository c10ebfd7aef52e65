"""`precollapse trajectories`: entropy along chains of reasoning."""

from __future__ import annotations

import argparse
from typing import Any

from .options import command, files, names, whole
from .output import print_finished, quiet_libraries


def add_trajectories(commands: Any) -> None:
    p = command(
        commands,
        "trajectories",
        _trajectories,
        "entropy along chains of reasoning: sampled continuations, or forced answers, at every step",
    )
    p.add_argument("--out", required=True, metavar="RUN.zarr", help="the run to create, or to go on with")
    p.add_argument(
        "--model",
        default="smollm2-135m-instruct",
        help="Hub id, folder, .gguf file, or smollm2-135m-instruct (default)",
    )
    p.add_argument("--benchmark", default="builtin", metavar="NAMES", help="comma list, as for run (default: builtin)")
    p.add_argument(
        "--items",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="rows of a benchmark from a JSON Lines file; may be repeated",
    )
    p.add_argument(
        "--chains",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="chains to follow instead of generating them: JSON Lines with id and chain, or cot-proxy-tasks-7.tar.gz",
    )
    p.add_argument("--n", type=int, help="items per benchmark, a seeded sample (default: all)")
    p.add_argument("--seed", type=int, default=0, help="seed of everything random (default: 0)")
    p.add_argument(
        "--forced",
        action="store_true",
        help="force an answer at every boundary of the chain, in one pass, instead of sampling",
    )
    p.add_argument("--both", action="store_true", help="sampled and forced")
    p.add_argument(
        "--rule",
        help="where a chain is cut: blank-line, marker, newline, sentence or window-40 (default: blank-line; forced: sentence)",
    )
    p.add_argument("--cap", help="most units per chain, or none (default: 8; forced: none)")
    p.add_argument("--m", type=int, default=5, help="continuations per prefix (default: 5)")
    p.add_argument("--temperature", type=float, default=0.7, help="of the continuations (default: 0.7)")
    p.add_argument("--continuation-tokens", type=int, default=150, help="token budget of a continuation (default: 150)")
    p.add_argument(
        "--chain-temperature", type=float, default=0.7, help="of the reference chain; 0 is greedy (default: 0.7)"
    )
    p.add_argument("--chain-tokens", type=int, default=600, help="token budget of the reference chain (default: 600)")
    p.add_argument(
        "--anchor",
        action="append",
        metavar="TEXT",
        help="text that forces the answer; further ones measure how much the wording matters",
    )
    p.add_argument(
        "--options", metavar="A,B,...", help="options of the forced answers (default: each item's own labels)"
    )
    p.add_argument("--end-tag", help="the model's end-of-thinking tag, put beside the anchor")
    p.add_argument(
        "--tag-side",
        default="before",
        choices=("before", "after"),
        help="where the tag stands (default: before the anchor)",
    )
    p.add_argument(
        "--compare-rules", default="", metavar="RULES", help="further rules, to measure how much the cutting matters"
    )
    p.add_argument(
        "--system", metavar="TEXT", help="system prompt of the chains, '' for none (default: one step a line)"
    )
    p.add_argument(
        "--graded",
        default="whole",
        choices=("whole", "continuation"),
        help="read an answer from prefix and continuation together, or from the continuation alone (default: whole)",
    )
    p.add_argument(
        "--tie",
        default="first",
        choices=("first", "smallest", "none"),
        help="majority answer of a tie: the one sampled first, the smallest, or none (default: first)",
    )
    p.add_argument("--residual", action="store_true", help="keep the residual stream at every forced boundary")
    p.add_argument("--epsilon", type=float, default=0.01, help="of the monotone flag, in nats (default: 0.01)")
    p.add_argument(
        "--hypotheses",
        metavar="FILE.yaml",
        help="hypotheses declared beforehand; the file is recorded in the run before it starts, and report tests them",
    )
    p.add_argument("--preregistration", metavar="FILE.yaml", help="an earlier name of --hypotheses")
    p.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, float16 or float64")
    p.add_argument("--device", help="torch device (default: the first GPU, else the CPU)")
    p.add_argument("--revision", help="Hub revision of the model")
    p.add_argument(
        "--shard-size", type=int, default=4, help="items per shard, the unit of commit and of resuming (default: 4)"
    )
    p.add_argument("--quiet", action="store_true", help="no progress bar")


def _trajectories(a: argparse.Namespace) -> int:
    quiet_libraries()
    from ..reports.overview import overview
    from ..studies import TrajectoryConfig, run_trajectories

    measures = ("sampled", "forced") if a.both else (("forced",) if a.forced else ("sampled",))
    given: dict[str, Any] = {}
    for prefix, wanted in (("", "sampled" in measures), ("forced_", "forced" in measures)):
        if wanted and a.rule is not None:
            given[f"{prefix}rule"] = a.rule
        if wanted and a.cap is not None:
            given[f"{prefix}cap"] = None if a.cap == "none" else whole(a.cap, "--cap")
    if a.system is not None:
        given["system"] = a.system
    if a.anchor:
        given["anchors"] = tuple(a.anchor)
    config = TrajectoryConfig(
        out=a.out,
        model=a.model,
        benchmarks=names(a.benchmark),
        items=files(a.items, "--items"),
        chains=files(a.chains, "--chains"),
        n=a.n,
        seed=a.seed,
        measures=measures,
        m=a.m,
        temperature=a.temperature,
        continuation_tokens=a.continuation_tokens,
        chain_temperature=a.chain_temperature,
        chain_tokens=a.chain_tokens,
        options=names(a.options) if a.options else None,
        end_tag=a.end_tag,
        tag_side=a.tag_side,
        compare_rules=names(a.compare_rules),
        graded=a.graded,
        tie=a.tie,
        residual=a.residual,
        epsilon=a.epsilon,
        hypotheses=a.hypotheses,
        preregistration=a.preregistration,
        dtype=a.dtype,
        device=a.device,
        revision=a.revision,
        shard_size=a.shard_size,
        **given,
    )
    run = run_trajectories(config, progress=not a.quiet)
    table = overview(run)[["benchmark", "states", "planned", "note"]].rename(columns={"states": "chains"})
    return print_finished(a, run, table, "chains")
