"""States after the answer has begun: once so many tokens are written, or at an anchor such as `####` in the output.

Guarantees that the tokens before such a state are the very tokens the model was given and wrote, and that a state whose
place an output never reaches is missing (NaN), never the state of some other token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ... import schema
from ...errors import RequestError
from ...hooks import Extractor, join
from ...hooks.decoding.greedy import Output
from ...hooks.prompts.rendering import Rendered
from ..trajectories.segmentation import token_ends_of_ids

SITE = schema.RESID_POST


def check_places(places: Sequence[str]) -> tuple[str, ...]:
    """The places as texts, each a number of output tokens or an anchor, of which there may be one.

    Raises
    ------
    RequestError
        A number below 1, an empty anchor, or a second anchor.
    """
    texts = tuple(str(place) for place in places)
    for place in texts:
        if not place.strip() or (_is_number(place) and not (is_count(place) and int(place) >= 1)):
            raise RequestError(
                f"after names the place {place!r}; give a whole number of output tokens from 1, or a text such as ####"
            )
    names = [array_name(place) for place in texts if is_count(place)]
    if len(set(names)) < len(names):
        raise RequestError(f"after names a number of tokens twice: {', '.join(texts)}; name each once")
    anchors = [place for place in texts if not is_count(place)]
    if len(anchors) > 1:
        raise RequestError(f"after names {len(anchors)} anchors ({', '.join(anchors)}); give one, beside any numbers")
    return texts


def is_count(place: str) -> bool:
    """Whether a place is a number of tokens and not an anchor."""
    return place.isascii() and place.isdigit()


def _is_number(place: str) -> bool:
    """Whether a text reads as some number, such as -3, 1.5 or ²: never an anchor that someone meant."""
    try:
        float(place)
    except ValueError:
        return place.isnumeric()
    return True


def array_name(place: str) -> str:
    """Name of the array that holds the states of a place."""
    return f"{schema.RESID_POST_AFTER}{int(place) if is_count(place) else 'anchor'}"


def token_count(tokenizer: Any, output: Output, place: str) -> int | None:
    """How many output tokens stand before the state of a place; None where the output never reaches it.

    An anchor is found at its last occurrence, and counts with the token that completes it.
    """
    ids = output.token_ids
    if is_count(place):
        return int(place) if int(place) <= len(ids) else None
    text, ends = token_ends_of_ids(tokenizer, ids)
    at = text.rfind(place)
    return None if at < 0 else bisect_left(ends, at + len(place)) + 1


def states_after(
    extractor: Extractor,
    rendered: Sequence[Rendered],
    outputs: Sequence[Output | None],
    place: str,
    layers: tuple[int, ...],
) -> tuple[torch.Tensor, list[int]]:
    """resid_post once each output has reached a place.

    Returns
    -------
    Tensor [k, L, d]
        Rows of the outputs that reach it, in order.
    list of int
        Their places among the prompts.
    """
    rows, prompts = [], []
    for i, (prompt, output) in enumerate(zip(rendered, outputs, strict=True)):
        count = None if output is None else token_count(extractor.tokenizer, output, place)
        if output is not None and count is not None:
            rows.append(i)
            # rendered, not given as ids: a model may write ids that its tokenizer does not have
            prompts.append(replace(prompt, token_ids=(*prompt.token_ids, *output.token_ids[:count]), text=None))
    if not rows:
        return torch.empty(0), rows
    return join(list(extractor.stream(prompts, (SITE,), layers, top_k=0)), len(prompts))[SITE], rows
