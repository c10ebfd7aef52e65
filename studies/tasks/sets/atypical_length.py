"""Task 7: is this chain unusually long for its question, or unusually short?"""

from __future__ import annotations

from ..task import Task, by_question, chain_rows

TASK = Task(
    7,
    "atypical_cot_length",
    "The text is a model's reasoning about a question. Is it unusually long for this question, rather than unusually short?",
    "long",
    "short",
    chain_rows("chain_of_thought", "prompt_text", ["long"], ["short"]),
    by_question,
    {"train": 2444, "val": 200, "test": 200, "ood_test": 200},
    balance="pairs of either class in bins of 500 words",
)
