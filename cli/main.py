"""The command line: `precollapse run | report | info | verify | ...`.

Guarantees: results on stdout and everything else on stderr; exit status 0, 1 (the job failed), 2 (the request was wrong) or 130
(interrupted); one clear sentence instead of a traceback; nothing heavy is imported before a command needs it.

Why argparse, having looked at typer 0.29 and click 8: typer takes options and defaults from a function's signature, so the 27
settings of a study would be typed again beside their dataclass, which is what `command.Option` ends; click knows no groups of
options, nor a group of which exactly one is needed. Typer takes 0.23 s to import where argparse takes 0.02 s. What they would
give, completion, `shtab` makes of an argparse parser as a static script that starts no Python at a key press, and what argparse
lacks, a value such as -8,-4,0 behind its flag, is one function here.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from ..errors import PrecollapseError, RequestError
from . import profile, report, run, steer, store, trajectories
from .command import Parser

COMMANDS = {
    command.name: command
    for command in (
        run.COMMAND,
        report.COMMAND,
        trajectories.COMMAND,
        steer.COMMAND,
        profile.COMMAND,
        *store.COMMANDS,
    )
}
"""All commands by name, in the order of the help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        return _main(sys.argv[1:] if argv is None else argv)


def _main(argv: Sequence[str]) -> int:
    parser = build_parser()
    try:
        arguments = parser.parse_args(joined(argv))
        arguments.argv = list(argv)
        if arguments.command is None:
            parser.print_help(sys.stderr)
            return 2
        command = COMMANDS[arguments.command]
        status = command.handler(command.completed(arguments))
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


def joined(argv: Sequence[str]) -> list[str]:
    """Arguments with a value such as "-8,-4,0" joined to its flag: argparse would take it for a flag of its own."""
    out: list[str] = []
    for argument in argv:
        if out and re.fullmatch(r"--[a-z][a-z-]*", out[-1]) and re.match(r"-[\d.]", argument):
            out[-1] += f"={argument}"
        else:
            out.append(argument)
    return out


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    from .. import __version__

    parser = Parser(prog="precollapse", description="What a language model already knows before its first token.")
    parser.add_argument("--version", action="version", version=f"precollapse {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    parser.add_argument(
        "--print-completion",
        action=_Completion,
        choices=("bash", "zsh", "tcsh"),
        help="print a script that completes commands, options and files in that shell, such as "
        'eval "$(precollapse --print-completion bash)" (needs precollapse[completion])',
    )
    for command in COMMANDS.values():
        command.add_to(commands)
    return parser


class _Completion(argparse.Action):
    """Prints a completion script and ends, as --version does."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        try:
            import shtab
        except ImportError:
            raise RequestError(
                "--print-completion needs shtab, which is not installed; pip install precollapse[completion]"
            ) from None
        for command_parser in (a for a in parser._actions if isinstance(a, argparse._SubParsersAction)):
            for action in (action for one in command_parser.choices.values() for action in one._actions):
                if str(action.metavar).endswith(("FILE", ".yaml")):
                    action.complete = shtab.FILE
                elif action.metavar in ("DIR", "RUN.zarr"):
                    action.complete = shtab.DIRECTORY
        print(shtab.complete(parser, values))
        parser.exit()
