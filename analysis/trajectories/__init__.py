"""Entropy along chains of reasoning, as numbers: what a trajectory looks like, its statistics, public data, declared protocols."""

from __future__ import annotations

from .shapes import (
    TIE_RULES,
    Majority,
    Shape,
    answer_entropy,
    attainable_entropies,
    attainable_steps,
    distribution_entropy,
    early_exit,
    first_answers,
    majority,
    present_points,
    sampled_entropies,
    shape,
    shape_table,
)

__all__ = [
    "TIE_RULES",
    "Majority",
    "Shape",
    "answer_entropy",
    "attainable_entropies",
    "attainable_steps",
    "distribution_entropy",
    "early_exit",
    "first_answers",
    "majority",
    "present_points",
    "sampled_entropies",
    "shape",
    "shape_table",
]
