"""Where the units of a text end, rule by rule and version by version; `segmentation` caps them and maps them to tokens.

Guarantees that a rule of a version cuts as it always did: a run that was begun under version 1 is continued under it. Version 2 differs in
this: formulas (`$...$`, `\\[...\\]`, environments) and fenced code are kept whole; a sentence ends neither at an abbreviation (`Mr.`, `e.g.`,
`J. Smith`) nor at a factorial, and does end at `。！？` and at a line that is only `42.`; a step may be a Markdown heading (`## Step 2`,
`**Step 2.**`); and where the prompt asks for a step a line, a text without two paragraphs is cut at its lines.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

from ...errors import RequestError
from ..grading.spelling.formulas import formulas

VERSION = 2
"""Of the rules, recorded in the settings of runs; 1 is what runs without it were cut by."""

WINDOW = re.compile(r"window-([1-9][0-9]*)")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_NEWLINE = re.compile(r"\s*\n\s*")
_MARKER = {
    1: re.compile(r"Step [0-9]+:"),
    2: re.compile(
        r"(?:^|(?<=\n))[ \t]*(?:[#>*_-]{1,6}[ \t]*){0,3}(?:Step|STEP|Schritt|Paso|Étape|Passo|Шаг|Langkah)[ \t]+[0-9]+[ \t]*(?:[:.)\-–—*]|$)|第[ ]?[0-9一二三四五六七八九十]+[ ]?步"
        r"|Step [0-9]+:",
        re.MULTILINE,
    ),
}
_CLOSING = r"[\"'”’)\]*]*"
_SENTENCE = {
    1: re.compile(rf"(?<=[.!?]){_CLOSING}(?=\s)|\n[^\S\n]*\n"),
    2: re.compile(rf"(?<=[.!?…؟।۔]){_CLOSING}(?=\s)|(?<=[。！？])[\"'”’」』）)\]*]*(?=\S|\s)|\n[^\S\n]*\n"),
}
_ENUMERATOR = {
    1: re.compile(r"(?:^|\n)\s*\(?[0-9]+[.!?]\Z"),
    2: re.compile(r"(?:^|\n)[ \t]*(?:[-*#>]+[ \t]*)?\(?(?:[0-9]{1,3}|[A-Za-z]|[ivx]{1,4})[.)]\Z"),
}
_ABBREVIATION = re.compile(
    r"(?<![A-Za-z.])(?:(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Mt|Lt|Col|Gen|Rev|Hon|vs|cf|approx|Fig|Figs|Eq|Eqs|No|Nos|Sec|Ch|Vol|pp|Ex|Inc|Ltd|Co|Corp|Dept|Thm|Prop|Def|"
    r"resp|incl|est|min|max|avg|ca|al|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec|Rs|viz|ibid|Abs|bzw|Sra|Sr|Dra|Mme|Nr)|[A-Z]|(?:[A-Za-z]\.){1,4}[A-Za-z])\.\Z"
)
_MAY_END = re.compile(r"(?:etc|a\.m|p\.m|A\.M|P\.M|U\.S|U\.K|Inc|Ltd|Co|Corp|[A-Z]|Jr|Sr|min|max|No)\.\Z")
_GOES_ON = re.compile(r"\s+(?:[a-z0-9=+*/<>)\]×÷]|-\s)")
_FENCE = re.compile(r"^[ \t]*(?P<fence>```+|~~~+)[^\n]*\n.*?(?:^[ \t]*(?P=fence)[^\n]*$|\Z)", re.DOTALL | re.MULTILINE)
_ENVIRONMENT = re.compile(r"\\begin\{(?P<name>[A-Za-z]+\*?)\}.*?\\end\{(?P=name)\}", re.DOTALL)


def unit_ends(text: str, rule: str, token_ends: Sequence[int] | None, version: int) -> list[int]:
    """Character ends of a text's units, ascending, the last without trailing white space; [] for a text of white space only.

    Raises
    ------
    RequestError
        A window rule without tokens.
    """
    stop = len(text.rstrip())
    if stop == 0:
        return []
    window = WINDOW.fullmatch(rule)
    if window:
        if token_ends is None:
            raise RequestError(f"the rule {rule} counts tokens; pass token_ends")
        size, last = int(window[1]), bisect_left(token_ends, stop)
        cuts = [token_ends[i] for i in range(size - 1, last, size)]
    else:
        cuts = _cuts(text, rule, version)
    ends: list[int] = []
    for cut in [*cuts, stop]:
        end = cut if window else len(text[: min(cut, stop)].rstrip())
        if 0 < end <= stop and (not ends or end > ends[-1]):
            ends.append(end)
    return ends


def _cuts(text: str, rule: str, version: int) -> list[int]:
    if rule == "marker":
        cuts = [m.start() for m in _MARKER[version].finditer(text)]
    elif rule == "sentence":
        cuts = [m.end() for m in _SENTENCE[version].finditer(text) if _ends_sentence(text, m, version)]
    else:
        cuts = [m.start() for m in (_BLANK_LINE if rule == "blank-line" else _NEWLINE).finditer(text)]
    if version == 1:
        return cuts
    whole = _whole_parts(text)
    return [cut for cut in cuts if not any(start < cut < end for start, end in whole)]


def _ends_sentence(text: str, mark: re.Match[str], version: int) -> bool:
    """Whether a sentence ends at a mark: not after the number of a list's entry, and (version 2) not after an abbreviation."""
    before = mark.start()
    if version == 1:
        return not _ENUMERATOR[1].search(text, 0, before)
    if mark[0].startswith("\n") or text[before - 1 : before] in "。！？":
        return True
    line = text.rfind("\n", 0, before) + 1
    head, rest_of_line = text[line:before], text[mark.end() :].split("\n", 1)[0]
    if _ENUMERATOR[2].search(head) and rest_of_line.strip():  # "1. First", but not a line that is only "42."
        return False
    if text[before - 1] == "." and _ABBREVIATION.search(head):
        return (
            bool(_MAY_END.search(head))
            and bool(re.match(r"\s+[A-Z][a-z]+\s+[a-z]", text[mark.end() :]))
            and not re.search(r"(?:^|\s)[A-Z]\.\Z", head)
        )
    if text[before - 1] in "!." and re.search(r"[0-9A-Za-z)]!\Z|\.\.\Z", head):  # 5! = 120, and so on... then
        return not _GOES_ON.match(text, mark.end())
    return True


def _whole_parts(text: str) -> list[tuple[int, int]]:
    """Where the parts begin and end that no rule cuts: fenced code, environments, formulas."""
    parts = [m.span() for pattern in (_FENCE, _ENVIRONMENT) for m in pattern.finditer(text)]
    return parts + [(f.start, f.end) for f in formulas(text)]
