"""Steering a finished run's held-out items: what a direction does at several doses, beside random directions as long.

Guarantees: the direction and the probe see training items only and every effect is measured on items that neither has
seen; each dose is compared with the same prompts unsteered, pair by pair; the prompts are the run's own token ids, and the
model is checked to be the run's own. This prevents the two usual faults of steering results: effects measured on the
items that made the vector, and effects that any vector of that length would have had.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from .. import store
from ..analysis.directions import METHODS, LinearProbe, TrainingStates, balancing_labels, item_names
from ..analysis.dose_response import dose_response, slopes
from ..analysis.probing import splits
from ..errors import RequestError
from ..hooks import CapturedBatch, Extractor, join
from ..hooks.decoding.greedy import Output, continue_greedily
from ..hooks.differences import limits
from ..hooks.prompts.rendering import Rendered
from ..hooks.steering import MODES, Steering, SteeringVector
from ..reports.steering import SteerReport
from ..reports.steering import save as save  # the public name of what writes a report
from .grading import graders as grading
from .models import ModelRequest
from .steering_vectors import steering_vector

BASELINE = "unsteered"
VECTOR = "vector"


@dataclass(frozen=True)
class SteerConfig:
    """What `run_steer` does.

    Attributes
    ----------
    run : path
        A finished study with `resid_post` (or the asked site) stored.
    layer : int, optional
        Where to steer; negative from the last captured layer. May be left out with `vector`, whose own layer is taken.
    scales : sequence of float
        Multiples of the vector's own length. Vectors made here are as long as the two classes' mean states are apart, so
        a scale of 1 moves a state by one class difference; the report also says how much of a typical state's norm
        that is. For the modes other than "add" a scale is the share of the change that is made. 0 is always run.
    target, positive, negative, method, site
        What the vector is made from: see `hooks.steering_vector`. The probe that scores the steered states reads `target`.
    vector : path, optional
        A file that `SteeringVector.save` wrote, instead of a vector made here; the items it has seen are left out.
    mode : {"add", "ablate", "project", "replace"}
    positions : str or sequence of int
        As in `Steering`. "response" steers the boundary, where the direction was measured, and every generated token.
    benchmarks, regimes : sequence of str, optional
        Use these cells of the run only.
    n : int, optional
        Most held-out items per benchmark, a seeded sample; None takes all.
    controls : int
        Random directions of the vector's length.
    generate : bool
        Whether to let the model answer at each dose, and grade it; a run made without generating cannot.
    max_new_tokens : int, optional
        Cap on output tokens; None takes the run's own caps.
    probe_layer : int, optional
        Where the probe reads `resid_post`; None takes the last captured layer.
    seed : int
        Seeds the split, the sample, the random directions and the bootstrap.
    resamples : int
    level : float
    model, revision, dtype, device, batch_tokens : optional
        In place of the run's own. A model given by another name must still be the run's: its sizes and its tokenizer are
        compared, its revision where both have one of the same kind, and the entropies of the unsteered prompts.
    """

    run: str | os.PathLike[str]
    layer: int | None = None
    scales: Sequence[float] = (-8.0, -4.0, 0.0, 4.0, 8.0)
    target: str = "correct"
    positive: Any = None
    negative: Any = None
    method: str = "mean-difference"
    site: str = "resid_post"
    vector: str | os.PathLike[str] | None = None
    mode: str = "add"
    positions: str | Sequence[int] = "response"
    benchmarks: Sequence[str] | None = None
    regimes: Sequence[str] | None = None
    n: int | None = None
    controls: int = 3
    generate: bool = True
    max_new_tokens: int | None = None
    probe_layer: int | None = None
    seed: int = 0
    resamples: int = 1000
    level: float = 0.95
    model: str | None = None
    revision: str | None = None
    dtype: str | None = None
    device: str | None = None
    batch_tokens: int | None = None

    def __post_init__(self) -> None:
        try:
            scales = tuple(sorted({float(s) for s in self.scales}))
        except (TypeError, ValueError) as error:
            raise RequestError(f"scales must be numbers such as -8,-4,0,4,8, found {self.scales!r}") from error
        if not any(scales) or not all(map(math.isfinite, scales)):
            raise RequestError(f"scales must be finite numbers, one of them not 0, found {list(scales)}")
        object.__setattr__(self, "scales", scales)
        for name, allowed in (("mode", MODES), ("method", METHODS)):
            if getattr(self, name) not in allowed:
                raise RequestError(f"{name} {getattr(self, name)!r} is unknown; choose from {', '.join(allowed)}")
        for name, least in (("n", 1), ("controls", 0), ("max_new_tokens", 1), ("resamples", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise RequestError(f"{name} must be a whole number of at least {least}, found {value!r}")
        if not 0 < self.level < 1:
            raise RequestError(f"level must lie between 0 and 1, found {self.level!r}")
        if self.positions == "generated" and not self.generate:
            raise RequestError(
                "positions='generated' steers what the model writes, and nothing is to be generated; choose other "
                "positions, or generate"
            )
        if self.max_new_tokens is not None and not self.generate:
            raise RequestError(
                "max_new_tokens caps what the model writes, and nothing is to be generated; leave one out"
            )
        if self.layer is None and self.vector is None:
            raise RequestError("say where to steer: give a layer, or a saved vector")


def run_steer(config: SteerConfig, *, progress: bool = True, extractor: Extractor | None = None) -> SteerReport:
    """Steer a run's held-out items along a vector at several doses, and along random directions of its length.

    Parameters
    ----------
    config : SteerConfig
    progress : bool
        Show a bar on stderr.
    extractor : Extractor, optional
        The run's model, already loaded.

    Returns
    -------
    SteerReport

    Raises
    ------
    RequestError
        If the run lacks what is needed, its states do not define the direction, or the model is not the run's.
    """
    run = store.open_run(config.run)
    kind = run.manifest.get("kind")
    if kind != "study" or "token_ids" not in run.ragged_arrays:
        found = "an import" if "imported_from" in run.manifest else kind or "of another kind"
        raise RequestError(
            f"{run.path} is not a study (it is {found}), so it does not say which model and prompts to steer: give the run that `precollapse run` made"
        )
    request = _model_request(config, run)
    if extractor is None:
        request.check_device()
    chosen = run.select(regime=config.regimes, benchmark=config.benchmarks)
    vector, probe, held_out = _learn(config, run, chosen)
    states = held_out.states
    wants_text = config.generate and states["correct"].notna().any()
    if config.positions == "generated" and not wants_text:
        raise RequestError(
            "positions='generated' steers what the model writes, but the run was made without generating; choose other positions"
        )
    if extractor is None:
        extractor = request.load()
    _same_model(extractor.manifest(), run.manifest["capture"], "this is")
    steerings = _doses(config, vector)
    for dose in steerings.values():
        dose.check_model(extractor)
    work = _Work.of(held_out, extractor, config, bool(wants_text))
    probe_layer = _probe_layer(config, chosen)
    frames = []
    drift = math.nan
    total = (1 + len(steerings)) * len(states)
    share_prefix, extractor.share_prefix = (
        extractor.share_prefix,
        "never",
    )  # as under a steering, so that pairs differ by it alone
    try:
        with tqdm(total=total, unit="state", disable=not progress, file=sys.stderr, dynamic_ncols=True) as bar:
            for (direction, scale), steering in {(BASELINE, 0.0): None, **steerings}.items():
                bar.set_description(f"{direction} {scale:+g}" if steering else direction)
                frame = _measure(work, steering, probe, probe_layer, bar)
                if steering is None:
                    drift = _drift(frame, states, extractor, run)
                frames.append(frame.assign(direction=direction, scale=scale))
        capture = extractor.manifest()
    finally:
        extractor.share_prefix = share_prefix
    outcomes = pd.concat(frames, ignore_index=True)
    settings: dict[str, Any] = {"resamples": config.resamples, "level": config.level, "seed": config.seed}
    summary = {
        "run": os.path.basename(str(run.path).rstrip("/")),
        "model": capture["model"],
        "site": vector.site,
        "layer": vector.layer,
        "mode": config.mode,
        "positions": config.positions if isinstance(config.positions, str) else list(config.positions),
        "target": vector.target,
        "method": vector.method,
        "vector_norm": vector.norm,
        "median_state_norm": vector.provenance.get("median_state_norm"),
        "held_out_states": len(states),
        "held_out_items": len(set(item_names(states))),
        "controls": config.controls,
        "generated": bool(wants_text),
        "probe_layer": probe_layer,
        "probe_train_auroc": probe.train_auroc,
        "probe_validation_auroc": probe.validation_auroc,
        "probe_note": probe.note,
        "baseline_entropy_drift_bits": drift,
        **settings,
        "provenance": dict(vector.provenance),
        "capture": capture,
    }
    return SteerReport(dose_response(outcomes, **settings), slopes(outcomes, **settings), outcomes, vector, summary)


def _learn(config: SteerConfig, run: store.Run, chosen: store.Run) -> tuple[SteeringVector, LinearProbe, store.Run]:
    """The vector, the probe that scores steered states, and the states that neither has seen."""
    items = item_names(chosen.states)
    split = _split(run.states, config.target, config.seed)
    seen = {item for item, part in split.part.items() if part != 2}
    if config.vector is None:
        assert config.layer is not None
        vector = steering_vector(
            chosen,
            config.layer,
            config.target,
            method=config.method,
            site=config.site,
            positive=config.positive,
            negative=config.negative,
            split=split,
            seed=config.seed,
        )
    else:
        vector = SteeringVector.load(config.vector)
        if config.layer is not None:
            captured = chosen.sites.get(vector.site, ())
            asked = captured[config.layer] if -len(captured) <= config.layer < 0 else config.layer
            if asked != vector.layer:
                raise RequestError(
                    f"the saved vector is for layer {vector.layer}, but layer {config.layer} was asked for"
                )
        _same_model(vector.provenance, run.manifest["capture"], "the saved vector was made with")
        seen |= set(vector.train_items) | set(vector.validation_items)
    data = TrainingStates.read(
        chosen,
        _probe_layer(config, chosen),
        config.target,
        "resid_post",
        config.positive,
        config.negative,
        None,
        None,
        split=split,
        seed=config.seed,
    )
    keep = [item for item in dict.fromkeys(items) if item not in seen]
    if config.n is not None:
        keep = _sample(keep, config.n, config.seed)
    wanted = set(keep)
    rows = [i for i, item in enumerate(items) if item in wanted]
    if not rows:
        raise RequestError("no item is held out from the vector; use a run with more items than the vector has seen")
    return vector, data.probe(), chosen.take(np.array(rows))


def _split(states: pd.DataFrame, target: str, seed: int) -> splits.Split:
    """Items (benchmark, item_id) by part: each benchmark split over all its regimes, as reports of the run split it."""
    if target not in states.columns:
        raise RequestError(f"the run has no column {target!r}; it has {', '.join(map(str, states.columns))}")
    part: dict[Any, int] = {}
    for name, own in states.groupby("benchmark", sort=False):
        found = splits.split_items([str(i) for i in own["item_id"]], balancing_labels(own[target]), seed=seed)
        part |= {(str(name), item): number for item, number in found.part.items()}
    return splits.Split(part, seed, True)


def _sample(items: list[tuple[str, str]], n: int, seed: int) -> list[tuple[str, str]]:
    """At most n items of each benchmark."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for item in items:
        groups.setdefault(item[0], []).append(item)
    rng = np.random.default_rng(seed)
    return [group[i] for group in groups.values() for i in sorted(rng.permutation(len(group))[:n])]


