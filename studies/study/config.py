"""The settings of a study: what is asked, checked before anything is loaded, and what it resolves to.

Guarantees that every setting that decides a number is part of the run's configuration, and so of its hash: a run is never
continued under other settings. Settings that only say where or how fast (the path, the progress bar) are not. The files that
settings name are read once, by `resolve`, and all of a run is made from what it returns: a file that is edited while a run is
under way changes neither its prompts nor its caps, and never makes the run record other ones than it used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ... import checks, declared
from ...errors import RequestError
from ...hooks.prompts.chat_settings import BOS_RULES
from .. import benchmarks, prompt_settings, prompts
from . import after, answer_boundary, thinking

TEMPLATES = ("auto", "chat", "raw")
ATTENTION = ("none", "summary", "rows")
STORE_DTYPES = ("auto", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class StudyConfig:
    """What `run_study` does.

    Above the usual length because it has one field per setting: flags, files and the hash of a run name them one by one.

    Attributes
    ----------
    out : path
        The run to create or to continue.
    model : str
        See `Extractor.from_pretrained`.
    benchmarks : tuple of str
        Names of `benchmarks.FORMATS`, or names of the user's own with a file in `items`.
    items : mapping of str to path
        JSON Lines files by benchmark.
    n : int, optional
        Items per benchmark, a seeded sample; None takes all.
    seed : int
        Seed of the samples (and of generated items).
    regimes : tuple of str
    regimes_file : path, optional
        YAML file with the user's own regimes.
    template : {"auto", "chat", "raw"}
        Whether the text becomes a user turn of the model's chat template. "auto": where the tokenizer has one.
    template_args : mapping
        What the chat template is told besides, such as `enable_thinking`; JSON values. Names that it does not read are refused.
    date : str, optional
        The day (2026-12-01) that a chat template which asks for it is told; None takes the run's first day.
    bos : {"auto", "template", "tokenizer"}
        Who begins the text of a chat: see `hooks.prompts.chat_settings.ChatSettings`.
    stop : sequence of str or mapping of str to sequence of str, optional
        Texts before which an output ends, for all regimes or by regime. None takes the regime's own, or, without a chat template, the
        headings that the regime puts before a question and its options; () for none.
    allow_same_prompts : bool
        Go on where different items have one and the same prompt.
    sites : tuple of str
        Layer sites to store; () for none.
    layers : str
        As in `Extractor.capture`, in text form: "all", "0,5,10-12", "-1", "0.5".
    attention : {"none", "summary", "rows"}
    top_k : int
        Most likely first tokens to keep.
    generate : bool
        Whether to let the model answer, and grade it.
    max_new_tokens : int or mapping of str to int, optional
        Cap on output tokens, for all regimes or by regime; None takes each regime's own (50 for baseline, 512 for the others).
    after : tuple of str
        Places after the boundary at which resid_post is kept too: numbers of output tokens, and at most one anchor text, such as
        `####`, looked for in the output.
    boundaries : tuple of str
        ("thinking",), the boundary before the first token, or ("thinking", "answer"): also where the model has thought and not yet
        answered.
    thinking_tags : tuple of str
        Opening and end of the model's thinking; () takes those that its tokenizer or template knows (see `study.thinking`).
    hypotheses : path, optional
        YAML file of hypotheses (see `declared.load`), recorded in the run before it starts.
    moments : bool
        Keep streaming mean and covariance of resid_post per cell and layer.
    store_dtype : {"auto", "float32", "float16", "bfloat16"}
        How site rows are stored; "auto" keeps the model's dtype.
    backend, dtype, device, revision, batch_tokens, share_prefix, compile, context_length
        As in `Extractor.from_pretrained`.
    shard_size : int, optional
        States per shard; None chooses it from the model's size (at most 32 when generating).

    Examples
    --------
    >>> import precollapse as pc
    >>> pc.StudyConfig("run.zarr", n=200, regimes=("baseline", "cot")).regimes
    ('baseline', 'cot')
    """

    out: str | Path
    model: str = "smollm2-135m-instruct"
    benchmarks: Sequence[str] = ("builtin", "builtin_choice")
    items: Mapping[str, str | Path] = field(default_factory=dict)
    n: int | None = None
    seed: int = 0
    regimes: Sequence[str] = ("baseline", "cot", "babble")
    regimes_file: str | Path | None = None
    template: str = "auto"
    template_args: Mapping[str, Any] = field(default_factory=dict)
    date: str | None = None
    bos: str = "auto"
    stop: Sequence[str] | Mapping[str, Sequence[str]] | None = None
    allow_same_prompts: bool = False
    sites: Sequence[str] = ("resid_post",)
    layers: str = "all"
    attention: str = "none"
    top_k: int = 10
    generate: bool = True
    max_new_tokens: int | Mapping[str, int] | None = None
    after: Sequence[str] = ()
    boundaries: Sequence[str] = ("thinking",)
    thinking_tags: Sequence[str] = ()
    hypotheses: str | Path | None = None
    moments: bool = False
    store_dtype: str = "auto"
    backend: str = "hf"
    dtype: str = "auto"
    device: str | None = None
    revision: str | None = None
    batch_tokens: int | None = None
    share_prefix: str = "auto"
    compile: bool = False
    context_length: int | None = None
    shard_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("benchmarks", "regimes", "sites", "after", "boundaries"):
            value = getattr(self, name)
            object.__setattr__(self, name, checks.unique(name, (value,) if isinstance(value, str) else value))
        if not self.benchmarks or not self.regimes:
            raise RequestError("a study needs at least one benchmark and one regime; give --benchmark and --regimes")
        for name in self.benchmarks:
            if name not in self.items:
                checks.choice("benchmark", name, benchmarks.FORMATS, f"or give your own rows with --items {name}=FILE")
        for name in self.items:
            if name not in self.benchmarks:
                raise RequestError(
                    f"items were given for {name!r}, which is not among the benchmarks {', '.join(self.benchmarks)}; add it there or leave its file out"
                )
        for name, allowed in (
            ("template", TEMPLATES),
            ("bos", BOS_RULES),
            ("attention", ATTENTION),
            ("store_dtype", STORE_DTYPES),
        ):
            checks.choice(name, getattr(self, name), allowed)
        if self.template == "raw" and self.template_args:
            raise RequestError(
                f"template_args has {checks.shown(next(iter(self.template_args)))}, but the template is raw; leave one of them out"
            )
        for name in ("n", "batch_tokens", "context_length", "shard_size"):
            object.__setattr__(self, name, checks.optional_whole(name, getattr(self, name), least=1))
        object.__setattr__(self, "date", prompt_settings.day_text(self.date))
        object.__setattr__(self, "template_args", prompt_settings.json_values(self.template_args))
        object.__setattr__(self, "stop", prompt_settings.stop_texts(self.stop, self.regimes))
        object.__setattr__(self, "top_k", checks.whole("top_k", self.top_k, least=0))
        object.__setattr__(self, "seed", checks.whole("seed", self.seed))
        object.__setattr__(self, "after", after.check_places(self.after))
        object.__setattr__(self, "boundaries", answer_boundary.check_boundaries(self.boundaries))
        object.__setattr__(self, "thinking_tags", thinking.check_tags(self.thinking_tags))
        if self.after and (not self.generate or after.SITE not in self.sites):
            raise RequestError(
                f"states after {', '.join(self.after)} need outputs and the site {after.SITE}; leave --no-generate out and add the site"
            )
        if self.has_answer_boundary and (not self.generate or after.SITE not in self.sites):
            raise RequestError(
                f"the boundary before the answer needs outputs and the site {after.SITE}; leave --no-generate out and add the site"
            )
        resolve(self)

    @property
    def has_answer_boundary(self) -> bool:
        """Whether states are kept where thinking has ended, too."""
        return answer_boundary.ANSWER in self.boundaries

    def declared_hypotheses(self) -> declared.Declaration | None:
        """The declared hypotheses, checked against the study's benchmarks and regimes; None without a file."""
        if self.hypotheses is None:
            return None
        declaration = declared.load(self.hypotheses)
        if not declaration.on_studies:
            raise RequestError(
                f"The hypothesis file {self.hypotheses} declares none on a study (with `test`, `benchmark` and `regime`); give it to `precollapse trajectories`, or add one."
            )
        for h in declaration.on_studies:
            if h.benchmark not in self.benchmarks or not {h.regime, h.against} <= {*self.regimes, declared.BASELINE}:
                raise RequestError(
                    f"hypothesis {h.id} is about {h.benchmark}, {h.regime} against {h.against}, which this study does not run; it runs {', '.join(self.benchmarks)} under {', '.join(self.regimes)}"
                )
        return declaration


