"""One shard of a study: its prompts captured, answered and graded, as the arrays and columns that the store keeps.

Guarantees one row per planned state in plan order, each value under the column or array that the run declares; a value that
does not apply (an option entropy of a free-response item, an answer when nothing was generated) is missing, never 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ... import schema, store
from ...errors import CaptureError, RequestError
from ...hooks import CapturedBatch, Extractor, States, join
from ...hooks.decoding.greedy import Output, continue_greedily
from ...hooks.prompts.options import option_forms
from ...hooks.prompts.rendering import Rendered
from ...kernels import Moments
from ..grading import graders as grading
from ..items import Item
from . import after, answer_boundary, thinking
from .answer_boundary import AnswerStates
from .config import ResolvedStudy, StudyConfig
from .thinking import Parts
from .work import Work

COLUMNS = schema.STUDY.column_types
"""Columns of a study's table of states."""

SUMMARY_SPANS = ("instruction", "question", "choices", "cue")


@dataclass(frozen=True)
class Recipe:
    """How to make shards: the settings, the loaded model, and what follows from both.

    Attributes
    ----------
    config : StudyConfig
    extractor : Extractor
    caps : mapping of str to int
        Cap on output tokens by regime; empty when nothing is generated.
    layers : tuple of int
    dtype : str
        In which site rows are stored.
    option_width : int
        Most options that an item has, the width of `option_logprobs`; 0 when all items are free response.
    stops : mapping of str to tuple of str
        Texts before which an output ends, by regime.
    prefills : mapping of str to str
        What each regime writes of the answer itself, which is graded with what follows.
    """

    config: StudyConfig
    extractor: Extractor
    caps: Mapping[str, int]
    layers: tuple[int, ...]
    dtype: str
    option_width: int
    stops: Mapping[str, tuple[str, ...]]
    prefills: Mapping[str, str]

    @classmethod
    def of(
        cls,
        study: ResolvedStudy,
        extractor: Extractor,
        items: Iterable[Item],
        stops: Mapping[str, tuple[str, ...]],
    ) -> Recipe:
        """Resolve a study's settings against its model.

        Raises
        ------
        RequestError
            If the model lacks a site or layer, or an option is no single token for it.
        """
        config = study.config
        _, layers = extractor.check_request(config.sites, config.layers, config.attention, config.top_k, False)
        labels = {tuple(item.choices) for item in items if item.choices is not None}
        for names in sorted(labels):
            option_forms(extractor.tokenizer, names, "the items' options")
        dtype = (
            str(extractor.model.dtype).removeprefix("torch.") if config.store_dtype == "auto" else config.store_dtype
        )
        return cls(
            config,
            extractor,
            study.caps,
            layers,
            dtype,
            max((len(names) for names in labels), default=0),
            stops,
            {name: regime.prefill for name, regime in study.regimes.items()},
        )

    def arrays(self) -> dict[str, store.ArraySpec]:
        """The arrays that a run of this study declares."""
        architecture, n = self.extractor.backend.architecture, len(self.layers)
        specs = {}
        for site in self.config.sites:
            if site == schema.FINAL_NORM:
                specs[site] = store.ArraySpec((architecture.final_width,), self.dtype, None)
            elif site == schema.Z:
                specs[site] = store.ArraySpec((n, architecture.heads, architecture.head_width), self.dtype, self.layers)
            else:
                specs[site] = store.ArraySpec((n, architecture.width), self.dtype, self.layers)
        for place in self.config.after:
            specs[after.array_name(place)] = store.ArraySpec((n, architecture.width), self.dtype, self.layers)
        if self.config.has_answer_boundary:
            specs[answer_boundary.ARRAY] = store.ArraySpec((n, architecture.width), self.dtype, self.layers)
        if self.config.top_k:
            specs[schema.TOP_IDS] = store.ArraySpec((self.config.top_k,), "int64", None)
            specs[schema.TOP_LOGITS] = store.ArraySpec((self.config.top_k,), "float32", None)
        if self.option_width:
            specs[schema.OPTION_LOGPROBS] = store.ArraySpec((self.option_width,), "float64", None)
        if self.config.attention == "summary":
            for name in schema.ATTENTION_SUMMARIES:
                specs[f"attention_{name}"] = store.ArraySpec((n, architecture.heads), "float32", self.layers)
            if self.option_width:
                shape = (n, architecture.heads, self.option_width)
                specs[schema.ATTENTION_OPTIONS] = store.ArraySpec(shape, "float32", self.layers)
        return specs

    def ragged(self) -> dict[str, str]:
        """The ragged arrays that a run of this study declares."""
        names = [schema.TOKEN_IDS, schema.OUTPUT_IDS]
        return schema.STUDY.ragged_types(names + [schema.ATTENTION_ROWS] * (self.config.attention == "rows"))


