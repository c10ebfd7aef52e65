"""Single chains as drawings for a page: hovering a point shows the text that ends there and what was measured.

Guarantees that text written by a model is shown as text, whatever bytes it holds, and that a prefix without an answer is an open
mark on the axis, not an entropy of 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from . import style

LEFT, RIGHT_MARGIN, TOP, BOTTOM = 44, 12, 10, 26


def chain_drawing(
    name: str,
    lines: Sequence[str],
    entropies: Sequence[float],
    texts: Sequence[str],
    notes: Sequence[str],
    width: int = 560,
    height: int = 170,
    epsilon: float = 0.01,
) -> Markup:
    """One chain's trajectory as inline SVG under its name.

    Parameters
    ----------
    name : str
    lines : sequence of str
        Paragraphs between the name and the drawing.
    entropies : sequence of float
        Nats per prefix; NaN is drawn as an open mark on the axis.
    texts, notes : sequence of str
        Per prefix: the unit that ends there (empty for the empty prefix), and a line on the answers.
    width, height : int
        Pixels.
    epsilon : float
        A point that lies above the one before it by more than this (nats) is drawn in the second colour.
    """
    from ..page import environment

    right, floor = width - RIGHT_MARGIN, height - BOTTOM
    ceiling = max([*(h for h in entropies if not math.isnan(h)), 0.1]) * 1.05
    span = max(len(entropies) - 1, 1)

    def place(k: int, entropy: float) -> tuple[str, str]:
        x = LEFT + (right - LEFT) * k / span
        y = TOP + (floor - TOP) * (1 - entropy / ceiling)
        return f"{x:.1f}", f"{y:.1f}"

    points, line, before = [], [], math.nan
    for k, entropy in enumerate(entropies):
        missing = math.isnan(entropy)
        x, y = place(k, 0 if missing else entropy)
        rises = not missing and not math.isnan(before) and entropy > before + epsilon
        colour = style.WRONG if rises else style.RIGHT
        measured = "no answer could be read" if missing else f"{entropy:.3f} nats"
        text = _printable(f"prefix {k}: {measured}\n{notes[k]}\n\n{texts[k]}".strip())
        points.append({"x": x, "y": y, "colour": colour, "fill": "white" if missing else colour, "text": text})
        if not missing:
            line.append(f"{x},{y}")
            before = entropy
    return Markup(
        environment()
        .get_template("chain.html.j2")
        .render(
            name=name,
            lines=[_printable(text) for text in lines],
            width=width,
            height=height,
            left=LEFT,
            right=right,
            top=TOP,
            floor=floor,
            ceiling=f"{ceiling:.2f}",
            colour=style.RIGHT,
            line=" ".join(line),
            points=points,
        )
    )


def _printable(text: str) -> str:
    """Text with every control character but line breaks replaced: a model may write any byte."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)
