"""Prompts to token ids, with exactly one BOS or none, as the model's own template and tokenizer say.

Guarantees that every prompt's ids end with the prompt's own last token: no EOS that a tokenizer appends, no pad token, and
no second BOS when a chat template has already written one. What was decided is counted and kept with each prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import RequestError
from . import template


@dataclass(frozen=True)
class Rendered:
    """One prompt, ready for the model.

    Attributes
    ----------
    token_ids : tuple of int
        Without padding; the last one is the boundary token.
    text : str or None
        The text that was tokenised (after templating); None when token ids were given.
    bos_count : int
        Number of BOS tokens at the start of `token_ids`.
    template : str
        "raw", "chat" or "ids".
    template_hash : str
        SHA-256 (first 16 hex digits) of the chat template's text, or of the template's name.
    offset : int
        Where the caller's own text starts in `text` (chat: its position inside the template), -1 when not found.
    length : int or None
        Characters of the caller's own text; None means up to the end of `text`.
    kept : (int, int) or None
        Which of them the chat template kept (it may strip blanks at both ends); None means all.
    """

    token_ids: tuple[int, ...]
    text: str | None
    bos_count: int
    template: str
    template_hash: str
    offset: int = 0
    length: int | None = None
    kept: tuple[int, int] | None = None


_MARK = "\ue0f1precollapse\ue0f2"


class Renderer:
    """Turns prompts into token ids for one tokenizer.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
    """

    def __init__(self, tokenizer: Any) -> None:
        if tokenizer is None or not callable(tokenizer):
            raise RequestError(
                f"a tokenizer is needed to read prompts, found {tokenizer!r}; pass the model's tokenizer as Extractor(model, tokenizer)"
            )
        self.tokenizer = tokenizer
        self.bos_id: int | None = getattr(tokenizer, "bos_token_id", None)
        self._prefix = _special_prefix(tokenizer)
        self._special = set(getattr(tokenizer, "all_special_ids", ()))
        self._vocabulary_hash: str | None = None

    @property
    def pad_id(self) -> int:
        """A token id to pad with: the tokenizer's own, else its EOS, else 0. Results do not depend on it."""
        for value in (getattr(self.tokenizer, "pad_token_id", None), getattr(self.tokenizer, "eos_token_id", None)):
            if value is not None:
                return int(value)
        return 0

    @property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer brings a chat template."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def render(self, prompt: Any, where: str = "prompt") -> Rendered:
        """Render one prompt.

        Parameters
        ----------
        prompt : str, sequence of chat messages, or sequence of int
            Plain text is tokenised as it stands; messages (dicts with `role` and `content`) go through the chat template
            with the generation prompt added; token ids are taken as they are.
        where : str
            How to name this prompt in an error.

        Returns
        -------
        Rendered

        Raises
        ------
        RequestError
            If the prompt is empty, is of another type, holds only special tokens, or ids are outside the vocabulary.
        """
        if isinstance(prompt, str):
            return self._checked(self._raw(prompt, where), where)
        if isinstance(prompt, Mapping):
            raise RequestError(
                f"{where} is a single message or mapping; give a list of messages [{{'role': ..., 'content': ...}}], a string or token ids"
            )
        readable = (isinstance(prompt, Sequence) or getattr(prompt, "ndim", 0) == 1) and not isinstance(
            prompt, bytes | bytearray
        )
        items = list(prompt) if readable else None
        if items is None:
            raise RequestError(
                f"{where} is a {type(prompt).__name__}; give a string, a list of chat messages or a list of token ids"
            )
        if items and all(isinstance(m, Mapping) for m in items):
            return self._checked(self._chat(items, where), where)
        return self._checked(self._ids(items, where), where)

    @property
    def tokenizer_hash(self) -> str:
        """SHA-256 (first 16 hex digits) of the vocabulary and the special tokens."""
        if self._vocabulary_hash is None:
            vocabulary = sorted(self.tokenizer.get_vocab().items(), key=lambda entry: entry[1])
            self._vocabulary_hash = _hash(repr((vocabulary, sorted(self._special), self.bos_id)))
        return self._vocabulary_hash

    def columns(self, rendered: Rendered, start: int, end: int, where: str = "span") -> list[int]:
        """Token columns that overlap the characters [start, end) of the caller's own text.

        Parameters
        ----------
        rendered : Rendered
        start, end : int
            Character positions in the text given by the caller (in the last message's content for a chat prompt).
        where : str
            How to name this span in an error.

        Returns
        -------
        list of int
            Indices into `rendered.token_ids`.

        Raises
        ------
        RequestError
            If the span is empty or outside the text, the text is unknown (token ids were given, or the template changed it), or
            the tokenizer keeps no offsets.
        """
        if rendered.text is None or rendered.offset < 0:
            raise RequestError(
                f"{where} cannot be placed: the prompt's text is unknown or was changed by the chat template; give spans for text prompts only"
            )
        length = len(rendered.text) - rendered.offset if rendered.length is None else rendered.length
        if not 0 <= start < end <= length:
            raise RequestError(
                f"{where} is [{start}, {end}), which is empty or outside the prompt of {length} characters"
            )
        first, last = rendered.kept or (0, length)
        if start >= last or end <= first:
            raise RequestError(
                f"{where} is [{start}, {end}), which holds only blanks that the chat template removed; give a span with text in it"
            )
        return self.columns_in_text(
            rendered, max(start, first) + rendered.offset, min(end, last) + rendered.offset, where
        )

    def columns_in_text(self, rendered: Rendered, start: int, end: int, where: str = "span") -> list[int]:
        """Token columns that overlap the characters [start, end) of the rendered text; see `columns`.

        A token that begins with the blank before its word belongs to the word: it overlaps where what they share is more than
        blanks, so that spans side by side do not both have it. A span of nothing but blanks has what it overlaps.
        """
        if not getattr(self.tokenizer, "is_fast", False):
            raise RequestError(
                f"{where} cannot be placed: {type(self.tokenizer).__name__} keeps no character offsets; use the fast tokenizer"
            )
        encoded = self.tokenizer(rendered.text, add_special_tokens=False, return_offsets_mapping=True)
        shift = len(rendered.token_ids) - len(encoded["input_ids"])
        text, places = rendered.text or "", enumerate(encoded["offset_mapping"], shift)
        overlapping = [(i, a, b) for i, (a, b) in places if a < end and b > start]
        proper = [i for i, a, b in overlapping if text[max(a, start) : min(b, end)].strip() or not text[a:b].strip()]
        return proper or [i for i, _, _ in overlapping]

    def _raw(self, text: str, where: str) -> Rendered:
        if not text:
            raise RequestError(f"{where} is empty; every prompt needs at least one token")
        return Rendered(*self._encode(text), template="raw", template_hash=_hash("raw"))

    def _chat(self, messages: list[Mapping[str, Any]], where: str) -> Rendered:
        if not self.has_chat_template:
            raise RequestError(
                f"{where} is a list of chat messages, but the tokenizer has no chat template; give plain text instead"
            )
        for message in messages:
            if not {"role", "content"} <= set(message):
                raise RequestError(
                    f"{where} has a chat message with keys {sorted(message)}; each needs 'role' and 'content'"
                )
        try:
            text = template.rendered(self.tokenizer, messages)
        except RequestError:
            raise
        except Exception as error:  # a template is a program of its own and may raise anything (jinja2 included)
            raise RequestError(
                f"{where} was refused by the model's chat template ({error}); change its roles or messages"
            ) from error
        ids, text, count = self._encode(text)
        offset, kept = self._place(messages, text)
        content = messages[-1]["content"]
        length = len(content) if isinstance(content, str) else None
        return Rendered(ids, text, count, "chat", _hash(str(self.tokenizer.chat_template)), offset, length, kept)

    def _place(self, messages: list[Mapping[str, Any]], text: str) -> tuple[int, tuple[int, int] | None]:
        """Where the last message's content starts in the rendered text and which of it was kept; -1 where it was changed.

        Found by rendering once more with a content that occurs nowhere else: searching for the content itself would find a
        short one inside the template's own words.
        """
        content = messages[-1]["content"]
        if not isinstance(content, str) or not content.strip():
            return -1, None
        try:
            marked = template.rendered(self.tokenizer, [*messages[:-1], {**messages[-1], "content": _MARK}])
        except Exception:  # a template may refuse any content; then the spans of this prompt are unknown
            return -1, None
        place = marked.find(_MARK)
        lead = len(content) - len(content.lstrip())
        for first, last in (
            (0, len(content)),
            (0, len(content.rstrip())),
            (lead, len(content)),
            (lead, len(content.rstrip())),
        ):
            if place >= first and text.startswith(content[first:last], place):
                return place - first, (first, last)
        return -1, None

    def _ids(self, items: list[Any], where: str) -> Rendered:
        try:
            ids = tuple(int(i) for i in items if not isinstance(i, bool | str | float))
        except (TypeError, ValueError) as error:
            raise RequestError(f"{where} is not a list of token ids ({error}); give integers") from error
        if len(ids) != len(items):
            raise RequestError(f"{where} mixes token ids with other things; give a list of integers")
        return Rendered(ids, None, self._leading_bos(ids), "ids", _hash("ids"))

    def _checked(self, rendered: Rendered, where: str) -> Rendered:
        if not rendered.token_ids:
            raise RequestError(f"{where} is empty; every prompt needs at least one token")
        vocabulary = len(self.tokenizer)
        bad = [i for i in rendered.token_ids if not 0 <= i < vocabulary]
        if bad and rendered.template == "ids":
            raise RequestError(
                f"{where} has token id {bad[0]}, outside the vocabulary of {vocabulary}; give ids of this model's tokenizer"
            )
        if all(i in self._special for i in rendered.token_ids):
            raise RequestError(
                f"{where} holds only special tokens ({len(rendered.token_ids)}); there is no text whose state could be read"
            )
        return rendered

    def _encode(self, text: str) -> tuple[tuple[int, ...], str, int]:
        try:
            ids = tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        except (TypeError, UnicodeError) as error:
            raise RequestError(
                f"a prompt could not be tokenised ({error}); it holds characters that are no valid Unicode text"
            ) from error
        if (
            self._prefix
            and ids[: len(self._prefix)] != self._prefix
            and not (self.bos_id in self._prefix and ids[:1] == (self.bos_id,))
        ):
            ids = self._prefix + ids
        return ids, text, self._leading_bos(ids)

    def _leading_bos(self, ids: Sequence[int]) -> int:
        count = 0
        while count < len(ids) and ids[count] == self.bos_id:
            count += 1
        return count


def _special_prefix(tokenizer: Any) -> tuple[int, ...]:
    """The special tokens that this tokenizer puts before a text by default (BOS, or e.g. GLM's two)."""
    plain = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    full = list(tokenizer("a")["input_ids"])
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return tuple(full[:start])
    return ()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
