"""Grades texts that were made elsewhere: a JSON Lines file with outputs, gold answers and, for multiple choice, choices.

Guarantees that every row is graded by the rules that runs are graded by, or refused by its line before any is graded; and that the readings
which a person should look at come first in an audit.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import atomic, checks, strict_json
from ..errors import RequestError
from .grading.explaining import Explanation, explain
from .grading.reading import GOLD_LONGEST
from .items import CHOICE, FORMATS
from .rows import LABELS, Fault, Row, file_rows, labelled_texts, scalar

TEXT_COLUMNS = ("text", "output", "response", "completion", "generation", "prediction", "model_output")
GOLD_COLUMNS = ("gold", "answer", "target", "reference", "label", "answerKey", "correct")
CHOICES_COLUMNS = ("choices", "options")
"""Names that a column is looked for under where none is given; the first that the first row has."""
_LABELLED = re.compile(r"\s*\(?([A-Z])\s*[).]\s*(.*)", re.DOTALL)
GRADES_FILE, SUMMARY_FILE = "grades.jsonl", "summary.json"


@dataclass(frozen=True)
class GradedRow:
    """One graded text.

    Attributes
    ----------
    line : str
        File and line.
    id : str
        The row's `id`, or its number from 0.
    benchmark : str
        What it was graded as.
    gold : str
    text : str
    why : Explanation
    """

    line: str
    id: str
    benchmark: str
    gold: str
    text: str
    why: Explanation

    def as_row(self) -> dict[str, Any]:
        """What is written of it."""
        g = self.why.grade
        return {
            "id": self.id,
            "benchmark": self.benchmark,
            "gold": self.gold,
            "answer": g.answer,
            "correct": g.correct,
            "compliant": g.compliant,
            "rule": self.why.rule,
            "doubts": list(self.why.doubts),
        }


@dataclass(frozen=True)
class Counts:
    """Of one benchmark: texts, those with the right answer, those with an answer, those that give reason to doubt."""

    benchmark: str
    texts: int
    correct: int
    compliant: int
    doubtful: int


def grade_file(
    path: str | Path,
    benchmark: str | None = None,
    *,
    text: str | None = None,
    gold: str | None = None,
    choices: str | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> tuple[GradedRow, ...]:
    """Grade the texts of a JSON Lines file.

    Parameters
    ----------
    path : str or Path
    benchmark : str, optional
        What to grade them as; None takes each row's `benchmark`, else `own`: by what the gold answer is.
    text, gold, choices : str, optional
        Columns of the output, the gold answer and the options (label to text, a list of texts, or the lists `text` and `label`); None looks
        under the usual names. A gold answer of `mmlu` may be the number of the option, from 0.
    progress : callable (share, what), optional

    Returns
    -------
    tuple of GradedRow
        In the file's order.

    Raises
    ------
    RequestError
        The file cannot be read, or a row lacks a column or holds what cannot be graded; its line is named.

    Examples
    --------
    >>> from pathlib import Path
    >>> from precollapse.studies.graded_files import grade_file
    >>> _ = Path("outputs.jsonl").write_text('{"text": "The answer is 18.", "gold": "18"}\\n')
    >>> [(row.why.grade.answer, row.why.grade.correct) for row in grade_file("outputs.jsonl", "gsm8k")]
    [('18', True)]
    """
    rows = list(file_rows(Path(path), "file of texts"))
    if not isinstance(rows[0].values, Mapping):
        raise RequestError(f"{rows[0].place}: each row must be an object with named fields")
    columns = _Columns.of(rows[0], text, gold, choices)
    prepared = [_prepared(row, columns, benchmark) for row in rows]
    graded = []
    for number, (row, what) in enumerate(zip(rows, prepared, strict=True)):
        try:
            why = explain(what.benchmark, what.text, what.gold, what.choices)
        except RequestError as error:
            raise RequestError(f"{row.place}: {error}") from None
        graded.append(GradedRow(row.place, what.id, what.benchmark, what.gold, what.text, why))
        if progress is not None:
            progress((number + 1) / len(rows), f"text {number + 1} of {len(rows)}")
    return tuple(graded)


def counts(graded: Iterable[GradedRow]) -> list[Counts]:
    """Counts by benchmark, in the order in which they come."""
    by_benchmark: dict[str, list[GradedRow]] = {}
    for row in graded:
        by_benchmark.setdefault(row.benchmark, []).append(row)
    return [
        Counts(
            name,
            len(rows),
            sum(r.why.grade.correct for r in rows),
            sum(r.why.grade.compliant for r in rows),
            sum(bool(r.why.doubts) for r in rows),
        )
        for name, rows in by_benchmark.items()
    ]


def least_certain(graded: Sequence[GradedRow], n: int) -> list[GradedRow]:
    """The `n` readings that give most reason to doubt, in the file's order where they give as much; none that gives none."""
    doubtful = [row for row in graded if row.why.doubts]
    return sorted(doubtful, key=lambda row: -len(row.why.doubts))[:n]


