"""Finds the final mathematical expression in generated text.

Guarantees: the last complete, non-blank `\\boxed{...}` is taken with its nested braces balanced, so a retracted box
does not count, `\\frac{1}{2}` is not cut at its first brace, and two boxes are never merged. Prose is not mistaken for
an expression.
"""

from __future__ import annotations

import re

from .answer_span import marked_lines, non_blank_lines, without_empty_marks
from .read_number import final_number

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname|begin|end)\s*\{[^{}]*\}")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_FUNCTIONS = frozenset("sin cos tan cot sec csc arcsin arccos arctan ln log exp sqrt pi".split())
_ANSWER_CUE = re.compile(
    r"^\W*(?:so |thus |therefore,? )?(?:the )?(?:final )?answer(?: is)?(?![A-Za-z])[\s:=*_]*", re.IGNORECASE
)
_MAX_WRAPPINGS = 8
_HAS_CONTENT = re.compile(r"[^\W_]|[∅∞π]")
_PAIRS = (("**", "**"), ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("`", "`"))


def boxes(text: str) -> list[str]:
    """Return the contents of all complete, non-blank `\\boxed{...}` and `\\fbox{...}` in `text`, in order.

    A box that is never closed was cut off while being written and is not one. Of boxes within boxes the outermost
    counts, and one that only wraps another is looked through.
    """
    closed = sorted(_closed_boxes(text))
    outermost: list[tuple[int, int]] = []
    for start, end in closed:
        if not outermost or start > outermost[-1][1]:
            outermost.append((start, end))
    contents = (_unwrapped(text[start:end]) for start, end in outermost)
    return [content for content in contents if content]


def final_expression(text: str) -> str | None:
    """Return the final answer of a free response as an expression, or None where there is none.

    `final_phrase` when it is an expression or a single word, not prose; else `final_number`.
    """
    phrase = final_phrase(text)
    if phrase is not None and (boxes(text) or not is_prose(phrase)):
        return phrase
    number = final_number(_BOX.sub(" ", text))
    return number.text if number else None


def final_phrase(text: str) -> str | None:
    """Return the words or symbols that a free response sets apart as its final answer, or None where it does not.

    In this order: the last box; the first line after the last `####`; a text of one line, or a last line that begins
    with `Answer`.
    """
    if found := boxes(text):
        return found[-1]
    text = without_empty_marks(_BOX.sub(" ", text))
    marked = marked_lines(text)
    lines = non_blank_lines(text) if marked is None else marked[:1]
    if not lines or (len(lines) > 1 and not _ANSWER_CUE.match(lines[-1])):
        return None
    phrase = _bare(_ANSWER_CUE.sub("", lines[-1], count=1))
    return phrase if _HAS_CONTENT.search(phrase) else None


def is_prose(phrase: str) -> bool:
    """Words beside a number or beside each other are prose; a lone word (`east`) or a formula is not."""
    bare = _TEXT_COMMAND.sub(" ", phrase)
    words = [word for word in _WORD.findall(bare) if word.lower() not in _FUNCTIONS]
    return bool(words) and (len(words) > 1 or bare.strip() != words[0])


def _closed_boxes(text: str) -> list[tuple[int, int]]:
    """Return the (start, end) of the contents of all boxes whose brace is closed; escaped braces do not count."""
    openings = {match.end() - 1 for match in _BOX.finditer(text)}
    found, open_braces = [], []
    for brace in _BRACE.finditer(text):
        if brace[0] == "{" or brace.end() - 1 in openings:
            open_braces.append(brace.end() - 1)
        elif brace[0] == "}" and open_braces and (opening := open_braces.pop()) in openings:
            found.append((opening + 1, brace.start()))
    return found


def _unwrapped(content: str) -> str:
    content = _bare(content)
    for _ in range(_MAX_WRAPPINGS):
        opening = _BOX.match(content)
        if not opening or (opening.end(), len(content) - 1) not in _closed_boxes(content):
            break
        content = _bare(content[opening.end() : -1])
    return content


def _bare(expression: str) -> str:
    """Strip what stands around an expression: white space, dollar signs, emphasis, a full stop."""
    while True:
        before = expression
        expression = expression.strip()
        stripped = expression.rstrip(".,; \n\t")
        expression = expression[: len(stripped) + 1] if stripped.endswith("\\right") else stripped
        for left, right in _PAIRS:
            if len(expression) > len(left) + len(right) and expression.startswith(left) and expression.endswith(right):
                inner = expression[len(left) : -len(right)]
                if left not in inner and right not in inner:
                    expression = inner
        if expression == before:
            return expression
