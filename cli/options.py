"""Options that commands share, and how the text of an option becomes a value.

Guarantees that an option means the same under every command that has it, and that a value that cannot be read is refused in one
sentence that names the flag.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import RequestError


def command(
    commands: Any, name: str, handler: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(handler=handler)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def add_model_arguments(p: argparse.ArgumentParser) -> None:
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


def names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def files(entries: Sequence[str], flag: str) -> dict[str, str]:
    files: dict[str, str] = {}
    for entry in entries:
        name, equals, path = entry.partition("=")
        if not equals or not name or not path:
            raise RequestError(f"{flag} {entry!r} is not NAME=FILE; write for example {flag} gsm8k=rows.jsonl")
        if name in files:
            raise RequestError(f"{flag} names {name!r} twice; give one file per benchmark")
        files[name] = path
    return files


def numbers(text: str, flag: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in names(text))
    except ValueError as error:
        raise RequestError(
            f"{flag} {text!r} is not a comma list of numbers; write for example {flag}=-8,-4,0,4,8"
        ) from error


def whole(text: str, flag: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise RequestError(f"{flag} {text!r} is not a whole number; give one, or none") from error


def caps(text: str | None) -> int | dict[str, int] | None:
    if text is None:
        return None
    try:
        if "=" not in text:
            return int(text)
        pairs = [part.split("=") for part in names(text)]
        regimes = [regime for regime, _ in pairs]
        if len(set(regimes)) != len(regimes):
            raise RequestError(f"--max-new-tokens {text!r} names a regime twice; give one cap each")
        return {regime: int(value) for regime, value in pairs}
    except ValueError as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(
            f"--max-new-tokens {text!r} is neither a number nor regime=number,...; write for example 160 or baseline=50,cot=160"
        ) from error
