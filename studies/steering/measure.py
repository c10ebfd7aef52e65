"""What held-out prompts do under one steering: entropies, margins, the probe's logit, answers.

Guarantees that the prompts are the run's own token ids, and that every steering runs the same batches as the unsteered prompts,
so that outcomes differ pair by pair by the steering alone.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ... import schema, store
from ...analysis.directions import item_names
from ...analysis.probing.linear import LinearProbe
from ...errors import RequestError
from ...hooks import CapturedBatch, Extractor, join
from ...hooks.decoding.greedy import Output, continue_greedily
from ...hooks.prompts.rendering import Rendered
from ...hooks.steering import Steering
from ..grading import graders as grading
from .config import SteerConfig


@dataclass(frozen=True)
class HeldOutPrompts:
    """The held-out prompts, ready for the model; lists are in the order of `states`, a cap of 0 generates nothing."""

    extractor: Extractor
    states: pd.DataFrame
    items: list[tuple[str, str]]
    rendered: list[Rendered]
    options: list[tuple[str, ...] | None]
    caps: list[int]

    @classmethod
    def of(cls, held_out: store.Run, extractor: Extractor, config: SteerConfig, generate: bool) -> HeldOutPrompts:
        """The prompts of a run's held-out states, by their own token ids (RequestError where one does not fit the model)."""
        states = held_out.states
        rendered, options, caps = [], [], []
        for i, row in enumerate(states.to_dict("records")):
            ids = tuple(int(t) for t in held_out.ragged(schema.TOKEN_IDS, i))
            rendered.append(Rendered(ids, row["prompt"], row["bos_count"], row["template"], row["template_hash"]))
            options.append(None if pd.isna(row["choices"]) else tuple(json.loads(row["choices"])))
            caps.append(0 if not generate else config.max_new_tokens or int(row["max_new_tokens"]))
        limit = extractor.context_length
        for r, cap, name in zip(rendered, caps, states["id"], strict=True):
            if limit is not None and len(r.token_ids) + cap > limit:
                raise RequestError(
                    f"the prompt of {name} has {len(r.token_ids)} tokens, which with {cap} output tokens is more than "
                    f"the model's context of {limit}; lower max_new_tokens"
                )
        return cls(extractor, states, item_names(states), rendered, options, caps)


def measure(
    work: HeldOutPrompts, steering: Steering | None, probe: LinearProbe, probe_layer: int, bar: Any
) -> pd.DataFrame:
    """Outcomes of all held-out states under one steering (or none), a row each in their order."""
    parts = []
    for cap in dict.fromkeys(work.caps):
        rows = [i for i, c in enumerate(work.caps) if c == cap]
        if steering is None:
            parts.append(_measure_rows(work, rows, cap, probe, probe_layer, bar))
        else:
            with steering.on(work.extractor):
                parts.append(_measure_rows(work, rows, cap, probe, probe_layer, bar))
    return pd.concat(parts).sort_index()


def _measure_rows(
    work: HeldOutPrompts, rows: list[int], cap: int, probe: LinearProbe, probe_layer: int, bar: Any
) -> pd.DataFrame:
    options = [work.options[i] for i in rows]
    extractor = work.extractor
    stream = extractor.stream(
        [work.rendered[i] for i in rows],
        (schema.RESID_POST,),
        [probe_layer],
        options=options if any(options) else None,
        top_k=1,
        keep_cache=cap > 0,
    )
    pieces: list[CapturedBatch] = []
    outputs: list[Output | None] = [None] * len(rows)
    for captured in stream:
        if cap:
            texts = continue_greedily(extractor.model, extractor.tokenizer, captured, cap)
            for row, written in zip(captured.batch.rows, texts, strict=True):
                outputs[row] = written
        pieces.append(CapturedBatch(captured.states, captured.batch, captured.next_token, None))
        bar.update(len(captured.batch.rows))
    states = join(pieces, len(rows))
    logits = probe(states.resid_post[:, 0].double().numpy())
    outcomes = []
    for k, i in enumerate(rows):
        state = work.states.iloc[i]
        labels = options[k]
        values: dict[str, Any] = {
            "id": state["id"],
            "benchmark": state["benchmark"],
            "regime": state["regime"],
            "item": "/".join(work.items[i]),
            "entropy_bits": float(states.entropy_bits[k]),
            "probe_logit": float(logits[k]),
        }
        if labels is not None and states.option_logprobs is not None and states.option_margin is not None:
            values["option_margin"] = float(states.option_margin[k])
            values["gold_margin"] = _gold_margin(states.option_logprobs[k], labels, str(state["gold"]))
        output = outputs[k]
        if output is not None:
            choices = None if labels is None else json.loads(state["choices"])
            grade = grading.grade(state["benchmark"], output.text, state["gold"], choices)
            values |= {
                "accuracy": float(grade.correct),
                "compliance": float(grade.compliant),
                "output_tokens": float(len(output.token_ids)),
                "text": output.text,
                "answer": grade.answer,
            }
        outcomes.append(values)
    return pd.DataFrame(outcomes, index=rows)


def _gold_margin(logprobs: np.ndarray, labels: tuple[str, ...], gold: str) -> float:
    """Log-probability of the gold option minus that of the best other one (nats)."""
    if gold not in labels:
        return math.nan
    of_item = logprobs[: len(labels)]
    place = labels.index(gold)
    return float(of_item[place] - np.delete(of_item, place).max())