@dataclass(frozen=True)
class ResolvedStudy:
    """A config and the content of the files that it names.

    Attributes
    ----------
    config : StudyConfig
    regimes : dict of str to Regime
        The study's regimes, in its order.
    caps : dict of str to int
        Cap on output tokens by regime; empty when nothing is generated.
    declaration : Declaration or None
        The declared hypotheses.
    """

    config: StudyConfig
    regimes: Mapping[str, prompts.Regime]
    caps: Mapping[str, int]
    declaration: declared.Declaration | None


def resolve(config: StudyConfig) -> ResolvedStudy:
    """Read the files that a config names, and check it against them.

    Raises
    ------
    RequestError
        A file is missing or malformed, or the config names something that it does not define or that does not fit.
    """
    table = prompts.REGIMES if config.regimes_file is None else prompts.load_regimes(config.regimes_file)
    regimes = {name: prompts.get(name, table) for name in config.regimes}
    caps = {name: _cap(config, regime) for name, regime in regimes.items()}
    for name, cap in caps.items():
        if not 1 <= cap < 2**63:
            raise RequestError(
                f"max_new_tokens of regime {name!r} must be at least 1 (in 64 bits), found {cap}; to capture only, use --no-generate"
            )
    longest = max(caps.values())
    beyond = [place for place in config.after if after.is_count(place) and int(place) > longest]
    if beyond:
        raise RequestError(
            f"no output reaches {beyond[0]} tokens when at most {longest} may be written; name an earlier place in after, or raise max_new_tokens"
        )
    if isinstance(config.max_new_tokens, Mapping):
        for name in config.max_new_tokens:
            if name not in config.regimes:
                raise RequestError(
                    f"max_new_tokens names regime {name!r}, which is not among {', '.join(config.regimes)}"
                )
    return ResolvedStudy(config, regimes, caps if config.generate else {}, config.declared_hypotheses())


