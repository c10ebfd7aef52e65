"""The nine tasks, a file each: what its files hold, what is asked of a chain, what its description promises."""

from __future__ import annotations

from collections.abc import Mapping

from ..task import Task
from . import (
    atypical_answer,
    atypical_length,
    authority,
    compression,
    follow_up,
    forced_entropy,
    preference,
    self_deletion,
    termination,
)

TASKS: Mapping[int, Task] = {
    task.number: task
    for task in (
        termination.TASK,
        self_deletion.TASK,
        follow_up.TASK,
        preference.TASK,
        authority.TASK,
        atypical_answer.TASK,
        atypical_length.TASK,
        forced_entropy.TASK,
        compression.TASK,
    )
}
"""Every task by its number."""
