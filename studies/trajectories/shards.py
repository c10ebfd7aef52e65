"""One shard of a trajectory study: chains, their prefixes, continuations and forced answers, as the store keeps them.

Guarantees that everything a result depends on stands beside it: the chain's ids and finish reason, what each segmentation rule
would have given, every continuation, and why a point is missing. A value that does not apply is missing, never 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ... import schema
from ...analysis.trajectories.shapes import sampled_entropies
from ...hooks import Extractor
from ...hooks.prompts.rendering import Rendered
from ..grading import graders as grading
from ..grading.reading import whole_number
from .chains import Continuation, generate_chains, sample_continuations
from .config import TrajectoryConfig
from .forced import ForcedTrajectory, forced_under_anchors
from .segmentation import (
    Boundaries,
    Segmentation,
    asks_for_lines,
    segment,
    to_tokens,
    token_ends_of_ids,
    token_ends_of_text,
    units_by_rule,
)
from .units import VERSION
from .work import Work

COLUMNS = schema.TRAJECTORIES.column_types
"""Columns of a trajectory run's table."""


@dataclass(frozen=True)
class ChainText:
    """A chain with its tokens: how many characters are complete after each, and how it ended."""

    ids: tuple[int, ...]
    text: str
    ends: tuple[int, ...]
    source: str
    finish: str | None


def ragged(config: TrajectoryConfig) -> dict[str, str]:
    """The ragged arrays that a run declares."""
    names = ["prompt_ids", "chain_ids"]
    if "sampled" in config.measures:
        names += ["boundaries", "boundary_characters", "entropies", "parsed"]
    if "forced" in config.measures:
        names += [
            "forced_boundaries",
            "forced_boundary_characters",
            "forced_logprobs",
            "forced_entropies",
            "forced_mass",
        ]
        names += ["forced_margin", "forced_vocabulary_bits", "forced_candidate_logprobs"]
        if config.residual:
            names += ["resid_boundary", "resid_answer"]
    return schema.TRAJECTORIES.ragged_types(names)


def make_shard(
    config: TrajectoryConfig,
    extractor: Extractor,
    members: list[tuple[Work, Rendered]],
    bar: Any = None,
    version: int = VERSION,
) -> dict[str, Any]:
    """Follow the items of one shard.

    Parameters
    ----------
    config : TrajectoryConfig
    extractor : Extractor
    members : list of (Work, Rendered)
    bar : tqdm, optional
        Advanced by one per item.
    version : int
        Of the segmentation rules that the run was begun with.

    Returns
    -------
    dict
        `table` and `ragged` for `store.Writer.write`.
    """
    chains = _chains(config, extractor, members)
    table: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    arrays: dict[str, list[np.ndarray]] = {name: [] for name in ragged(config)}
    for (work, rendered), chain in zip(members, chains, strict=True):
        lines = work.chain is None and asks_for_lines(config.system)
        cut = partial(segment, chain.text, token_ends=chain.ends, version=version, lines=lines)
        values, rows_of_item = _follow(config, extractor, work, rendered, chain, cut)
        values["units_by_rule"] = json.dumps(units_by_rule(chain.text, chain.ends, version=version, lines=lines))
        for name, column in table.items():
            column.append(values.get(name))
        for name, rows in arrays.items():
            rows.append(rows_of_item[name])
        if bar is not None:
            bar.update(1)
    return {"table": table, "ragged": arrays}


def _chains(
    config: TrajectoryConfig, extractor: Extractor, members: Sequence[tuple[Work, Rendered]]
) -> list[ChainText]:
    """The given chains, and those of the others written in one batch."""
    tokenizer = extractor.tokenizer
    to_write = [(w, r) for w, r in members if w.chain is None]
    written: dict[str, Continuation] = {}
    if to_write:
        continuations = generate_chains(
            extractor, [r.token_ids for _, r in to_write], [w.seed_name for w, _ in to_write], config.chain_temperature,
            config.chain_tokens, config.seed,
        )  # fmt: skip
        written = {w.id: c for (w, _), c in zip(to_write, continuations, strict=True)}
    chains = []
    for work, _ in members:
        if work.chain is None:
            wrote = written[work.id]
            text, ends = token_ends_of_ids(tokenizer, wrote.tokens)
            chains.append(ChainText(wrote.tokens, text, tuple(ends), "generated", wrote.finish))
        else:
            ids, ends = token_ends_of_text(tokenizer, work.chain)
            chains.append(ChainText(tuple(ids), work.chain, tuple(ends), "given", None))
    return chains


