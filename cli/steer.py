"""`precollapse steer`: a direction of a finished run put back into its model."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from ..destination import for_results
from . import options
from .command import Command, Option, settings
from .output import quiet_libraries
from .values import LABEL, NUMBERS, SOME_NAMES, WHOLE


def _steer(arguments: argparse.Namespace) -> int:
    quiet_libraries()
    from ..studies.steering import SteerConfig, run_steer, save

    config = SteerConfig(**settings(arguments, SteerConfig))
    out = for_results(arguments.out) if arguments.out else None
    report = run_steer(config, progress=not arguments.quiet)
    print(report.to_json() if arguments.json else report.markdown())
    if out is not None:
        print(f"written: {save(report, out)}", file=sys.stderr)
    return 0


COMMAND = Command(
    "steer",
    "put a direction learnt from a run back into its model, and report the dose response on held-out items",
    _steer,
    {
        "": (
            replace(options.RUN, text="a finished study that kept resid_post"),
            options.CONFIG,
            options.JSON,
            options.QUIET,
            replace(options.OUT_FOLDER, text="folder for the tables, the figure and the vector"),
        ),
        "the direction": (
            Option("--layer", "block whose output is steered; negative from the last captured one", WHOLE),
            Option("--target", "what the direction separates: correct, compliant, option_choice, or another column"),
            Option("--positive", "value of the target on the positive side, where it has more than two", LABEL),
            Option("--negative", "value of the target on the negative side", LABEL, default="every other"),
            Option("--method", "mean-difference or probe"),
            Option("--site", "site that is steered"),
            Option("--vector", "a saved vector instead of one made from the run", metavar="FILE"),
        ),
        "the dose": (
            Option("--scales", "multiples of the vector, comma list", NUMBERS),
            Option("--mode", "add, ablate, project or replace"),
            Option(
                "--positions",
                "prompt, generated, all, boundary or response",
                default="{positions}, the boundary and every generated token",
            ),
            Option("--controls", "random directions of the same norm", WHOLE),
        ),
        "items and answers": (
            replace(options.BENCHMARK, text="only these benchmarks of the run", value=SOME_NAMES),
            Option("--regimes", "only these regimes of the run", SOME_NAMES, "NAMES"),
            replace(options.N, text="most held-out items per benchmark"),
            replace(options.SEED, text="seed of split, sample, controls and bootstrap"),
            options.NO_GENERATE,
            Option("--max-new-tokens", "cap on output tokens", WHOLE, default="the run's own"),
        ),
        "model": (
            Option("--model", "where the run's model is now, where its name does not say", default="the run's own"),
            Option("--revision", "Hub commit, branch or tag", default="the commit that the run was made of"),
            Option("--dtype", "float32, bfloat16, float16 or float64", default="the run's own"),
            options.DEVICE,
        ),
    },
    examples=(
        (
            "what makes an answer correct, at five doses and beside three random directions",
            "precollapse steer run.zarr --layer 15 --scales -8,-4,0,4,8 --out steered",
        ),
        (
            "entropy alone, without generating, on twenty held-out items",
            "precollapse steer run.zarr --layer -1 --target entropy_bits --no-generate --n 20 --json",
        ),
    ),
    source="studies:SteerConfig",
)
