"""`precollapse run`: a study of benchmark items under prompting regimes, from its model, items and what is kept."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from . import options
from .command import Command, Option, add_options, settings
from .output import print_run, quiet_libraries
from .values import CAPS, NAMES, ON, PAIR, PLACES, STOPS, WHOLE, choice

if TYPE_CHECKING:
    from ..studies import StudyConfig

STUDY = {
    "model": (
        options.MODEL,
        options.BACKEND,
        options.DTYPE,
        options.DEVICE,
        options.REVISION,
        Option(
            "--batch-tokens",
            "most padded tokens per batch",
            WHOLE,
            default="8192 on a CPU, or 2048 with --no-generate; 16384 on a GPU",
        ),
        options.CONTEXT_LENGTH,
        options.SHARE_PREFIX,
        options.COMPILE,
    ),
    "items and prompts": (
        options.BENCHMARK,
        options.ITEMS,
        options.N,
        options.SEED,
        Option(
            "--regimes",
            "comma list of baseline, cot, babble, cot-open, babble-open, or names from --regimes-file",
            NAMES,
            "NAMES",
        ),
        Option("--regimes-file", "regimes of your own", metavar="FILE.yaml"),
        Option(
            "--template",
            "put the text into the model's chat template, or leave it as it is",
            choice("auto", "chat", "raw"),
        ),
        options.TEMPLATE_ARG,
        options.DATE,
        options.BOS,
        options.ALLOW_SAME_PROMPTS,
    ),
    "what is kept": (
        options.SITES_KEPT,
        options.LAYERS_KEPT,
        options.ATTENTION,
        Option("--top-k", "most likely first tokens to keep", WHOLE),
        Option("--moments", "keep streaming mean and covariance of resid_post per cell and layer", ON),
        Option(
            "--after",
            "also keep resid_post after so many output tokens, or at a text in the output; comma list such as 1,8,####",
            PLACES,
            "PLACES",
        ),
        Option(
            "--boundaries",
            "thinking (before the first token), or thinking,answer: also where the model has thought and not yet answered",
            NAMES,
            "NAMES",
        ),
        Option(
            "--store-dtype",
            "how site rows are stored",
            choice("auto", "float32", "float16", "bfloat16"),
            default="{store_dtype}, the model's dtype",
        ),
        replace(options.SHARD_SIZE, default="from the model's size"),
    ),
    "answers": (
        options.NO_GENERATE,
        Option(
            "--max-new-tokens",
            "cap on output tokens, a number or regime=N,...",
            CAPS,
            "N",
            default="50 for baseline, 512 for the others",
        ),
        Option(
            "--stop",
            "text before which an output ends (\\n is a line break), of all regimes or of one; may be repeated; none for none",
            STOPS,
            "[REGIME=]TEXT",
            default="the headings of the regime with --template raw, else none",
        ),
        Option(
            "--thinking-tags",
            "opening and end of the model's thinking",
            PAIR,
            ("START", "END"),
            default="those its tokenizer or template knows",
        ),
        options.HYPOTHESES,
    ),
}
"""The options that describe a study, by title."""


def add_study_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe a study: model, items, regimes and what is kept."""
    add_options(parser, STUDY)


def study_config(arguments: argparse.Namespace) -> StudyConfig:
    """The StudyConfig that the arguments describe; what is not among them keeps its default."""
    from ..studies import StudyConfig

    given = settings(arguments, StudyConfig)
    if isinstance(given.get("stop"), tuple):
        given["stop"] = _by_regime(given["stop"], given.get("regimes", StudyConfig.regimes))
    return StudyConfig(**given)


def _by_regime(stops: Sequence[str], regimes: Sequence[str]) -> Sequence[str] | dict[str, list[str]]:
    """Stop texts by regime where one names its own, as in `cot=TEXT`; those that name none are every regime's."""
    own = [
        (name, text) if name in regimes and equals else ("", stop)
        for stop in stops
        for name, equals, text in [stop.partition("=")]
    ]
    if not any(name for name, _ in own):
        return stops
    return {regime: [text for name, text in own if name in ("", regime)] for regime in regimes}


def _run(arguments: argparse.Namespace) -> int:
    quiet_libraries()
    from ..reports.overview import overview
    from ..studies import run_study

    run = run_study(study_config(arguments), progress=not arguments.quiet)
    return print_run(run, overview(run), "states", arguments)


COMMAND = Command(
    "run",
    "capture (and answer, and grade) benchmark items under prompting regimes, into a run",
    _run,
    {"": (options.CONFIG, options.JSON, options.QUIET), "the run": (options.OUT_RUN,), **STUDY},
    examples=(
        (
            "25 generated questions of each kind with the embedded model; no network is needed",
            "precollapse run --n 25 --max-new-tokens 96 --out run.zarr",
        ),
        (
            "rows of your own, two regimes, chosen layers; nothing is generated",
            "precollapse run --benchmark mine --items mine=rows.jsonl --regimes baseline,cot --layers 5,10-12 "
            "--no-generate --out mine.zarr",
        ),
    ),
    source="studies:StudyConfig",
)
