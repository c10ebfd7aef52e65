"""Hypotheses as they are declared, before there is anything to test them on: one file for studies and for trajectories.

Guarantees that a file is read strictly (what would not be acted on is refused, not ignored), that its SHA-256 and its text are
what a run records before it starts, and that declaring loads none of the analysis. Testing is `analysis.hypotheses`.

A file looks like this; only `hypotheses` is needed::

    title: What the state before the first token says
    alpha: 0.05
    protocol: {m: 5, epsilon: 0.01}     # settings of the trajectories that the report compares with the run's
    outcome: majority                   # of the trajectories: the majority answer at the last prefix, or the chain's own
    hypotheses:
      - id: H1                          # on a study: a test of a benchmark under a regime
        statement: Asking for steps lowers the entropy before the first token
        test: entropy_change
        benchmark: gsm8k
        regime: cot
        alternative: less
        family: main
      - id: H2                          # on trajectories: an estimate that must meet a criterion
        statement: Monotone chains are right more often
        estimate: gap_points
        criterion: "> 0"
        p: fisher_greater               # of the same family as H1: both are adjusted together (Holm)
        family: main

Files written for `trajectories --preregistration` (`name`, `text`, `seeds`, and `family` as one list) are read, with a note that
says what they would be now.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from . import checks, schema, strict_yaml
from .errors import RequestError

RECORDED = schema.HYPOTHESES_SHA256
"""Where a run's manifest holds the file's SHA-256, and a study's settings too."""
TEXT = schema.HYPOTHESES
"""Where a run's manifest holds the file's text."""
TRAJECTORY_SETTING = "preregistration"
"""Where the settings of a trajectory run hold the file's SHA-256; earlier ones hold `{sha256, text}` there in their manifest too."""
RECORDED_FILE = "recorded by the run"
"""Name of a file of which only what a run recorded is there."""

BASELINE = "baseline"
Alternative = Literal["two-sided", "greater", "less"]
ALTERNATIVES = ("two-sided", "greater", "less")

TESTS = (
    "accuracy_change",
    "entropy_change",
    "entropy_predicts",
    "probe_above_chance",
    "probe_change",
    "known_not_said",
)
"""Tests that a hypothesis on a study may name."""

SCORES = ("monotone", "violations", "final", "coherence", "confidence")
"""What chains are ranked by."""
CORRELATED: Mapping[str, tuple[int, ...]] = {
    "violations": (0, 1),
    "coherence": (0, 1),
    "final": (0, 1),
    "max_violation": (0,),
}
"""Measures that are correlated with the outcome, and with how many variables (the length) held fixed."""
LOGISTIC_TERMS = ("monotone", "length", "final")
_SPEARMAN = tuple(f"spearman_{m}{'_given_length' * c}" for m, controls in CORRELATED.items() for c in controls)
PVALUES = ("fisher_greater", "fisher_two_sided", *_SPEARMAN, *(f"logistic_{term}" for term in LOGISTIC_TERMS))
"""p values that a hypothesis on trajectories may name."""
ESTIMATES = (
    *("gap_points", "gap_points_lower", "odds_ratio", "coverage", "accuracy_monotone", "accuracy_other", "accuracy"),
    *_SPEARMAN,
    *(f"auroc_{score}" for score in SCORES),
    *(f"{area}_{score}" for area in ("aurc", "aurc_truncated") for score in (*SCORES, "oracle", "random")),
)
"""Estimates that a hypothesis on trajectories may name."""

OUTCOMES = {"majority": "correct_last", "own": "correct_own"}
"""Column of the declared outcome of trajectories: the majority answer at the last prefix, or the chain's own answer."""
EXCLUSIONS = ("fewer than two points",)
"""Rules of exclusion that are applied to chains."""
_CRITERION = re.compile(r"\s*(<=|>=|<|>)\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*")


@dataclass(frozen=True)
class StudyHypothesis:
    """One declared hypothesis on the cells of a study.

    Attributes
    ----------
    id : str
    test : str
        One of `TESTS`.
    benchmark, regime, against : str
    alternative : {"two-sided", "greater", "less"}
        Direction of regime minus against (or of the value minus its null).
    statement : str
    model : str
        Empty: the only, or every, model.
    family : str
        Hypotheses of one family are adjusted together.
    """

    id: str
    test: str
    benchmark: str
    regime: str
    against: str = BASELINE
    alternative: Alternative = "two-sided"
    statement: str = ""
    model: str = ""
    family: str = "declared"


