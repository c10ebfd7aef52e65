"""Reads which option of a multiple-choice item a generated text commits to. Strict: exactly one, or none.

Guarantees: only the item's own labels count (an item keyed `1`-`4` is read by digits); the article in "A plant needs light"
and the quantity in "2 hours" are not options; an option's own wording (`B) vitamin C`) does not name another option; two
different options in the final answer are no answer.

The final answer is, in this order: the last non-blank `\\boxed{...}`; the clause after the last cue (`####`, `Answer:`, `the
answer is`, `the correct option is`, ...) that names an option; the lines that consist of an option (`B`, `(B)`, `B) text`);
the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .read_expression import boxes

_FULL_WIDTH = {0xFF01 + offset: 0x21 + offset for offset in range(94)}
_TYPOGRAPHIC = str.maketrans({**_FULL_WIDTH, "’": "'", "‘": "'", "“": '"', "”": '"', "【": "[", "】": "]"})
_LATEX_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_SHORT_MATH = re.compile(r"\$([^$\s]{1,12})\$|\\\(([^\n]{1,12}?)\\\)")
_EMPHASIS = re.compile(r"\*+|`+|(?<![A-Za-z0-9])__|__(?![A-Za-z0-9])")

_CUE = re.compile(
    r"""
    \#{4,}
    | (?:\banswers?\b | \b(?:correct|best|right|final|my)[ ](?:option|choice|letter)\b)
      [^\n.!?:=]{0,60}? (?:\b(?:is|be)\b | : | = | → | ->) [ ]*:?
    """,
    re.VERBOSE | re.IGNORECASE,
)
_CLAUSE_END = re.compile(
    r"""[.!?]["')\]]*[ ]+(?=[A-Z][a-z'] | [A-Z][ ]+[a-z]) | [,;]?[ ]*\b(?:because|since|due[ ]to|whereas|while|which)\b""",
    re.VERBOSE,
)
_AFTER_LABEL_NOT_ARTICLE = re.compile(
    r"""[ ]+(?:is|isn't|was|wasn't|are|will|would|must|can|cannot|could|should|seems|looks|appears|fits|and|or|nor|not|but|for
    |because|since|due|as|while|whereas|which|that|then|then,|if|rather|instead|over|only|again|also|too|here|makes|best|to|vs)
    \b""",
    re.VERBOSE,
)
_COMMITTING_CONTEXT = re.compile(
    r"""(?:^ | [:=>→,;.!?\n({\["'-] | \b(?:option|choice|answer|letter|is|be|was|it's|that's|choose|chose|select|pick|picked|with|for
    |think|say|believe|guess|probably|definitely|likely|clearly|thus|so|hence|therefore|only|just|but|either|or|and|both)\b)\s*$""",
    re.VERBOSE | re.IGNORECASE,
)
_REFUSED_BEFORE = re.compile(
    r"""(?:\b(?:not|neither|nor|except|without|eliminates?|reject|exclude|rules?[ ]out|rather[ ]than|instead[ ]of)|n't)
    (?:[ ]+(?:be|the|option|choice|answer|letter))*[ ]*[(\["']?$""",
    re.VERBOSE | re.IGNORECASE,
)
_REFUSED_AFTER = re.compile(
    r"""[)\]"'.:]?[ ]*(?:(?:is|was|are|can|could|would)(?:n't\b|[ ]+not\b|not\b|[ ]+(?:wrong|incorrect|false|ruled)\b))""",
    re.VERBOSE | re.IGNORECASE,
)
_CONTEXT = 60
_ONLY_AROUND = re.compile(r"\W*(?:(?:option|choice|answer|letter)\W+)?", re.IGNORECASE)


@dataclass(frozen=True)
class _Mention:
    label: str
    start: int
    committed: bool
    """Whether the words around it present it as an answer; a bare letter in the middle of prose does not."""


def read_option(text: str, choices: Mapping[str, str]) -> str | None:
    """Return the label of the one option that `text` answers with, or None where it names none or several.

    Parameters
    ----------
    text : str
        What the model wrote.
    choices : mapping of str to str
        Label to option text, the item's own labels (`A`, `B`, ... or `1`, `2`, ...). Texts may be empty when unknown.
    """
    labels = _Labels(choices)
    for box in reversed(boxes(text)):
        if mentions := labels.mentions(_plain(box)):
            return _single(mentions)
    text = _plain(text)
    for cue in reversed(list(_CUE.finditer(text))):
        if mentions := labels.mentions(_clause(_from_next_words(text, cue.end()))):
            return _single(mentions)
    lines = [_clause(line) for line in text.splitlines()]
    if stated := {label for line in lines if (label := labels.stated_by(line))}:
        return stated.pop() if len(stated) == 1 else None
    return _single(labels.mentions(text))


