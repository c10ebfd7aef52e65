"""Task 6: will this chain end in the answer that the model seldom gives to its question?"""

from __future__ import annotations

from ..task import Task, by_question, chain_rows

TASK = Task(
    6,
    "atypical_answer",
    "The text is a model's reasoning about a question to which it mostly gives one answer and seldom another. Does this reasoning end in the answer that it seldom gives?",
    "minority",
    "majority",
    chain_rows("cot_content", "question_text", ["minority"], ["majority"]),
    by_question,
    {"train": 1830, "val": 1290, "test": 1590, "ood_test": 660},
    balance="15 rows of either class a question",
)
