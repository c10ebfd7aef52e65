"""Control tokens that stand in a text as its own words: `</s>` in a question is six characters, not the end of the text.

Guarantees that what an item or a user says never becomes a control token unnoticed: such words are tokenised as the text they are, and
where a tokenizer cannot do that the prompt is refused. The way in which they are tokenised is tried on the same prompt with other words
in their place, where it must give what the tokenizer itself gives.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...errors import RequestError

Span = tuple[int, int]
FILLER = "\ue0f3"
"""Stands for each character of such a word where a template is asked what it does with other words."""


class ControlTokens:
    """The control tokens of a tokenizer: its special tokens, and the added ones that its chat template writes.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        template = str(getattr(tokenizer, "chat_template", None) or "")
        added = getattr(tokenizer, "added_tokens_decoder", {}).items()
        self.ids = {
            token.content: int(i)
            for i, token in added
            if token.content.strip() and (token.special or token.content in template)
        }
        self._pattern = re.compile("|".join(map(re.escape, sorted(self.ids, key=len, reverse=True))) or r"(?!)")

    def found(self, text: str, spans: Sequence[Span] | None = None) -> list[Span]:
        """Where control tokens stand in a text, or in those that overlap `spans` of it."""
        places = [match.span() for match in self._pattern.finditer(text)] if self.ids else []
        return places if spans is None else [p for p in places if any(p[0] < b and a < p[1] for a, b in spans)]

    def filled(self, text: str) -> str:
        """The text with a filler for each character of its control tokens."""
        return self._pattern.sub(lambda match: FILLER * len(match[0]), text) if self.ids else text

    def encoded(self, text: str, words: Sequence[Span], where: str) -> tuple[tuple[int, ...], tuple[Span, ...] | None]:
        """Token ids of a text in which the control tokens at `words` are words; and their places in the text.

        Raises
        ------
        RequestError
            This tokenizer cannot keep them as text.
        """
        own = [place for place in self.found(text) if place not in words]
        expected = Counter(self.ids[text[a:b]] for a, b in own)
        other = list(text)
        for a, b in words:
            other[a:b] = "x" * (b - a)
        plain = "".join(other)
        whole = list(self.tokenizer(plain, add_special_tokens=False)["input_ids"])
        for lead in ("", "\n"):
            if self._pieces(plain, own, lead)[0] != whole:
                continue
            ids, places = self._pieces(text, own, lead)
            if Counter(i for i in ids if i in set(self.ids.values())) == expected:
                return tuple(ids), places
        a, b = words[0]
        raise RequestError(
            f"{where} holds {text[a:b]!r}, which this tokenizer reads as a control token and cannot keep as text; reword it"
        )

    def _pieces(self, text: str, own: Sequence[Span], lead: str) -> tuple[list[int], tuple[Span, ...] | None]:
        """A text cut at its own control tokens, with what lies between tokenised as words behind `lead`."""
        ids: list[int] = []
        places: list[Span] | None = [] if getattr(self.tokenizer, "is_fast", False) else None
        ends = [*own, (len(text), len(text))]
        begin = 0
        for a, b in ends:
            if text[begin:a]:
                before = lead if begin else ""
                head = self._words(before)["input_ids"] if before else []
                made = self._words(before + text[begin:a])
                ids += made["input_ids"][len(head) :]
                if places is not None:
                    shift = begin - len(before)
                    places += [(x + shift, y + shift) for x, y in made["offset_mapping"][len(head) :]]
            if b > a:
                ids.append(self.ids[text[a:b]])
                if places is not None:
                    places.append((a, b))
            begin = b
        return ids, None if places is None else tuple(places)

    def _words(self, text: str) -> Any:
        offsets = {"return_offsets_mapping": True} if getattr(self.tokenizer, "is_fast", False) else {}
        return self.tokenizer(text, add_special_tokens=False, split_special_tokens=True, **offsets)