def make_shard(recipe: Recipe, members: list[tuple[Work, Rendered]], bar: Any = None) -> dict[str, Any]:
    """Capture, generate and grade the states of one shard.

    Parameters
    ----------
    recipe : Recipe
    members : list of (Work, Rendered)
        The shard's states in plan order; all of one benchmark and regime.
    bar : tqdm, optional
        Advanced by one per state.

    Returns
    -------
    dict
        `arrays`, `table`, `ragged` and `blobs` for `store.Writer.write`.
    """
    states, outputs = _run(recipe, members, bar)
    parts = _parts(recipe, members, outputs)
    answers = _answers(recipe, members, parts)
    ragged: dict[str, Any] = {
        schema.TOKEN_IDS: [np.asarray(r.token_ids, np.int32) for _, r in members],
        schema.OUTPUT_IDS: [np.asarray(o.token_ids if o else (), np.int32) for o in outputs],
    }
    if states.attention_rows is not None:
        ragged[schema.ATTENTION_ROWS] = [rows.numpy() for rows in states.attention_rows]
    blobs = {}
    if recipe.config.moments:
        resid = states[schema.RESID_POST]
        part = Moments(resid.shape[1], resid.shape[2])
        part.update(resid)
        blobs[schema.MOMENTS] = part.to_bytes()
    return {
        "arrays": _arrays(recipe, members, states) | _later(recipe, [r for _, r in members], outputs, answers),
        "table": _table(recipe, members, states, outputs, parts, answers),
        "ragged": ragged,
        "blobs": blobs,
    }


def _run(recipe: Recipe, members: list[tuple[Work, Rendered]], bar: Any) -> tuple[States, list[Output | None]]:
    config, extractor = recipe.config, recipe.extractor
    options = [None if w.item.choices is None else tuple(w.item.choices) for w, _ in members]
    stream = extractor.stream(
        [r for _, r in members],
        tuple(dict.fromkeys((*config.sites, *((schema.RESID_POST,) if config.moments else ())))),
        config.layers,
        config.attention,
        options if any(options) else None,
        config.top_k,
        [_spans(w) for w, _ in members] if config.attention == "summary" else None,
        keep_cache=config.generate and extractor.backend.gives_cache,
    )
    outputs: list[Output | None] = [None] * len(members)
    pieces = []
    for captured in _named(stream, members):
        if config.generate:
            regime = members[0][0].regime
            cap, stops = recipe.caps[regime], recipe.stops[regime]
            for begun in [captured] if captured.cache is not None else extractor.prefill(captured):
                continued = continue_greedily(extractor.model, extractor.tokenizer, begun, cap, stops)
                for row, output in zip(begun.batch.rows, continued, strict=True):
                    outputs[row] = output
        pieces.append(CapturedBatch(captured.states, captured.batch, captured.next_token, None))
        if bar is not None:
            bar.update(len(captured.batch.rows))
    return join(pieces, len(members)), outputs


def _named(stream: Iterator[CapturedBatch], members: list[tuple[Work, Rendered]]) -> Iterator[CapturedBatch]:
    """The stream, with an error about one prompt naming the state instead of its place in the shard."""
    try:
        yield from stream
    except CaptureError as error:
        if error.prompt is None:
            raise
        raise CaptureError(f"{members[error.prompt][0].id}: {error}") from error


def _spans(w: Work) -> dict[str, tuple[int, int]]:
    named = {name: span for name, span in w.prompt.spans.items() if name in SUMMARY_SPANS and span[1] > span[0]}
    return named | {name: w.prompt.spans[name] for name in _option_names(w) if name in w.prompt.spans}


def _option_names(w: Work) -> list[str]:
    """Names of the spans of an item's options, in their order."""
    return [f"option:{label}" for label in w.item.choices or ()]


def _table(
    recipe: Recipe,
    members: list[tuple[Work, Rendered]],
    states: States,
    outputs: list[Output | None],
    parts: list[Parts | None],
    answers: AnswerStates | None,
) -> dict[str, list[Any]]:
    table: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    tokenizer = recipe.extractor.tokenizer
    for i, ((w, r), output) in enumerate(zip(members, outputs, strict=True)):
        item = w.item
        values: dict[str, Any] = {
            "question": item.question,
            "prompt": r.text,
            "gold": item.answer,
            "choices": None if item.choices is None else json.dumps(item.choices, ensure_ascii=False),
            "format": item.format,
            "prompt_tokens": len(r.token_ids),
            "boundary": states.boundary[i],
            "bos_count": r.bos_count,
            "entropy_bits": float(states.entropy_bits[i]),
            "logsumexp": float(states.logsumexp[i]),
            "template": r.template,
            "template_hash": r.template_hash,
            "regime_hash": w.prompt.template_hash,
        }
        if recipe.config.top_k and recipe.extractor.tokenizer is not None:
            texts = [recipe.extractor.tokenizer.decode([int(token)]) for token in states.top_ids[i]]
            values[schema.TOP_TOKENS] = json.dumps(texts, ensure_ascii=False)
        part = parts[i]
        if output is not None and part is not None:
            text = output.text if part.ended is None else _spelled(tokenizer, part.answer)
            whole = recipe.prefills[w.regime] + text if part.ended is None else text
            grade = grading.grade(w.benchmark, whole, item.answer, item.choices)
            if part.ended is not None:
                values |= {
                    schema.THINKING: _spelled(tokenizer, part.thinking),
                    schema.THINKING_TOKENS: len(part.thinking),
                    schema.THINKING_ENDED: part.ended,
                }
            values |= {
                "text": text,
                "answer": grade.answer,
                "correct": grade.correct,
                "compliant": grade.compliant,
                "output_tokens": len(output.token_ids),
                "max_new_tokens": recipe.caps[w.regime],
                "truncated": output.truncated,
                "finish_reason": output.finish_reason,
                "stop_text": output.stop,
            }
        if item.choices is not None and states.option_logprobs is not None and states.option_labels is not None:
            if states.option_mass is not None and float(states.option_mass[i]) >= schema.LEAST_OPTION_MASS:
                values["option_choice"] = states.option_labels[i][int(np.nanargmax(states.option_logprobs[i]))]
            for name in ("option_entropy_bits", "option_margin", "option_mass"):
                values[name] = float(getattr(states, name)[i])
        if answers is not None:
            values |= answers.values(i, item.choices is not None)
        for name, column in table.items():
            column.append(values.get(name))
    return table


