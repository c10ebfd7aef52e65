"""Tables of a trajectory run: its chains, what the protocol did to them, how far a result hangs on a choice, who agrees."""

from __future__ import annotations

from .agreement import agreement, run_agreement
from .chains import OUTCOMES, check_kind, forced_rule, forced_table, sampled_answers, sampled_table
from .protocol import completion_curve, protocol_diagnostics, truncation_table
from .sensitivity import anchor_sensitivity, answers_sensitivity, rule_sensitivity

__all__ = [
    "OUTCOMES",
    "agreement",
    "anchor_sensitivity",
    "answers_sensitivity",
    "check_kind",
    "completion_curve",
    "forced_rule",
    "forced_table",
    "protocol_diagnostics",
    "rule_sensitivity",
    "run_agreement",
    "sampled_answers",
    "sampled_table",
    "truncation_table",
]
