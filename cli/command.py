"""A command of the command line, declared: its options in groups, its worked examples, what runs it.

Guarantees that whatever a command has is declared once and shown: an option that is in no group does not exist, a default in
the help is the one that its setting declares, and a value given on the command line comes before one of a configuration file.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from ..errors import RequestError
from . import config_file
from .defaults import declared
from .values import TEXT, Value

PART = "part"
"""The argument that names a command of a command."""


@dataclass(frozen=True)
class Option:
    """One option, or a positional argument when `flag` has no dashes.

    Attributes
    ----------
    flag : str
        The long flag.
    text : str
        What it is, for the help; the default is added to it.
    value : Value
    metavar : str or tuple of str, optional
    setting : str, optional
        The setting that it gives, when that has another name than the flag.
    default : str, optional
        How the default reads where the declared one does not say it; declared ones are named in braces.
    absent : optional
        What stands for it when it is not given and belongs to no setting.
    required : bool
    """

    flag: str
    text: str | None = None
    value: Value = TEXT
    metavar: str | tuple[str, ...] | None = None
    setting: str | None = None
    default: str | None = None
    absent: Any = argparse.SUPPRESS
    required: bool = False

    @property
    def is_positional(self) -> bool:
        """Whether it is given by its place."""
        return not self.flag.startswith("-")

    @property
    def name(self) -> str:
        """The name of its value among the arguments."""
        return self.setting or self.flag.lstrip("-").replace("-", "_")

    @property
    def opposite(self) -> str:
        """The flag that takes a switch back."""
        return f"--{self.flag[5:]}" if self.flag.startswith("--no-") else f"--no-{self.flag[2:]}"

    def default_text(self, defaults: Mapping[str, Any]) -> str:
        """The part of the help that tells the default; "" when there is nothing to tell."""
        default = self.default
        if default is None:
            value = defaults.get(self.name)
            default = "" if value is None or value is False or value is True else _shown(value)
        else:
            default = default.format_map({name: _shown(value) for name, value in defaults.items()})
        return f" (default: {default})" if default else ""


def _shown(value: Any) -> str:
    """A default as one would write it behind its flag."""
    if isinstance(value, tuple | list | dict):
        return ",".join(map(_shown, value))
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes
    ----------
    name : str
    text : str
        What it does, in half a sentence.
    handler : callable
        Runs it with the arguments, and returns the exit status.
    groups : mapping of str to sequence of Option
        Options by title; those under "" stand at the top.
    examples : sequence of (str, str)
        What an example does, and its command line.
    source : str, optional
        Where the settings are declared whose defaults the help tells: see `defaults.declared`.
    one_of : sequence of Option
        Switches of which exactly one is given.
    parts : sequence of Command
        Commands of a command, such as `list` of `tasks list`; the name of one follows its own, and it has no handler then.
    """

    name: str
    text: str
    handler: Callable[[argparse.Namespace], int] | None
    groups: Mapping[str, Sequence[Option]]
    examples: Sequence[tuple[str, str]]
    source: str | None = None
    one_of: Sequence[Option] = field(default=())
    parts: Sequence[Command] = field(default=())

    @property
    def options(self) -> tuple[Option, ...]:
        """All options that are given by flag, in the order of the help."""
        return tuple(o for group in self.groups.values() for o in group if not o.is_positional)

    @property
    def reads_config(self) -> bool:
        """Whether its options may stand in a file."""
        return any(option.flag == "--config" for option in self.options)

    def add_to(self, commands: Any) -> Parser:
        """Add its parser to those of the other commands."""
        everything = [option for group in (*self.groups.values(), self.one_of) for option in group]
        parser: Parser = commands.add_parser(
            self.name,
            help=self.text,
            description=self.text[0].upper() + self.text[1:] + ".",
            epilog="examples:\n" + "\n".join(f"  # {what}\n  {line}" for what, line in self.examples),
            formatter_class=partial(Help, options={o.name: o for o in everything}, source=self.source),
        )
        add_options(parser, self.groups, switches_go_back=self.reads_config)
        if self.one_of:
            exclusive = parser.add_mutually_exclusive_group(required=True)
            for option in self.one_of:
                _add(exclusive, option)
        if self.parts:
            below = parser.add_subparsers(dest=PART, metavar="COMMAND", parser_class=Parser, required=True)
            for part in self.parts:
                part.add_to(below)
        return parser

    def chosen(self, given: argparse.Namespace) -> Command:
        """The part that the arguments name; the command itself where it has none."""
        return next((part for part in self.parts if part.name == vars(given).get(PART)), self)

    def completed(self, given: argparse.Namespace) -> argparse.Namespace:
        """The arguments with those of the configuration file, and with what stands for those that are in neither.

        Raises
        ------
        RequestError
            When the file is refused, or a required option is nowhere.
        """
        values: dict[str, Any] = {option.name: option.absent for option in self.options}
        if "config" in given:
            allowed = {o.flag[2:]: (o.name, o.value) for o in self.options if o.flag != "--config"}
            values |= config_file.read(given.config, allowed, f"`precollapse {self.name}`")
        values |= vars(given)
        missing = [o.flag for o in self.options if o.required and values[o.name] is argparse.SUPPRESS]
        if missing:
            raise RequestError(
                f"the following arguments are required: {', '.join(missing)}; see `precollapse {self.name} --help`"
            )
        return argparse.Namespace(**{name: value for name, value in values.items() if value is not argparse.SUPPRESS})


