"""Finds the final mathematical expression in generated text.

Guarantees: the last complete, non-blank `\\boxed{...}` is taken, so a retracted box does not count; prose is not mistaken for an
expression; and of prose that ends in a formula the formula is read, never a number that is part of it (`x^2+1` is not 1).
"""

from __future__ import annotations

import re

from .answer_span import marked_lines, non_blank_lines, without_empty_marks
from .read_number import Number, last_number, stated_number
from .rules import EXCERPT, Found, first_found
from .spelling.announced import denies, ends_in_denial, last_announced, taken_back_for_another
from .spelling.answer_text import plain
from .spelling.boxes import BOX, bare, boxes, placed_boxes
from .spelling.cues import CUE
from .spelling.formulas import Formula, final_side, formulas, prose_words

__all__ = ["EXPRESSION_RULES", "PHRASE_RULES", "boxes", "final_expression", "final_phrase", "is_prose"]

_HAS_CONTENT = re.compile(r"[^\W_]|[∅∞π]")
_JOINED = re.compile(r"[\s$]*(?:,|and|or|,\s*and|,\s*or|&|\\text\s*\{\s*,?\s*(?:and|or)\s*\})[\s$]*", re.IGNORECASE)
_BETWEEN_BOXES = re.compile(
    r"[\s$})]*(?:,|and|or|,\s*and|,\s*or|\\text\s*\{\s*,?\s*(?:and|or)\s*\})[\s$({]*(?:[A-Za-z](?:_\{?\w\}?)?\s*=\s*)?\\(?:boxed|fbox)\s*\{",
    re.IGNORECASE,
)
_LONE_SYMBOL = re.compile(
    r"(?!\\(?:pi|infty|emptyset|varnothing)(?![A-Za-z]))\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\([a-z]\))?"
)
_STATES = re.compile(
    r"(?:\b(?:is|are|be|was|equals?|equal to|gets?|gives?|got|obtain|have|has|becomes|yields?|find|means|namely|therefore|thus|hence|so|es|est|ist|é)|[:=,])\s*\(?$",
    re.IGNORECASE,
)
_PLAIN_STATED = re.compile(r"(?:\b(?:is|are|equals?|gives?|get|obtain|becomes)\b|:)[ ]+", re.IGNORECASE)
_SET_APART = re.compile(r"(?:>[ ]*)*(\*{2,3}|__)[^*\n]+\1\.?|(?:>[ ]*)+\*{0,3}[^*\n]+?\*{0,3}")
_UNIT_WORDS = re.compile(r"(?<=[\w)π])[ ]+(?:[A-Za-z]{2,}[ ]?){1,2}$")
_MOST_WORDS_AFTER = 12
_NOT_ANOTHER = re.compile(r"(?<=[\w$})]),?[ ]+(?:and[ ]+)?(?:not|rather than|instead of)[ ].*$")
_SENTENCE_END = re.compile(r"[.!?][\"')\]*]*\s+(?=[\"'(*$\\]*[A-Z])")


def final_expression(text: str) -> str | None:
    """Return the final answer of a free response as an expression, or None where there is none: what the first of
    `EXPRESSION_RULES` reads that applies."""
    found = first_found(EXPRESSION_RULES, text)
    return found[0] if found else None


def final_phrase(text: str) -> str | None:
    """Return the words or symbols that a free response sets apart as its final answer, or None where it does not: what the first of
    `PHRASE_RULES` reads that applies."""
    found = first_found(PHRASE_RULES, text)
    return found[0] if found else None


def is_prose(phrase: str) -> bool:
    """Words beside a number or beside each other are prose; a lone word (`east`) or a formula is not."""
    words = prose_words(phrase)
    bare_phrase = re.sub(
        r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname|begin|end)\s*\{[^{}]*\}", " ", phrase
    )
    return bool(words) and (len(words) > 1 or bare_phrase.strip() != words[0])


# --- rules ------------------------------------------------------------------------------------------------------------


def _boxed(text: str) -> Found[str]:
    """The last box; with those before it where only `and`, `or` or a comma stands between them."""
    placed = placed_boxes(text)
    if not placed or taken_back_for_another(text[placed[-1][0] :]):
        return None
    answers = [placed[-1][1]]
    for (end, content), _after in zip(placed[-2::-1], placed[:0:-1], strict=False):
        if not _BETWEEN_BOXES.match(text, end + 1):
            break
        answers.insert(0, content)
    answer = ", ".join(answers) if len(set(answers)) > 1 else answers[-1]
    return answer, answer


def _marked_expression(text: str) -> Found[str]:
    """The first line after the last `####` that marks an answer: as an expression, or its number."""
    lines = marked_lines(_unboxed(text))
    if lines is None:
        return None
    phrase = _phrase(lines[0])
    if phrase is not None and not is_prose(phrase):
        return phrase, lines[0]
    number = next((n for line in lines if (n := last_number(line)) is not None), None)
    return _text(number), lines[0]


def _announced_expression(text: str) -> Found[str]:
    """What the last cue announces: an expression, the formula in it, or its number."""
    text = plain(_unboxed(text))
    if ends_in_denial(text):
        return None, text[-EXCERPT:]
    clause = last_announced(text)
    if clause is None:
        return None
    if denies(clause) and not re.search(r"\w", text[text.rfind(clause) + len(clause) :]):
        return None, clause
    phrase = _phrase(clause)
    if phrase is not None and not is_prose(phrase):
        return phrase, clause
    inside = [f for f in formulas(clause) if not _LONE_SYMBOL.fullmatch(f.content)]
    if inside:
        return _joined(clause, inside, first=True), clause
    number = stated_number(clause)
    return None if number is None else (number.text, clause)


