"""`precollapse steer`: a direction of a finished run put back into its model."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from .options import command, names, numbers
from .output import quiet_libraries


def add_steer(commands: Any) -> None:
    p = command(
        commands,
        "steer",
        _steer,
        "put a direction learnt from a run back into its model, and report the dose response on held-out items",
    )
    p.add_argument("run", metavar="RUN.zarr", help="a finished study that kept resid_post")
    p.add_argument("--layer", type=int, help="block whose output is steered; negative from the last captured one")
    p.add_argument(
        "--scales",
        default="-8,-4,0,4,8",
        help="multiples of the vector, comma list (default: -8,-4,0,4,8)",
    )
    p.add_argument(
        "--target",
        default="correct",
        help="what the direction separates: correct, compliant, option_choice, or another column (default: correct)",
    )
    p.add_argument("--positive", help="value of the target on the positive side, where it has more than two")
    p.add_argument("--negative", help="value of the target on the negative side (default: every other)")
    p.add_argument("--method", default="mean-difference", help="mean-difference or probe (default: mean-difference)")
    p.add_argument("--site", default="resid_post", help="site that is steered (default: resid_post)")
    p.add_argument("--vector", metavar="FILE", help="a saved vector instead of one made from the run")
    p.add_argument("--mode", default="add", help="add, ablate, project or replace (default: add)")
    p.add_argument(
        "--positions",
        default="response",
        help="prompt, generated, all, boundary or response (default: response, the boundary and every generated token)",
    )
    p.add_argument("--benchmark", metavar="NAMES", help="only these benchmarks of the run")
    p.add_argument("--regimes", metavar="NAMES", help="only these regimes of the run")
    p.add_argument("--n", type=int, help="most held-out items per benchmark (default: all)")
    p.add_argument("--controls", type=int, default=3, help="random directions of the same norm (default: 3)")
    p.add_argument("--no-generate", action="store_true", help="capture only")
    p.add_argument("--max-new-tokens", type=int, help="cap on output tokens (default: the run's own)")
    p.add_argument("--seed", type=int, default=0, help="seed of split, sample, controls and bootstrap (default: 0)")
    p.add_argument("--model", help="where the run's model is now, where its name does not say (default: the run's own)")
    p.add_argument("--revision", help="Hub commit, branch or tag (default: the commit that the run was made of)")
    p.add_argument("--dtype", help="float32, bfloat16, float16 or float64 (default: the run's own)")
    p.add_argument("--device", help="torch device (default: the first GPU, else the CPU)")
    p.add_argument("--out", metavar="DIR", help="folder for the tables, the figure and the vector")
    p.add_argument("--quiet", action="store_true", help="no progress bar")


def _steer(a: argparse.Namespace) -> int:
    quiet_libraries()
    from ..reports.output_folder import writable_folder
    from ..studies.steering import SteerConfig, run_steer, save

    config = SteerConfig(
        run=a.run,
        layer=a.layer,
        scales=numbers(a.scales, "--scales"),
        target=a.target,
        positive=a.positive,
        negative=a.negative,
        method=a.method,
        site=a.site,
        vector=a.vector,
        mode=a.mode,
        positions=a.positions,
        benchmarks=names(a.benchmark) if a.benchmark else None,
        regimes=names(a.regimes) if a.regimes else None,
        n=a.n,
        controls=a.controls,
        generate=not a.no_generate,
        max_new_tokens=a.max_new_tokens,
        seed=a.seed,
        model=a.model,
        revision=a.revision,
        dtype=a.dtype,
        device=a.device,
    )
    if a.out:
        writable_folder(a.out)
    made = run_steer(config, progress=not a.quiet)
    print(made.to_json() if a.json else made.markdown())
    if a.out:
        print(f"written: {save(made, a.out)}", file=sys.stderr)
    return 0
