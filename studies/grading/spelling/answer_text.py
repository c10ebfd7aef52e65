"""The part of an output that is the answer, without thinking, emphasis and typographic dress.

Guarantees that what a model thought before it answered is never read as its answer: of an output whose thinking has an end
only what follows is read, and thinking that never ends is no answer. Emphasis is taken off in pairs, so that a product such as
`2*3*4` and an index such as `a_1` stay.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_TAG_NAMES = (
    "think|thinking|thought|thoughts|reasoning|reason|reflection|analysis|scratchpad|seed:think|inner_monologue"
)
_ENDS = re.compile(
    rf"</\s*(?:{_TAG_NAMES})\s*>|\[/THINK\]|◁/think▷|<\|END_THINKING\|>|<\|end_of_thought\|>|<\|inner_suffix\|>"
    r"|<\|channel\|>\s*final\s*<\|message\|>|<\|/think\|>|<channel\|>|</\|?think\|?>",
    re.IGNORECASE,
)
_STARTS = re.compile(
    rf"<\s*(?:{_TAG_NAMES})\s*>|\[THINK\]|◁think▷|<\|START_THINKING\|>|<\|begin_of_thought\|>|<\|inner_prefix\|>"
    r"|<\|channel\|>\s*(?:analysis|commentary)|<\|think\|>|<\|channel>\s*thought",
    re.IGNORECASE,
)
_CONTROL = re.compile(
    r"<\|(?:begin_of_solution|end_of_solution|START_RESPONSE|END_RESPONSE|start|end|return|im_end|im_start|eot_id|endoftext|message)\|>|<(?:end_of_turn|start_of_turn|eos|bos)>"
)

_FULL_WIDTH = {0xFF01 + offset: chr(0x21 + offset) for offset in range(94) if chr(0x21 + offset) not in ",."}
_TYPOGRAPHIC = {
    **_FULL_WIDTH,
    **str.maketrans({"。": ". ", "।": ". ", "؟": "? ", "۔": ". ", "、": ", ", "，": ", ", "．": ".", "؛": "; "}),
    **str.maketrans({"【": "[", "】": "]", "「": '"', "」": '"', "《": '"', "》": '"', "“": '"', "”": '"', "„": '"'}),
    **str.maketrans(
        {"«": '"', "»": '"', "‘": "'", "’": "'", "ʼ": "'", "′": "'", "\u200b": "", "\ufeff": "", "\u00ad": ""}
    ),
    **str.maketrans({"\u200e": "", "\u200f": "", "\u2066": "", "\u2067": "", "\u2069": "", "\u2060": "", "\ufe0f": ""}),
    **str.maketrans({"Ⓐ": "(A)", "Ⓑ": "(B)", "Ⓒ": "(C)", "Ⓓ": "(D)", "Ⓔ": "(E)", "🅰": "A", "🅱": "B"}),
    **{0x1D400 + offset: chr(0x41 + offset) for offset in range(26)},  # bold capitals
    **{0x1D5D4 + offset: chr(0x41 + offset) for offset in range(26)},  # bold sans capitals
}
_FOREIGN_DIGIT = re.compile(r"(?![0-9])\d")
_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f"
_BESIDE_UNSPACED = re.compile(rf"(?<=[{_UNSPACED}])(?=[A-Za-z0-9(\[\\$*+\-])|(?<=[A-Za-z0-9)\]}}$*%])(?=[{_UNSPACED}])")

_STARS = re.compile(r"(?<![\w*\\])(\*{1,3})(?=[^\s*])([^\n]*?[^\s*])\1(?![\w*])")
_UNDERSCORES = re.compile(r"(?<![\w\\{}^$_])(_{1,3})(?=[^\s_])([^\n_]*?[^\s_])\1(?![\w{^_])")
_HTML = re.compile(
    r"</?(?:b|strong|em|i|u|mark|code|span|p|div|font|h[1-6])(?:\s[^<>]{0,80})?>|<br\s*/?>|</(?:answer|solution|response|result|output|final)>",
    re.IGNORECASE,
)
_QUOTE_OR_BULLET = re.compile(r"^[ \t]*(?:>[ \t]*)+", re.MULTILINE)
_MARKS = re.compile("[✅☑✔❌⭐👉🎉🔹🔸➡✨📌🟢]")
_LEFT_OVER = re.compile(r"(?m)(?:^[ \t]*\*{2,3}(?=\S)|(?<=[\w.!?)}$%])\*{2,3}[ \t]*$|(?<=:)\*{2,3}(?=\s|$))")
_MOST_NESTED = 3


@dataclass(frozen=True)
class AnswerText:
    """What follows a model's thinking.

    Attributes
    ----------
    text : str
        The rest; "" where thinking never ended.
    thinking : int
        Characters left out.
    unfinished : bool
        Whether thinking began and never ended.
    """

    text: str
    thinking: int
    unfinished: bool


def after_thinking(text: str) -> AnswerText:
    """The answer of an output: what follows the last end of its thinking.

    A model whose template opens the thinking writes only its end. Thinking that is opened once more after its end, or opened
    and never closed, leaves no answer.
    """
    ends = list(_ENDS.finditer(text))
    start = ends[-1].end() if ends else 0
    if _STARTS.search(text, start):
        opened = _STARTS.search(text, start)
        assert opened is not None
        before = text[start : opened.start()]
        if not ends and re.search(r"\w", before):  # text that only speaks of a tag, or thinks after it answered
            return AnswerText(_CONTROL.sub("\n", before), len(text) - len(before), unfinished=True)
        return AnswerText("", len(text), unfinished=True)
    return AnswerText(_CONTROL.sub("\n", text[start:]), start, unfinished=False)


def plain(text: str) -> str:
    """A text with digits of all scripts as ASCII digits, full-width and typographic signs plain, emphasis taken off."""
    text = without_emphasis(plain_signs(text))
    return _BESIDE_UNSPACED.sub(" ", text)


def plain_signs(text: str) -> str:
    """Digits of all scripts as ASCII digits, full-width and typographic signs plain."""
    return _FOREIGN_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text.translate(_TYPOGRAPHIC))


def without_emphasis(text: str) -> str:
    """A text without Markdown's and HTML's emphasis, quotation bars and the marks that chat models put before answers."""
    text = _MARKS.sub("", _QUOTE_OR_BULLET.sub("", _HTML.sub(" ", text)))
    text = text.replace("~~", "") if text.count("~~") < 2 else re.sub(r"~~[^~\n]*~~", " ", text)
    for _ in range(_MOST_NESTED):
        before = text
        text = _UNDERSCORES.sub(r"\2", _STARS.sub(r"\2", text))
        if text == before:
            break
    return _LEFT_OVER.sub("", text)