def _probe_layer(config: SteerConfig, run: store.Run) -> int:
    """The layer whose resid_post the probe reads."""
    layers = run.sites.get("resid_post")
    if not layers:
        raise RequestError("the run holds no resid_post, which the probe reads; make it with --sites resid_post")
    asked = -1 if config.probe_layer is None else config.probe_layer
    if asked not in layers and not -len(layers) <= asked < 0:
        raise RequestError(f"resid_post of layer {asked} is not in the run; it has {', '.join(map(str, layers))}")
    return layers[asked] if asked < 0 else asked


def _doses(config: SteerConfig, vector: SteeringVector) -> dict[tuple[str, float], Steering]:
    """Each direction at each scale but 0."""
    directions = {VECTOR: vector}
    directions |= {f"random {k}": vector.random(config.seed + k) for k in range(config.controls)}
    return {
        (name, scale): direction.steering(scale, config.positions, config.mode)
        for name, direction in directions.items()
        for scale in config.scales
        if scale != 0
    }


def _model_request(config: SteerConfig, run: store.Run) -> ModelRequest:
    """The run's own model, unless the config names another."""
    capture = run.manifest["capture"]
    revision = config.revision
    if revision is None and config.model is None and _is_commit(capture["model_revision"]):
        revision = capture["model_revision"]  # the commit that the run was made of, wherever its branch stands now
    return ModelRequest(
        config.model or capture["model"],
        dtype=config.dtype or capture["dtype"],
        device=config.device,
        revision=revision,
        batch_tokens=config.batch_tokens or run.config.get("batch_tokens"),
    )


