"""`precollapse trajectories`: entropy along chains of reasoning, sampled or forced."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from . import options
from .command import Command, Option, settings
from .output import print_run, quiet_libraries
from .values import FILES, NAMES, NUMBER, ON, SOME_NAMES, TEXTS, WHOLE, WHOLE_OR_NONE, choice

if TYPE_CHECKING:
    from ..studies import TrajectoryConfig


def trajectory_config(arguments: argparse.Namespace) -> TrajectoryConfig:
    """The TrajectoryConfig that the arguments describe; what is not among them keeps its default.

    `--rule` and `--cap` are those of every measure that is taken.
    """
    from ..studies import TrajectoryConfig

    given = settings(arguments, TrajectoryConfig)
    if arguments.both or arguments.forced:
        given["measures"] = ("sampled", "forced") if arguments.both else ("forced",)
    measures = given.get("measures", TrajectoryConfig.measures)
    for name in {"rule", "cap"} & set(given):
        value = given.pop(name)
        given |= {name if measure == "sampled" else f"forced_{name}": value for measure in measures}
    return TrajectoryConfig(**given)


def _trajectories(arguments: argparse.Namespace) -> int:
    quiet_libraries()
    from ..reports.overview import overview
    from ..studies import run_trajectories

    run = run_trajectories(trajectory_config(arguments), progress=not arguments.quiet)
    table = overview(run)[["benchmark", "states", "planned", "note"]].rename(columns={"states": "chains"})
    return print_run(run, table, "chains", arguments)


COMMAND = Command(
    "trajectories",
    "entropy along chains of reasoning: sampled continuations, or forced answers, at every step",
    _trajectories,
    {
        "": (options.CONFIG, options.JSON, options.QUIET),
        "the run": (options.OUT_RUN,),
        "model": (options.MODEL, options.DTYPE, options.DEVICE, options.REVISION, options.CONTEXT_LENGTH),
        "items and chains": (
            replace(options.BENCHMARK, text="comma list, as for run"),
            options.ITEMS,
            Option(
                "--chains",
                "chains to follow instead of generating them: JSON Lines with id and chain, or cot-proxy-tasks-7.tar.gz",
                FILES,
                "NAME=FILE",
            ),
            options.N,
            replace(options.SEED, text="seed of everything random"),
            Option("--chain-temperature", "of the reference chain; 0 is greedy", NUMBER),
            Option("--chain-tokens", "token budget of the reference chain", WHOLE),
            Option("--system", "system prompt of the chains, '' for none", metavar="TEXT", default="one step a line"),
            options.TEMPLATE_ARG,
            options.DATE,
            options.BOS,
            options.ALLOW_SAME_PROMPTS,
        ),
        "what is measured": (
            Option(
                "--forced",
                "force an answer at every boundary of the chain, in one pass, instead of sampling",
                ON,
                absent=False,
            ),
            Option("--both", "sampled and forced", ON, absent=False),
            Option(
                "--rule",
                "where a chain is cut: blank-line, marker, newline, sentence or window-40",
                default="{rule}; forced: {forced_rule}",
            ),
            Option("--cap", "most units per chain, or none", WHOLE_OR_NONE, default="{cap}; forced: {forced_cap}"),
            Option("--epsilon", "of the monotone flag, in nats", NUMBER),
            options.HYPOTHESES,
            Option("--preregistration", "an earlier name of --hypotheses", metavar="FILE.yaml"),
            replace(options.SHARD_SIZE, text="items per shard, the unit of commit and of resuming"),
        ),
        "sampled": (
            Option("--m", "continuations per prefix", WHOLE),
            Option("--temperature", "of the continuations", NUMBER),
            Option("--continuation-tokens", "token budget of a continuation", WHOLE),
            Option(
                "--graded",
                "read an answer from prefix and continuation together, or from the continuation alone",
                choice("whole", "continuation"),
            ),
            Option(
                "--tie",
                "majority answer of a tie: the one sampled first, the smallest, or none",
                choice("first", "smallest", "none"),
            ),
        ),
        "forced": (
            Option(
                "--anchor",
                "text that forces the answer; further ones measure how much the wording matters",
                TEXTS,
                "TEXT",
                setting="anchors",
            ),
            Option(
                "--options", "options of the forced answers", SOME_NAMES, "A,B,...", default="each item's own labels"
            ),
            Option("--end-tag", "the model's end-of-thinking tag, put beside the anchor"),
            Option("--tag-side", "where the tag stands", choice("before", "after"), default="{tag_side} the anchor"),
            Option("--compare-rules", "further rules, to measure how much the cutting matters", NAMES, "RULES"),
            Option("--residual", "keep the residual stream at every forced boundary", ON),
        ),
    },
    examples=(
        (
            "five continuations of every prefix of ten chains",
            "precollapse trajectories --n 10 --m 5 --chain-tokens 200 --out sampled.zarr",
        ),
        (
            "an answer forced at every sentence, with the residual stream kept there",
            "precollapse trajectories --benchmark builtin_choice --n 10 --forced --residual --out forced.zarr",
        ),
    ),
    source="studies:TrajectoryConfig",
)