@dataclass(frozen=True)
class TrajectoryHypothesis:
    """One declared hypothesis on trajectories: the estimate must meet the criterion; with `p`, that p value must survive Holm.

    Attributes
    ----------
    id : str
    estimate : str
        One of `ESTIMATES`.
    criterion : str
        Such as "> 0".
    p : str, optional
        One of `PVALUES`.
    statement : str
    family : str
        Hypotheses of one family are adjusted together; empty for one that is not adjusted.
    """

    id: str
    estimate: str
    criterion: str
    p: str | None = None
    statement: str = ""
    family: str = "declared"

    def met(self, value: float) -> bool | None:
        """Whether a value meets the criterion; None when it is undefined."""
        if not math.isfinite(value):
            return None
        match = _CRITERION.fullmatch(self.criterion)
        assert match is not None
        bound = float(match[2])
        return {"<": value < bound, "<=": value <= bound, ">": value > bound, ">=": value >= bound}[match[1]]


@dataclass(frozen=True)
class Declaration:
    """A file of hypotheses.

    Attributes
    ----------
    hypotheses : tuple of StudyHypothesis or TrajectoryHypothesis
        As the file lists them.
    alpha : float
        Level of the tests, after adjustment.
    sha256, name, text : str
        Of the file.
    title : str
    protocol : mapping of str to value
        Declared settings of trajectories.
    exclusions : tuple of str
        Of `EXCLUSIONS`.
    outcome : str
        Of `OUTCOMES`.
    updates : tuple of str
        What a file of an earlier format would be now; empty for one of this format.
    """

    hypotheses: tuple[StudyHypothesis | TrajectoryHypothesis, ...]
    alpha: float
    sha256: str
    name: str = ""
    text: str = field(default="", repr=False)
    title: str = ""
    protocol: Mapping[str, Any] = field(default_factory=dict)
    exclusions: tuple[str, ...] = EXCLUSIONS
    outcome: str = "majority"
    updates: tuple[str, ...] = ()

    @property
    def on_studies(self) -> tuple[StudyHypothesis, ...]:
        """The hypotheses on studies."""
        return tuple(h for h in self.hypotheses if isinstance(h, StudyHypothesis))

    @property
    def on_trajectories(self) -> tuple[TrajectoryHypothesis, ...]:
        """The hypotheses on trajectories."""
        return tuple(h for h in self.hypotheses if isinstance(h, TrajectoryHypothesis))


def load(path: str | os.PathLike[str]) -> Declaration:
    """Read a file of hypotheses (YAML); a file of an earlier format is read with a warning that says what it would be now.

    Raises
    ------
    RequestError
        The file is missing, is not YAML, or declares something that would not be acted on; the message names the
        hypothesis and the field.
    """
    file = Path(path)
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise RequestError(f"The hypothesis file {file} cannot be read: {error.strerror or error}.") from None
    declaration = parse(raw, file)
    if declaration.updates:
        warnings.warn(
            f"The hypothesis file {file} has an earlier format, which is still read: {'; '.join(declaration.updates)}.",
            stacklevel=1,  # here, whoever asks: one note for a file that is read several times
        )
    return declaration


def manifest_entries(declaration: Declaration | None) -> dict[str, str]:
    """What a run's manifest keeps of its file; nothing without one."""
    return {} if declaration is None else {RECORDED: declaration.sha256, TEXT: declaration.text}


def of_manifest(manifest: Mapping[str, Any]) -> Declaration | None:
    """The file that a run recorded when it was started; None without one. Raises as `load` does."""
    text = _recorded_text(manifest)
    return None if text is None else parse(text.encode("utf-8", "surrogatepass"), Path(RECORDED_FILE))


def recorded(manifests: Sequence[Mapping[str, Any]]) -> tuple[Declaration | None, str]:
    """The file that runs recorded when they were started, and a remark.

    None without a file, or when the runs do not agree on one; the remark then says why none was tested.
    """
    texts = {_recorded_text(manifest) for manifest in manifests}
    if texts <= {None}:
        return None, ""
    if len(texts) > 1:
        return None, (
            "The runs did not record the same hypothesis file, so none was tested as declared; report them apart, or name "
            "the file with --hypotheses."
        )
    try:
        return of_manifest(manifests[0]), ""
    except RequestError as error:  # recorded by a version that read such files less strictly: the states are still good
        return None, f"None was tested as declared: {error}"


