"""Which tokens of each prompt are read: the boundary, or places named by a string or by character spans.

Guarantees that every prompt gives the same number of positions, that a place which cannot be found is an error that
names the prompt, and that the token read is the last one of the place asked for: the first whose state has seen all
of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import RequestError
from .rendering import Rendered, Renderer

BOUNDARY = "boundary"


def resolve_positions(positions: Any, rendered: Sequence[Rendered], renderer: Renderer) -> list[tuple[int, ...]] | None:
    """Token indices to read in each prompt.

    Parameters
    ----------
    positions : str, (start, end), or sequence of these, or one such sequence per prompt
        "boundary" is the last token. Any other string is an anchor: the last token of its last occurrence in the
        prompt as rendered (the chat template's text included). A pair of integers is a character span of the caller's
        own text (of the last message's content for chat prompts), read at its last token.
    rendered : sequence of Rendered
    renderer : Renderer

    Returns
    -------
    list of tuple of int, or None
        None for "boundary" itself, where no axis of positions is wanted.

    Raises
    ------
    RequestError
        If an anchor does not occur in a prompt, a span lies outside it, prompts ask for different numbers of
        positions, or a prompt's text is unknown because it came as token ids.
    """
    if isinstance(positions, str) and positions == BOUNDARY:
        return None
    if _is_place(positions):
        each = [(positions,)] * len(rendered)
    elif not isinstance(positions, Sequence) or not positions:
        raise RequestError(
            "positions must be 'boundary', anchors such as 'Answer:', or character spans (start, end), "
            f"found {positions!r}"
        )
    elif all(_is_place(p) for p in positions):
        each = [tuple(positions)] * len(rendered)
    else:
        if len(positions) != len(rendered):
            raise RequestError(
                f"positions has {len(positions)} entries for {len(rendered)} prompts; "
                "give the same places for all, or one list per prompt"
            )
        each = [(own,) if _is_place(own) else _places(own, i) for i, own in enumerate(positions)]
    width = len(each[0])
    for i, own in enumerate(each):
        if len(own) != width:
            raise RequestError(
                f"prompt {i} asks for {len(own)} positions and prompt 0 for {width}; give every prompt the same number"
            )
    return [
        tuple(_token(place, r, renderer, i) for place in own)
        for i, (r, own) in enumerate(zip(rendered, each, strict=True))
    ]


def _is_place(value: Any) -> bool:
    if isinstance(value, str):
        return True
    return (
        isinstance(value, Sequence)
        and len(value) == 2
        and all(isinstance(v, int) and not isinstance(v, bool) for v in value)
    )


def _places(own: Any, prompt: int) -> tuple[Any, ...]:
    if not isinstance(own, Sequence) or not own or not all(_is_place(p) for p in own):
        raise RequestError(
            f"positions of prompt {prompt} must be anchors or character spans (start, end), found {own!r}"
        )
    return tuple(own)


def _token(place: Any, rendered: Rendered, renderer: Renderer, prompt: int) -> int:
    if place == BOUNDARY:
        return len(rendered.token_ids) - 1
    if rendered.text is None:
        raise RequestError(
            f"position {place!r} cannot be placed in prompt {prompt}, which was given as token ids; "
            "give its text, or use 'boundary'"
        )
    if isinstance(place, str):
        start = rendered.text.rfind(place) if place else -1
        if start < 0:
            raise RequestError(
                f"anchor {place!r} does not occur in prompt {prompt} ({_shown(rendered.text)}); "
                "choose another or leave this prompt out"
            )
        columns = renderer.columns_in_text(rendered, start, start + len(place), f"anchor {place!r} of prompt {prompt}")
    else:
        columns = renderer.columns(rendered, place[0], place[1], f"span {tuple(place)} of prompt {prompt}")
    if not columns:
        raise RequestError(f"position {place!r} of prompt {prompt} covers no token of its own; choose a longer span")
    return columns[-1]


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else "..." + text[-57:])
