"""YAML as a person means it, and no more of it than a person writes.

Guarantees that nothing which was written down vanishes on the way in: YAML keeps the last of two equal keys without a word, so a
second `hypotheses:` would make the first list as if it had never been declared. And that a file of a few lines cannot stand for a
billion values (aliases of aliases), nor for a number that takes minutes to read, whoever wrote it: what a file stands for is
counted before it is built.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from .checks import is_whole
from .errors import RequestError

BYTES = 1 << 20
"""Most bytes of a file."""
VALUES = 20_000
"""Most values that a file may stand for, each alias counted as all that it repeats."""
CHARACTERS = 4 << 20
"""Most characters of all these values together."""
DEPTH = 32
"""Most lists and mappings within one another."""
_NUMBER_LENGTH = 64


class _Bounded(yaml.SafeLoader):
    """The safe loader, refusing a mapping that names a key twice, and what stands for too much."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._count = 0
        self._sizes: dict[int, tuple[int, int] | None] = {}  # by node; None while it is being counted

    def compose_node(self, parent: Any, index: Any) -> Any:
        """A node with what is below it, counted on the way."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self._depth, self._count = self._depth + 1, self._count + 1
        if self._depth > DEPTH:
            raise _too_much(f"more than {DEPTH} lists and mappings within one another", event)
        if self._count > VALUES:
            raise _too_much(f"more than {VALUES} values", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def get_single_node(self) -> Any:
        """The document, with its aliases counted as what they repeat."""
        node = super().get_single_node()
        if node is not None:
            self._size(node)
        return node

    def _size(self, node: Any) -> tuple[int, int]:
        """Values and characters that a node stands for."""
        key = id(node)
        if key in self._sizes:
            size = self._sizes[key]
            if size is None:
                raise _too_much("an alias within what it stands for", node)
            return size
        if isinstance(node, yaml.ScalarNode):
            values, characters = 1, len(node.value)
        else:
            self._sizes[key] = None
            pairs = isinstance(node, yaml.MappingNode)
            parts = [self._size(part) for entry in node.value for part in (entry if pairs else (entry,))]
            values, characters = 1 + sum(v for v, _ in parts), sum(c for _, c in parts)
        if values > VALUES or characters > CHARACTERS:
            raise _too_much(f"aliases that repeat more than {VALUES} values or {CHARACTERS} characters", node)
        self._sizes[key] = values, characters
        return values, characters

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping of YAML, with its keys checked."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the name {key_node.value[:80]!r} appears twice", key_node.start_mark
                    )
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: Any) -> float:
        """A number, of 64 bits where it is whole."""
        if len(node.value) > _NUMBER_LENGTH:
            raise _too_much(f"a number of {len(node.value)} characters (put a text into quotes)", node)
        whole = node.tag == "tag:yaml.org,2002:int"
        number = self.construct_yaml_int(node) if whole else self.construct_yaml_float(node)
        if whole and not is_whole(number, -(2**63), 2**63 - 1):
            raise _too_much("a whole number of more than 64 bits (put a text into quotes)", node)
        return float(number) if not whole else number


for _kind in ("int", "float"):
    _Bounded.add_constructor(f"tag:yaml.org,2002:{_kind}", _Bounded.construct_number)


class _TooMuch(yaml.MarkedYAMLError):
    """What stands there is YAML, but more than this module reads."""


def _too_much(what: str, place: Any) -> _TooMuch:
    return _TooMuch(None, None, what, place.start_mark)


def parse(raw: bytes, where: str) -> tuple[Any, str]:
    """The content of a YAML file, and its text.

    Parameters
    ----------
    raw : bytes
    where : str
        What a message calls the file.

    Raises
    ------
    RequestError
        When the bytes are not UTF-8, or not YAML, name a key twice, or are, or stand for, more than the bounds of this module.
    """
    if len(raw) > BYTES:
        raise RequestError(f"{where} has {len(raw)} bytes; a file of this kind has at most {BYTES}.")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{where} is not UTF-8 text (byte {error.start + 1}); save it as UTF-8.") from None
    try:
        return yaml.load(text, Loader=_Bounded), text  # a subclass of the safe loader
    except (yaml.YAMLError, ValueError, ArithmeticError, RecursionError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f" (line {mark.line + 1})" if mark else ""
        fault = "holds more than is read" if isinstance(error, _TooMuch) else "is not valid YAML"
        raise RequestError(f"{where} {fault}{line}: {' '.join(str(problem or error).split()):.300}.") from None
    except (LookupError, AttributeError, TypeError):  # what PyYAML makes of !!bool 7
        raise RequestError(f"{where} is not valid YAML: a value does not fit the tag (!!) before it.") from None