def _single(mentions: list[_Mention]) -> str | None:
    named = {mention.label for mention in mentions}
    return named.pop() if len(named) == 1 and any(mention.committed for mention in mentions) else None


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
            (r"(?<![\w$€£¥₹.,/+\-^°])(?<!\d[ ])", r"(?![\w%°/]|[.,:]\d|[ ][%°])")
            if self._numeric
            else (r"(?<![\w°^])(?<!\w-)(?<!\w')(?<!\d[ ])", r"(?!\w|-\w|'\w|°|\+)")
        )
        self._token = re.compile(f"{before}(?:{alternatives}){after}", re.IGNORECASE)

    def mentions(self, span: str) -> list[_Mention]:
        """Return the options that `span` names, without those it rules out (`not A`, `A is wrong`)."""
        alone = self._alone(span)
        found = [_Mention(alone, 0, True)] if alone else list(self._scan(span))
        return [mention for mention in found if alone or not self._refused(span, mention)]

    def stated_by(self, clause: str) -> str | None:
        """Return the option that `clause` consists of: a label alone, or a marked label at its start and no other option."""
        if alone := self._alone(clause):
            return alone
        found = list(self._scan(clause))
        if len({mention.label for mention in found}) != 1 or self._refused(clause, found[0]):
            return None
        start = found[0].start
        marked = bool(re.match(r"\s*[)\].:]", clause[start + len(found[0].label) :]))
        own_text = found[0].label in self._texts and self._texts[found[0].label].match(clause, start + len(found[0].label))
        return found[0].label if not re.search(r"\w", clause[:start]) and (marked or own_text) else None

    def _alone(self, span: str) -> str | None:
        around = _ONLY_AROUND.match(span)
        token = self._token.match(span, around.end()) if around else None
        return self._own[token[0].upper()] if token and not re.search(r"\w", span[token.end() :]) else None

    def _scan(self, span: str) -> Iterator[_Mention]:
        skip_to = 0
        for token in self._token.finditer(span):
            if token.start() < skip_to:
                continue
            label = self._own[token[0].upper()]
            before, after = span[max(0, token.start() - _CONTEXT) : token.start()], span[token.end() : token.end() + _CONTEXT]
            opened = bool(re.search(r"(?<!\w)[(\[\"'{]\s*$", before))
            closed = bool(re.match(r"\s*[)\]]", after))
            marked = (closed and (opened or not re.search(r"[(\[]\s*$", before))) or (opened and after.startswith(('"', "'", "}")))
            own_text = self._texts[label].match(span, token.end()) if label in self._texts else None
            if not marked and not own_text:
                if token[0].isalpha() and token[0] != label and token[0].islower():
                    continue  # a small letter in prose: the article, a variable
                if closed:
                    continue  # f(A)
                if (token[0] in "AIai" or self._numeric) and self._is_word_or_quantity(after):
                    continue
            if own_text:
                skip_to = own_text.end()
            yield _Mention(label, token.start(), marked or bool(own_text) or bool(_COMMITTING_CONTEXT.search(before)))

    @staticmethod
    def _is_word_or_quantity(after: str) -> bool:
        """`A plant`, `I think`, `2 hours`, `A 5 kg ball`: a word or number follows that does not speak about an option."""
        return bool(re.match(r"\s+(?:[A-Za-z]{2,}|\d)", after)) and not _AFTER_LABEL_NOT_ARTICLE.match(after)

    @staticmethod
    def _refused(span: str, mention: _Mention) -> bool:
        end = mention.start + len(mention.label)
        before, after = span[max(0, mention.start - _CONTEXT) : mention.start], span[end : end + _CONTEXT]
        return bool(_REFUSED_BEFORE.search(before) or _REFUSED_AFTER.match(after))


def _plain(text: str) -> str:
    """Drop emphasis and the LaTeX around short texts; make full-width and typographic characters plain."""
    text = _LATEX_TEXT.sub(r"\1", text.translate(_TYPOGRAPHIC))
    text = _SHORT_MATH.sub(lambda math: math[1] or math[2], text)
    return _EMPHASIS.sub("", text)


def _from_next_words(text: str, position: int) -> str:
    """Return the rest of the line from `position`, or the next line that has words when the rest has none."""
    for line in text[position:].splitlines():
        if re.search(r"\w", line):
            return line
    return ""


def _clause(line: str) -> str:
    """Cut `line` where an explanation begins: a new sentence, `because`, `since`, ..."""
    end = _CLAUSE_END.search(line)
    return line[: end.start() + 1 if line[end.start()] in ".!?" else end.start()] if end else line
