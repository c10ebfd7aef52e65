"""Named stretches of a prompt's text, as the columns of its tokens: what an attention summary is summed over.

Guarantees that a span is refused by name and prompt when it is malformed, before the model runs, and that no span takes a name that the
summary uses itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...errors import RequestError
from .rendering import Rendered, Renderer


def span_columns(
    renderer: Renderer, rendered: Sequence[Rendered], spans: Sequence[Mapping[str, tuple[int, int]]] | None
) -> list[dict[str, list[int]]]:
    """Columns of every prompt's spans, by name; none where no spans are given.

    Parameters
    ----------
    renderer : Renderer
    rendered : sequence of Rendered
    spans : sequence of dict, optional
        Per prompt, names to (start, end) in characters of the given text.

    Raises
    ------
    RequestError
        If spans are malformed, do not fit the prompts, or take a name of the summary's own.
    """
    if spans is None:
        return [{} for _ in rendered]
    if isinstance(spans, str | Mapping) or not isinstance(spans, Sequence) or len(spans) != len(rendered):
        count = f"{len(spans)} entries" if isinstance(spans, Sequence) else repr(spans)
        raise RequestError(f"spans has {count} for {len(rendered)} prompts; give a list with one dict per prompt")
    for i, own in enumerate(spans):
        ends = own.values() if isinstance(own, Mapping) else [None]
        if not all(
            isinstance(end, Sequence) and len(end) == 2 and all(isinstance(k, int | np.integer) for k in end)
            for end in ends
        ):
            raise RequestError(f"spans of prompt {i} must map names to (start, end) in characters, found {own!r}")
    taken = {"entropy_bits", "first_token", "rest"} & {name for own in spans for name in own}
    if taken:
        raise RequestError(
            f"a span may not be named {sorted(taken)[0]!r}, which the summary uses itself; give it another name"
        )
    return [
        {name: renderer.columns(r, start, end, f"span {name!r} of prompt {i}") for name, (start, end) in own.items()}
        for i, (r, own) in enumerate(zip(rendered, spans, strict=True))
    ]
