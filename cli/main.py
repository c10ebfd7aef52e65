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
import errno
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from ..errors import PrecollapseError, RequestError
from . import grade, profile, report, run, steer, store, tasks, terminal, trajectories
from .command import Parser
from .output import print_json

COMMANDS = {
    command.name: command
    for command in (
        run.COMMAND,
        report.COMMAND,
        trajectories.COMMAND,
        steer.COMMAND,
        tasks.COMMAND,
        grade.COMMAND,
        profile.COMMAND,
        *store.COMMANDS,
    )
}
"""All commands by name, in the order of the help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    with warnings.catch_warnings(), terminal.guarded():
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        return _main(sys.argv[1:] if argv is None else argv)


def _main(argv: Sequence[str]) -> int:
    try:
        status = _run(argv)
        sys.stdout.flush()
        return status
    except SystemExit:  # --help, --version: printed, and not yet written
        try:
            sys.stdout.flush()
        except OSError as error:
            return _failed(error)
        raise
    except PrecollapseError as error:
        terminal.say(str(error))
        found = getattr(error, "differences", None)
        if found and "--json" in argv:
            print_json({"error": str(error), "differences": [vars(difference) for difference in found]})
        return error.exit_status
    except KeyboardInterrupt:
        terminal.say("interrupted; what was committed is kept, and the same command goes on from there")
        return 130
    except Exception as error:
        return _failed(error)


def _failed(error: Exception) -> int:
    """Say what failed, and return the exit status."""
    if isinstance(error, BrokenPipeError):  # whoever read the output has enough
        terminal.close_output()
        return 1
    if os.environ.get("PRECOLLAPSE_DEBUG"):
        traceback.print_exc()
    sentence, status = failure(error)
    terminal.say(sentence)
    return status


def failure(error: Exception) -> tuple[str, int]:
    """What is said of an error that no part of the package made a sentence of, and the exit status.

    A fault of the package is reported as one; a full disk or memory, a closed output, a folder that has gone and a file that
    nests too deeply are none.
    """
    text = " ".join(str(error).split())[:300]
    if isinstance(error, terminal.OutputFailed):
        terminal.close_output()
        return f"the output could not be written ({text}); what was computed is kept where it was to be stored", 1
    if isinstance(error, FileNotFoundError) and not terminal.has_working_folder():
        return "the working folder does not exist any more; change to one that does, and start again", 2
    if isinstance(error, MemoryError):
        return f"there is not enough memory ({text or 'none left'}); ask for less at once, or use a larger machine", 1
    if isinstance(error, RecursionError):
        return "something that was read has parts within parts more deeply than is followed; look at the files given", 2
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        place = f" ({error.filename})" if error.filename else ""
        return f"the machine refused{place}: {error.strerror}; see to that, and the same command goes on", 1
    if isinstance(error, UnicodeEncodeError):
        return f"a name or a path here is no text that UTF-8 can write ({text}); rename it", 2
    return (
        f"failed unexpectedly ({type(error).__name__}: {text}); set PRECOLLAPSE_DEBUG=1 for the details, and please report it",
        1,
    )


_OF_THE_MACHINE = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EACCES,
}


def _run(argv: Sequence[str]) -> int:
    """Parse the arguments and run their command."""
    parser = build_parser()
    terminal.check_arguments(argv)
    arguments = parser.parse_args(joined(argv))
    arguments.argv = list(argv)
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return 2
    command = COMMANDS[arguments.command].chosen(arguments)
    assert command.handler is not None
    return int(command.handler(command.completed(arguments)))


def _show_warning(message: Warning | str, *_where: Any, **_more: Any) -> None:
    """A warning as one line, without the place in the code that gave it."""
    terminal.say(f"note: {message}")


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
