"""The second boundary of a model that thinks first: where its thinking has ended and its answer has not begun.

Guarantees that the state and distribution there are those of a capture of the very tokens that the model was given and thought; a
model that did not think, or did not end it, has none (NaN).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ... import schema
from ...errors import RequestError
from ...hooks import Extractor, States, join
from ...hooks.prompts.rendering import Rendered
from . import after
from .thinking import Parts

THINKING, ANSWER = "thinking", "answer"
BOUNDARIES = (THINKING, ANSWER)
ARRAY = f"{schema.RESID_POST_AFTER}{THINKING}"


def check_boundaries(names: Sequence[str]) -> tuple[str, ...]:
    """The boundaries of a study: the first, or both.

    Raises
    ------
    RequestError
        Another name, or the second without the first.
    """
    if tuple(names) not in ((THINKING,), BOUNDARIES):
        raise RequestError(
            f"boundaries names {', '.join(map(repr, names)) or 'none'}; give thinking (before the first token) or thinking,answer (and where the thinking has ended)"
        )
    return tuple(names)


@dataclass(frozen=True)
class AnswerStates:
    """What was captured at the second boundary.

    Attributes
    ----------
    rows : dict of int to int
        By place of a prompt in its shard: its row in `states`. Those without the boundary are not there.
    states : States or None
        None where no prompt has it.
    """

    rows: Mapping[int, int]
    states: States | None

    def values(self, i: int, is_choice: bool) -> dict[str, Any]:
        """Columns of one prompt; none where it lacks the boundary."""
        if self.states is None or i not in self.rows:
            return {}
        row, found = self.rows[i], self.states
        values: dict[str, Any] = {"answer_entropy_bits": float(found.entropy_bits[row])}
        if is_choice and found.option_logprobs is not None and found.option_labels is not None:
            for name in ("option_entropy_bits", "option_margin", "option_mass"):
                values[f"answer_{name}"] = float(getattr(found, name)[row])
            if values["answer_option_mass"] >= schema.LEAST_OPTION_MASS:
                best = int(np.nanargmax(found.option_logprobs[row]))
                values["answer_option_choice"] = found.option_labels[row][best]
        return values


def capture(
    extractor: Extractor,
    rendered: Sequence[Rendered],
    parts: Sequence[Parts | None],
    options: Sequence[tuple[str, ...] | None],
    layers: tuple[int, ...],
) -> AnswerStates:
    """The states after the thinking of each output that ended it."""
    places = [i for i, part in enumerate(parts) if part is not None and part.ended]
    if not places:
        return AnswerStates({}, None)
    prompts = [replace(rendered[i], token_ids=(*rendered[i].token_ids, *_thought(parts[i])), text=None) for i in places]
    asked = [options[i] for i in places]
    stream = extractor.stream(prompts, (after.SITE,), layers, "none", asked if any(asked) else None, 0)
    return AnswerStates({i: row for row, i in enumerate(places)}, join(list(stream), len(prompts)))


def _thought(part: Parts | None) -> tuple[int, ...]:
    return () if part is None else part.thinking
