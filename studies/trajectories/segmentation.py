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

`units` has the rules themselves, and what their versions differ in.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ... import checks
from ...errors import RequestError
from .units import VERSION, WINDOW, unit_ends

RULES = ("blank-line", "marker", "newline", "sentence", "window-40")
DEFAULT_CAP = 8

_A_STEP_A_LINE = re.compile(
    r"(?:own|new|separate|single) line|(?:step|one|each) (?:per|a|to a|on each|on every) line|line by line|each on a line",
    re.IGNORECASE,
)


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
    if rule in RULES or WINDOW.fullmatch(rule):
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
    text: str,
    rule: str = "blank-line",
    cap: int | None = DEFAULT_CAP,
    token_ends: Sequence[int] | None = None,
    *,
    version: int = VERSION,
    lines: bool = False,
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
    version : {1, 2}
        Of the rules (`units`): runs are cut by the one that they were begun with.
    lines : bool
        Whether the prompt asked for a step a line (`asks_for_lines`): a text without two paragraphs is cut at its lines then (version 2).

    Returns
    -------
    Segmentation
        Without units for a chain of white space only.

    Raises
    ------
    RequestError
        For an unknown rule or version, a cap below 1, or a window rule without tokens.
    """
    check_rule(rule)
    check_cap(cap)
    checks.choice("the version of the segmentation rules", version, tuple(range(1, VERSION + 1)))
    applied, ends = rule, unit_ends(text, rule, token_ends, version)
    by_line = ("newline",) if lines and version > 1 else ()
    fallbacks = {"marker": ("blank-line", *by_line, "sentence"), "blank-line": by_line}.get(rule, ())
    if len(ends) < 2:
        for fallback in fallbacks:
            found = unit_ends(text, fallback, token_ends, version)
            if rule == "marker" or len(found) >= 2:
                applied, ends = fallback, found
            if len(ends) >= 2:
                break
    units = len(ends)
    if cap is not None and units > cap:
        ends = [*ends[: cap - 1], ends[-1]]
    return Segmentation(rule, applied, tuple(ends), units, cap, units - len(ends))


def asks_for_lines(prompt: str) -> bool:
    """Whether a system prompt asks for a step a line."""
    return bool(_A_STEP_A_LINE.search(prompt))


def units_by_rule(
    text: str, token_ends: Sequence[int] | None = None, *, version: int = VERSION, lines: bool = False
) -> dict[str, int]:
    """Units each rule would have given, before any cap (window rules only where tokens are known)."""
    rules = RULES if token_ends is not None else [r for r in RULES if not r.startswith("window")]
    return {rule: segment(text, rule, None, token_ends, version=version, lines=lines).units for rule in rules}


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
