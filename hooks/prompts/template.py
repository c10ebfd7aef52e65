"""A chat template at work: a program that came with a model, run within limits.

Guarantees that a template which does not end, or fills the memory, is refused with a sentence instead of hanging a run. Each template
is tried once in a process of its own, under limits of processor time and memory that the system holds; what comes after is
watched by a clock here, so that a template which ends for one conversation and not for another is stopped too. A clock cannot stop a
single step that does not end (a power, a text times a number), so that templates which have such steps are tried on each conversation
first. Rendering a prompt with any other costs no more than setting the clock.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import RequestError
from .template_date import knows_date, on_day
from .template_steps import has_unbounded_steps

SECONDS = 10
"""Seconds that one rendering may use."""
LONGEST = 1 << 24
"""Most characters that a template may write."""
_ADVICE = "give the tokenizer another chat_template, or plain text (--template raw)"


class _Late(BaseException):
    """Raised in the thread that renders when its time is over; no `except Exception` of a template's helpers holds it up."""


def rendered(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    arguments: Mapping[str, Any] | None = None,
    day: datetime.date | None = None,
) -> str:
    """The text that a tokenizer's chat template makes of messages: with the generation prompt, or ending in the assistant's words.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
    messages : sequence of messages
        Where the last one is the assistant's, it is continued: the text ends with it.
    arguments : mapping, optional
        What the template is told besides, such as `enable_thinking`.
    day : date, optional
        Which day it is for a template that asks; None takes today.

    Raises
    ------
    RequestError
        The template does not end, or writes more than `LONGEST` characters.
    Exception
        Whatever the template itself raises.
    """
    for text in _texts(tokenizer):
        fault = fault_of(text, SECONDS)
        if not fault and has_unbounded_steps(text):
            fault = fault_of.__wrapped__(text, SECONDS, list(messages))
        if fault:
            raise RequestError(f"the chat template of {_name(tokenizer)} {fault}; {_ADVICE}")
    asked = dict(arguments or {})
    if any(map(knows_date, _texts(tokenizer))):
        asked["chat_template"] = on_day(chosen_template(tokenizer), day or datetime.date.today())
    continued = bool(messages) and messages[-1]["role"] == "assistant"
    try:
        with _clock(SECONDS):
            made = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=not continued, continue_final_message=continued, **asked
            )
    except _Late:
        raise RequestError(
            f"the chat template of {_name(tokenizer)} did not end within {SECONDS} s for a conversation of "
            f"{len(messages)} messages; {_ADVICE}"
        ) from None
    if len(made) > LONGEST:
        raise RequestError(
            f"the chat template of {_name(tokenizer)} wrote {len(made)} characters, and {LONGEST} are most; {_ADVICE}"
        )
    return str(made)


@lru_cache(maxsize=64)
def fault_of(template: str, seconds: int, conversation: Any = None) -> str:
    """What a trial of a template found, on small conversations or on one: that it does not end, or needs too much; empty where it ends."""
    script = Path(__file__).with_name("template_trial.py")
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(script)],
            input=json.dumps([template, seconds, conversation], default=str),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=12 * seconds,
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {12 * seconds} s when it was tried"
    except OSError:  # no process can be started here: the clock remains
        return ""
    if "memory" in done.stdout:
        return "filled the memory when it was tried"
    return f"did not end within {seconds} s of processor time when it was tried" if done.returncode < 0 else ""


def chosen_template(tokenizer: Any) -> str:
    """The text of the template that is used where no tools are given."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        return str(template.get("default") or next(iter(template.values()), ""))
    return str(template or "")


def read_names(template: str) -> frozenset[str]:
    """Names that a template reads from what it is told; empty where it cannot be parsed."""
    from jinja2 import Environment, TemplateSyntaxError, meta
    from jinja2.ext import loopcontrols

    from .template_trial import Generation

    try:
        return frozenset(
            meta.find_undeclared_variables(Environment(extensions=[loopcontrols, Generation]).parse(template))
        )
    except TemplateSyntaxError:
        return frozenset()


def _texts(tokenizer: Any) -> Iterator[str]:
    template = getattr(tokenizer, "chat_template", None)
    yield from (
        text for text in (template.values() if isinstance(template, Mapping) else (template,)) if isinstance(text, str)
    )


def _name(tokenizer: Any) -> str:
    return str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)


@contextmanager
def _clock(seconds: float) -> Iterator[None]:
    """Raises `_Late` in this thread when the block takes longer."""
    thread, lock, over = threading.get_ident(), threading.Lock(), False
    rung = False

    def ring() -> None:
        nonlocal rung
        with lock:
            if not over:
                rung = True
                _raise_in(thread, _Late)

    alarm = threading.Timer(seconds, ring)
    alarm.daemon = True
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()
        with lock:
            over = True
        if rung and sys.exc_info()[0] is not _Late:
            time.sleep(0.1)  # it was rung and has not arrived: it arrives here, not later elsewhere


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Have an error raised in another thread, between two of its steps."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
