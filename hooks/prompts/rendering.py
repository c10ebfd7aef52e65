"""Prompts to token ids, with exactly one BOS or none, as the model's own template and tokenizer say.

Guarantees that every prompt's ids end with the prompt's own last token: no EOS that a tokenizer appends, no pad token, and
no second BOS when a chat template has already written one. What was decided is counted and kept with each prompt.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import RequestError
from . import template
from .chat_settings import ChatSettings, refuse_unread
from .control_tokens import FILLER, ControlTokens
from .conversation import Form, arranged, as_texts, keeping_form, lost_text
from .template_date import knows_date


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
    places : tuple of (int, int), optional
        Characters of `text` that each token stands for, where the tokenizer would not give them again: control tokens that stand in
        the text as words.
    """

    token_ids: tuple[int, ...]
    text: str | None
    bos_count: int
    template: str
    template_hash: str
    offset: int = 0
    length: int | None = None
    kept: tuple[int, int] | None = None
    places: tuple[tuple[int, int], ...] | None = None


_MARK = "\ue0f1precollapse\ue0f2"


class Renderer:
    """Turns prompts into token ids for one tokenizer.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
    settings : ChatSettings, optional

    Raises
    ------
    RequestError
        There is no tokenizer, or its template does not read what the settings tell it.
    """

    def __init__(self, tokenizer: Any, settings: ChatSettings | None = None) -> None:
        if tokenizer is None or not callable(tokenizer):
            raise RequestError(
                f"a tokenizer is needed to read prompts, found {tokenizer!r}; pass the model's tokenizer as Extractor(model, tokenizer)"
            )
        self.tokenizer = tokenizer
        self.bos_id: int | None = getattr(tokenizer, "bos_token_id", None)
        self._prefix = _special_prefix(tokenizer)
        self._special = set(getattr(tokenizer, "all_special_ids", ()))
        self._vocabulary_hash: str | None = None
        self.settings = settings or ChatSettings()
        self._control = ControlTokens(tokenizer)
        self._forms: dict[str, Form] = {}
        refuse_unread(self.settings, tokenizer)

    def using(self, settings: ChatSettings) -> Renderer:
        """A renderer of the same tokenizer with other settings (RequestError as the class)."""
        return Renderer(self.tokenizer, settings)

    @property
    def knows_date(self) -> bool:
        """Whether the chat template asks which day it is."""
        return self.has_chat_template and knows_date(template.chosen_template(self.tokenizer))

    @property
    def bos_source(self) -> str:
        """Who begins the text of a chat: "template" or "tokenizer" (which may put nothing)."""
        if self.settings.bos != "auto":
            return self.settings.bos
        written = template.chosen_template(self.tokenizer)
        begun = [str(self.tokenizer.convert_ids_to_tokens(i)) for i in self._prefix]
        return "template" if any(name in written for name in ("bos_token", *begun)) else "tokenizer"

    def describe(self) -> dict[str, Any]:
        """What a manifest says of how chats are put into tokens; `system` and `content` are found by trying the template."""
        if not self.has_chat_template:
            return {}
        day = self.settings.day or datetime.date.today()
        told = {
            **({"template_args": dict(self.settings.arguments)} if self.settings.arguments else {}),
            **({"date": day.isoformat()} if self.knows_date else {}),
            "bos": self.bos_source,
        }
        try:
            form = self._form([{"role": role, "content": "a"} for role in ("system", "user", "assistant", "user")])
        except Exception as error:  # whatever a template raises: it is told where it is used
            return {"chat": {**told, "content": None, "system": None, "reason": str(error)[:200]}}
        content = "parts" if "user" in form.parts else "text"
        return {"chat": {**told, "content": content, "system": "user's turn" if form.system_moved else "own turn"}}

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

    def render(self, prompt: Any, where: str = "prompt", words: Sequence[tuple[int, int]] = ()) -> Rendered:
        """Render one prompt.

        Parameters
        ----------
        prompt : str, sequence of chat messages, or sequence of int
            Plain text is tokenised as it stands; messages (dicts with `role` and `content`) go through the chat template
            with the generation prompt added, or are continued where the last one is the assistant's; token ids are taken as they are.
        where : str
            How to name this prompt in an error.
        words : sequence of (int, int)
            Of plain text: characters [start, end) that are somebody's words, in which a control token is text. In messages all is, but
            for the assistant's.

        Returns
        -------
        Rendered

        Raises
        ------
        RequestError
            If the prompt is empty, is of another type, holds only special tokens, or ids are outside the vocabulary; or if the
            template leaves out some of its text.
        """
        if isinstance(prompt, str):
            return self._checked(self._raw(prompt, where, words), where)
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
        offsets = (
            rendered.places
            or self.tokenizer(rendered.text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        )
        shift = len(rendered.token_ids) - len(offsets)
        text, places = rendered.text or "", enumerate(offsets, shift)
        overlapping = [(i, a, b) for i, (a, b) in places if a < end and b > start]
        proper = [i for i, a, b in overlapping if text[max(a, start) : min(b, end)].strip() or not text[a:b].strip()]
        return proper or [i for i, _, _ in overlapping]

    def _raw(self, text: str, where: str, words: Sequence[tuple[int, int]]) -> Rendered:
        if not text:
            raise RequestError(f"{where} is empty; every prompt needs at least one token")
        forged = self._control.found(text, words) if words else []
        ids, places = self._encode(text, forged, where)
        return Rendered(ids, text, self._leading_bos(ids), "raw", _hash("raw"), places=places)

    def _chat(self, given: list[Mapping[str, Any]], where: str) -> Rendered:
        if not self.has_chat_template:
            raise RequestError(
                f"{where} is a list of chat messages, but the tokenizer has no chat template; give plain text instead"
            )
        messages = as_texts(given, where)
        try:
            form = self._form(messages)
            text = self._written(messages, form)
        except RequestError as error:
            raise RequestError(f"{where}: {error}") from error
        except Exception as error:  # a template is a program of its own and may raise anything (jinja2 included)
            raise RequestError(
                f"{where} was refused by the model's chat template ({error}); change its roles or messages"
            ) from error
        lost = lost_text(messages, text)
        if lost is not None:
            raise RequestError(
                f"{where}: the chat template leaves out or changes the text of message {lost + 1} ({messages[lost]['role']}); reword it, or use plain text (--template raw)"
            )
        ids, places = self._encode(text, self._forged(messages, form, text, where), where, chat=True)
        # the caller's own text is the last message, or the one that the assistant has begun to answer
        own = len(messages) - 1 - (messages[-1]["role"] == "assistant" and len(messages) > 1)
        offset, kept = self._place(messages, form, own, text)
        return Rendered(
            ids,
            text,
            self._leading_bos(ids),
            "chat",
            _hash(str(self.tokenizer.chat_template)),
            offset,
            len(messages[own]["content"] or ""),
            kept,
            places,
        )

    def _written(self, messages: Sequence[Mapping[str, Any]], form: Form) -> str:
        return self._rendered(arranged(messages, form))

    def _rendered(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return template.rendered(self.tokenizer, messages, self.settings.arguments, self.settings.day)

    def _form(self, messages: Sequence[Mapping[str, Any]]) -> Form:
        """The form in which the template keeps a conversation of this shape; each shape is tried once."""
        shape = json.dumps([{**m, "content": bool(m["content"])} for m in messages], sort_keys=True, default=str)
        shape += str(self.tokenizer.chat_template)
        if shape not in self._forms:
            self._forms[shape] = keeping_form(self._rendered, messages)
        return self._forms[shape]

    def _forged(
        self, messages: Sequence[Mapping[str, Any]], form: Form, text: str, where: str
    ) -> list[tuple[int, int]]:
        """Where the control tokens that somebody's words hold stand in the rendered text.

        Found by rendering once more with a filler in their place.
        """
        filled = [
            m if m["role"] == "assistant" or not m["content"] else {**m, "content": self._control.filled(m["content"])}
            for m in messages
        ]
        if filled == list(messages):
            return []
        other = self._written(filled, form)
        places = [p for p in self._control.found(text) if other[p[0] : p[1]] == FILLER * (p[1] - p[0])]
        if len(places) != sum(
            len(self._control.found(m["content"] or "")) for m in messages if m["role"] != "assistant"
        ):
            raise RequestError(
                f"{where} holds a control token of this tokenizer as text, which the chat template changes; reword it"
            )
        return places

    def _place(
        self, messages: Sequence[Mapping[str, Any]], form: Form, own: int, text: str
    ) -> tuple[int, tuple[int, int] | None]:
        """Where the content of message `own` starts in the rendered text and which of it was kept; -1 where it was changed.

        Found by rendering once more with a content that occurs nowhere else: searching for the content itself would find a
        short one inside the template's own words.
        """
        content = messages[own]["content"]
        if not content or not content.strip():
            return -1, None
        try:
            marked = self._written([{**m, "content": _MARK} if i == own else m for i, m in enumerate(messages)], form)
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

    def _encode(
        self, text: str, forged: Sequence[tuple[int, int]], where: str, chat: bool = False
    ) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...] | None]:
        """Token ids of a text, and their places in it where control tokens were kept as words."""
        places = None
        try:
            if forged:
                ids, places = self._control.encoded(text, forged, where)
            else:
                ids = tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        except (TypeError, UnicodeError) as error:
            raise RequestError(
                f"a prompt could not be tokenised ({error}); it holds characters that are no valid Unicode text"
            ) from error
        if (
            self._prefix
            and not (chat and self.bos_source == "template")
            and ids[: len(self._prefix)] != self._prefix
            and not (self.bos_id in self._prefix and ids[:1] == (self.bos_id,))
        ):
            ids = self._prefix + ids
        return ids, places

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
