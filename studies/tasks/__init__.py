"""Nine public tasks with objective labels for methods that read chains of thought."""

from __future__ import annotations

from . import methods
from .counts import TaskCount, count
from .kl import answer_kl
from .loading import load, load_all
from .rows import TaskData, TaskRow
from .sets import TASKS

__all__ = ["TASKS", "TaskCount", "TaskData", "TaskRow", "answer_kl", "count", "load", "load_all", "methods"]
