"""`precollapse run`: a study from its model, items, regimes and what is kept."""

from __future__ import annotations

import argparse
from typing import Any

from .options import add_model_arguments, caps, command, files, names
from .output import print_finished, quiet_libraries


def add_run(commands: Any) -> None:
    p = command(
        commands, "run", _run, "capture (and answer, and grade) benchmark items under prompting regimes, into a run"
    )
    p.add_argument("--out", required=True, metavar="RUN.zarr", help="the run to create, or to go on with")
    add_study_arguments(p)
    p.add_argument("--quiet", action="store_true", help="no progress bar")


def add_study_arguments(p: argparse.ArgumentParser) -> None:
    """The arguments that describe a study: model, items, regimes and what is kept."""
    p.add_argument(
        "--model",
        default="smollm2-135m-instruct",
        help="Hub id, folder, .gguf file, or smollm2-135m-instruct (default)",
    )
    p.add_argument(
        "--benchmark",
        default="builtin,builtin_choice",
        metavar="NAMES",
        help="comma list of gsm8k, math500, arc_challenge, aqua_rat, builtin, builtin_choice, or names of your own (default: builtin,builtin_choice)",
    )
    p.add_argument(
        "--items",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="rows of a benchmark from a JSON Lines file; may be repeated",
    )
    p.add_argument("--n", type=int, help="items per benchmark, a seeded sample (default: all)")
    p.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    p.add_argument(
        "--regimes",
        default="baseline,cot,babble",
        metavar="NAMES",
        help="comma list of baseline, cot, babble, cot-open, babble-open, or names from --regimes-file (default: baseline,cot,babble)",
    )
    p.add_argument("--regimes-file", metavar="FILE.yaml", help="regimes of your own")
    p.add_argument(
        "--template",
        default="auto",
        choices=("auto", "chat", "raw"),
        help="put the text into the model's chat template, or leave it as it is (default: auto)",
    )
    p.add_argument(
        "--sites",
        default="resid_post",
        metavar="NAMES",
        help="comma list of resid_pre, resid_mid, resid_post, attn_out, mlp_out, z, final_norm; or none (default: resid_post)",
    )
    p.add_argument(
        "--layers",
        default="all",
        help="all, last, numbers and ranges such as 0,5,10-12, or a fraction such as 0.5 (default: all)",
    )
    p.add_argument(
        "--attention",
        default="none",
        choices=("none", "summary", "rows"),
        help="what to keep of the boundary's attention (default: none)",
    )
    p.add_argument("--top-k", type=int, default=10, help="most likely first tokens to keep (default: 10)")
    p.add_argument(
        "--moments", action="store_true", help="keep streaming mean and covariance of resid_post per cell and layer"
    )
    p.add_argument(
        "--store-dtype",
        default="auto",
        choices=("auto", "float32", "float16", "bfloat16"),
        help="how site rows are stored (default: the model's dtype)",
    )
    p.add_argument(
        "--after",
        default="",
        metavar="PLACES",
        help="also keep resid_post after so many output tokens, or at a text in the output; comma list such as 1,8,####",
    )
    p.add_argument("--no-generate", action="store_true", help="capture only")
    p.add_argument(
        "--max-new-tokens",
        metavar="N",
        help="cap on output tokens, a number or regime=N,... (default: 50 for baseline, 512 for the others)",
    )
    p.add_argument(
        "--hypotheses",
        metavar="FILE.yaml",
        help="hypotheses declared beforehand; the file is recorded in the run before it starts, and report tests them",
    )
    add_model_arguments(p)
    p.add_argument(
        "--share-prefix",
        default="auto",
        choices=("auto", "never", "always"),
        help="compute common prefixes of prompts once (default: auto)",
    )
    p.add_argument("--compile", action="store_true", help="compile the backbone with its taps (backend hf)")
    p.add_argument(
        "--shard-size",
        type=int,
        help="states per shard, the unit of commit and of resuming (default: from the model's size)",
    )


def study_config(a: argparse.Namespace) -> Any:
    """The StudyConfig that the arguments describe."""
    from ..studies import StudyConfig

    return StudyConfig(
        out=a.out,
        model=a.model,
        benchmarks=names(a.benchmark),
        items=files(a.items, "--items"),
        n=a.n,
        seed=a.seed,
        regimes=names(a.regimes),
        regimes_file=a.regimes_file,
        template=a.template,
        sites=() if a.sites == "none" else names(a.sites),
        layers=a.layers,
        attention=a.attention,
        top_k=a.top_k,
        generate=not a.no_generate,
        after=names(a.after),
        hypotheses=a.hypotheses,
        max_new_tokens=caps(a.max_new_tokens),
        moments=a.moments,
        store_dtype=a.store_dtype,
        backend=a.backend,
        dtype=a.dtype,
        device=a.device,
        revision=a.revision,
        batch_tokens=a.batch_tokens,
        share_prefix=a.share_prefix,
        compile=a.compile,
        shard_size=a.shard_size,
    )


def _run(a: argparse.Namespace) -> int:
    quiet_libraries()
    from ..reports.overview import overview
    from ..studies import run_study

    run = run_study(study_config(a), progress=not a.quiet)
    return print_finished(a, run, overview(run), "states")