def _cap(config: StudyConfig, regime: prompts.Regime) -> int:
    if isinstance(config.max_new_tokens, Mapping):
        return int(config.max_new_tokens.get(regime.name, regime.max_new_tokens))
    return regime.max_new_tokens if config.max_new_tokens is None else int(config.max_new_tokens)


_NOT_NUMBERS = (
    "out",
    "items",
    "regimes_file",
    "device",
    "max_new_tokens",
    "shard_size",
    "model",
    "hypotheses",
    "allow_same_prompts",
    "context_length",
)


def settings(config: StudyConfig) -> dict[str, Any]:
    """The settings that decide numbers, as JSON values, before what the items, templates and the model add."""
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name not in _NOT_NUMBERS}
    return prompt_settings.given(
        {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    )


def defaults() -> dict[str, Any]:
    """What each setting counts as when it is not given: a setting added later does not change an older run's hash."""
    values: dict[str, Any] = {}
    for f in dataclasses.fields(StudyConfig):
        if f.name in _NOT_NUMBERS:
            continue
        if f.default is not dataclasses.MISSING:
            values[f.name] = list(f.default) if isinstance(f.default, tuple) else f.default
        elif f.default_factory is not dataclasses.MISSING:
            values[f.name] = f.default_factory()
    values[declared.RECORDED] = None
    values |= dict.fromkeys(prompt_settings.LATE)
    return values