def _follow(
    config: TrajectoryConfig,
    extractor: Extractor,
    work: Work,
    rendered: Rendered,
    chain: ChainText,
    cut: Callable[..., Segmentation],
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    item = work.item
    sampling = "sampled" in config.measures  # what is told of the units is told of the rule that was used
    rule, cap = (config.rule, config.cap) if sampling else (config.forced_rule, config.forced_cap)
    cuts = cut(rule, cap)
    at = to_tokens(cuts.ends, chain.ends)
    values: dict[str, Any] = {
        "question": item.question,
        "prompt": rendered.text,
        "gold": item.answer if work.graded else None,
        "choices": None if item.choices is None else json.dumps(item.choices, ensure_ascii=False),
        "format": item.format,
        "prompt_tokens": len(rendered.token_ids),
        "template": rendered.template,
        "template_hash": rendered.template_hash,
        "chain": chain.text,
        "chain_source": chain.source,
        "chain_tokens": len(chain.ids),
        "finish_reason": chain.finish,
        "truncated": None if chain.finish is None else chain.finish == "length",
        **_graded(work, chain.text),
        **_segmentation(cuts, at),
    }
    arrays = {"prompt_ids": np.array(rendered.token_ids, np.int32), "chain_ids": np.array(chain.ids, np.int32)}
    verdicts: dict[str | None, bool | None] = {}
    if sampling:
        sampled = _sampled(config, extractor, work, rendered, chain, at, values["answer"])
        values |= sampled[0]
        arrays |= sampled[1]
        verdicts = sampled[2]
    if "forced" in config.measures:
        seen = {values["answer"]: values["correct"], **verdicts}
        forced, by_rule = _forced(config, extractor, work, rendered, chain, list(seen), cut)
        values |= _forced_columns(config, work, forced, by_rule, seen)
        arrays |= _forced_arrays(config, forced, chain)
    return values, arrays


def _graded(work: Work, text: str) -> dict[str, Any]:
    grade = grading.grade(work.benchmark, text, work.item.answer, work.item.choices)
    if not work.graded:
        return {"answer": grade.answer, "correct": None, "compliant": grade.compliant}
    return {"answer": grade.answer, "correct": grade.correct, "compliant": grade.compliant}


def _segmentation(cuts: Segmentation, at: Boundaries) -> dict[str, Any]:
    return {
        "rule": cuts.rule,
        "rule_applied": cuts.applied,
        "units": cuts.units,
        "units_merged": cuts.merged,
        "capped": cuts.capped,
        "inside_token": at.inside,
        "collapsed": at.collapsed,
    }


def one_spelling(answer: str | None, seen: dict[Any, str], class_of: Callable[[str], Any] | None = None) -> str | None:
    """An answer as it was spelled first: `0.5` after `1/2` is `1/2`, since equal answers are one answer and not two.

    Equal is what the grader calls equal (`graders.answer_class`), so that answers which are counted as one have one verdict.

    Parameters
    ----------
    answer : str or None
    seen : dict
        Spelling of each class of answers so far; a new one is added.
    class_of : callable, optional
        The class of an answer; None for the value of a number.
    """
    if answer is None:
        return None
    if class_of is not None:
        return seen.setdefault(class_of(answer), answer)
    number = whole_number(answer)
    return answer if number is None else seen.setdefault(number.value, answer)


def _sampled(
    config: TrajectoryConfig,
    extractor: Extractor,
    work: Work,
    rendered: Rendered,
    chain: ChainText,
    at: Boundaries,
    chain_answer: str | None,
) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str | None, bool | None]]:
    """Continuations of every prefix, the entropy of their answers, and whether each different answer is right."""
    start = len(rendered.token_ids)
    continuations = sample_continuations(
        extractor, [rendered.token_ids + chain.ids], [[start + t for t in at.tokens]], [work.seed_name], config.m,
        config.temperature, config.continuation_tokens, config.seed,
    )[0]  # fmt: skip
    kept, answers = [], []
    spellings: dict[str, str] = {}
    class_of = partial(
        grading.answer_class, work.benchmark, gold=work.item.answer, choices=work.item.choices
    )  # of an answer
    one_spelling(chain_answer, spellings, class_of)
    for tokens, row in zip(at.tokens, continuations, strict=True):
        prefix = chain.text[: chain.ends[tokens - 1]] if tokens else ""
        graded = [_graded(work, (prefix if config.graded == "whole" else "") + c.text) for c in row]
        graded = [{**g, "answer": one_spelling(g["answer"], spellings, class_of)} for g in graded]
        answers.append([g["answer"] for g in graded])
        kept.append(
            [
                {
                    "text": c.text,
                    "tokens": len(c.tokens),
                    "finish": c.finish,
                    "answer": g["answer"],
                    "correct": g["correct"],
                }
                for c, g in zip(row, graded, strict=True)
            ]
        )
    entropies = sampled_entropies(answers)
    values = {
        "continuations": json.dumps(kept, ensure_ascii=False),
        "continuation_tokens": sum(len(c.tokens) for row in continuations for c in row),
        "missing_points": int(np.isnan(entropies).sum()),
    }
    arrays = {
        "boundaries": np.array(at.tokens, np.int32),
        "boundary_characters": _characters(at.tokens, chain),
        "entropies": entropies,
        "parsed": np.array([sum(a is not None for a in row) for row in answers], np.int32),
    }
    return values, arrays, {c["answer"]: c["correct"] for row in kept for c in row}


