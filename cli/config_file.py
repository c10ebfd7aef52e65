"""`--config FILE.yaml`: options of a command in a file, under the names of their long flags.

Guarantees that a file means what the same flags mean, that a flag comes before it, and that nothing in it is passed over: an
unknown key, or a value of another type than the flag takes, is refused in one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checks import shown
from ..errors import RequestError
from .values import Value


def read(path: str, allowed: Mapping[str, tuple[str, Value]], command: str) -> dict[str, Any]:
    """Values by the names of the arguments, of a file that maps long flags (with - or _) to values.

    Parameters
    ----------
    path : str
    allowed : mapping of str to (str, Value)
        Name of the argument and type of its value, by flag without the dashes.
    command : str
        What a message calls the command.

    Raises
    ------
    RequestError
        When the file cannot be read, is no mapping, or has a key or a type of value that the command does not take.
    """
    from .. import strict_yaml

    try:
        content, _ = strict_yaml.parse(Path(path).read_bytes(), path)
    except OSError as error:
        raise RequestError(f"cannot read --config {path} ({error.strerror}); give an existing YAML file") from error
    keys = f"the keys of {command} are {', '.join(allowed)}"
    if not isinstance(content, dict):
        raise RequestError(f"{path} is not a mapping of flags to values, such as n: 20; {keys}")
    values: dict[str, Any] = {}
    for key, entry in content.items():
        name, value = allowed.get(str(key).replace("_", "-"), (None, None))
        if name is None or value is None:
            raise RequestError(f"{path} has the unknown key {shown(key)}; {keys}")
        if name in values:
            raise RequestError(f"{path} has the key {key!r} twice, with - and with _; {keys}")
        try:
            values[name] = value.from_entry(entry)
        except (TypeError, ValueError):
            raise RequestError(f"{path}: {key} must be {value.what}, found {shown(entry)}; {keys}") from None
    return values
