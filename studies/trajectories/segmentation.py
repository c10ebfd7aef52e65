"""Where a chain of reasoning is cut, and which token each cut falls on.

Guarantees that a cut is always reported with what the other rules would have given, and that every boundary lands on a whole
token: text boundaries are mapped through character offsets, and one that falls inside a token moves to that token's end and
is counted. This prevents the usual fault of step-wise studies, prefixes that are re-tokenised text and therefore not
prefixes of what the model wrote.

Rules
-----
``blank-line``  paragraphs separated by an empty line
``marker``      before every ``Step 3:``; without two of these, paragraphs; without two of those, sentences
``newline``     lines that hold any text
``sentence``    after ``.``, ``!`` or ``?`` (with closing quotes or brackets) before white space, and at paragraph breaks
``window-40``   every 40 tokens; any ``window-N`` is read so
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import RequestError

RULES = ("blank-line", "marker", "newline", "sentence", "window-40")
DEFAULT_CAP = 8

_WINDOW = re.compile(r"window-([1-9][0-9]*)")
_MARKER = re.compile(r"Step [0-9]+:")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_NEWLINE = re.compile(r"\s*\n\s*")
_SENTENCE = re.compile(r"(?<=[.!?])[\"'”’)\]*]*(?=\s)|\n[^\S\n]*\n")
_ENUMERATOR = re.compile(r"(?:^|\n)\s*\(?[0-9]+[.!?]\Z")


@dataclass(frozen=True)
class Segmentation:
    """One chain cut by one rule.

    Attributes
    ----------
    rule : str
        The rule asked for.
    applied : str
        The rule that cut: differs from `rule` where `marker` fell back.
    ends : tuple of int
        Character end of each unit after the cap, ascending; the last is the end of the chain's text without trailing
        white space.
    units : int
        Units before the cap.
    cap : int or None
        The cap in force; None for no cap.
    merged : int
        Units that the cap merged into the last one (beyond that one itself).
    """

    rule: str
    applied: str
    ends: tuple[int, ...]
    units: int
    cap: int | None
    merged: int

    @property
    def capped(self) -> bool:
        """Whether the cap took effect."""
        return self.merged > 0


@dataclass(frozen=True)
class Boundaries:
    """A segmentation mapped to tokens.

    Attributes
    ----------
    tokens : tuple of int
        Chain tokens in each cumulative prefix, strictly ascending, starting with 0 for the empty prefix when asked for.
    inside : int
        Boundaries that fell inside a token and moved to its end.
    collapsed : int
        Boundaries that fell on a token already taken by an earlier one, and were dropped.
    """

    tokens: tuple[int, ...]
    inside: int
    collapsed: int


def check_rule(rule: str) -> str:
    """The rule's name, or RequestError naming the rules there are."""
    if rule in RULES or _WINDOW.fullmatch(rule):
        return rule
    raise RequestError(
        f"unknown segmentation rule {rule!r}; choose one of {', '.join(RULES)} (or window-N for N tokens)"
    )


def check_cap(cap: int | None) -> int | None:
    """The cap itself, or RequestError unless it is None (no cap) or 1 or more."""
    if cap is not None and not 1 <= cap < 2**63:
        raise RequestError(f"the unit cap must be 1 or more (in 64 bits), or none, got {cap}")
    return cap


def segment(
    text: str, rule: str = "blank-line", cap: int | None = DEFAULT_CAP, token_ends: Sequence[int] | None = None
) -> Segmentation:
    """Cut a chain into units.

    Parameters
    ----------
    text : str
    rule : str
        One of `RULES` (or ``window-N``).
    cap : int or None, default 8
        Most units; the rest are merged into the last one. None: no cap.
    token_ends : sequence of int, optional
        Character end of each token; needed by the window rules only.

    Returns
    -------
    Segmentation
        Without units for a chain of white space only.

    Raises
    ------
    RequestError
        For an unknown rule, a cap below 1, or a window rule without tokens.
    """
    check_rule(rule)
    check_cap(cap)
    applied, ends = rule, _unit_ends(text, rule, token_ends)
    if rule == "marker" and len(ends) < 2:
        for fallback in ("blank-line", "sentence"):
            applied, ends = fallback, _unit_ends(text, fallback, token_ends)
            if len(ends) >= 2:
                break
    units = len(ends)
    if cap is not None and units > cap:
        ends = [*ends[: cap - 1], ends[-1]]
    return Segmentation(rule, applied, tuple(ends), units, cap, units - len(ends))


