"""What written tokens spell, and texts at which an output ends.

Guarantees that ids are spelled as they are, without the clean-up that some tokenizers apply (which makes `is .75` into `is.75`), and
that an output ends before a stop text in its tokens and its text alike: the tokens kept are the fewest that spell the text kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_MORE = 8
"""Tokens that are looked at besides those that a stop text can have (a character may take several)."""


def spelled(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of token ids, without special tokens."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def reached(tokenizer: Any, ids: Sequence[int], stops: Sequence[str]) -> bool:
    """Whether the last of these tokens completes a stop text."""
    if not stops:
        return False
    end = spelled(tokenizer, ids[-(max(len(stop.encode()) for stop in stops) + _MORE) :])
    return any(stop in end for stop in stops)


def before_stop(tokenizer: Any, ids: Sequence[int], stops: Sequence[str]) -> tuple[tuple[int, ...], str, str | None]:
    """What an output keeps: its tokens and text up to the first stop text, and which that was; all of it where there is none.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
    ids : sequence of int
        All tokens that were written.
    stops : sequence of str
        Of two that begin at one place the longer counts.

    Returns
    -------
    (token ids, text, stop text or None)
    """
    text = spelled(tokenizer, ids)
    found = [(text.index(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return tuple(ids), text, None
    place, _, stop = min(found)
    kept, count = text[:place], len(ids)
    while count and spelled(tokenizer, ids[: count - 1]).startswith(kept):
        count -= 1
    return tuple(ids[:count]), kept, stop