def _is_checksum(revision: str | None) -> bool:
    """Whether a revision is the checksum of local files rather than of the Hub."""
    return revision is not None and revision.startswith("sha256:")


def _is_commit(revision: str | None) -> bool:
    """Whether a revision is a commit of the Hub rather than a branch, which may have moved since."""
    return revision is not None and re.fullmatch("[0-9a-f]{40}", revision) is not None


def _are_alike(a: str, b: str) -> bool:
    """Whether two different revisions can be told apart: both are checksums, or both are commits."""
    return (_is_checksum(a) and _is_checksum(b)) or (_is_commit(a) and _is_commit(b))


def _same_model(mine: Mapping[str, Any], stored: Mapping[str, Any], whose: str) -> None:
    """Refuse a model other than the run's, by what both say of it."""
    for name in ("model_type", "n_layers", "d_model", "tokenizer_hash", "model_revision"):
        a, b = mine.get(name), stored.get(name)
        if a is None or b is None or a == b or (name == "model_revision" and not _are_alike(a, b)):
            continue
        raise RequestError(
            f"the run was made with a model whose {name} is {b}, but {whose} one whose {name} is {a}; "
            "give what belongs to the run's own model"
        )


def _drift(baseline: pd.DataFrame, states: pd.DataFrame, extractor: Extractor, run: store.Run) -> float:
    """Largest difference of the unsteered entropies from those of the run, in bits.

    Raises
    ------
    RequestError
        If the dtypes do not explain it: then these are not the run's own weights, whatever they call themselves.
    """
    apart = np.abs(baseline["entropy_bits"].to_numpy() - states["entropy_bits"].to_numpy(float))
    allowed = max(limits(d).entropy_bits for d in (extractor.manifest()["dtype"], run.manifest["capture"]["dtype"]))
    typical, most = float(np.median(apart)), float(apart.max())
    if not (typical <= allowed and most <= 4 * allowed):
        raise RequestError(
            f"the unsteered entropies differ from the run's by {typical:.3g} bits in the median and {most:.3g} at most, more "
            f"than the dtypes explain ({allowed:g}); the weights are not those that the run was made with: give its own model"
        )
    return most


