"""The command line: `precollapse run | report | info | verify | ...`.

Guarantees: results on stdout and everything else on stderr; exit status 0, 1 (the job failed) or 2 (the request was wrong);
one clear sentence instead of a traceback; nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..errors import PrecollapseError, RequestError
from ..layers import held_layers


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        return _main(sys.argv[1:] if argv is None else argv)


def _main(argv: Sequence[str]) -> int:
    parser = build_parser()
    try:
        arguments = parser.parse_args(_joined(argv))
        arguments.argv = list(argv)
        if arguments.command is None:
            parser.print_help(sys.stderr)
            return 2
        status = arguments.handler(arguments)
        sys.stdout.flush()
        return int(status)
    except PrecollapseError as error:
        print(f"precollapse: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print(
            "precollapse: interrupted; what was committed is kept, and the same command goes on from there",
            file=sys.stderr,
        )
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("PRECOLLAPSE_DEBUG"):
            traceback.print_exc()
        text = " ".join(str(error).split())[:300]
        print(
            f"precollapse: failed unexpectedly ({type(error).__name__}: {text}); set PRECOLLAPSE_DEBUG=1 for the details, and please report it",
            file=sys.stderr,
        )
        return 1


def _show_warning(message: Warning | str, *_where: Any, **_more: Any) -> None:
    """A warning as one line, without the place in the code that gave it."""
    print(f"precollapse: note: {message}", file=sys.stderr)


def _joined(argv: Sequence[str]) -> list[str]:
    """Arguments with a value such as "-8,-4,0" joined to its flag, which argparse would take for a flag of its own."""
    out: list[str] = []
    for argument in argv:
        if out and out[-1] in ("--scales", "--layers") and re.match(r"-[\d.]", argument):
            out[-1] += f"={argument}"
        else:
            out.append(argument)
    return out


class _Parser(argparse.ArgumentParser):
    """A parser that refuses in one sentence, without printing its usage first."""

    def error(self, message: str) -> NoReturn:
        raise RequestError(f"{message}; see `{self.prog} --help`")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    from .. import __version__

    parser = _Parser(prog="precollapse", description="What a language model already knows before its first token.")
    parser.add_argument("--version", action="version", version=f"precollapse {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for add in (
        _run_command,
        _report_command,
        _trajectories_command,
        _steer_command,
        _profile_command,
        _info_command,
        _verify_command,
        _repair_command,
        _export_command,
        _import_command,
    ):
        add(commands)
    return parser


def _command(
    commands: Any, name: str, handler: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(handler=handler)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


# --- run ----------------------------------------------------------------------------------------------------------------


def _run_command(commands: Any) -> None:
    p = _command(
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
    _add_model_arguments(p)
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


def _add_model_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument("--backend", default="hf", help="hf, nnsight or transformer_lens (default: hf)")
    p.add_argument(
        "--dtype", default="auto", help="auto, float32, bfloat16, float16 or float64 (default: auto, float32 on a CPU)"
    )
    p.add_argument("--device", help="torch device, such as cuda:0 (default: the first GPU, else the CPU)")
    p.add_argument("--revision", help="Hub revision of the model")
    p.add_argument(
        "--batch-tokens",
        type=int,
        help="most padded tokens per batch (default: 8192 on a CPU, or 2048 with --no-generate; 16384 on a GPU)",
    )


def study_config(a: argparse.Namespace) -> Any:
    """The StudyConfig that the arguments describe."""
    from ..studies import StudyConfig

    return StudyConfig(
        out=a.out,
        model=a.model,
        benchmarks=_names(a.benchmark),
        items=_files(a.items, "--items"),
        n=a.n,
        seed=a.seed,
        regimes=_names(a.regimes),
        regimes_file=a.regimes_file,
        template=a.template,
        sites=() if a.sites == "none" else _names(a.sites),
        layers=a.layers,
        attention=a.attention,
        top_k=a.top_k,
        generate=not a.no_generate,
        after=_names(a.after),
        hypotheses=a.hypotheses,
        max_new_tokens=_caps(a.max_new_tokens),
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
    _quiet_libraries()
    from ..reports.overview import overview
    from ..studies import run_study

    run = run_study(study_config(a), progress=not a.quiet)
    return _made(a, run, overview(run), "states")


def _made(a: argparse.Namespace, run: Any, table: Any, unit: str) -> int:
    """Say what a run holds now and what comes next; 1 when something of it failed or is missing, else 0."""
    from ..reports.overview import as_text

    done = run.progress
    if a.json:
        cells = json.loads(table.to_json(orient="records"))
        _print_json({"run": str(a.out), "cells": cells, "complete": done.complete})
    else:
        report = f"precollapse report {shlex.quote(str(a.out))} --out {shlex.quote(Path(a.out).stem + '-report')}"
        print(f"{as_text(table)}\n\n{a.out}: {done.states} of {done.states_total} {unit}. Next: {report}")
    return 1 if run.failed_cells or not done.complete else 0


# --- report ------------------------------------------------------------------------------------------------------------


def _report_command(commands: Any) -> None:
    p = _command(
        commands,
        "report",
        _report,
        "tables and figures of one or more runs, as Markdown, CSV and a self-contained HTML page",
    )
    p.add_argument("runs", nargs="+", metavar="RUN.zarr")
    p.add_argument("--out", metavar="DIR", help="folder for report.md, report.csv, report.html and the figures")
    p.add_argument("--seed", type=int, default=0, help="seed of splits, resamples and shuffles (default: 0)")
    for_studies = p.add_argument_group("studies only")
    for flag, default, text in (
        ("--site", "resid_post", "states that are analysed (default: resid_post)"),
        (
            "--layers",
            "all",
            "layers the probe reads together, such as 5,10-12 or last; of several sets apart by / validation chooses (default: all)",
        ),
        ("--probe", "logistic", "logistic, ridge, linear, mean-difference, knn or mlp (default: logistic)"),
        ("--target", "correct", "column that the probe predicts (default: correct)"),
    ):
        for_studies.add_argument(flag, default=default, help=text)
    for flag, number, text in (
        ("--splits", 20, "repeated splits, for the spread (default: 20)"),
        ("--shuffles", 100, "refits on shuffled training labels (default: 100)"),
        ("--resamples", 1000, "bootstrap resamples (default: 1000)"),
    ):
        for_studies.add_argument(flag, type=int, default=number, help=text)
    for_studies.add_argument(
        "--hypotheses", metavar="FILE.yaml", help="hypotheses to test (default: those that the run recorded)"
    )
    p.add_argument("--quiet", action="store_true", help="no progress bar")


def _analysis_settings(a: argparse.Namespace, runs: list[Any]) -> Any:
    """The settings of an analysis that the arguments describe; layers are counted as the runs hold them."""
    from ..analysis.cells import Settings

    layers = None
    if a.layers != "all":
        held = [run.sites.get(a.site, ()) for run in runs]
        if len({tuple(one) for one in held}) > 1:
            raise RequestError(f"the runs hold different layers of {a.site}; report them apart to choose --layers")
        layers = [held_layers(text, held[0], "--layers") for text in a.layers.split("/")]
    return Settings(
        site=a.site,
        layers=layers,
        probe=a.probe,
        target=a.target,
        seed=a.seed,
        resamples=a.resamples,
        shuffles=a.shuffles,
        n_splits=a.splits,
    )


def _report(a: argparse.Namespace) -> int:
    from ..analysis import hypotheses
    from ..reports import study as report
    from ..store import open_run

    runs = [open_run(path) for path in a.runs]
    kinds = {run.manifest.get("kind", "study") for run in runs}
    if kinds == {"trajectories"}:
        for name, plain in (
            ("site", "resid_post"),
            ("layers", "all"),
            ("probe", "logistic"),
            ("target", "correct"),
            ("hypotheses", None),
        ):
            if getattr(a, name) != plain:
                raise RequestError(f"--{name} is for studies, and {', '.join(a.runs)} holds trajectories; leave it out")
        return _trajectory_report(a, runs)
    if len(kinds) > 1:
        raise RequestError(
            f"the runs are of different kinds ({', '.join(sorted(kinds))}); report studies and trajectories apart"
        )
    made = report.write_report(
        runs,
        Path(a.out) if a.out else None,
        settings=_analysis_settings(a, runs),
        hypotheses=None if a.hypotheses is None else hypotheses.load(a.hypotheses),
        progress=None if a.quiet else _progress("report"),
        command=shlex.join(["precollapse", *a.argv]),
    )
    if a.json:
        print(made.to_json())
    else:
        print(made.to_text())
        if a.out:
            print(f"\nwritten: {Path(a.out) / 'report.html'}, report.md, report.csv and figures")
        else:
            print("\n--out DIR writes the whole report: Markdown, HTML, CSV, JSON and figures")
    return 0


def _trajectory_report(a: argparse.Namespace, runs: list[Any]) -> int:
    from ..reports.trajectories import trajectory_report

    others = {Path(path).stem: run for path, run in zip(a.runs[1:], runs[1:], strict=True)}
    made = trajectory_report(runs[0], a.out, seed=a.seed, others=others or None)
    if a.json:
        _print_json(made.values)
    else:
        print(made.markdown)
        if a.out:
            print(f"\nwritten: {', '.join(str(path) for path in made.files)}")
    return 0


# --- trajectories -------------------------------------------------------------------------------------------------------


def _trajectories_command(commands: Any) -> None:
    p = _command(
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
        "--preregistration",
        metavar="FILE.yaml",
        help="hypotheses, criteria and exclusions, hashed into the run before generation starts",
    )
    p.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, float16 or float64")
    p.add_argument("--device", help="torch device (default: the first GPU, else the CPU)")
    p.add_argument("--revision", help="Hub revision of the model")
    p.add_argument(
        "--shard-size", type=int, default=4, help="items per shard, the unit of commit and of resuming (default: 4)"
    )
    p.add_argument("--quiet", action="store_true", help="no progress bar")


def _trajectories(a: argparse.Namespace) -> int:
    _quiet_libraries()
    from ..reports.overview import overview
    from ..studies import TrajectoryConfig, run_trajectories

    measures = ("sampled", "forced") if a.both else (("forced",) if a.forced else ("sampled",))
    given: dict[str, Any] = {}
    for prefix, wanted in (("", "sampled" in measures), ("forced_", "forced" in measures)):
        if wanted and a.rule is not None:
            given[f"{prefix}rule"] = a.rule
        if wanted and a.cap is not None:
            given[f"{prefix}cap"] = None if a.cap == "none" else _whole(a.cap, "--cap")
    if a.system is not None:
        given["system"] = a.system
    if a.anchor:
        given["anchors"] = tuple(a.anchor)
    config = TrajectoryConfig(
        out=a.out,
        model=a.model,
        benchmarks=_names(a.benchmark),
        items=_files(a.items, "--items"),
        chains=_files(a.chains, "--chains"),
        n=a.n,
        seed=a.seed,
        measures=measures,
        m=a.m,
        temperature=a.temperature,
        continuation_tokens=a.continuation_tokens,
        chain_temperature=a.chain_temperature,
        chain_tokens=a.chain_tokens,
        options=_names(a.options) if a.options else None,
        end_tag=a.end_tag,
        tag_side=a.tag_side,
        compare_rules=_names(a.compare_rules),
        graded=a.graded,
        tie=a.tie,
        residual=a.residual,
        epsilon=a.epsilon,
        preregistration=a.preregistration,
        dtype=a.dtype,
        device=a.device,
        revision=a.revision,
        shard_size=a.shard_size,
        **given,
    )
    run = run_trajectories(config, progress=not a.quiet)
    table = overview(run)[["benchmark", "states", "planned", "note"]].rename(columns={"states": "chains"})
    return _made(a, run, table, "chains")


# --- steer, profile -----------------------------------------------------------------------------------------------------


def _steer_command(commands: Any) -> None:
    p = _command(
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
    _quiet_libraries()
    from ..reports.output_folder import writable_folder
    from ..studies.steer import SteerConfig, run_steer, save

    config = SteerConfig(
        run=a.run,
        layer=a.layer,
        scales=_numbers(a.scales, "--scales"),
        target=a.target,
        positive=a.positive,
        negative=a.negative,
        method=a.method,
        site=a.site,
        vector=a.vector,
        mode=a.mode,
        positions=a.positions,
        benchmarks=_names(a.benchmark) if a.benchmark else None,
        regimes=_names(a.regimes) if a.regimes else None,
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


def _profile_command(commands: Any) -> None:
    p = _command(
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
    _quiet_libraries()
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
        sites=() if a.sites == "none" else _names(a.sites),
        layers=a.layers,
        attention=a.attention,
        share_prefix=a.share_prefix,
        compile=a.compile,
        rounds=a.rounds,
        trace=a.trace,
    )
    if a.json:
        _print_json(made.as_dict())
    else:
        print(made)
    return 0


# --- info, verify, repair, export, import -------------------------------------------------------------------------------


def _info_command(commands: Any) -> None:
    p = _command(commands, "info", _info, "what a run holds and how far it is")
    p.add_argument("run", metavar="RUN.zarr")


def _info(a: argparse.Namespace) -> int:
    from ..reports.overview import as_text, overview
    from ..store import describe, open_run

    facts = describe(a.run)
    table = overview(open_run(a.run))
    if a.json:
        _print_json({**facts, "cells": json.loads(table.to_json(orient="records"))})
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


def _verify_command(commands: Any) -> None:
    p = _command(
        commands, "verify", _verify, "read every committed byte of a run again and compare it with its checksums"
    )
    p.add_argument("run", metavar="RUN.zarr")


def _verify(a: argparse.Namespace) -> int:
    from ..store import open_run, verify

    faults = verify(a.run)
    if a.json:
        _print_json({"run": a.run, "sound": not faults, "faults": [str(fault) for fault in faults]})
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


def _repair_command(commands: Any) -> None:
    p = _command(
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
        _print_json(dataclasses.asdict(done))
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


def _export_command(commands: Any) -> None:
    p = _command(commands, "export", _export, "copy the committed states of a run into files of another format")
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
        _print_json({"files": [str(path) for path in files]})
    else:
        print(f"{out}: {len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB")
    return 0


def _import_command(commands: Any) -> None:
    p = _command(commands, "import", _import, "make a run of saved activations: a folder of safetensors files with ids")
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
        _print_json({"run": a.out, "states": len(run.states)})
    else:
        print(f"{a.out}: {len(run.states)} states")
    return 0


# --- shared -------------------------------------------------------------------------------------------------------------


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _files(entries: Sequence[str], flag: str) -> dict[str, str]:
    files: dict[str, str] = {}
    for entry in entries:
        name, equals, path = entry.partition("=")
        if not equals or not name or not path:
            raise RequestError(f"{flag} {entry!r} is not NAME=FILE; write for example {flag} gsm8k=rows.jsonl")
        if name in files:
            raise RequestError(f"{flag} names {name!r} twice; give one file per benchmark")
        files[name] = path
    return files


def _numbers(text: str, flag: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in _names(text))
    except ValueError as error:
        raise RequestError(
            f"{flag} {text!r} is not a comma list of numbers; write for example {flag}=-8,-4,0,4,8"
        ) from error


def _whole(text: str, flag: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise RequestError(f"{flag} {text!r} is not a whole number; give one, or none") from error


def _caps(text: str | None) -> int | dict[str, int] | None:
    if text is None:
        return None
    try:
        if "=" not in text:
            return int(text)
        pairs = [part.split("=") for part in _names(text)]
        names = [name for name, _ in pairs]
        if len(set(names)) != len(names):
            raise RequestError(f"--max-new-tokens {text!r} names a regime twice; give one cap each")
        return {name: int(value) for name, value in pairs}
    except ValueError as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(
            f"--max-new-tokens {text!r} is neither a number nor regime=number,...; write for example 160 or baseline=50,cot=160"
        ) from error


def _progress(label: str) -> Callable[[float, str], None]:
    """A progress callback that draws a bar: called with the share done and what is being done."""
    from tqdm import tqdm

    bar = tqdm(
        total=100,
        desc=label,
        file=sys.stderr,
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}",
        leave=False,
    )

    def advance(share: float, doing: str) -> None:
        bar.n = min(100, 100 * share)
        bar.set_postfix_str(doing, refresh=True)
        if share >= 1:
            bar.close()

    return advance


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, default=str))


def _quiet_libraries() -> None:
    """Keep the model libraries' own bars and advice off the terminal; ours says what matters."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    hub_logging.set_verbosity_error()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
