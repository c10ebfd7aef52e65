"""Finds boxes: `\\boxed{...}` and `\\fbox{...}` with their nested braces balanced.

Guarantees that `\\boxed{\\frac{1}{2}}` is not cut at its first brace, two boxes are never merged, and a box that was cut off while
being written is none.
"""

from __future__ import annotations

import re

BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_MAX_WRAPPINGS = 8
_PAIRS = (("**", "**"), ("*", "*"), ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("`", "`"), ('"', '"'))
_WRAPPER = re.compile(r"\\(?:textbf|mathbf|boldsymbol|bm|underline|displaystyle|mathit|textit)\s*\{([^{}]*)\}")


def boxes(text: str) -> list[str]:
    """Return the contents of all complete, non-blank `\\boxed{...}` and `\\fbox{...}` in `text`, in order.

    A box that is never closed was cut off while being written and is not one. Of boxes within boxes the outermost
    counts, and one that only wraps another is looked through.
    """
    return [content for _, content in placed_boxes(text)]


def placed_boxes(text: str) -> list[tuple[int, str]]:
    """Return where each box's content ends, and the content."""
    closed = sorted(_closed_boxes(text))
    outermost: list[tuple[int, int]] = []
    for start, end in closed:
        if not outermost or start > outermost[-1][1]:
            outermost.append((start, end))
    contents = [(end, _unwrapped(text[start:end])) for start, end in outermost]
    return [(end, content) for end, content in contents if content]


def bare(expression: str) -> str:
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
        if wrapped := _WRAPPER.fullmatch(expression):
            expression = wrapped[1]
        if expression == before:
            return expression


def _closed_boxes(text: str) -> list[tuple[int, int]]:
    """Return the (start, end) of the contents of all boxes whose brace is closed; escaped braces do not count."""
    openings = {match.end() - 1 for match in BOX.finditer(text)}
    found, open_braces = [], []
    for brace in _BRACE.finditer(text):
        if brace[0] == "{" or brace.end() - 1 in openings:
            open_braces.append(brace.end() - 1)
        elif brace[0] == "}" and open_braces and (opening := open_braces.pop()) in openings:
            found.append((opening + 1, brace.start()))
    return found


def _unwrapped(content: str) -> str:
    content = bare(content)
    for _ in range(_MAX_WRAPPINGS):
        opening = BOX.match(content)
        if not opening or (opening.end(), len(content) - 1) not in _closed_boxes(content):
            break
        content = bare(content[opening.end() : -1])
    return content