@dataclass(frozen=True)
class _Work:
    """The held-out prompts, ready for the model."""

    extractor: Extractor
    states: pd.DataFrame
    items: list[tuple[str, str]]
    rendered: list[Rendered]
    options: list[tuple[str, ...] | None]
    caps: list[int]

    @classmethod
    def of(cls, held_out: store.Run, extractor: Extractor, config: SteerConfig, generate: bool) -> _Work:
        states = held_out.states
        rendered, options, caps = [], [], []
        for i, row in enumerate(states.to_dict("records")):
            ids = tuple(int(t) for t in held_out.ragged("token_ids", i))
            rendered.append(Rendered(ids, row["prompt"], row["bos_count"], row["template"], row["template_hash"]))
            options.append(None if pd.isna(row["choices"]) else tuple(json.loads(row["choices"])))
            own = row["max_new_tokens"]
            caps.append(0 if not generate else config.max_new_tokens or int(own))
        limit = extractor.context_length
        for r, cap, name in zip(rendered, caps, states["id"], strict=True):
            if limit is not None and len(r.token_ids) + cap > limit:
                raise RequestError(
                    f"the prompt of {name} has {len(r.token_ids)} tokens, which with {cap} output tokens is more than "
                    f"the model's context of {limit}; lower max_new_tokens"
                )
        return cls(extractor, states, item_names(states), rendered, options, caps)


