"""Entropy along a chain of reasoning: from answers to entropies, and from entropies to a shape.

Guarantees that a trajectory's numbers do not depend on the order in which answers were drawn, that a prefix from which no
answer could be parsed makes no point (it is dropped, never filled in), and that the only reason to leave a chain out is
that fewer than two points remain. This prevents two silent faults: a violation made of floating-point noise, and a
"monotone" chain whose missing points were counted as zero entropy.

Entropies here are in nats, as in the work that introduced them; `forced_answers` reports bits as well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ...errors import RequestError

ROUNDING = 1e-12
"""Absolute slack, in nats, of every comparison with epsilon: it is far below the smallest step m answers allow."""

TIE_RULES = ("first", "smallest", "none")


@dataclass(frozen=True)
class Shape:
    """Shape of one trajectory.

    Attributes
    ----------
    monotone : bool or None
        Whether H[k+1] <= H[k] + epsilon for every k. None when the chain is excluded.
    violations : int or None
        How many steps rise by more than epsilon.
    max_violation : float
        Largest upward step in nats, of non-monotone chains only; NaN otherwise.
    coherence : float
        First point minus last point, in nats.
    final : float
        Entropy of the last point, in nats.
    initial : float
        Entropy of the first point, in nats.
    points : int
        Points that carry a value.
    epsilon : float
        The tolerance used, in nats.
    reason : str or None
        Why the chain is excluded; None when it is not.
    """

    monotone: bool | None
    violations: int | None
    max_violation: float
    coherence: float
    final: float
    initial: float
    points: int
    epsilon: float
    reason: str | None = None


@dataclass(frozen=True)
class Majority:
    """Most frequent parsed answer of one prefix: `answer` (None without any), its `share` of the parsed answers, and
    whether it was `tied` for the first place."""

    answer: str | None
    share: float
    tied: bool
    parsed: int


def answer_entropy(answers: Iterable[str | None]) -> float:
    """Entropy of the empirical distribution of parsed answers.

    Parameters
    ----------
    answers : iterable of str or None
        One entry a continuation; None where no answer was parsed.

    Returns
    -------
    float
        Entropy in nats over the parsed answers; NaN when none was parsed.

    Notes
    -----
    Counts are sorted before they are summed, so equal distributions give equal floats and a step of zero is exactly zero.
    """
    return _count_entropy(Counter(a for a in answers if a is not None).values())


def _count_entropy(counts: Iterable[int]) -> float:
    ordered = sorted(counts, reverse=True)
    total = sum(ordered)
    if total == 0:
        return math.nan
    divisor = math.gcd(*ordered)
    ordered, total = [c // divisor for c in ordered], total // divisor
    return max(0.0, math.log(total) - math.fsum(c * math.log(c) for c in ordered) / total)


def sampled_entropies(answers: Sequence[Sequence[str | None]]) -> np.ndarray:
    """Entropy in nats of each prefix's answers, float64 [prefixes]; NaN where none was parsed."""
    return np.array([answer_entropy(a) for a in answers], dtype=np.float64)


def attainable_entropies(m: int) -> np.ndarray:
    """Every entropy that 1 to m parsed answers can take, in nats, ascending and without repeats.

    With m = 5 there are 13 values and the smallest gap between neighbours is 0.015199 nats: an epsilon below that gap is
    the same rule as epsilon = 0, and thresholds between two attainable steps cannot be told apart.

    Raises
    ------
    RequestError
        When m is below 1 or above 40 (the number of partitions grows out of hand).
    """
    if not 1 <= m <= 40:
        raise RequestError(f"the number of answers must be from 1 to 40, got {m}; pass the number of continuations")
    values = sorted({_count_entropy(parts) for n in range(1, m + 1) for parts in _partitions(n, n)})
    distinct = [values[0]]
    for value in values[1:]:
        if value - distinct[-1] > ROUNDING:
            distinct.append(value)
    return np.array(distinct)


def _partitions(total: int, largest: int) -> Iterable[tuple[int, ...]]:
    if total == 0:
        yield ()
    for part in range(min(total, largest), 0, -1):
        for rest in _partitions(total - part, part):
            yield (part, *rest)


def attainable_steps(m: int) -> np.ndarray:
    """Every upward step between two attainable entropies of m answers, in nats, ascending and without repeats.

    An epsilon acts only by which of these steps lie above it: `epsilon_table` prints the count.
    """
    values = attainable_entropies(m)
    steps = np.unique(np.round((values[None, :] - values[:, None])[np.triu_indices(len(values), 1)], 12))
    return steps


