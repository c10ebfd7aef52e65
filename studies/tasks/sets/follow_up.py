"""Task 3: does this chain push the answer to a follow-up question up or down, when it is forced?"""

from __future__ import annotations

from ..task import Task, by_question, chain_rows

TASK = Task(
    3,
    "follow_up_response",
    "The text is a model's reasoning about a question. Asked a rating afterwards, will it rate higher than it usually does for this question, rather than lower?",
    "positive",
    "negative",
    chain_rows("cot_text", "prompt_text", ["positive"], ["negative"]),
    by_question,
    {"train": 286, "val": 92, "test": 86, "ood_test": 88},
    balance="as many positive as negative",
)
