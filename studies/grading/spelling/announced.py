"""What a text announces as its answer: the clause after its last cue, unless it takes that back.

Guarantees that `the first answer is`, `the answer choices are` and a question (`the answer is 5?`) announce nothing, and that a
clause which the text turns against afterwards (`Wait, that is wrong`) is not read.
"""

from __future__ import annotations

import re

from .cues import CUE, CUE_ALONE, FAILED, INTERMEDIATE, TAKEN_BACK

_REACH = 400  # characters
_NEXT_QUESTION = re.compile(
    r"^[ \t]*(?:[*#]{1,6}[ \t]*)?(?:Q|Question|Problem|Human|User|Instruction|Example|问题|Pregunta|Вопрос)(?:[ ]\d+)?[*]{0,2}[ ]?:",
    re.MULTILINE,
)
_STATED = re.compile(r"#{4}[ ]*\S|\\boxed\s*\{")
_BEFORE = 12  # characters
_SHORT_LINE = re.compile(r"^[^\n]{2,60}$", re.MULTILINE)
_CLAUSE_END = re.compile(
    r"""[.!?]["')\]*$]*[ ]+(?=[A-Z][a-z']|[A-Z][ ]+[a-z]|[^\x00-\x7f])|[;]?[ ]*\b(?:because|since|due to|as we|whereas|where)\b""",
    re.IGNORECASE,
)
_NEW_SENTENCE = re.compile(r"""[.!?]["')\]*$]*[ ]+(?=\(?[A-Z])""")


def last_announced(text: str) -> str | None:
    """The clause after the last cue of a text, or None where there is none that stands.

    Parameters
    ----------
    text : str
        Without emphasis (`answer_text.plain`).
    """
    for cue in cues(text):
        if (
            INTERMEDIATE.search(text, max(0, cue.start() - _BEFORE), cue.end())
            or text[cue.end() : cue.end() + 1] == "."
            and not cue[0].endswith((" ", ":"))
        ):
            continue
        line, end = rest_of_line(text, cue.end())
        clause = clause_of(line)
        if not re.search(r"\w|[∅∞π]", clause):
            continue
        after = text[end - len(line) + len(clause) :]
        if clause.rstrip(" *\"')").endswith("?") or TAKEN_BACK.search(after):
            return None
        return clause
    return None


def denies(clause: str) -> bool:
    """Whether a clause after a cue denies what follows, as in `not 18`."""
    return bool(_DENIED.match(clause))


def ends_in_denial(text: str) -> bool:
    """Whether the last thing that a text says is what the answer is not.

    Examples
    --------
    >>> ends_in_denial("The answer cannot be 18."), ends_in_denial("The answer is not 18, it is 20.")
    (True, False)
    """
    return bool(_LAST_DENIED.search(text[-200:]))


def leaves_open(clause: str) -> bool:
    """Whether a clause after a cue is of several numbers and does not say which.

    Examples
    --------
    >>> [leaves_open(clause) for clause in ("5 or 6", "between 5 and 7", "18", "5 or more than 4 dollars")]
    [True, True, False, False]
    """
    return bool(_OPEN.match(clause))


_DENIED = re.compile(
    r"[\s$:(]*(?:(?:is|are|was|be)[ ]+)?(?:not|n't|never|neither|no[ ]longer|cannot|can't|isn't|clearly[ ]not|definitely[ ]not)\b",
    re.IGNORECASE,
)
_LAST_DENIED = re.compile(
    r"\b(?:answer|result|solution|total|value|it|that|this)(?:\b[^.!?\n]{0,40}?\b(?:is|was|be|are)[ ]+(?:\w+[ ]+)?not|[ ]+\w*n['’]t(?:[ ]+be)?|[^.!?\n]{0,40}?\b(?:cannot|can[ ]not|must[ ]not|could[ ]not)[ ]+be|\b[^.!?\n]{0,40}?\bnever)"
    r"[ ]+(?:equal[ ]+to[ ]+)?[$€£\\(]*-?[\d.,]+[^\w\n]*$",
    re.IGNORECASE,
)
_AMOUNT = r"[$€£₹]?[ ]?-?\d[\d.,]*[ ]?[%$]?"
_OPEN = re.compile(
    rf"[\s:(]*(?:either[ ]+)?(?:(?:between|from)[ ]+{_AMOUNT}[ ]*(?:and|to|-|–)[ ]*{_AMOUNT}|{_AMOUNT}[ ]*(?:,[ ]*)?(?:or(?:[ ]+maybe)?|maybe)[ ]+{_AMOUNT})\s*[.)!]*\s*$",
    re.IGNORECASE,
)


def before_next_question(text: str) -> str:
    """A text up to where, after an answer, it goes on with a question of its own, as models do that were shown solved examples."""
    for question in _NEXT_QUESTION.finditer(text):
        before = text[: question.start()]
        if CUE.search(before) or _STATED.search(before):
            return before
    return text


def cues(text: str) -> list[re.Match[str]]:
    """All that announces an answer, the last first: cues, and lines of nothing but the name of the answer."""
    found = [*CUE.finditer(text), *(line for line in _SHORT_LINE.finditer(text) if CUE_ALONE.fullmatch(line[0]))]
    return sorted(found, key=lambda cue: cue.end(), reverse=True)


def rest_of_line(text: str, position: int) -> tuple[str, int]:
    """The rest of the line from `position`, or the next line that has words when the rest has none, and where it ends."""
    end = position
    for line in text[position : position + _REACH].splitlines(keepends=True):
        end += len(line)
        if re.search(r"\w", line) and not CUE_ALONE.fullmatch(line):
            return line.rstrip("\r\n"), end - (len(line) - len(line.rstrip("\r\n")))
    return "", end


def clause_of(line: str) -> str:
    """A line up to its second sentence, or to where an explanation begins."""
    ends = [
        m.start() + (1 if line[m.start()] in ".!?" else 0)
        for m in (_CLAUSE_END.search(line), _NEW_SENTENCE.search(line))
        if m
    ]
    return line[: min(ends)] if ends else line


def taken_back_for_another(after: str) -> bool:
    """Whether the text after an answer turns against it and announces one anew."""
    return bool(TAKEN_BACK.search(after) or FAILED.search(after)) and last_announced(after) is not None
