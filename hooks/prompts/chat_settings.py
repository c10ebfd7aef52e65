"""What decides a chat's prompt besides its messages and the template.

Guarantees that a setting which a template would pass over in silence is refused: a misspelt `enable_thinking` never leaves thinking on.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...checks import shown
from ...errors import RequestError
from .template import chosen_template, read_names

BOS_RULES = ("auto", "template", "tokenizer")
_GIVEN = {"messages", "add_generation_prompt", "continue_final_message", "tokenize", "chat_template", "strftime_now"}
"""What a template is always told, and never by a setting."""


@dataclass(frozen=True)
class ChatSettings:
    """What decides a prompt besides its messages and the template.

    Attributes
    ----------
    arguments : mapping
        What the template is told besides, such as `enable_thinking`; JSON values.
    day : date, optional
        Which day it is for a template that asks; None takes today.
    bos : {"auto", "template", "tokenizer"}
        Who puts the beginning of a chat's text: the template alone (as `apply_chat_template(tokenize=True)` has it), or the tokenizer
        where the template wrote none. "auto": the template where it names a BOS at all, else the tokenizer.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    day: datetime.date | None = None
    bos: str = "auto"


def refuse_unread(settings: ChatSettings, tokenizer: Any) -> None:
    """Refuse settings that the tokenizer's chat template does not read.

    Raises
    ------
    RequestError
        Naming the setting, and what the template reads.
    """
    if settings.bos not in BOS_RULES:
        raise RequestError(f"bos={settings.bos!r} is unknown; choose from {', '.join(BOS_RULES)}")
    if not settings.arguments:
        return
    text = chosen_template(tokenizer)
    if not text:
        raise RequestError(
            f"template_args has {shown(next(iter(settings.arguments)))}, but the tokenizer has no chat template; leave it out"
        )
    known = read_names(text) - _GIVEN
    for name in settings.arguments:
        if name in _GIVEN:
            raise RequestError(f"template_args may not set {name!r}, which every template is told; leave it out")
        if name not in known:
            raise RequestError(
                f"template_args has {shown(name)}, which the model's chat template does not read; it reads {', '.join(sorted(known)) or 'nothing'}"
            )
