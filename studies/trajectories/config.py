"""The settings of a trajectory study, checked before anything is loaded.

Guarantees that every setting that decides a number enters the run's configuration and so its hash, the file of hypotheses
included: a run cannot be continued under another protocol, nor a declaration be edited after generation started. The
file is read once for a run, so that what a run records is what was checked.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ... import checks, declared
from ...analysis.trajectories.shapes import TIE_RULES
from ...errors import RequestError
from ...hooks.prompts.chat_settings import BOS_RULES
from .. import benchmarks, prompt_settings
from .answers import ANCHOR, TAG_SIDES
from .chains import SYSTEM_PROMPT, check_sampling
from .segmentation import DEFAULT_CAP, check_cap, check_rule

MEASURES = ("sampled", "forced")
GRADED = ("whole", "continuation")


@dataclass(frozen=True)
class TrajectoryConfig:
    """What `run_trajectories` does.

    Above the usual length because it has one field per setting: flags, files and the hash of a run name them one by one.

    Attributes
    ----------
    out : path
        The run to create or to continue.
    model : str
        See `Extractor.from_pretrained`.
    benchmarks : tuple of str
    items : mapping of str to path
        JSON Lines files by benchmark.
    chains : mapping of str to path
        Chains to use instead of generating them, by benchmark: JSON Lines with `id` (of the item) and `chain`, or the
        archive of cot-proxy-tasks-7, which brings its own questions.
    n, seed : int
        Items per benchmark and the seed of everything random.
    measures : tuple of {"sampled", "forced"}
    system : str
        System prompt; "" for none.
    template_args, date, bos, allow_same_prompts
        As in `StudyConfig`.
    chain_temperature, chain_tokens
        Of the reference chain; temperature 0 is greedy.
    rule, cap
        Segmentation of the sampled trajectory; cap None for no cap.
    m, temperature, continuation_tokens
        Continuations per prefix, their temperature and token budget.
    graded : {"whole", "continuation"}
        Whether an answer is read from prefix and continuation together, or from the continuation alone.
    forced_rule, forced_cap
        Segmentation of the forced trajectory.
    compare_rules : tuple of str
        Further rules whose boundaries are branches of the same forced pass, to measure how much segmentation matters.
    anchors : tuple of str
        The first is the one reported; the others measure how much the wording matters.
    options : tuple of str, optional
        Options of the forced answers; None takes each item's own labels, or for free response the answers the model gave.
    end_tag, tag_side
        End-of-thinking tag, and whether it goes before or after the anchor.
    residual : bool
        Keep the residual stream at every forced boundary.
    epsilon : float
        Of the monotone flag, in nats.
    tie : str
        How a tie for the majority answer is resolved (`analysis.trajectories.TIE_RULES`).
    hypotheses : path, optional
        YAML file of hypotheses (see `declared.load`), recorded in the run before it starts.
    preregistration : path, optional
        An earlier name of `hypotheses`; a warning says so.
    dtype, device, revision, context_length
        As in `Extractor.from_pretrained`.
    shard_size : int
        Items per shard.
    """

    out: str | Path
    model: str = "smollm2-135m-instruct"
    benchmarks: Sequence[str] = ("builtin",)
    items: Mapping[str, str | Path] = field(default_factory=dict)
    chains: Mapping[str, str | Path] = field(default_factory=dict)
    n: int | None = None
    seed: int = 0
    measures: Sequence[str] = ("sampled",)
    system: str = SYSTEM_PROMPT
    template_args: Mapping[str, Any] = field(default_factory=dict)
    date: str | None = None
    bos: str = "auto"
    allow_same_prompts: bool = False
    chain_temperature: float = 0.7
    chain_tokens: int = 600
    rule: str = "blank-line"
    cap: int | None = DEFAULT_CAP
    m: int = 5
    temperature: float = 0.7
    continuation_tokens: int = 150
    graded: str = "whole"
    forced_rule: str = "sentence"
    forced_cap: int | None = None
    compare_rules: Sequence[str] = ()
    anchors: Sequence[str] = (ANCHOR,)
    options: Sequence[str] | None = None
    end_tag: str | None = None
    tag_side: str = "before"
    residual: bool = False
    epsilon: float = 0.01
    tie: str = "first"
    hypotheses: str | Path | None = None
    dtype: str = "auto"
    device: str | None = None
    revision: str | None = None
    context_length: int | None = None
    shard_size: int = 4
    preregistration: str | Path | None = None

    def __post_init__(self) -> None:
        for name in ("benchmarks", "measures", "anchors", "options"):
            value = getattr(self, name)
            if value is None:
                continue
            value = (value,) if isinstance(value, str) else tuple(value)
            if not value or len(set(value)) != len(value):
                raise RequestError(
                    f"{name} must name at least one thing, and each once, found {', '.join(value) or 'none'}"
                )
            object.__setattr__(self, name, value)
        object.__setattr__(self, "compare_rules", tuple(self.compare_rules))
        for name in self.benchmarks:
            if name not in self.items and name not in self.chains:
                checks.choice("benchmark", name, benchmarks.FORMATS, f"or give your own rows with --items {name}=FILE")
        for name in (*self.items, *self.chains):
            if name not in self.benchmarks:
                raise RequestError(
                    f"a file was given for {name!r}, which is not among the benchmarks {', '.join(self.benchmarks)}"
                )
        for value, allowed, what in (
            *((m, MEASURES, "measure") for m in self.measures),
            (self.graded, GRADED, "text to grade"),
            (self.tag_side, TAG_SIDES, "side of the end-of-thinking tag"),
            (self.tie, TIE_RULES, "tie rule"),
            (self.bos, BOS_RULES, "rule for the beginning of a chat"),
        ):
            checks.choice(f"the {what}", value, allowed)
        object.__setattr__(self, "date", prompt_settings.day_text(self.date))
        object.__setattr__(self, "template_args", prompt_settings.json_values(self.template_args))
        check_rule(self.rule)
        for rule in (self.forced_rule, *self.compare_rules):
            check_rule(rule)
        check_cap(self.cap)
        check_cap(self.forced_cap)
        check_sampling(self.chain_temperature, self.chain_tokens)
        check_sampling(self.temperature, self.continuation_tokens, self.m)
        if not self.epsilon >= 0:
            raise RequestError(f"epsilon must be zero or more nats, found {self.epsilon}")
        for name in ("n", "context_length"):
            object.__setattr__(self, name, checks.optional_whole(name, getattr(self, name), least=1))
        for name in ("seed", "chain_tokens", "continuation_tokens", "m"):
            object.__setattr__(self, name, checks.whole(name, getattr(self, name)))
        object.__setattr__(self, "shard_size", checks.whole("shard_size", self.shard_size, least=1))
        if self.options is not None and len(self.options) < 2:
            raise RequestError(f"at least two options are needed, found {', '.join(self.options)}")
        if self.preregistration is not None:
            if self.hypotheses is not None:
                raise RequestError(
                    "Both hypotheses and preregistration were given, which mean the same; give hypotheses alone."
                )
            warnings.warn("preregistration is called hypotheses now (--hypotheses FILE.yaml).", stacklevel=3)
            object.__setattr__(self, "hypotheses", self.preregistration)
            object.__setattr__(self, "preregistration", None)
        self.declared_hypotheses()

    def declared_hypotheses(self) -> declared.Declaration | None:
        """The declared hypotheses, of which some must be on trajectories; None without a file."""
        if self.hypotheses is None:
            return None
        declaration = declared.load(self.hypotheses)
        if not declaration.on_trajectories:
            raise RequestError(
                f"The hypothesis file {self.hypotheses} declares none on trajectories (with `estimate` and `criterion`); give it to `precollapse run`, or add one."
            )
        return declaration


_NOT_NUMBERS = (
    "out",
    "items",
    "chains",
    "device",
    "model",
    "hypotheses",
    "preregistration",
    "shard_size",
    "epsilon",
    "tie",
    "allow_same_prompts",
    "context_length",
)
"""Settings that no stored number depends on, or that enter through what they stand for."""


def settings(config: TrajectoryConfig) -> dict[str, Any]:
    """The settings that decide stored numbers, as JSON values; what the model, items and chains add is not here."""
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name not in _NOT_NUMBERS}
    return prompt_settings.given(
        {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    )


def defaults() -> dict[str, Any]:
    """At what value each setting counts as not given."""
    values: dict[str, Any] = {}
    for f in dataclasses.fields(TrajectoryConfig):
        if f.name not in _NOT_NUMBERS and f.default is not dataclasses.MISSING:
            values[f.name] = list(f.default) if isinstance(f.default, tuple) else f.default
    return values | {"template_args": {}} | dict.fromkeys(prompt_settings.LATE)
