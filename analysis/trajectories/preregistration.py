"""Preregistrations of trajectory studies: what was declared before generation, and how the results stand against it.

Guarantees that the file is read strictly (an unknown key is an error, not a silently ignored wish), that its digest is the
one the run was started with, and that every difference between the declared protocol and the run's settings is listed.

A file looks like this::

    title: Shape of entropy trajectories
    protocol: {rule: blank-line, cap: 8, m: 5, temperature: 0.7, epsilon: 0.01, seed: 0}
    exclusions: [fewer than two points]
    hypotheses:
      - name: H1
        text: monotone chains are more often right
        estimate: gap_points
        criterion: "> 0"
        p: fisher_greater
    family: [H1]
    alpha: 0.05
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ... import strict_yaml
from ...errors import RequestError
from ..statistics import holm
from .statistics import ESTIMATES, PVALUES

_KEYS = {"title", "protocol", "exclusions", "hypotheses", "family", "alpha", "seeds", "outcome"}
_HYPOTHESIS_KEYS = {"name", "text", "estimate", "criterion", "p"}
_CRITERION = re.compile(r"\s*(<=|>=|<|>)\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*")
_ALLOWED_EXCLUSIONS = ("fewer than two points",)
OUTCOMES = {"majority": "correct_last", "own": "correct_own"}
"""Column of the outcome that a registration declares: the majority answer at the last prefix, or the chain's own answer."""


@dataclass(frozen=True)
class Hypothesis:
    """One declared hypothesis: the named estimate must meet the criterion; with `p`, the named p value must survive Holm."""

    name: str
    text: str
    estimate: str
    criterion: str
    p: str | None

    def met(self, value: float) -> bool | None:
        """Whether a value meets the criterion; None when it is undefined."""
        if not math.isfinite(value):
            return None
        match = _CRITERION.fullmatch(self.criterion)
        assert match is not None
        bound = float(match[2])
        return {"<": value < bound, "<=": value <= bound, ">": value > bound, ">=": value >= bound}[match[1]]


@dataclass(frozen=True)
class Preregistration:
    """A preregistration file, its SHA-256 and its parts."""

    sha256: str
    source: str
    title: str
    protocol: Mapping[str, Any]
    exclusions: tuple[str, ...]
    hypotheses: tuple[Hypothesis, ...]
    family: tuple[str, ...]
    alpha: float
    outcome: str