def units_by_rule(text: str, token_ends: Sequence[int] | None = None) -> dict[str, int]:
    """Units each rule would have given, before any cap (window rules only where tokens are known)."""
    rules = RULES if token_ends is not None else [r for r in RULES if not r.startswith("window")]
    return {rule: segment(text, rule, None, token_ends).units for rule in rules}


def _unit_ends(text: str, rule: str, token_ends: Sequence[int] | None) -> list[int]:
    stop = len(text.rstrip())
    if stop == 0:
        return []
    window = _WINDOW.fullmatch(rule)
    if window:
        if token_ends is None:
            raise RequestError(f"the rule {rule} counts tokens; pass token_ends")
        size, last = int(window[1]), bisect_left(token_ends, stop)
        cuts = [token_ends[i] for i in range(size - 1, last, size)]
    elif rule == "marker":
        cuts = [m.start() for m in _MARKER.finditer(text)]
    elif rule == "sentence":
        cuts = [m.end() for m in _SENTENCE.finditer(text) if not _ENUMERATOR.search(text, 0, m.start())]
    else:
        separator = _BLANK_LINE if rule == "blank-line" else _NEWLINE
        cuts = [m.start() for m in separator.finditer(text)]
    ends: list[int] = []
    for cut in [*cuts, stop]:
        end = cut if window else len(text[: min(cut, stop)].rstrip())
        if 0 < end <= stop and (not ends or end > ends[-1]):
            ends.append(end)
    return ends


def token_ends_of_text(tokenizer: Any, text: str) -> tuple[list[int], list[int]]:
    """Token ids of a text (without special tokens) and each token's character end.

    Raises
    ------
    RequestError
        When the tokenizer cannot give offsets (it is not a fast tokenizer).
    """
    if not getattr(tokenizer, "is_fast", False):
        raise RequestError("this tokenizer gives no character offsets; load the fast form of it to cut a chain's text")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids = list(encoded["input_ids"])
    starts = [start for start, _ in encoded["offset_mapping"]]
    ends = [end for _, end in encoded["offset_mapping"]]
    # The tokens of one character (a byte-level tokenizer splits some) all carry its span: only the last completes it.
    for i in range(len(ids) - 1):
        if starts[i + 1] < ends[i]:
            ends[i] = starts[i + 1]
    return ids, ends


def token_ends_of_ids(tokenizer: Any, ids: Sequence[int]) -> tuple[str, list[int]]:
    """The text that generated token ids spell, and how many of its characters are complete after each token.

    Works on the ids the model wrote, which re-tokenised text need not give back.
    """
    ids = list(ids)
    text = _decode(tokenizer, ids)
    ends, complete = [], 0
    for i in range(len(ids)):
        so_far = _decode(tokenizer, ids[: i + 1])
        complete = max(complete, _common_prefix(so_far, text, complete))
        ends.append(complete)
    return text, ends


def _decode(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _common_prefix(a: str, b: str, start: int) -> int:
    """Length of the common prefix of a and b, known to be at least `start` unless a is shorter."""
    limit = min(len(a), len(b))
    i = min(start, limit)
    while i < limit and a[i] == b[i]:
        i += 1
    return i


def to_tokens(ends: Sequence[int], token_ends: Sequence[int], include_start: bool = True) -> Boundaries:
    """Map character boundaries to token counts.

    Parameters
    ----------
    ends : sequence of int
        Character boundaries, ascending.
    token_ends : sequence of int
        Characters complete after each token, ascending.
    include_start : bool
        Whether the empty prefix (0 tokens) comes first.

    Returns
    -------
    Boundaries
        The smallest number of tokens that covers each boundary.
    """
    tokens = [0] if include_start else []
    inside = collapsed = 0
    for end in ends:
        i = bisect_left(token_ends, end)
        if i == len(token_ends):
            raise RequestError(
                f"boundary {end} lies beyond the {token_ends[-1] if token_ends else 0} characters of the chain's tokens"
            )
        inside += token_ends[i] != end
        if tokens and i + 1 <= tokens[-1]:
            collapsed += 1
            continue
        tokens.append(i + 1)
    return Boundaries(tuple(tokens), inside, collapsed)
