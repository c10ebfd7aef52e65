"""A method: something that reads rows and says how likely each is positive, or which number it has.

Guarantees that all families run under one protocol (fitted on training rows, chosen on validation rows, scored elsewhere) and
that a user's own is registered in the same way, by `register` or by the entry point group `precollapse.task_methods`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol

import numpy as np

from ....errors import RequestError
from ..rows import TaskRow

ENTRY_POINTS = "precollapse.task_methods"


class Method(Protocol):
    """A method in scikit-learn's manner."""

    def fit(self, rows: Sequence[TaskRow], validation: Sequence[TaskRow]) -> Method:
        """Learn from training rows; validation rows may choose settings and stop the training, and nothing else.

        Parameters
        ----------
        rows, validation : sequence of TaskRow
            All with a label, or all with a target.

        Returns
        -------
        Method
            Itself.
        """

    def score(self, rows: Sequence[TaskRow]) -> np.ndarray:
        """Probability of the positive class [n], in [0, 1]; the predicted number [n] for a task with a target."""


Maker = Callable[..., Method]
"""Makes an unfitted method; it takes `seed` and settings of its own."""

_MADE: dict[str, Maker] = {}


def register(name: str, make: Maker) -> Maker:
    """Make a method known by a name.

    Parameters
    ----------
    name : str
    make : callable (seed) -> Method

    Returns
    -------
    callable
        `make`, so that it can decorate a class as `register("mine", Mine)`.

    Raises
    ------
    RequestError
        Another method has that name.
    """
    if _MADE.get(name, make) is not make:
        raise RequestError(f"there is a method named {name!r} already; choose another name")
    _MADE[name] = make
    return make


def known() -> Mapping[str, Maker]:
    """All methods by name: the package's, those registered, and those of installed packages."""
    found = dict(_MADE)
    for entry in entry_points(group=ENTRY_POINTS):
        found.setdefault(entry.name, entry.load())
    return found


def make(name: str, seed: int = 0, **settings: Any) -> Method:
    """An unfitted method by its name.

    Raises
    ------
    RequestError
        There is none of that name.
    """
    methods = known()
    if name not in methods:
        raise RequestError(f"there is no method {name!r}; known are {', '.join(sorted(methods))}")
    return methods[name](seed=seed, **settings)


def has_targets(rows: Sequence[TaskRow]) -> bool:
    """Whether rows have a number to predict, rather than a class.

    Raises
    ------
    RequestError
        There are no rows, or some have neither.
    """
    if not rows:
        raise RequestError("there are no rows to fit on")
    if all(row.label is not None for row in rows):
        return False
    if all(row.target is not None for row in rows):
        return True
    raise RequestError("some rows have neither a label nor a target")


def texts(rows: Sequence[TaskRow]) -> list[str]:
    """The chains.

    Raises
    ------
    RequestError
        Rows have none.
    """
    if any(row.chain is None for row in rows):
        raise RequestError("these rows have no text of the chain; methods that read text need chains of your own")
    return [row.text for row in rows]
