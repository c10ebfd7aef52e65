"""Grading: reading the answer out of a generated text and comparing it with the gold answer.

Guarantees exact values, never a tolerance, and that what cannot be read counts as no answer; docs/grading.md states the rules.
"""

from __future__ import annotations

from .graders import Grade, grade

__all__ = ["Grade", "grade"]
