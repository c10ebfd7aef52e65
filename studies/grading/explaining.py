"""Shows which rule read what in a text, and how sure the reading is.

Guarantees that the explanation is of the grade itself: it asks the rules that `grade` asks, and names the one that it went by. The others
are asked too, so that a text which states several answers is told from one that states one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .graders import EXPRESSION, NUMBER, OPTION, PHRASE, Grade, answer_class, answer_kind, grade, labelled
from .reading import each_rule
from .spelling.answer_text import after_thinking
from .spelling.cues import FAILED, TAKEN_BACK
from .worker import TIME_LIMIT

_READER = {NUMBER: "final_number", EXPRESSION: "final_expression", PHRASE: "final_phrase", OPTION: "option"}
_WEAK = ("last number", "last formula", "plain formula", "whole text", "only line")
"""Rules that read what no words announce."""
_SHOWN = 200


@dataclass(frozen=True)
class RuleReading:
    """What one rule reads.

    Attributes
    ----------
    rule : str
        Its name; docs/grading.md has the rules in their order.
    applies : bool
        Whether the text has what the rule looks for.
    answer : str or None
        None where it does not apply, or applies and there is no one answer.
    excerpt : str
        The part of the text that it read, at most its last 200 characters.
    """

    rule: str
    applies: bool
    answer: str | None
    excerpt: str


@dataclass(frozen=True)
class Explanation:
    """How a text was graded.

    Attributes
    ----------
    grade : Grade
    kind : {"number", "expression", "phrase", "option"}
        What the item's answers are.
    rule : str or None
        The rule that the grade goes by, the first that applies; None where none does.
    readings : tuple of RuleReading
        All rules in their order, with what each would read.
    thinking : int
        Characters of thinking that were left out.
    doubts : tuple of str
        Why a person should look at it, if there is a reason; most doubtful readings have most.
    """

    grade: Grade
    kind: str
    rule: str | None
    readings: tuple[RuleReading, ...]
    thinking: int
    doubts: tuple[str, ...]

    def __str__(self) -> str:
        g = self.grade
        verdict = "correct" if g.correct else "wrong" if g.compliant else "no answer"
        lines = [
            f"{verdict}: {g.answer!r} ({self.kind}), read by the rule {self.rule!r}"
            if g.compliant
            else f"{verdict} ({self.kind})"
        ]
        if self.thinking:
            lines.append(f"thinking left out: {self.thinking} characters")
        for r in self.readings:
            what = "does not apply" if not r.applies else f"reads {r.answer!r} in {r.excerpt!r}"
            lines.append(f"{'->' if r.rule == self.rule else '  '} {r.rule}: {what}")
        return "\n".join([*lines, *(f"doubt: {doubt}" for doubt in self.doubts)])


def explain(
    benchmark: str,
    text: str,
    gold: str,
    choices: Mapping[str, str] | Iterable[str] | None = None,
    *,
    seconds: float = TIME_LIMIT,
) -> Explanation:
    """Grade `text` and show which rule read what.

    Parameters
    ----------
    benchmark, text, gold, choices, seconds
        As in `grade`.

    Returns
    -------
    Explanation
        Its text form has one rule a line.

    Raises
    ------
    RequestError
        As `grade`.

    Examples
    --------
    >>> from precollapse.studies import grading
    >>> why = grading.explain("gsm8k", "The answer is 18. That took 3 steps.", "18")
    >>> why.grade.answer, why.rule, {r.rule: r.answer for r in why.readings if r.applies}
    ('18', 'cue', {'cue': '18', 'last number': '3'})
    """
    if choices is not None and not isinstance(choices, Mapping):
        choices = tuple(choices)
    verdict = grade(benchmark, text, gold, choices, seconds=seconds)
    kind = answer_kind(benchmark, gold, choices, seconds)
    part = after_thinking(text)
    rows = each_rule(_READER[kind], text, labelled(gold.strip(), choices) if kind == OPTION else None, seconds)
    readings = tuple(RuleReading(rule, applies, answer, excerpt[-_SHOWN:]) for rule, applies, answer, excerpt in rows)
    rule = next((r.rule for r in readings if r.applies), None)
    doubts = tuple(
        _doubts(benchmark, gold, choices, verdict, rule, readings, part.text, part.unfinished, not rows, seconds)
    )
    return Explanation(verdict, kind, rule, readings, part.thinking, doubts)


def _doubts(
    benchmark: str,
    gold: str,
    choices: Mapping[str, str] | Iterable[str] | None,
    verdict: Grade,
    rule: str | None,
    readings: tuple[RuleReading, ...],
    text: str,
    unfinished: bool,
    out_of_time: bool,
    seconds: float,
) -> list[str]:
    doubts = []
    if unfinished:
        doubts.append("its thinking never ends")
    if out_of_time and text.strip():
        doubts.append("reading it did not end within its time")
    if verdict.answer is None:
        if text.strip() and not unfinished:
            doubts.append("no answer was found, or more than one")
            doubts += [f"the rule {r.rule!r} alone would read {r.answer!r}" for r in readings if r.answer is not None]
        return doubts
    mine = answer_class(benchmark, verdict.answer, gold, choices, seconds)
    for r in readings:
        if (
            r.rule != rule
            and r.answer is not None
            and answer_class(benchmark, r.answer, gold, choices, seconds) != mine
        ):
            doubts.append(f"the rule {r.rule!r} alone would read {r.answer!r}")
    if rule in _WEAK:
        doubts.append(f"no words announce it: it was read by the rule {rule!r}")
    if TAKEN_BACK.search(text) or FAILED.search(text):
        doubts.append("the text takes something back")
    if mine.startswith("s:"):
        doubts.append("it is compared by its spelling, since it is no expression that can be parsed whole")
    return doubts
