"""YAML as a person means it: a name that appears twice is an error, and so is text that is not UTF-8.

Guarantees that nothing which was written down vanishes on the way in. YAML keeps the last of two equal keys without a word,
so a second `hypotheses:` would make the first list as if it had never been declared.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from .errors import RequestError


class UniqueKeys(yaml.SafeLoader):
    """The safe loader, refusing a mapping that names a key twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping of YAML, with its keys checked."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the name {key_node.value!r} appears twice", key_node.start_mark
                    )
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


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
        When the bytes are not UTF-8, or not YAML, or name a key twice.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{where} is not UTF-8 text (byte {error.start + 1}); save it as UTF-8.") from None
    try:
        return yaml.load(text, Loader=UniqueKeys), text
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f" (line {mark.line + 1})" if mark else ""
        raise RequestError(f"{where} is not valid YAML{line}: {' '.join(str(problem or error).split())}.") from None