def _measure(work: _Work, steering: Steering | None, probe: LinearProbe, probe_layer: int, bar: Any) -> pd.DataFrame:
    """Outcomes of all held-out states under one steering (or none)."""
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
    work: _Work, rows: list[int], cap: int, probe: LinearProbe, probe_layer: int, bar: Any
) -> pd.DataFrame:
    options = [work.options[i] for i in rows]
    extractor = work.extractor
    stream = extractor.stream(
        [work.rendered[i] for i in rows],
        ("resid_post",),
        [probe_layer],
        options=options if any(options) else None,
        top_k=1,
        keep_cache=cap > 0,
    )
    pieces: list[CapturedBatch] = []
    outputs: list[Output | None] = [None] * len(rows)
    for captured in stream:
        if cap:
            made = continue_greedily(extractor.model, extractor.tokenizer, captured, cap)
            for row, written in zip(captured.batch.rows, made, strict=True):
                outputs[row] = written
        pieces.append(CapturedBatch(captured.states, captured.batch, captured.next_token, None))
        bar.update(len(captured.batch.rows))
    got = join(pieces, len(rows))
    logits = probe(got.resid_post[:, 0].double().numpy())
    found = []
    for k, i in enumerate(rows):
        row = work.states.iloc[i]
        own = options[k]
        values: dict[str, Any] = {
            "id": row["id"],
            "benchmark": row["benchmark"],
            "regime": row["regime"],
            "item": "/".join(work.items[i]),
            "entropy_bits": float(got.entropy_bits[k]),
            "probe_logit": float(logits[k]),
        }
        if own is not None and got.option_logprobs is not None and got.option_margin is not None:
            values["option_margin"] = float(got.option_margin[k])
            values["gold_margin"] = _gold_margin(got.option_logprobs[k], own, str(row["gold"]))
        output = outputs[k]
        if output is not None:
            choices = None if own is None else json.loads(row["choices"])
            grade = grading.grade(row["benchmark"], output.text, row["gold"], choices)
            values |= {
                "accuracy": float(grade.correct),
                "compliance": float(grade.compliant),
                "output_tokens": float(len(output.token_ids)),
                "text": output.text,
                "answer": grade.answer,
            }
        found.append(values)
    return pd.DataFrame(found, index=rows)


def _gold_margin(logprobs: np.ndarray, labels: tuple[str, ...], gold: str) -> float:
    """Log-probability of the gold option minus that of the best other one (nats)."""
    if gold not in labels:
        return math.nan
    own = logprobs[: len(labels)]
    place = labels.index(gold)
    return float(own[place] - np.delete(own, place).max())