def _parts(recipe: Recipe, members: list[tuple[Work, Rendered]], outputs: list[Output | None]) -> list[Parts | None]:
    """Thinking and answer of each output."""
    tokenizer = recipe.extractor.tokenizer
    tags = thinking.tags_of(tokenizer, recipe.config.thinking_tags)
    return [
        None if output is None else thinking.split(tokenizer, tags, r.token_ids, output.token_ids)
        for (_, r), output in zip(members, outputs, strict=True)
    ]


def _answers(recipe: Recipe, members: list[tuple[Work, Rendered]], parts: list[Parts | None]) -> AnswerStates | None:
    """The states at the second boundary, where it is asked for."""
    if not recipe.config.has_answer_boundary:
        return None
    options = [None if w.item.choices is None else tuple(w.item.choices) for w, _ in members]
    return answer_boundary.capture(recipe.extractor, [r for _, r in members], parts, options, recipe.layers)


def _spelled(tokenizer: Any, ids: tuple[int, ...]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=True)).strip()


def _arrays(recipe: Recipe, members: list[tuple[Work, Rendered]], states: States) -> dict[str, np.ndarray]:
    config, n = recipe.config, len(states)
    out = {site: _stored(states[site], recipe.dtype, site) for site in config.sites}
    if config.top_k:
        out |= {
            schema.TOP_IDS: states.top_ids.astype(np.int64),
            schema.TOP_LOGITS: states.top_logits.astype(np.float32),
        }
    if recipe.option_width:
        logprobs = np.full((n, recipe.option_width), np.nan)
        if states.option_logprobs is not None:
            logprobs[:, : states.option_logprobs.shape[1]] = states.option_logprobs
        out[schema.OPTION_LOGPROBS] = logprobs
    if states.attention_summary is not None:
        missing = np.full_like(states.attention_summary["entropy_bits"], np.nan)
        out |= {
            f"attention_{name}": states.attention_summary.get(name, missing).astype(np.float32)
            for name in schema.ATTENTION_SUMMARIES
        }
        if recipe.option_width:
            masses = np.full((*missing.shape, recipe.option_width), np.nan, np.float32)
            for i, (w, _) in enumerate(members):
                for k, name in enumerate(_option_names(w)):
                    masses[i, ..., k] = states.attention_summary.get(name, missing)[i]
            out[schema.ATTENTION_OPTIONS] = masses
    return out


def _later(
    recipe: Recipe, rendered: list[Rendered], outputs: list[Output | None], answers: AnswerStates | None
) -> dict[str, np.ndarray]:
    """The states after the boundary, one array per place; rows of outputs that do not reach it are NaN."""
    found = {
        after.array_name(place): after.states_after(recipe.extractor, rendered, outputs, place, recipe.layers)
        for place in recipe.config.after
    }
    if answers is not None:
        rows = torch.empty(0) if answers.states is None else answers.states[after.SITE]
        found[answer_boundary.ARRAY] = (rows, list(answers.rows))
    out = {}
    for name, (rows, reached) in found.items():
        width = recipe.extractor.backend.architecture.width
        missing = torch.full((len(rendered), len(recipe.layers), width), float("nan"))
        kept = _stored(missing, recipe.dtype, name, finite=False)
        if reached:
            kept[reached] = _stored(rows, recipe.dtype, name)
        out[name] = kept
    return out


def _stored(x: torch.Tensor, name: str, site: str, finite: bool = True) -> np.ndarray:
    """Site rows in the dtype they are stored in; a float16 that overflows is an error, not an infinity."""
    if name == "bfloat16":
        return x.to(torch.bfloat16).contiguous().view(torch.uint16).numpy()
    cast = x.to(getattr(torch, name))
    if finite and not bool(torch.isfinite(cast).all()):
        raise RequestError(
            f"{site} holds values up to {float(x.abs().max()):.4g}, more than {name} can hold; use --store-dtype bfloat16 or float32"
        )
    return cast.numpy()
