"""`precollapse profile`: where the time of a capture goes."""

from __future__ import annotations

import argparse
from dataclasses import replace

from . import options
from .command import Command, Option, settings
from .output import print_json, quiet_libraries
from .values import WHOLE


def _profile(arguments: argparse.Namespace) -> int:
    quiet_libraries()
    from ..studies.profile import profile_capture

    profile = profile_capture(**settings(arguments, profile_capture))
    if arguments.json:
        print_json(profile.as_dict())
    else:
        print(profile)
    return 0


COMMAND = Command(
    "profile",
    "where the time of a capture goes, against the bare backbone on the same prompts",
    _profile,
    {
        "": (options.CONFIG, options.JSON),
        "model": (
            options.MODEL,
            options.BACKEND,
            options.DTYPE,
            options.DEVICE,
            options.REVISION,
            options.SHARE_PREFIX,
            options.COMPILE,
        ),
        "prompts": (
            Option("--n", "prompts", WHOLE),
            Option("--batch", "most prompts per batch", WHOLE, default="the extractor's own budget of tokens"),
            Option("--benchmark", "where the prompts come from"),
            Option("--items", "rows of the benchmark from a JSON Lines file", metavar="FILE"),
            Option("--regime", "how they are prompted"),
        ),
        "what is captured": (
            replace(options.SITES_KEPT, text="comma list of sites, or none"),
            replace(options.LAYERS_KEPT, text="as for run"),
            replace(options.ATTENTION, text="attention to capture"),
        ),
        "what is measured": (
            Option("--rounds", "timed rounds of each side", WHOLE),
            Option("--trace", "write a Chrome trace (opens in Perfetto) of the first batch", metavar="FILE"),
        ),
    },
    examples=(
        ("32 prompts of the embedded model", "precollapse profile --n 32 --rounds 5"),
        (
            "attention summaries besides, and a trace of the first batch",
            "precollapse profile --attention summary --layers last --trace trace.json --json",
        ),
    ),
    source="studies.profile:profile_capture",
)
