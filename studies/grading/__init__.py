"""Grading: reading the answer out of a generated text and comparing it with the gold answer.

Guarantees exact values, never a tolerance, and that what cannot be read counts as no answer; docs/grading.md states the rules.
"""

from __future__ import annotations

from .explaining import Explanation, RuleReading, explain
from .graders import Grade, grade

__all__ = ["Explanation", "Grade", "RuleReading", "explain", "grade"]
