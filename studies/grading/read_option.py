"""Reads which option of a multiple-choice item a generated text commits to. Strict: exactly one, or none.

Guarantees: only the item's own labels count (an item keyed `1`-`4` is read by digits); the article in "A plant needs
light" and the quantity in "2 hours" are not options; an option's own wording (`B) vitamin C`) does not name
another option; two different options in the final answer are no answer.

The final answer is, in this order: the last non-blank `\\boxed{...}`; the clause after the last cue (`####`, `Answer:`,
`the answer is`, `the correct option is`, ...) that names an option; the lines that consist of an option (`B`, `(B)`,
`B) text`, `I choose B.`); the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from .read_expression import boxes

_FULL_WIDTH = {chr(0xFF01 + offset): chr(0x21 + offset) for offset in range(94)}
_TYPOGRAPHIC = str.maketrans({**_FULL_WIDTH, "’": "'", "‘": "'", "“": '"', "”": '"', "【": "[", "】": "]"})
_LATEX_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_SHORT_MATH = re.compile(r"\$([^$\s]{1,12})\$|\\\(([^\n]{1,12}?)\\\)")
_EMPHASIS = re.compile(r"\*+|`+|(?<![A-Za-z0-9])__|__(?![A-Za-z0-9])")


def _any_word(words: str) -> str:
    """A pattern for any of the given words; an underscore stands for a space."""
    return rf"\b(?:{'|'.join(words.split()).replace('_', '[ ]')})\b"


_CUE = re.compile(
    r"""
    \#{4,}
    | (?: \banswers?\b | \b(?:correct|best|right|final|my)[ ](?:option|choice|letter)\b )
      [^\n.!?:=]{0,60}? (?: \b(?:is|be)\b | : | = | → | -> ) [ ]*:?
    """,
    re.VERBOSE | re.IGNORECASE,
)
_NEW_SENTENCE = r"""[.!?]["')\]]*[ ]+(?=[A-Z][a-z']|[A-Z][ ]+[a-z])"""
_REASON = r"[,;]?[ ]*" + _any_word("because since due_to whereas while which")
_CLAUSE_END = re.compile(f"{_NEW_SENTENCE}|{_REASON}")

# "A is right", "A and B": words after which a bare A, I or digit still stands for an option.
_SPEAKS_OF_OPTION = re.compile(
    "[ ]+"
    + _any_word(
        "is isn't was wasn't are will would must can cannot could should seems looks appears fits makes and or nor "
        "not but for because since due as while whereas which that then if rather instead over only again also too "
        "here best to vs"
    )
)
# "I think B", "choose B", "it must be B": what stands before a bare letter that is given as an answer.
_COMMITS = re.compile(
    r"""(?:^|[:=>→,;.!?\n({\["'-]|"""
    + _any_word(
        "option choice answer letter is be was it's that's choose chose select pick picked with for think say believe "
        "guess probably definitely likely clearly actually thus so hence therefore only just but either or and both"
    )
    + r")\s*$",
    re.IGNORECASE,
)
_REFUSED_BEFORE = re.compile(
    r"(?:"
    + _any_word(
        "not neither nor except without eliminate eliminates reject exclude rule_out rules_out rather_than instead_of"
    )
    + r"""|n't)(?:[ ]+(?:be|the|option|choice|answer|letter))*[ ]*[(\["']?$""",
    re.IGNORECASE,
)
_REFUSED_AFTER = re.compile(
    r"""[)\]"']?[ ]*(?:(?:is|was)(?:n't|[ ]+(?:not|wrong|incorrect|false))|(?:cannot|can't|couldn't)[ ]be)\b""",
    re.IGNORECASE,
)
_OPENED = re.compile(r"""(?<!\w)[(\[{"']\s*$""")
_CALLED = re.compile(r"\w[(\[]\s*$")
_CONTEXT = 60  # characters
_CUE_REACH = 400  # characters
_SHORT_LINE = 5  # words
_ONLY_AROUND = re.compile(r"\W*(?:(?:option|choice|answer|letter)\W+)?", re.IGNORECASE)


@dataclass(frozen=True)
class _Mention:
    label: str
    start: int
    committed: bool
    """Whether the words around it present it as an answer; a bare letter in the middle of prose does not."""
    refused: bool
    """Whether the words around it rule it out: `not A`, `A is wrong`."""
    bracketed: bool
    """Whether a bracket follows it: `A)`, `(A)`."""


def read_option(text: str, choices: Mapping[str, str]) -> str | None:
    """Return the label of the one option that `text` answers with, or None where it names none or several.

    Parameters
    ----------
    text : str
        What the model wrote.
    choices : mapping of str to str
        Label to option text, the item's own labels (`A`, `B`, ... or `1`, `2`, ...). Texts may be empty when unknown.
    """
    labels = _labels(tuple(choices.items()))
    for box in reversed(boxes(text)):
        if mentions := labels.mentions(_plain(box)):
            return _single(mentions)
    text = _plain(text)
    later: list[
        _Mention
    ] = []  # "Answer: B" stands although "the answer is not A" comes later, but not after "... not B"
    for cue in reversed(list(_CUE.finditer(text))):
        mentions = labels.mentions(labels.clause(_after_cue(text, cue.end()))) + later
        if not all(mention.refused for mention in mentions):
            return _single(mentions)
        later = mentions
    if stated := {label for line in text.splitlines() if (label := labels.stated_by(labels.clause(line)))}:
        return stated.pop() if len(stated) == 1 else None
    return _single(labels.mentions(text))


def _single(mentions: list[_Mention]) -> str | None:
    kept = [mention for mention in mentions if not mention.refused]
    named = {mention.label for mention in kept}
    contradicted = named & {mention.label for mention in mentions if mention.refused}
    if len(named) != 1 or contradicted or not any(mention.committed for mention in kept):
        return None
    return named.pop()


@lru_cache(maxsize=256)
def _labels(choices: tuple[tuple[str, str], ...]) -> _Labels:
    return _Labels(dict(choices))


class _Labels:
    """The labels of one item, with the patterns that find them."""

    def __init__(self, choices: Mapping[str, str]) -> None:
        self._own = {label.upper(): label for label in choices}
        self._numeric = all(label.isdigit() for label in choices)
        self._texts = {
            label: re.compile(r"[\s).:\]-]*" + r"\s+".join(map(re.escape, _plain(text).split())), re.IGNORECASE)
            for label, text in choices.items()
            if len(text.split()) and text.strip().upper() not in self._own
        }
        alternatives = "|".join(sorted(map(re.escape, self._own), key=len, reverse=True))
        before, after = (
            (r"(?<![\w$€£¥₹.,/+\-^°])", r"(?![\w%°/]|[.,:]\d|[ ][%°])")
            if self._numeric
            else (r"(?<![\w°^])(?<!\w-)(?<!\w')", r"(?!\w|-\w|'\w|°|\+)")
        )
        self._token = re.compile(f"{before}(?:{alternatives}){after}", re.IGNORECASE)

    def clause(self, line: str) -> str:
        """Cut `line` where an explanation begins: a new sentence, `because`, ...; but never a list of options."""
        end = _CLAUSE_END.search(line)
        if not end or len({mention.label for mention in self._scan(line) if mention.bracketed}) > 1:
            return line
        return line[: end.start() + 1] if line[end.start()] in ".!?" else line[: end.start()]

    def mentions(self, span: str) -> list[_Mention]:
        """Return the options that `span` names, those it rules out among them."""
        if alone := self._alone(span):
            return [_Mention(alone, 0, committed=True, refused=False, bracketed=False)]
        return list(self._scan(span))

    def stated_by(self, clause: str) -> str | None:
        """Return the option that `clause` states alone: a bare label, one marked at the start, or one in few words."""
        if alone := self._alone(clause):
            return alone
        found = list(self._scan(clause))
        if len({mention.label for mention in found}) != 1 or found[0].refused:
            return None
        first = found[0]
        end = first.start + len(first.label)
        at_start = not re.search(r"\w", clause[: first.start])
        marked = re.match(r"\s*[)\].:]", clause[end:]) or self._own_text(first.label, clause, end)
        short = first.committed and len(clause.split()) <= _SHORT_LINE  # "So I choose B."
        return first.label if (at_start and marked) or short else None

    def _alone(self, span: str) -> str | None:
        around = _ONLY_AROUND.match(span)
        token = self._token.match(span, around.end()) if around else None
        return self._own[token[0].upper()] if token and not re.search(r"\w", span[token.end() :]) else None

    def _own_text(self, label: str, span: str, end: int) -> re.Match[str] | None:
        """Match the option's own wording right after its label, as in `B) vitamin C` and `B vitamin C`.

        Where the label could be an article or a quantity (`A plant`, `2 hours`) and nothing marks it as a label, its
        wording must fill the line, and after a digit does not count.
        """
        match = self._texts[label].match(span, end) if label in self._texts else None
        ambiguous = label in ("A", "I") or self._numeric
        if not match or not ambiguous or re.match(r"\s*[)\].:]", span[end:]):
            return match
        return None if self._numeric or re.match(r"[^\n]*\w", span[match.end() :]) else match

    def _scan(self, span: str) -> Iterator[_Mention]:
        skip_to = 0
        for token in self._token.finditer(span):
            if token.start() < skip_to:
                continue
            label = self._own[token[0].upper()]
            before = span[max(0, token.start() - _CONTEXT) : token.start()]
            after = span[token.end() : token.end() + _CONTEXT]
            called = bool(_CALLED.search(before))  # f(A)
            bracketed = bool(re.match(r"\s*[)\]]", after)) and not called
            quoted = bool(_OPENED.search(before)) and after.startswith(('"', "'", "}"))
            own_text = self._own_text(label, span, token.end())
            if own_text:
                skip_to = own_text.end()
            elif not bracketed and not quoted:
                small_letter_in_prose = token[0] != label and token[0].islower()
                unit = re.search(r"\d[ ]$", before) and not re.match(r"[.:][ ]*\w", after)  # 20 C
                if called or small_letter_in_prose or unit or self._is_word_or_quantity(token[0], after):
                    continue
            yield _Mention(
                label,
                token.start(),
                committed=bracketed or quoted or bool(own_text) or bool(_COMMITS.search(before)),
                refused=bool(_REFUSED_BEFORE.search(before) or (not own_text and _REFUSED_AFTER.match(after))),
                bracketed=bracketed,
            )

    def _is_word_or_quantity(self, token: str, after: str) -> bool:
        """`A plant`, `I think`, `2 hours`, `A 5 kg ball`: the word or number after it makes it no option."""
        if token not in ("A", "I", "a", "i") and not self._numeric:
            return False
        return bool(re.match(r"\s+(?:[A-Za-z]{2,}|\d)", after)) and not _SPEAKS_OF_OPTION.match(after)


def _plain(text: str) -> str:
    """Drop emphasis and the LaTeX around short texts; make full-width and typographic characters plain."""
    text = _LATEX_TEXT.sub(r"\1", text.translate(_TYPOGRAPHIC))
    text = _SHORT_MATH.sub(lambda math: math[1] or math[2], text)
    return _EMPHASIS.sub("", text)


def _after_cue(text: str, position: int) -> str:
    """Return the rest of the line from `position`, or the next line that has words when the rest has none."""
    lines = text[position : position + _CUE_REACH].splitlines()
    return next((line for line in lines if re.search(r"\w", line)), "")