def _forced(
    config: TrajectoryConfig,
    extractor: Extractor,
    work: Work,
    rendered: Rendered,
    chain: ChainText,
    seen: Sequence[str | None],
    cut: Callable[..., Segmentation],
) -> tuple[list[ForcedTrajectory], dict[str, Boundaries]]:
    """Forced answers under every anchor, over the item's options, else over the different answers the model itself gave.

    The boundaries of all rules that are compared are branches of the same pass; which belong to which rule comes second. A
    free-response gold answer is scored beside the options, but takes no part in the entropy.
    """
    options: tuple[str, ...] | None
    if config.options is not None:
        options = tuple(config.options)
    elif work.item.choices is not None:
        options = tuple(work.item.choices)
    else:
        given_answers = tuple(dict.fromkeys(a for a in seen if a is not None))
        options = given_answers if len(given_answers) >= 2 else None
    gold = [[work.item.answer]] if work.graded and work.item.choices is None else None
    by_rule = {
        rule: to_tokens(cut(rule, config.forced_cap).ends, chain.ends)
        for rule in dict.fromkeys((config.forced_rule, *config.compare_rules))
    }
    union = sorted({t for at in by_rule.values() for t in at.tokens})
    forced = forced_under_anchors(
        extractor, [rendered.token_ids], [chain.text if work.chain is not None else chain.ids], config.anchors,
        options=options, candidates=gold, end_tag=config.end_tag, tag_side=config.tag_side, boundaries=[union],
        residual=config.residual,
    )[0]  # fmt: skip
    return forced, by_rule


def _forced_columns(
    config: TrajectoryConfig,
    work: Work,
    forced: list[ForcedTrajectory],
    by_rule: dict[str, Boundaries],
    verdicts: dict[str | None, bool | None],
) -> dict[str, Any]:
    first, at = forced[0], by_rule[config.forced_rule]
    answer = first.choice[-1] if first.labels and first.choice else None
    correct: bool | None = None
    if work.graded:
        if answer is None or work.item.choices is not None:
            correct = answer == work.item.answer
        else:  # a named option may be one that the model never gave by itself
            correct = bool(verdicts[answer] if answer in verdicts else _graded(work, answer)["correct"])
    return {
        "forced_answer": answer,
        "forced_correct": correct,
        "forced_labels": json.dumps(first.labels, ensure_ascii=False),
        "forced_choices": json.dumps([f.choice for f in forced], ensure_ascii=False),
        "forced_candidates": json.dumps(first.candidates, ensure_ascii=False),
        "forced_anchors": json.dumps(config.anchors, ensure_ascii=False),
        "forced_by_rule": json.dumps({rule: list(b.tokens) for rule, b in by_rule.items()}),
        "forced_inside_token": at.inside,
        "forced_collapsed": at.collapsed,
        "forced_tokens_run": first.tokens_run,
    }


def _characters(tokens: Sequence[int], chain: ChainText) -> np.ndarray:
    """Characters of the chain's text that each prefix spells, int32 [k]."""
    return np.array([chain.ends[t - 1] if t else 0 for t in tokens], np.int32)


def _forced_arrays(config: TrajectoryConfig, forced: list[ForcedTrajectory], chain: ChainText) -> dict[str, np.ndarray]:
    """Arrays [anchors, k, ...], the first anchor being the one reported."""
    first = forced[0]
    offered = [
        f.candidate_logprobs if f.candidate_logprobs is not None else np.zeros((len(f.boundaries), 0)) for f in forced
    ]
    arrays = {
        "forced_boundaries": first.boundaries.astype(np.int32),
        "forced_boundary_characters": _characters(first.boundaries.tolist(), chain),
        "forced_logprobs": np.stack([f.option_logprobs for f in forced]),
        "forced_entropies": np.stack([f.entropy_nats for f in forced]),
        "forced_mass": np.stack([f.option_mass for f in forced]),
        "forced_margin": np.stack([f.margin for f in forced]),
        "forced_vocabulary_bits": np.stack([f.vocabulary_entropy_bits for f in forced]),
        "forced_candidate_logprobs": np.stack(offered),
    }
    if config.residual:
        assert first.resid_boundary is not None and first.resid_answer is not None
        arrays |= {"resid_boundary": first.resid_boundary, "resid_answer": first.resid_answer}
    return arrays
