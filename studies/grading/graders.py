"""Grades one generated text against its gold answer.

Guarantees: exact values, never a tolerance (199 is not 200, 18.9 is not 18); a text with no answer in the required form
is wrong and non-compliant, never guessed at; the parsed answer is kept beside the verdict. docs/grading.md states the
rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...checks import shown
from ...errors import RequestError
from ..items import CHOICE, FORMATS
from .math_equality import answer_key, expressions_equal
from .read_expression import is_prose
from .reading import GOLD_LONGEST, final_expression, final_number, final_phrase, option, whole_number
from .worker import TIME_LIMIT

NUMBER, EXPRESSION, PHRASE, OPTION = "number", "expression", "phrase", "option"
"""What an answer can be."""
VERSION = 2
"""Of the rules that read and compare answers, recorded in the settings of runs; 1 is what runs without it were graded by."""
_LATEX_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox)\s*\{([^{}]*)\}")
_NUMBER_BENCHMARKS = ("gsm8k", "builtin")
_LETTERS, _DIGITS = "ABCDE", "12345"


@dataclass(frozen=True)
class Grade:
    """The verdict on one generated text.

    Attributes
    ----------
    answer : str or None
        The answer as parsed: a plain number, an expression or an option label; None where none could be read.
    correct : bool
        Whether `answer` equals the gold answer. False where there is no answer.
    compliant : bool
        Whether an answer could be read in the required form; it says nothing about its being right.
    """

    answer: str | None
    correct: bool
    compliant: bool


def grade(
    benchmark: str,
    text: str,
    gold: str,
    choices: Mapping[str, str] | Iterable[str] | None = None,
    *,
    seconds: float = TIME_LIMIT,
) -> Grade:
    """Grade `text`, what a model wrote, against `gold`.

    Parameters
    ----------
    benchmark : str
        `gsm8k`, `math500`, `arc_challenge`, `aqua_rat`, `mmlu`, `builtin`, `builtin_choice`, or a name of the user's own. The
        user's items are graded as multiple choice where they have choices, as numbers where the gold answer is a
        number, and as mathematical expressions otherwise.
    text : str
        The generated text alone, without the prompt.
    gold : str
        The gold answer: a number (or a GSM8K solution that ends in `#### number`), a LaTeX expression, or an option
        label.
    choices : mapping of str to str, or iterable of str, optional
        Multiple choice: label to option text, or the labels alone. Default: `A`-`E`, or `1`-`5` where gold is a digit.
    seconds : float
        Processor time that reading the answer may use, and comparing expressions again; what takes longer is no answer, or not
        equal.

    Returns
    -------
    Grade

    Raises
    ------
    RequestError
        If gold is not one of the labels, is longer than `reading.GOLD_LONGEST`, or is not a number where the benchmark's answers
        are numbers.

    Examples
    --------
    >>> from precollapse.studies import grading
    >>> grading.grade("gsm8k", "3 + 4 = 7 apples\\n#### 7", "7")
    Grade(answer='7', correct=True, compliant=True)
    >>> grading.grade("arc_challenge", "I cannot tell.", "B", choices=("A", "B", "C", "D")).correct
    False
    """
    if len(gold) > GOLD_LONGEST:
        raise RequestError(
            f"the gold answer of a {benchmark} item has {len(gold)} characters; at most {GOLD_LONGEST} are compared"
        )
    kind = answer_kind(benchmark, gold, choices, seconds)
    if kind == OPTION:
        return _grade_option(benchmark, text, gold.strip(), choices, seconds)
    if kind == NUMBER:
        return _grade_number(benchmark, text, gold, seconds)
    if kind == PHRASE:
        phrase = final_phrase(text, seconds)
        return Grade(phrase, phrase is not None and _same_words(phrase, gold), phrase is not None)
    answer = final_expression(text, seconds)
    return Grade(answer, answer is not None and expressions_equal(gold, answer, seconds), answer is not None)


def answer_kind(
    benchmark: str, gold: str, choices: Mapping[str, str] | Iterable[str] | None = None, seconds: float = TIME_LIMIT
) -> str:
    """What the answers of an item are: `OPTION`, `NUMBER`, `PHRASE` or `EXPRESSION`."""
    if choices is not None or FORMATS.get(benchmark) == CHOICE:
        return OPTION
    if benchmark in _NUMBER_BENCHMARKS or (benchmark not in FORMATS and whole_number(gold, seconds)):
        return NUMBER
    return PHRASE if benchmark not in FORMATS and is_prose(gold) else EXPRESSION


def answer_class(
    benchmark: str,
    answer: str,
    gold: str,
    choices: Mapping[str, str] | Iterable[str] | None = None,
    seconds: float = TIME_LIMIT,
) -> str:
    """The class of an answer: answers of one item are one answer when their classes are the same text.

    It is the equality of `grade`, for counting different answers: those equal to the gold answer are one class, and no two answers of
    one class have different verdicts.

    Parameters
    ----------
    benchmark, gold, choices, seconds
        As in `grade`.
    answer : str
        As parsed.

    Examples
    --------
    >>> from precollapse.studies.grading import graders
    >>> graders.answer_class("math500", r"\\frac{1}{2}", "0.5") == graders.answer_class("math500", "0.50", "0.5")
    True
    """
    kind = answer_kind(benchmark, gold, choices, seconds)
    if kind == OPTION:
        return answer
    if kind == PHRASE:
        return _words(answer)
    if kind == NUMBER:
        number = whole_number(answer, seconds)
        return answer if number is None else str(number.value)
    if "".join(answer.split()) == "".join(gold.split()):
        answer = gold
    found = answer_key(answer, gold, seconds)
    return "".join(answer.split()) if found is None else found


def _grade_number(benchmark: str, text: str, gold: str, seconds: float) -> Grade:
    gold_number = final_number(gold, seconds)
    if gold_number is None:
        raise RequestError(f"the gold answer of a {benchmark} item must be a number; found {shown(gold)}")
    number = final_number(text, seconds)
    if number is None:
        return Grade(None, False, False)
    return Grade(number.text, number.value == gold_number.value, True)


def _same_words(phrase: str, gold: str) -> bool:
    return _words(phrase) == _words(gold)


def _words(phrase: str) -> str:
    """A phrase without case, spacing, a leading article and a full stop."""
    return re.sub(
        r"^(?:the|an?)\s+(?=\S)", "", " ".join(_LATEX_TEXT.sub(r"\1", phrase).split()).casefold().rstrip(". ")
    )


def _grade_option(
    benchmark: str, text: str, gold: str, choices: Mapping[str, str] | Iterable[str] | None, seconds: float
) -> Grade:
    choices = labelled(gold, choices)
    if gold not in choices:
        raise RequestError(
            f"the gold answer {shown(gold)} of a {benchmark} item is not one of its labels {', '.join(choices)}"
        )
    answer = option(text, choices, seconds)
    return Grade(answer, answer == gold, answer is not None)


def labelled(gold: str, choices: Mapping[str, str] | Iterable[str] | None) -> Mapping[str, str]:
    """Label to option text, the texts empty where only the labels are known."""
    if choices is None:
        choices = _DIGITS if gold.isdigit() else _LETTERS
    return choices if isinstance(choices, Mapping) else dict.fromkeys(choices, "")
