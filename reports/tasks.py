"""The nine tasks as tables: what a release holds, and how methods do on it.

Guarantees that every score stands with its interval, beside the confounds and, where given, beside the published value.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import RequestError
from .overview import as_text

CHANCE = 0.25
"""g-mean² of a coin."""

_PUBLISHED = {
    "tfidf": ("TF-IDF",),
    "linear": ("Linear probes",),
    "attention": ("Attention probes",),
    "sae": ("SAE probes",),
}


def counts_text(counts: Sequence[Any]) -> str:
    """What a release holds as text: a table, and what is to be said of each task."""
    rows = [
        {
            "task": f"{one.number} {one.name}",
            "split": split.split,
            "rows": f"{split.rows:,}",
            "published": "" if split.published is None else f"{split.published:,}",
            "positive": "" if split.positive is None else f"{split.positive:,}",
            "questions": split.questions,
            "of": one.model,
        }
        for one in counts
        for split in one.splits
    ]
    lines = [as_text(pd.DataFrame(rows)), ""]
    for one in counts:
        lines += [f"{one.number} {one.name}: {remark}" for remark in one.remarks]
    return "\n".join(lines)


def scores(found: Sequence[Mapping[str, Any]], published: str | Path | None = None) -> pd.DataFrame:
    """One row for each task, method and part: g-mean² and AUROC (or R²) with intervals, and the published values."""
    marks = read_published(published) if published else {}
    rows = []
    for result in found:
        parts: dict[str, dict[str, Any]] = {}
        for score in result["scores"]:
            parts.setdefault(score["part"], {})[score["metric"]] = score
        for part, metrics in parts.items():
            any_score = next(iter(metrics.values()))
            row: dict[str, Any] = {
                "task": f"{result['task']} {result['name']}",
                "method": result["method"],
                "part": part,
                "rows": any_score["rows"],
                "questions": any_score["questions"],
            }
            for metric, score in metrics.items():
                row[metric] = _interval(score)
            for metric in ("gmean2", "auroc", "r2"):
                mark = marks.get((result["task"], result["method"], metric, "id" if part == "test" else "ood"))
                if mark is not None:
                    row[f"published {metric}"] = f"{mark:.3f}"
            rows.append(row)
    return pd.DataFrame(rows).fillna("")


def _interval(score: Mapping[str, Any]) -> str:
    if score["estimate"] is None:
        return f"undefined ({score['reason']})" if score["reason"] else "undefined"
    if score["lower"] is None:
        return f"{score['estimate']:.3f}"
    return f"{score['estimate']:.3f} [{score['lower']:.3f}, {score['upper']:.3f}]"


def scores_text(found: Sequence[Mapping[str, Any]], published: str | Path | None = None) -> str:
    """The same as text, with how to read it."""
    notes = [f"task {result['task']}: {note}" for result in found for note in result["notes"]]
    reading = [
        f"g-mean² is TPR × TNR at a threshold frozen on the validation part: a coin has {CHANCE}, a constant answer 0.",
        "Intervals are 95 % percentile bootstraps over questions.",
    ]
    return "\n".join([as_text(scores(found, published)), "", *reading, *dict.fromkeys(notes)])


def read_published(path: str | Path) -> dict[tuple[int, str, str, str], float]:
    """Published scores by task, method, metric and `id` or `ood`, from the release's table.

    Raises
    ------
    RequestError
        The file is not such a table.
    """
    place = Path(path).expanduser()
    try:
        lines = list(csv.DictReader(place.read_text(encoding="utf-8").splitlines()))
        named = {title: method for method, titles in _PUBLISHED.items() for title in titles}
        found = {}
        for line in lines:
            method = named.get(line["method"], line["method"])
            for part in ("id", "ood"):
                found[int(line["task"].split("_")[0]), method, line["metric"], part] = float(line[part])
        return found
    except (OSError, KeyError, ValueError, AttributeError) as error:
        raise RequestError(
            f"{place} is no table of published scores (columns task, method, metric, id, ood): {error}"
        ) from None


def write(found: Sequence[Mapping[str, Any]], out: Path, published: str | Path | None = None) -> Path:
    """Write the table of all scores."""
    out.mkdir(parents=True, exist_ok=True)
    scores(found, published).to_csv(out / "scores.csv", index=False)
    return out / "scores.csv"
