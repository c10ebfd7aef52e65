"""Where a model's thinking ends and its answer begins, found in the token ids that it was given and wrote.

Guarantees that thinking is told from the answer although its tags are control tokens, which decoding leaves out: what a model
thought is never graded as its answer, and thinking that never ends is no answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import RequestError
from ..trajectories.segmentation import token_ends_of_ids

FORMS: tuple[tuple[str, str], ...] = (
    ("<think>", "</think>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ("<|channel>thought", "<channel|>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
)
"""Opening and end of thinking as families write them: Qwen, DeepSeek and most others; gpt-oss; Gemma; Mistral; Kimi; Seed; Cohere; ..."""


@dataclass(frozen=True)
class Tags:
    """The two ends of a model's thinking.

    Attributes
    ----------
    start, end : str
    start_ids, end_ids : tuple of int
        Their token ids.
    """

    start: str
    end: str
    start_ids: tuple[int, ...]
    end_ids: tuple[int, ...]


@dataclass(frozen=True)
class Parts:
    """An output in two.

    Attributes
    ----------
    thinking : tuple of int
        Token ids up to and with the end of thinking, its tags included.
    answer : tuple of int
    ended : bool or None
        Whether thinking ended; None where there was none.
    """

    thinking: tuple[int, ...]
    answer: tuple[int, ...]
    ended: bool | None


def check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Two texts, START and END, or none for the model's own.

    Raises
    ------
    RequestError
        Another number of texts, or an empty one.
    """
    texts = tuple(tags)
    if texts and (len(texts) != 2 or not all(isinstance(text, str) and text.strip() for text in texts)):
        raise RequestError(
            f"thinking_tags takes two texts, the opening and the end of thinking, found {list(texts)!r}; give both, such as <think> </think>"
        )
    return texts


def tags_of(tokenizer: Any, named: Sequence[str] = ()) -> Tags | None:
    """The tags of a tokenizer's model: those named, else the first of FORMS that it knows; None where it knows none.

    A form is known where its control tokens are tokens of their own, or where the chat template writes one of its ends.
    """
    if tokenizer is None:
        return None
    added = tokenizer.get_added_vocab() if hasattr(tokenizer, "get_added_vocab") else {}
    template = str(getattr(tokenizer, "chat_template", None) or "")
    for start, end in (tuple(named),) if named else FORMS:
        if named or end in template or start in template or _is_spelled(end, added):
            return Tags(start, end, _ids(tokenizer, start), _ids(tokenizer, end))
    return None


def _is_spelled(tag: str, added: Any) -> bool:
    """Whether a tag is one of the tokens added to a vocabulary, or holds one for each channel and message mark."""
    return tag in added or (tag.startswith("<|channel|>") and "<|channel|>" in added and "<|message|>" in added)


def _ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def split(tokenizer: Any, tags: Tags | None, prompt: Sequence[int], output: Sequence[int]) -> Parts:
    """An output's thinking and its answer.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
    tags : Tags or None
    prompt, output : sequence of int
        Token ids. A prompt whose last words are the opening tag has begun the thinking.

    Returns
    -------
    Parts
        Thinking goes to its last end. Where it is opened once more and not ended, nothing is an answer.
    """
    ids = tuple(output)
    if tags is None:
        return Parts((), ids, None)
    ends = _places(tokenizer, ids, tags.end, tags.end_ids)
    starts = _places(tokenizer, ids, tags.start, tags.start_ids)
    done = ends[-1][1] if ends else 0
    reopened = [begin for begin, _ in starts if begin >= done]
    if ends:
        return Parts(ids, (), False) if reopened else Parts(ids[:done], ids[done:], True)
    begun = bool(starts) and _is_blank(tokenizer, ids[: starts[0][0]])
    if begun or opens(tokenizer, tags, prompt):
        return Parts(ids, (), False)
    return Parts((), ids, None)


def opens(tokenizer: Any, tags: Tags, prompt: Sequence[int]) -> bool:
    """Whether a prompt ends with the opening tag, and so has begun the thinking."""
    tail = tuple(prompt)[-(len(tags.start_ids) + _BLANKS) :]
    starts = _places(tokenizer, tail, tags.start, tags.start_ids)
    return bool(starts) and _is_blank(tokenizer, tail[starts[-1][1] :])


_BLANKS = 16
"""Tokens at the end of a prompt in which an opening tag and the blanks after it are looked for."""


def _is_blank(tokenizer: Any, ids: Sequence[int]) -> bool:
    return not tokenizer.decode(list(ids), skip_special_tokens=False).strip()


def _places(tokenizer: Any, ids: tuple[int, ...], tag: str, tag_ids: tuple[int, ...]) -> list[tuple[int, int]]:
    """First and one past the last token of each place where a tag stands.

    A tag of several tokens may be spelled by others beside other text; those are found by the characters that each token completes.
    """
    width = len(tag_ids)
    found = [(i, i + width) for i in range(len(ids) - width + 1) if ids[i : i + width] == tag_ids] if width else []
    if found or width == 1 or not ids:
        return found
    text, ends = token_ends_of_ids(tokenizer, ids)
    at = text.find(tag)
    while at >= 0:
        found.append((bisect_left(ends, at + 1), bisect_left(ends, at + len(tag)) + 1))
        at = text.find(tag, at + 1)
    return found