def _recorded_text(manifest: Mapping[str, Any]) -> str | None:
    earlier = manifest.get(TRAJECTORY_SETTING)
    text = earlier.get("text") if isinstance(earlier, Mapping) else manifest.get(TEXT)
    return None if text is None else str(text)


# -- reading ---------------------------------------------------------------------------------------------------------

_FILE_FIELDS = ("alpha", "exclusions", "hypotheses", "outcome", "protocol", "title")
_TRAJECTORY_FILE_FIELDS = ("exclusions", "outcome", "protocol")
_MANDATORY = {StudyHypothesis: ("id", "test", "benchmark", "regime"), TrajectoryHypothesis: ("id", "estimate", "criterion")}  # fmt: skip


def parse(raw: bytes, file: Path) -> Declaration:
    """A file of hypotheses from its bytes; `file` is its name in messages. Raises as `load` does."""
    where = f"The hypothesis file {file}"
    content, text = strict_yaml.parse(raw, where)
    if not isinstance(content, Mapping) or not isinstance(content.get("hypotheses"), list):
        raise RequestError(f"{where} needs a list under `hypotheses`.")
    alpha = content.get("alpha", 0.05)
    if not isinstance(alpha, int | float) or not 0 < alpha < 1:
        raise RequestError(f"{file}: alpha is {checks.shown(alpha)}; give a number between 0 and 1.")
    if not content["hypotheses"]:
        raise RequestError(f"{where} declares no hypothesis; list at least one, or leave the file out.")
    content, updates = _brought_up_to_date(content, where)
    unknown = sorted(map(str, set(content) - set(_FILE_FIELDS)))
    if unknown:
        raise RequestError(
            f"{where} has an unknown field {checks.shown(unknown[0])}; known: {', '.join(_FILE_FIELDS)}."
        )
    hypotheses = tuple(_hypothesis(entry, i, file) for i, entry in enumerate(content["hypotheses"]))
    ids = [h.id for h in hypotheses]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise RequestError(f"{file}: the id {checks.shown(twice[0])} is declared twice.")
    declaration = Declaration(
        hypotheses, float(alpha), hashlib.sha256(raw).hexdigest(), file.name, text,
        str(content.get("title") or ""), _protocol(content, where), _exclusions(content, where), _outcome(content, where), updates,
    )  # fmt: skip
    idle = [name for name in _TRAJECTORY_FILE_FIELDS if content.get(name) is not None]
    if idle and not declaration.on_trajectories:
        raise RequestError(
            f"{where} declares {idle[0]!r}, which is about trajectories, but no hypothesis on them (with `estimate` and "
            "`criterion`); leave it out, or add one."
        )
    return declaration


def _hypothesis(entry: Any, i: int, file: Path) -> StudyHypothesis | TrajectoryHypothesis:
    where = f"{file}: hypothesis {i + 1}"
    if not isinstance(entry, Mapping):
        raise RequestError(f"{where} is not a mapping of fields.")
    on_trajectories = "test" not in entry and not {"estimate", "criterion", "p"}.isdisjoint(entry)
    kind = TrajectoryHypothesis if on_trajectories else StudyHypothesis
    fields = kind.__dataclass_fields__
    unknown = sorted(str(name) for name in entry if name not in fields)
    if unknown:
        raise RequestError(
            f"{where} has an unknown field {checks.shown(unknown[0])}; known: {', '.join(sorted(fields))}."
        )
    entry = {name: value for name, value in entry.items() if value is not None and value != ""}
    missing = [name for name in _MANDATORY[kind] if name not in entry]
    if missing:
        other = " (or, on trajectories, 'estimate')" if missing[0] == "test" else ""
        raise RequestError(f"{where} lacks {missing[0]!r}{other}.")
    for name, value in entry.items():
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise RequestError(
                f"{where}: {name} is {checks.shown(value)}; give one name or text (in quotes where YAML reads it otherwise)."
            )
    values = {str(k): str(v) for k, v in entry.items()}
    return _on_trajectories(values, where) if on_trajectories else _on_study(values, where)


def _on_study(values: dict[str, str], where: str) -> StudyHypothesis:
    if values["test"] not in TESTS:
        raise RequestError(
            f"{where} asks for the test {checks.shown(values['test'])}; choose one of {', '.join(TESTS)}."
        )
    if values.get("alternative", "two-sided") not in ALTERNATIVES:
        raise RequestError(
            f"{where}: alternative is {checks.shown(values['alternative'])}; choose two-sided, greater or less."
        )
    if values["test"] == "probe_above_chance" and values.setdefault("alternative", "greater") != "greater":
        raise RequestError(
            f"{where}: probe_above_chance compares with shuffled labels in one direction only, found alternative "
            f"{values['alternative']!r}; write greater, or leave it out."
        )
    return StudyHypothesis(**values)  # type: ignore[arg-type]