def distribution_entropy(probabilities: np.ndarray) -> np.ndarray:
    """Entropy in nats of probability rows [..., K]; rows are renormalised, zeros and NaN (no such option) add nothing.

    Rows without any mass give NaN.
    """
    p = np.nan_to_num(np.asarray(probabilities, dtype=np.float64), nan=0.0)
    if (p < 0).any():
        raise RequestError("probabilities must not be negative; pass probabilities, not log-probabilities")
    total = p.sum(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        p = p / total
        terms = np.where(p > 0, -p * np.log(p), 0.0)
    entropy = np.maximum(terms.sum(axis=-1), 0.0)
    return np.where(total[..., 0] > 0, entropy, np.nan)


def shape(entropies: Sequence[float | None] | np.ndarray, epsilon: float = 0.01) -> Shape:
    """Shape of one entropy trajectory.

    Parameters
    ----------
    entropies : sequence of float, length N + 1
        Entropy (nats) at each prefix; NaN or None where the prefix made no point. Missing points are dropped and their
        neighbours become adjacent; nothing is imputed.
    epsilon : float, default 0.01
        A step violates when it rises by more than this (nats).

    Returns
    -------
    Shape
        With `reason` set, and the rest undefined, when fewer than two points remain.

    Raises
    ------
    RequestError
        When epsilon is negative or not a number.

    Examples
    --------
    >>> from precollapse.studies import trajectories
    >>> shape = trajectories.shape([2.0, 1.2, 1.5, 0.3])
    >>> shape.monotone, shape.violations, round(shape.max_violation, 1), shape.final
    (False, 1, 0.3, 0.3)
    """
    if not epsilon >= 0:
        raise RequestError(f"epsilon must be zero or more nats, got {epsilon}")
    h = present_points(entropies)
    first, last = (float(h[0]), float(h[-1])) if len(h) else (math.nan, math.nan)
    if len(h) < 2:
        reason = f"fewer than two points ({len(h)} of {len(entropies)} prefixes)"
        return Shape(None, None, math.nan, math.nan, last, first, len(h), epsilon, reason)
    steps = np.diff(h)
    violating = steps > epsilon + ROUNDING
    count = int(violating.sum())
    largest = float(steps.max()) if count else math.nan
    return Shape(count == 0, count, largest, first - last, last, first, len(h), epsilon)


def present_points(entropies: Sequence[float | None] | np.ndarray) -> np.ndarray:
    """The trajectory's points, float64 [n <= N + 1]: missing ones left out."""
    h = np.array([math.nan if v is None else v for v in entropies], dtype=np.float64)
    return h[~np.isnan(h)]


def early_exit(entropies: Sequence[float | None] | np.ndarray, epsilon: float = 0.01) -> list[bool]:
    """Monotone flag after the first k = 1, 2, ... transitions: what a rule that stops there would have said."""
    steps = np.diff(present_points(entropies))
    return [bool(v) for v in np.cumsum(steps > epsilon + ROUNDING) == 0]


def majority(answers: Sequence[str | None], tie: str = "first") -> Majority:
    """Most frequent parsed answer, with a declared rule for ties.

    Parameters
    ----------
    answers : sequence of str or None
        In sample order.
    tie : {"first", "smallest", "none"}
        Among equally frequent answers: the one sampled first, the smallest as text, or no answer.
    """
    if tie not in TIE_RULES:
        raise RequestError(f"unknown tie rule {tie!r}; choose one of {', '.join(TIE_RULES)}")
    parsed = [a for a in answers if a is not None]
    if not parsed:
        return Majority(None, math.nan, False, 0)
    counts = Counter(parsed)
    top = max(counts.values())
    leaders = [a for a in counts if counts[a] == top]  # Counter keeps the order of first appearance
    if len(leaders) == 1 or tie == "first":
        answer: str | None = leaders[0]
    else:
        answer = min(leaders) if tie == "smallest" else None
    return Majority(answer, top / len(parsed), len(leaders) > 1, len(parsed))


def shape_table(trajectories: Mapping[str, Sequence[float | None]], epsilon: float = 0.01) -> pd.DataFrame:
    """One row a chain: `chain`, the fields of `Shape`, and `excluded` (True when there are fewer than two points).

    Parameters
    ----------
    trajectories : mapping from chain id to its entropies (nats)
    """
    rows = []
    for chain, entropies in trajectories.items():
        s = shape(entropies, epsilon)
        rows.append(
            {
                "chain": chain,
                "monotone": s.monotone,
                "violations": s.violations,
                "max_violation": s.max_violation,
                "coherence": s.coherence,
                "initial": s.initial,
                "final": s.final,
                "points": s.points,
                "excluded": s.reason is not None,
            }
        )
    table = pd.DataFrame(rows, columns=_TABLE_COLUMNS)
    return table.astype({"monotone": "boolean", "violations": "Int64"})


_TABLE_COLUMNS = [
    "chain", "monotone", "violations", "max_violation", "coherence", "initial", "final", "points", "excluded",
]  # fmt: skip


def first_answers(answers: Sequence[Sequence[str | None]], m: int) -> list[list[str | None]]:
    """The first m continuations of every prefix: what a study with fewer samples would have had.

    Raises
    ------
    RequestError
        When a prefix holds fewer than m continuations.
    """
    short = min((len(a) for a in answers), default=m)
    if m < 1 or short < m:
        raise RequestError(f"m must be from 1 to the {short} continuations that were sampled, got {m}")
    return [list(a[:m]) for a in answers]