def _only_line(text: str) -> Found[str]:
    """A text of one line, or a last line that emphasis sets apart, where it is an expression."""
    lines = non_blank_lines(without_empty_marks(_unboxed(text)))
    if not lines or not (len(lines) == 1 or _SET_APART.fullmatch(lines[-1])) or CUE.search(lines[-1]):
        return None
    phrase = _phrase(plain(lines[-1]))
    return None if phrase is None or is_prose(phrase) else (phrase, lines[-1])


def _last_formula(text: str) -> Found[str]:
    """The last formula, where no number follows it; with those before it that only `and`, `or` or a comma parts from it."""
    text = plain(_unboxed(text))
    found = [f for f in formulas(text) if not _LONE_SYMBOL.fullmatch(f.content)]
    if not found:
        return None
    last = found[-1]
    after = text[last.end :]
    if re.search(r"\d", after) or len(after.split()) > _MOST_WORDS_AFTER:
        return None
    sentence = _start_of_sentence(text, last.start)
    excerpt = text[sentence : last.end][-2 * EXCERPT :]
    within = [f for f in found if f.start >= sentence]
    stated = [f for f in within if _STATES.search(text, sentence, f.start)]
    if stated:  # "there are $20$ zeros at the end of $42!$"
        within = [f for f in within if f.start <= stated[-1].start or _JOINED.fullmatch(text[stated[-1].end : f.start])]
    elif len(within) > 1 and not _JOINED.fullmatch(text[within[-2].end : within[-1].start]):
        return None, excerpt
    return _joined(text, within, first=False), excerpt


def _plain_formula(text: str) -> Found[str]:
    """A formula without signs around it that the last sentence states: `the polynomial is x^2 + 1`."""
    lines = non_blank_lines(plain(_unboxed(text)))
    if not lines:
        return None
    sentence = lines[-1][_start_of_sentence(lines[-1], len(lines[-1]) - 1) :]
    stated = list(_PLAIN_STATED.finditer(sentence))
    formula = bare(_UNIT_WORDS.sub("", sentence[stated[-1].end() :].rstrip(" .!"))) if stated else ""
    if (
        not 1 < len(formula) <= EXCERPT
        or prose_words(formula)
        or not re.search(r"\d|[π√∞]|[a-z][ ]?[-+*/^=][ ]?[a-z]|\\pi", formula)
    ):
        return None
    formula = final_side(formula)
    is_formula = re.search(r"[-+*/^=<>≤≥(\[π√∞a-zA-Z_,]", formula.lstrip("-")) and "$" not in formula
    return (formula, sentence) if is_formula else None


def _last_number_alone(text: str) -> Found[str]:
    """The last number, where it is not part of a formula, an inequality or a pair."""
    text = _unboxed(text)
    return _text(last_number(text, alone=True)), text[-EXCERPT:]


def _marked_phrase(text: str) -> Found[str]:
    lines = marked_lines(_unboxed(text))
    return None if lines is None else (_phrase(lines[0]), lines[0])


def _announced_phrase(text: str) -> Found[str]:
    clause = last_announced(plain(_unboxed(text)))
    return None if clause is None else (_phrase(clause), clause)


def _only_line_phrase(text: str) -> Found[str]:
    lines = non_blank_lines(without_empty_marks(_unboxed(text)))
    return None if len(lines) != 1 else (_phrase(plain(lines[0])), lines[0])


EXPRESSION_RULES = {
    "box": _boxed,
    "mark": _marked_expression,
    "cue": _announced_expression,
    "only line": _only_line,
    "last formula": _last_formula,
    "plain formula": _plain_formula,
    "last number": _last_number_alone,
}
"""The rules for expressions, in their order."""

PHRASE_RULES = {"box": _boxed, "mark": _marked_phrase, "cue": _announced_phrase, "only line": _only_line_phrase}
"""The rules for answers in words, in their order."""


def _unboxed(text: str) -> str:
    """A text whose boxes (all of them cut off) are gone."""
    return BOX.sub(" ", text)


def _phrase(line: str) -> str | None:
    phrase = bare(_NOT_ANOTHER.sub("", plain(line)))
    return phrase if _HAS_CONTENT.search(phrase) else None


def _text(number: Number | None) -> str | None:
    return None if number is None else number.text


def _joined(text: str, found: list[Formula], first: bool) -> str | None:
    """The formula that a sentence states: its first or last one, together with those that only `and`, `or` or a comma parts from it."""
    if first:
        group = [found[0]]
        for formula in found[1:]:
            if not _JOINED.fullmatch(text[group[-1].end : formula.start]):
                break
            group.append(formula)
    else:
        group = [found[-1]]
        for formula in found[-2::-1]:
            if not _JOINED.fullmatch(text[formula.end : group[0].start]):
                break
            group.insert(0, formula)
    return ", ".join(side for f in group if (side := final_side(f.content))) or None


def _start_of_sentence(text: str, position: int) -> int:
    """Where the sentence begins that a formula stands in; a displayed formula belongs to the sentence that leads to it."""
    start = 0
    for end in _SENTENCE_END.finditer(text, 0, position):
        start = end.end()
    return max(start, text.rfind("\n\n", 0, max(0, position - 2)) + 1)
