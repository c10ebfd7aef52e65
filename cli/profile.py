"""`precollapse profile`: where the time of a capture goes."""

from __future__ import annotations

import argparse
from typing import Any

from .options import command, names
from .output import print_json, quiet_libraries


def add_profile(commands: Any) -> None:
    p = command(
        commands, "profile", _profile, "where the time of a capture goes, against the bare backbone on the same prompts"
    )
    p.add_argument(
        "--model",
        default="smollm2-135m-instruct",
        help="Hub id, folder, .gguf file, or smollm2-135m-instruct (default)",
    )
    p.add_argument("--n", type=int, default=32, help="prompts (default: 32)")
    p.add_argument("--batch", type=int, help="most prompts per batch (default: the extractor's own budget of tokens)")
    p.add_argument("--backend", default="hf", help="hf, nnsight or transformer_lens (default: hf)")
    p.add_argument("--benchmark", default="builtin", help="where the prompts come from (default: builtin)")
    p.add_argument("--items", metavar="FILE", help="rows of the benchmark from a JSON Lines file")
    p.add_argument("--regime", default="baseline", help="how they are prompted (default: baseline)")
    p.add_argument(
        "--sites", default="resid_post", metavar="NAMES", help="comma list of sites, or none (default: resid_post)"
    )
    p.add_argument("--layers", default="all", help="as for run (default: all)")
    p.add_argument(
        "--attention", default="none", choices=("none", "summary", "rows"), help="attention to capture (default: none)"
    )
    p.add_argument(
        "--share-prefix",
        default="auto",
        choices=("auto", "never", "always"),
        help="compute common prefixes once (default: auto)",
    )
    p.add_argument("--compile", action="store_true", help="compile the backbone with its taps")
    p.add_argument("--rounds", type=int, default=3, help="timed rounds of each side (default: 3)")
    p.add_argument("--trace", metavar="FILE", help="write a Chrome trace (opens in Perfetto) of the first batch")
    p.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, float16 or float64")
    p.add_argument("--device", help="torch device (default: the first GPU, else the CPU)")
    p.add_argument("--revision", help="Hub revision of the model")


def _profile(a: argparse.Namespace) -> int:
    quiet_libraries()
    from ..studies.profile import profile_capture

    made = profile_capture(
        a.model,
        n=a.n,
        batch=a.batch,
        backend=a.backend,
        dtype=a.dtype,
        device=a.device,
        revision=a.revision,
        benchmark=a.benchmark,
        items=a.items,
        regime=a.regime,
        sites=() if a.sites == "none" else names(a.sites),
        layers=a.layers,
        attention=a.attention,
        share_prefix=a.share_prefix,
        compile=a.compile,
        rounds=a.rounds,
        trace=a.trace,
    )
    if a.json:
        print_json(made.as_dict())
    else:
        print(made)
    return 0
