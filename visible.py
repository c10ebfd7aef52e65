"""Text that came from outside, for a person to read: on a terminal, in a report, in a figure.

A leaf that any folder may import. Guarantees that a name or an answer cannot act on the terminal that shows it (colours, titles,
links, a line written over) nor turn around what stands beside it: characters that steer instead of standing for something are
written as what they are, such as \\u001b, which is also how JSON writes them.
"""

from __future__ import annotations

import hashlib
import re

_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Control characters but tab and line feed, marks and overrides of direction, line separators, half surrogates, tags."""


def visible(text: str) -> str:
    r"""A text whose steering characters are written out; line breaks and tabs stay.

    Examples
    --------
    >>> visible("\x1b[31mred\r")
    '\\u001b[31mred\\u000d'
    """
    return _STEERING.sub(lambda match: written_out(match[0]), text)


def one_line(text: str) -> str:
    """The same with a blank for each line break and tab."""
    return visible(text.replace("\r\n", " ").replace("\n", " ").replace("\t", " "))


def file_name(text: str) -> str:
    """A name of letters, digits, `_`, `-` and `.` for a file that is named after something, another for each text.

    Examples
    --------
    >>> file_name("gsm8k"), file_name("../a b")
    ('gsm8k', 'a_b_1c6bb2')
    """
    name = re.sub(r"[^\w.-]+", "_", text).lstrip("._")[:100]
    return (
        name
        if name == text and name
        else f"{name}_{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:6]}"
    )


def written_out(characters: str) -> str:
    r"""Each character as \uXXXX, or as two of them where it needs two, as JSON writes it."""
    units = characters.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
