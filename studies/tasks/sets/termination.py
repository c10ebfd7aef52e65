"""Task 1: will the thinking end soon after this prefix?

Test and validation rows were resampled 50 times; training rows are labelled by where the chain itself ended, which is cheaper.
"""

from __future__ import annotations

from ..task import Task, by_question, chain_rows

TASK = Task(
    1,
    "reasoning_termination",
    "The text is the beginning of a model's reasoning. Will the model stop reasoning within its next 20 to 60 tokens, rather than going on for more than 200?",
    "yes",
    "no",
    chain_rows("cot_prefix", "prompt_text", ["yes"], ["no"]),
    by_question,
    {"train": 46160, "val": 58, "test": 44, "ood_test": 58},
    balance="classes balanced within 500-token buckets, within one a prompt",
    notes=("training rows carry a proxy label: 25 to 55 tokens before the chain's own end, or at least 300",),
)