def load_preregistration(path: str | Path) -> Preregistration:
    """Read a preregistration.

    Raises
    ------
    RequestError
        When the file is missing, is not YAML, or holds something that would not be acted on.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise RequestError(
            f"cannot read the preregistration {path} ({error.strerror}); give an existing YAML file"
        ) from error
    return _parse(data, f"the preregistration {path}")


def parse_preregistration(source: str, where: str = "the preregistration") -> Preregistration:
    """Read a preregistration from its text; see `load_preregistration`."""
    return _parse(source.encode(), where)


def _parse(raw: bytes, where: str) -> Preregistration:
    content, source = strict_yaml.parse(raw, where)
    if not isinstance(content, dict) or not isinstance(content.get("hypotheses"), list) or not content["hypotheses"]:
        raise RequestError(f"{where} must be a mapping with a list of at least one entry under hypotheses")
    _refuse_unknown(content, _KEYS, where)
    for key in ("family", "exclusions"):
        value = content.get(key)
        if isinstance(value, str):
            content[key] = [value]
        elif value is not None and not isinstance(value, list):
            raise RequestError(f"{where}: {key} is {value!r}; give a list")
    hypotheses = tuple(_hypothesis(h, where) for h in content["hypotheses"])
    names = [h.name for h in hypotheses]
    if len(set(names)) != len(names):
        raise RequestError(f"{where} names a hypothesis twice: {', '.join(names)}")
    family = tuple(content.get("family") or (h.name for h in hypotheses if h.p))
    for name in family:
        if name not in names or hypotheses[names.index(name)].p is None:
            raise RequestError(f"{where} has {name!r} in its family, but no hypothesis of that name with a p")
    exclusions = tuple(content.get("exclusions") or _ALLOWED_EXCLUSIONS)
    for rule in exclusions:
        if rule not in _ALLOWED_EXCLUSIONS:
            raise RequestError(
                f"{where} declares the exclusion {rule!r}; the one that is applied is {_ALLOWED_EXCLUSIONS[0]!r}"
            )
    alpha = content.get("alpha", 0.05)
    if not isinstance(alpha, int | float) or not 0 < alpha < 1:
        raise RequestError(f"{where} has alpha {alpha!r}; give a number between 0 and 1")
    outcome = str(content.get("outcome") or "majority")
    if outcome not in OUTCOMES:
        raise RequestError(f"{where} declares the outcome {outcome!r}; choose {' or '.join(OUTCOMES)}")
    if not isinstance(content.get("protocol") or {}, dict):
        raise RequestError(f"{where}: protocol is {content['protocol']!r}; give settings by name, such as {{m: 5}}")
    protocol = dict(content.get("protocol") or {})
    if "seeds" in content:
        protocol["seed"] = content["seeds"]
    return Preregistration(
        hashlib.sha256(raw).hexdigest(), source, str(content.get("title", "")), protocol, exclusions, hypotheses, family,
        float(alpha), outcome,
    )  # fmt: skip


def _hypothesis(entry: Any, where: str) -> Hypothesis:
    if not isinstance(entry, dict):
        raise RequestError(f"{where} has a hypothesis that is not a mapping: {entry!r}")
    _refuse_unknown(entry, _HYPOTHESIS_KEYS, where)
    missing = [k for k in ("name", "estimate", "criterion") if k not in entry]
    if missing:
        raise RequestError(f"{where} has a hypothesis without {', '.join(missing)}: {entry!r}")
    if not _CRITERION.fullmatch(str(entry["criterion"])):
        raise RequestError(f"{where}: the criterion {entry['criterion']!r} is not like '> 0' or '<= 0.5'")
    for key, known in (("estimate", ESTIMATES), ("p", PVALUES)):
        if entry.get(key) is not None and entry[key] not in known:
            raise RequestError(
                f"{where}: {entry['name']} names {key} {entry[key]!r}, which no report computes; there are {', '.join(known)}"
            )
    return Hypothesis(
        str(entry["name"]), str(entry.get("text", "")), str(entry["estimate"]), str(entry["criterion"]), entry.get("p")
    )


def _refuse_unknown(entry: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(entry) - known)
    if unknown:
        raise RequestError(
            f"{where} has unknown keys {', '.join(map(str, unknown))}; known are {', '.join(sorted(known))}"
        )


def verdicts(declared: Preregistration, estimates: Mapping[str, float], pvalues: Mapping[str, float]) -> pd.DataFrame:
    """Each hypothesis against the results.

    Returns
    -------
    DataFrame
        name, text, estimate, value, criterion, p, p_holm, verdict: "supported", "not supported" or "undefined".

    """
    by_name = {h.name: h for h in declared.hypotheses}
    p = np.array([pvalues[str(by_name[n].p)] for n in declared.family], dtype=np.float64)
    adjusted = dict(zip(declared.family, holm(p, declared.alpha).adjusted.tolist(), strict=True))
    rows = []
    for h in declared.hypotheses:
        value = estimates[h.estimate]
        raw = math.nan if h.p is None else pvalues[h.p]
        judged = adjusted.get(h.name, raw)
        met = h.met(value)
        undefined = met is None or (h.p is not None and not math.isfinite(judged))
        passed = bool(met) and (h.p is None or judged <= declared.alpha)
        verdict = "undefined" if undefined else "supported" if passed else "not supported"
        rows.append(
            {
                "name": h.name, "text": h.text, "estimate": h.estimate, "value": value, "criterion": h.criterion,
                "p": raw, "p_holm": adjusted.get(h.name, math.nan), "verdict": verdict,
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def deviations(declared: Preregistration, settings: Mapping[str, Any]) -> list[str]:
    """One line for each declared protocol setting that the run did not follow, or does not know."""
    found = []
    for name, wanted in declared.protocol.items():
        if name not in settings:
            found.append(f"{name}: declared {wanted!r}, but the run has no such setting")
        elif settings[name] != wanted and [settings[name]] != wanted:
            found.append(f"{name}: declared {wanted!r}, run with {settings[name]!r}")
    return found
