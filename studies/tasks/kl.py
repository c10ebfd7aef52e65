"""The answer KL of task 9: how far an answer's distribution moves when sentences are left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import entropy

from .rows import TaskData
from .sets.compression import BASELINE

EPSILON = 1e-10
"""Added to every probability before both distributions are made to sum to 1 again, as the release does."""


def answer_kl(kept: Mapping[str, float], whole: Mapping[str, float], epsilon: float = EPSILON) -> float:
    r"""Kullback-Leibler divergence, in nats, of the answer after the kept sentences from that after the whole prefix.

    .. math:: D(p \| q) = \sum_o p_o \ln (p_o / q_o), \quad p \propto whole + \epsilon, \; q \propto kept + \epsilon

    Parameters
    ----------
    kept, whole : mapping of str to float
        Probability by option; an option that one of them lacks has probability 0 there.
    epsilon : float

    Returns
    -------
    float

    Examples
    --------
    >>> round(answer_kl({"A": 0.5, "B": 0.5}, {"A": 0.9, "B": 0.1}), 4)
    0.3681
    """
    options = sorted({*kept, *whole})
    p, q = (np.array([shares.get(option, 0.0) + epsilon for option in options]) for shares in (whole, kept))
    return float(entropy(p, q))


@dataclass(frozen=True)
class StoredKl:
    """How far stored KLs are from those of the stored distributions.

    Attributes
    ----------
    rows : int
        Rows that were computed anew.
    largest : float
        Largest absolute difference, in nats.
    missing : int
        Rows whose whole prefix is not in the release.
    """

    rows: int
    largest: float
    missing: int


def stored_kl_error(data: TaskData) -> StoredKl:
    """Every answer KL of task 9 computed anew from the distributions that stand beside it.

    Parameters
    ----------
    data : TaskData
        Of task 9.

    Returns
    -------
    StoredKl
    """
    whole = {(row.group, row.position): row.distribution for row in data.rows if row.about["method"] == BASELINE}
    largest, compared, missing = 0.0, 0, 0
    for row in data.rows:
        before = whole.get((row.group, row.position))
        if before is None or row.distribution is None or row.target is None:
            missing += 1
            continue
        difference = abs(answer_kl(row.distribution, before) - row.target)
        largest = max(largest, difference if math.isfinite(difference) else math.inf)
        compared += 1
    return StoredKl(compared, largest, missing)