def _on_trajectories(values: dict[str, str], where: str) -> TrajectoryHypothesis:
    if not _CRITERION.fullmatch(values["criterion"]):
        raise RequestError(f"{where}: the criterion {checks.shown(values['criterion'])} is not like '> 0' or '<= 0.5'.")
    for name, computed in (("estimate", ESTIMATES), ("p", PVALUES)):
        if name in values and values[name] not in computed:
            raise RequestError(
                f"{where}: {values['id']} names {name} {checks.shown(values[name])}, which no report computes; there are "
                f"{', '.join(computed)}."
            )
    family = values.pop("family", None)
    if family is not None and family != _UNADJUSTED and "p" not in values:
        raise RequestError(
            f"{where}: {values['id']} is in the family {checks.shown(family)}, but has no p to adjust; name one, or leave the family out."
        )
    if family is not None or "p" not in values:
        values["family"] = "" if family in (None, _UNADJUSTED) else family
    return TrajectoryHypothesis(**values)


def _protocol(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    protocol = content.get("protocol") or {}
    if not isinstance(protocol, Mapping):
        raise RequestError(f"{where}: protocol is {checks.shown(protocol)}; give settings by name, such as {{m: 5}}.")
    return dict(protocol)


def _exclusions(content: Mapping[str, Any], where: str) -> tuple[str, ...]:
    rules = content.get("exclusions")
    rules = [rules] if isinstance(rules, str) else rules
    if rules is not None and not isinstance(rules, list):
        raise RequestError(f"{where}: exclusions is {checks.shown(rules)}; give a list.")
    for rule in rules or ():
        if rule not in EXCLUSIONS:
            raise RequestError(
                f"{where} declares the exclusion {checks.shown(rule)}; the one that is applied is {EXCLUSIONS[0]!r}."
            )
    return tuple(rules or EXCLUSIONS)


def _outcome(content: Mapping[str, Any], where: str) -> str:
    outcome = str(content.get("outcome") or "majority")
    if outcome not in OUTCOMES:
        raise RequestError(f"{where} declares the outcome {checks.shown(outcome)}; choose {' or '.join(OUTCOMES)}.")
    return outcome


# -- the earlier format of trajectories ------------------------------------------------------------------------------

_UNADJUSTED = "(not adjusted)"
_RENAMED = {"name": "id", "text": "statement"}


def _brought_up_to_date(content: Mapping[str, Any], where: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The content under today's names, and what changed of a file written for `--preregistration`."""
    new, updates = dict(content), []
    entries = [dict(entry) if isinstance(entry, Mapping) else entry for entry in content["hypotheses"]]
    for old, name in _RENAMED.items():
        for entry in entries:
            if isinstance(entry, dict) and old in entry:
                if name in entry:
                    raise RequestError(f"{where} has a hypothesis with both {old!r} and {name!r}; keep {name!r}.")
                entry[name] = str(entry.pop(old))
                updates.append(f"`{old}` is `{name}` now")
    if "seeds" in new:
        seed = new.pop("seeds")
        new["protocol"] = {**_protocol(new, where), "seed": seed}
        updates.append("`seeds` is `seed` under `protocol` now")
    if "family" in new:
        listed = new.pop("family") or []
        listed = [listed] if isinstance(listed, str) else listed
        if not isinstance(listed, list):
            raise RequestError(f"{where}: family is {checks.shown(listed)}; give a list.")
        _mark_family(entries, [str(name) for name in listed], where)
        updates.append("instead of one list `family`, each hypothesis with a `p` names its `family` now")
    new["hypotheses"] = entries
    return new, tuple(dict.fromkeys(updates))


def _mark_family(entries: list[Any], listed: list[str], where: str) -> None:
    """Write the listed ids' family into the entries; one with a p that is not listed is not adjusted."""
    adjusted = {str(e.get("id")) for e in entries if isinstance(e, dict) and e.get("p") is not None}
    for name in listed:
        if name not in adjusted:
            raise RequestError(f"{where} has {name!r} in its family, but no hypothesis of that name with a p.")
    for entry in entries:
        if listed and isinstance(entry, dict) and str(entry.get("id")) in adjusted - set(listed):
            entry["family"] = _UNADJUSTED
