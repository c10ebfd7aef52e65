"""Loads benchmark items: from the Hub, from a file of rows in the same formats, generated, or the user's own.

Guarantees: an item's id comes from its source row (its own id, or its row number), never from sampling, so the same row
has the same id in every run; a sample depends on the seed and the ids alone, keeps the source's order, and a larger
sample holds the smaller one; gold answers and labels are checked while loading, and a bad line is refused by its number
before any work.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import RequestError
from . import builtin
from .grading.reading import GOLD_LONGEST, final_number
from .items import CHOICE, FORMATS, Item
from .rows import (
    LABELS,
    Fault,
    Row,
    file_rows,
    identity_of,
    kind_of,
    labelled_lists,
    labelled_texts,
    scalar,
    shown_value,
    text_of,
    value_of,
)


def is_choice(name: str) -> bool:
    """Say whether the known benchmark `name` is multiple choice.

    Raises
    ------
    RequestError
        If the name is not in `FORMATS`: of a user's own items, `item.format` tells.
    """
    if name not in FORMATS:
        raise _unknown(name)
    return FORMATS[name] == CHOICE


def load(name: str, n: int | None = None, seed: int = 0, path: str | Path | None = None) -> list[Item]:
    """Load the items of a benchmark.

    Parameters
    ----------
    name : str
        A key of `FORMATS`, or with `path` any name for items of one's own.
    n : int, optional
        How many items: a seeded sample, in source order. Default: all (of the generated ones, 100).
    seed : int
        Seed of the sample; of the generated benchmarks, seed of the items themselves.
    path : str or Path, optional
        A JSON Lines file. Under the name of a Hub benchmark: rows as on the Hub. Under any other name: rows with
        `question`, `answer`, and optionally `id` and `choices` (a list of texts, or an object label to text; all rows
        or none).

    Returns
    -------
    list of Item

    Raises
    ------
    RequestError
        If the name is unknown, the file is missing, empty or malformed (file, line and fault are named), more items are
        asked for than exist, or the Hub cannot be used.

    Examples
    --------
    >>> from precollapse.studies import benchmarks
    >>> items = benchmarks.load("builtin_choice", n=2)
    >>> len(items), items[0].choices is not None, items[0].answer in items[0].choices
    (2, True, True)
    """
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise RequestError(f"the number of items must be a whole number of at least 1; found {n!r}")
    if name in ("builtin", "builtin_choice"):
        if path is not None:
            raise RequestError(f"{name} items are generated and take no file; give {str(path)!r} a name of its own")
        return _generated(name, n, seed)
    if path is None and name not in _SOURCES:
        raise _unknown(name)
    if path is None:
        rows, where = _hub_rows(name), f"{_SOURCES[name].dataset} on the Hub"
    else:
        rows, where = file_rows(Path(path)), str(path)
    items = _items(rows, _SOURCES[name].parse if name in _SOURCES else _own_row, where)
    return items if n is None else _sample(items, n, seed, name, where)


# --- rows -------------------------------------------------------------------------------------------------------------


def _hub_rows(name: str) -> Iterator[Row]:
    source = _SOURCES[name]
    instead = f"or give the rows as a file with --items {name}=FILE.jsonl"
    try:
        import datasets
    except ImportError:
        raise RequestError(
            f"{name} items come from the Hub through the package 'datasets', which is not installed; "
            f'install it with pip install "precollapse[hub]", {instead}'
        ) from None
    try:
        rows = datasets.load_dataset(source.dataset, source.config, split=source.split)
    except Exception as error:  # network, cache, authorisation and format faults of several libraries
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise RequestError(
            f"{name} items could not be loaded from {source.dataset} on the Hub ({reason:.300}); "
            f"check the connection, {instead}"
        ) from error
    for number, values in enumerate(rows):
        yield Row(number, f"{source.dataset}, row {number}", values)


def _items(rows: Iterable[Row], parse: Callable[[Mapping[str, Any], int], Item], where: str) -> list[Item]:
    """Parse rows; keep the first of each id and warn about the rest; refuse a mixture of formats."""
    items: dict[str, Item] = {}
    repeated: list[str] = []
    for row in rows:
        if not isinstance(row.values, Mapping):
            raise RequestError(
                f"{row.place}: each row must be an object with named fields; found {kind_of(row.values)}"
            )
        try:
            item = parse(row.values, row.number)
        except Fault as fault:
            raise RequestError(f"{row.place}: {fault}") from None
        if len(item.answer) > GOLD_LONGEST:
            raise RequestError(
                f"{row.place}: the gold answer has {len(item.answer)} characters; at most {GOLD_LONGEST} are compared"
            )
        first = next(iter(items.values()), item)
        if first.format != item.format:
            with_or_without = ("has choices", "has none") if item.choices else ("has no choices", "has")
            raise RequestError(
                f"{row.place}: the item {with_or_without[0]} while the first item {with_or_without[1]}; "
                "put multiple choice and free response into two files"
            )
        if item.id in items:
            repeated.append(f"{item.id!r} ({row.place})")
        else:
            items[item.id] = item
    if repeated:
        shown = ", ".join(repeated[:3]) + (", ..." if len(repeated) > 3 else "")
        message = f"{where}: {len(repeated)} row(s) repeat the id of an earlier row and were left out: {shown}"
        warnings.warn(message, UserWarning, stacklevel=3)
    return list(items.values())


# --- row formats ------------------------------------------------------------------------------------------------------


def _gsm8k_row(row: Mapping[str, Any], number: int) -> Item:
    solution = text_of(row, "answer")
    answer = solution.rpartition("####")[2].strip()
    if len(answer) <= GOLD_LONGEST and final_number(answer) is None:
        raise Fault(f"field 'answer' must end in #### and the number; found {shown_value(solution[-80:])}")
    return Item(identity_of(row, "id", number), text_of(row, "question"), answer)


def _math500_row(row: Mapping[str, Any], number: int) -> Item:
    return Item(identity_of(row, "unique_id", number), text_of(row, "problem"), text_of(row, "answer"))


def _arc_row(row: Mapping[str, Any], number: int) -> Item:
    choices = value_of(row, "choices")
    if not isinstance(choices, Mapping) or not {"text", "label"} <= choices.keys():
        raise Fault(f"field 'choices' must hold the lists 'text' and 'label'; found {kind_of(choices)}")
    return _choice_item(
        identity_of(row, "id", number),
        text_of(row, "question"),
        text_of(row, "answerKey"),
        labelled_lists(choices),
        "answerKey",
    )


_AQUA_OPTION = re.compile(r"\s*([A-Z])\s*\)\s*(.*)", re.DOTALL)


def _aqua_row(row: Mapping[str, Any], number: int) -> Item:
    options = value_of(row, "options")
    if not isinstance(options, list):
        raise Fault(f"field 'options' must be a list of texts like 'A)21'; found {kind_of(options)}")
    pairs = []
    for option in options:
        match = _AQUA_OPTION.fullmatch(option) if isinstance(option, str) else None
        if not match:
            raise Fault(f"each option must be a text like 'A)21'; found {shown_value(option)}")
        pairs.append((match[1], match[2].strip()))
    return _choice_item(
        identity_of(row, "id", number), text_of(row, "question"), text_of(row, "correct"), pairs, "correct"
    )


def _mmlu_row(row: Mapping[str, Any], number: int) -> Item:
    """A row with a list of four texts and the number of the right one, from 0; a letter counts as it is."""
    choices = row.get("choices") if row.get("choices") is not None else value_of(row, "options")
    if not isinstance(choices, list) or len(choices) > len(LABELS):
        raise Fault(f"field 'choices' must be a list of texts; found {kind_of(choices)}")
    pairs = list(zip(LABELS, (scalar(text, "choices") for text in choices), strict=False))
    answer = text_of(row, "answer").strip()
    if answer.isascii() and answer.isdigit():
        if int(answer) >= len(pairs):
            raise Fault(f"field 'answer' must be the number of a choice, 0 to {len(pairs) - 1}; found {answer}")
        answer = LABELS[int(answer)]
    own_id = "question_id" if row.get("question_id") is not None else "id"
    return _choice_item(identity_of(row, own_id, number), text_of(row, "question"), answer, pairs, "answer")


def _own_row(row: Mapping[str, Any], number: int) -> Item:
    identity, question, answer = identity_of(row, "id", number), text_of(row, "question"), text_of(row, "answer")
    choices = row.get("choices")
    if choices is None:
        return Item(identity, question, answer)
    pairs = labelled_texts(choices)
    return _choice_item(identity, question, answer, pairs, "answer")


def _choice_item(identity: str, question: str, answer: str, pairs: list[tuple[str, str]], field: str) -> Item:
    labels = [label for label, _ in pairs]
    if len(pairs) < 2:
        raise Fault(f"a multiple-choice item needs at least 2 choices; found {len(pairs)}")
    if len({label.upper() for label in labels}) < len(labels):
        raise Fault(f"labels must differ, whatever their case; found {', '.join(labels)}")
    for label in labels:
        if not re.fullmatch("[A-Za-z0-9]+", label):
            raise Fault(f"a label must consist of letters and digits; found {shown_value(label)}")
    answer = answer.strip()
    if answer not in labels:
        raise Fault(f"field {field!r} must be one of the labels {', '.join(labels)}; found {shown_value(answer)}")
    return Item(identity, question, answer, dict(pairs))


# --- sources and samples ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    dataset: str
    config: str
    split: str
    parse: Callable[[Mapping[str, Any], int], Item]


_SOURCES: Mapping[str, _Source] = {
    "gsm8k": _Source("openai/gsm8k", "main", "test", _gsm8k_row),
    "math500": _Source("HuggingFaceH4/MATH-500", "default", "test", _math500_row),
    "arc_challenge": _Source("allenai/ai2_arc", "ARC-Challenge", "test", _arc_row),
    "aqua_rat": _Source("deepmind/aqua_rat", "raw", "test", _aqua_row),
    "mmlu": _Source("cais/mmlu", "all", "test", _mmlu_row),
}


def _sample(items: list[Item], n: int, seed: int, name: str, where: str) -> list[Item]:
    """Return the n items whose (seed, id) hash lowest, in source order."""
    if n > len(items):
        raise RequestError(
            f"{n} {name} items were asked for, but {where} has {len(items)}; ask for at most {len(items)}"
        )
    ranked = sorted(items, key=lambda item: hashlib.sha256(f"{seed}:{item.id}".encode()).digest())
    chosen = {item.id for item in ranked[:n]}
    return [item for item in items if item.id in chosen]


def _generated(name: str, n: int | None, seed: int) -> list[Item]:
    problems = builtin.problems(builtin.DEFAULT_COUNT if n is None else n, seed)
    if name == "builtin":
        return [Item(problem.id, problem.question, problem.answer) for problem in problems]
    items = []
    for problem in problems:
        choices = dict(zip(LABELS, problem.options, strict=False))
        label = next(label for label, text in choices.items() if text == problem.answer)
        items.append(Item(problem.id, problem.question, label, choices))
    return items


def _unknown(name: str) -> RequestError:
    known = ", ".join(FORMATS)
    return RequestError(
        f"unknown benchmark {name!r}; known: {known}; for items of your own use --items {name}=FILE.jsonl"
    )
