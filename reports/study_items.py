"""Every state of a study as a row that a page can sort, filter and open.

Guarantees that what the states lack is null, and never a made-up value.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from .. import schema
from ..analysis.cells import RunAnalysis, RunLike
from .plain import plain

COLUMNS = (
    ("model", "model"),
    ("benchmark", "benchmark"),
    ("regime", "regime"),
    ("item_id", "item"),
    ("question", "question"),
    ("correct", "correct"),
    ("compliant", "compliant"),
    ("answer", "answer"),
    ("gold", "gold"),
    ("entropy_bits", "H (bits)"),
    ("option_choice", "best option"),
    ("option_mass", "option mass"),
    ("option_margin", "margin"),
    ("option_entropy_bits", "option H"),
    ("output_tokens", "output tokens"),
    ("prompt_tokens", "prompt tokens"),
    ("truncated", "truncated"),
    ("choices", "choices"),
    ("prompt", "prompt"),
    ("text", "output"),
    ("id", "state"),
    ("top", "likeliest first tokens"),
    ("options", "options"),
    ("attention", "attention"),
)
SHOWN = (
    "benchmark",
    "regime",
    "item_id",
    "correct",
    "answer",
    "gold",
    "entropy_bits",
    "option_choice",
    "option_mass",
    "output_tokens",
    "question",
)
FILTERS = ("benchmark", "regime", "correct", "compliant", "truncated")


ATTENDED = 12
"""Prompt tokens shown of an attention row: the most attended."""


def item_data(analyses: Sequence[RunAnalysis], runs: Sequence[RunLike] = ()) -> dict[str, Any]:
    """Every state for the page's table; of each, what `runs` keep of its distribution: first tokens, options, attention."""
    rows = []
    kept: list[dict[str, dict[str, Any]]] = [distributions(run) for run in runs] or [{} for _ in analyses]
    for cell, known in ((c, k) for a, k in zip(analyses, kept, strict=True) for c in a.cells if len(c.states)):
        states = cell.states.assign(model=cell.model)
        if "id" in states:
            for name in ("top", "options", "attention"):
                states[name] = [known.get(str(i), {}).get(name) for i in states["id"]]
        columns = [_values(states, name) for name, _ in COLUMNS]
        rows += [list(values) for values in zip(*columns, strict=True)]
    several = len(analyses) > 1
    return {
        "columns": [{"name": n, "label": label} for n, label in COLUMNS],
        "rows": rows,
        "shown": [*(["model"] if several else []), *SHOWN],
        "filters": [*(["model"] if several else []), *FILTERS],
    }


def distributions(run: RunLike) -> dict[str, dict[str, Any]]:
    """By state: `top` and `options` as (text, probability) pairs, `attention` as (token, share) pairs, where the run holds them.

    A token's probability is exp(logit - logsumexp); a run that keeps no texts of its tokens shows their ids.
    """
    arrays, array = getattr(run, "arrays", {}), getattr(run, "array", None)
    states = run.states
    if array is None or "id" not in states:
        return {}
    found: dict[str, dict[str, Any]] = {str(i): {} for i in states["id"]}
    if {schema.TOP_IDS, schema.TOP_LOGITS} <= set(arrays) and "logsumexp" in states:
        chances = np.exp(array(schema.TOP_LOGITS).astype(float) - states["logsumexp"].to_numpy(float)[:, None])
        ids = array(schema.TOP_IDS)
        texts = states[schema.TOP_TOKENS] if schema.TOP_TOKENS in states else [None] * len(states)
        for key, row, numbers, text in zip(states["id"], chances, ids, texts, strict=True):
            names = json.loads(text) if isinstance(text, str) else [f"token {number}" for number in numbers]
            found[str(key)]["top"] = [[name, round(float(p), 6)] for name, p in zip(names, row, strict=True)][:10]
    if schema.OPTION_LOGPROBS in arrays and "choices" in states:
        for key, row, choices in zip(states["id"], array(schema.OPTION_LOGPROBS), states["choices"], strict=True):
            if isinstance(choices, str):
                labels = list(json.loads(choices))
                found[str(key)]["options"] = [
                    [n, round(float(np.exp(v)), 6)] for n, v in zip(labels, row, strict=False)
                ]
    return found


def _values(states: pd.DataFrame, name: str) -> list[Any]:
    return [plain(v) for v in states[name].astype(object)] if name in states else [None] * len(states)
