"""Agreement of the grader with a person's verdicts, per benchmark: the tables of docs/grading.md.

Run `python perf/grading.py` for the scripted texts of `perf/grading_texts.jsonl` (in styles of real models, labelled by hand: `correct`,
`wrong`, or `none` where a person sees no answer), or `python perf/grading.py FILE.jsonl` for other labelled outputs in the same columns
(`benchmark`, `text`, `gold`, `choices`, `verdict`). `--show` prints the texts on which grader and person differ.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from precollapse.studies.grading import grade

TEXTS = Path(__file__).with_name("grading_texts.jsonl")
VERDICTS = ("correct", "wrong", "none")
_LETTERS = "ABCDEFGHIJ"


def graded(row: dict) -> str:
    """The grader's verdict on a labelled text."""
    choices = row.get("choices")
    if isinstance(choices, list):
        choices = dict(zip(_LETTERS, choices, strict=False))
    result = grade(row["benchmark"], row["text"], row["gold"], choices)
    return "correct" if result.correct else "wrong" if result.compliant else "none"


def disagreements(rows: list[dict]) -> list[tuple[dict, str]]:
    """The rows on which grader and person differ, with the grader's verdict."""
    return [(row, found) for row in rows if (found := graded(row)) != row["verdict"]]


def table(rows: list[dict]) -> str:
    """Counts per benchmark, as Markdown.

    A false "correct" is a text graded correct that a person does not call correct; a false "wrong" one that a person calls correct and that
    is not graded so, whether it was read otherwise or not at all.
    """
    head = "| benchmark | texts | right by hand | graded right | false correct | false wrong | answer where a person sees none | none where a person sees one |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for benchmark in [*dict.fromkeys(row["benchmark"] for row in rows), "all"]:
        pairs = Counter((graded(r), r["verdict"]) for r in rows if benchmark in (r["benchmark"], "all"))

        def count(found: set[str], label: set[str], pairs: Counter = pairs) -> int:
            return sum(n for (g, v), n in pairs.items() if g in found and v in label)

        anything, answers = set(VERDICTS), {"correct", "wrong"}
        cells = (
            sum(pairs.values()),
            count(anything, {"correct"}),
            count({"correct"}, anything),
            count({"correct"}, {"wrong", "none"}),
            count({"wrong", "none"}, {"correct"}),
            count(answers, {"none"}),
            count({"none"}, answers),
        )
        lines.append(f"| {benchmark} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, and on request the disagreements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=TEXTS)
    parser.add_argument("--show", action="store_true")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.file.read_text(encoding="utf-8").splitlines()]
    print(table(rows))
    if arguments.show:
        for row, found in disagreements(rows):
            print(f"\ngraded {found}, by hand {row['verdict']}, gold {row['gold']!r}: {row['text'][-300:]!r}")


if __name__ == "__main__":
    main()