def save(graded: Sequence[GradedRow], out: Path) -> Path:
    """Write the grades to `out`: a `.jsonl` or `.csv` file, or else a folder with the rows and a summary.

    Raises
    ------
    OSError
        It cannot be written.
    """
    rows = [row.as_row() for row in graded]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if out.suffix == ".jsonl":
        atomic.write(out, lines)
    elif out.suffix == ".csv":
        table = io.StringIO()
        writer = csv.DictWriter(table, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
        atomic.write(out, table.getvalue())
    else:
        out.mkdir(parents=True, exist_ok=True)
        atomic.write(out / GRADES_FILE, lines)
        atomic.write(
            out / SUMMARY_FILE, json.dumps({"benchmarks": [asdict(c) for c in counts(graded)]}, indent=1) + "\n"
        )
    return out


def _cell(value: Any) -> Any:
    """A value of a CSV table: texts that a spreadsheet would take for a formula get an apostrophe."""
    if isinstance(value, list):
        value = "; ".join(value)
    return (
        f"'{value}"
        if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t") and not _is_number(value)
        else value
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# --- columns ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Columns:
    text: str
    gold: str
    choices: str | None

    @classmethod
    def of(cls, first: Row, text: str | None, gold: str | None, choices: str | None) -> _Columns:
        def column(given: str | None, names: Sequence[str], what: str, flag: str) -> str | None:
            if given is not None:
                if given not in first.values:
                    raise RequestError(
                        f"{first.place}: there is no column {checks.shown(given)} for the {what}; the row has {', '.join(map(repr, first.values)) or 'none'}"
                    )
                return given
            found = next((name for name in names if name in first.values), None)
            if found is None and what != "choices":
                raise RequestError(
                    f"{first.place}: no column for the {what} ({', '.join(names)}) was found; name it with {flag}, the row has {', '.join(map(repr, first.values)) or 'none'}"
                )
            return found

        text_column = column(text, TEXT_COLUMNS, "text", "--text")
        gold_column = column(gold, [name for name in GOLD_COLUMNS if name != text_column], "gold answer", "--gold")
        assert text_column is not None
        assert gold_column is not None
        return cls(text_column, gold_column, column(choices, CHOICES_COLUMNS, "choices", "--choices"))


@dataclass(frozen=True)
class _Prepared:
    id: str
    benchmark: str
    text: str
    gold: str
    choices: dict[str, str] | None


def _prepared(row: Row, columns: _Columns, benchmark: str | None) -> _Prepared:
    """What is graded of a row; whatever cannot be is refused."""
    if not isinstance(row.values, Mapping):
        raise RequestError(f"{row.place}: each row must be an object with named fields")
    values = row.values
    try:
        name = benchmark if benchmark is not None else scalar(values.get("benchmark", "own"), "benchmark")
        if values.get(columns.gold) is None:
            raise Fault(f"column {columns.gold!r} is missing or empty; a text is graded against a gold answer")
        gold = scalar(values[columns.gold], columns.gold).strip()
        if not gold or len(gold) > GOLD_LONGEST:
            raise Fault(f"the gold answer has {len(gold)} characters; give 1 to {GOLD_LONGEST}")
        if columns.text not in values:
            raise Fault(f"column {columns.text!r} is missing; the row has {', '.join(map(repr, values))}")
        text = values[columns.text]
        text = "" if text is None else scalar(text, columns.text)
        given = values.get(columns.choices) if columns.choices else None
        options = _options(given) if given is not None and FORMATS.get(name, CHOICE) == CHOICE else None
        if options is not None and name == "mmlu" and gold.isascii() and gold.isdigit() and gold not in options:
            gold = LABELS[int(gold)] if int(gold) < len(options) else gold
        return _Prepared(
            str(row.number) if values.get("id") is None else scalar(values["id"], "id"), name, text, gold, options
        )
    except Fault as fault:
        raise RequestError(f"{row.place}: {fault}") from None


def _options(given: Any) -> dict[str, str] | None:
    """Options as they stand in a row, or in the JSON text of one."""
    if isinstance(given, str):
        try:
            given = strict_json.loads(given)
        except ValueError as error:
            raise Fault(f"the choices are a text that is no JSON ({error}); give a list or an object") from None
        if given is None:
            return None
    pairs = labelled_texts(given)
    marked = [_LABELLED.fullmatch(text) for _, text in pairs] if isinstance(given, list) else []
    if marked and all(m and m[1] == label for m, (label, _) in zip(marked, pairs, strict=True)):  # "A)21"
        return {m[1]: m[2].strip() for m in marked if m}
    return dict(pairs)