def add_options(
    parser: argparse.ArgumentParser, groups: Mapping[str, Sequence[Option]], switches_go_back: bool = False
) -> None:
    """Add options to a parser, each group under its title; switches with a hidden opposite where they can go back.

    An option that is not given is not among the arguments, so that its setting keeps the default that it declares.
    """
    for title, options in groups.items():
        group = parser.add_argument_group(title) if title else parser
        for option in options:
            _add(group, option)
            if switches_go_back and option.value.is_switch:
                constant = not option.value.keywords["const"]
                hidden: dict[str, Any] = {"action": "store_const", "const": constant, "help": argparse.SUPPRESS}
                group.add_argument(option.opposite, dest=option.name, default=argparse.SUPPRESS, **hidden)


def _add(group: Any, option: Option) -> None:
    keywords = {"help": option.text, **option.value.keywords}
    metavar = option.metavar
    if not option.is_positional:
        keywords |= {"dest": option.name, "default": argparse.SUPPRESS}
        if not option.value.is_switch and "choices" not in keywords:
            metavar = metavar or option.flag[2:].replace("-", "_").upper()
    if metavar is not None:
        keywords["metavar"] = metavar
    group.add_argument(option.flag, **keywords)


def settings(arguments: argparse.Namespace, target: Callable[..., Any]) -> dict[str, Any]:
    """Those arguments that are settings of a dataclass or a function, to be handed to it; the others keep its defaults."""
    return {name: getattr(arguments, name) for name in inspect.signature(target).parameters if name in arguments}


class Parser(argparse.ArgumentParser):
    """A parser that refuses in one sentence, without printing its usage first."""

    def error(self, message: str) -> NoReturn:
        """Raise RequestError with the message."""
        raise RequestError(f"{message}; see `{self.prog} --help`")


class Help(argparse.HelpFormatter):
    """A help that tells declared defaults, and leaves examples as they are typed."""

    def __init__(self, prog: str, *, options: Mapping[str, Option], source: str | None, **layout: Any) -> None:
        super().__init__(prog, **layout)
        self._options, self._source = options, source

    def _get_help_string(self, action: argparse.Action) -> str | None:
        option = self._options.get(action.dest)
        if option is None or action.help is None:
            return action.help
        defaults = declared(self._source) if self._source else {}
        return action.help + option.default_text(defaults).replace("%", "%%")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)
