"""The command line: `precollapse run | report | info | verify | ...`.

Guarantees: results on stdout and everything else on stderr; exit status 0, 1 (the job failed) or 2 (the request was wrong);
one clear sentence instead of a traceback; nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from ..errors import PrecollapseError, RequestError
from .profile import add_profile
from .report import add_report
from .run import add_run
from .steer import add_steer
from .store import add_export, add_import, add_info, add_repair, add_verify
from .trajectories import add_trajectories


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
        add_run,
        add_report,
        add_trajectories,
        add_steer,
        add_profile,
        add_info,
        add_verify,
        add_repair,
        add_export,
        add_import,
    ):
        add(commands)
    return parser
