"""How a conversation has to be given to a chat template so that nothing of it is lost.

Guarantees that no text of a conversation vanishes unnoticed. Templates differ in what they take (a text, or a list of parts), in which
roles they know, and in what they do with a shape they do not know: many render an empty turn, so that all prompts get one state. Here
a template is tried with marked texts in the very shape of the conversation; the first form that keeps every mark is used, a system
text that has no place opens the user's turn, and what cannot be kept is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from ...errors import RequestError

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Form:
    """How messages are given to a template.

    Attributes
    ----------
    parts : frozenset of str
        Roles whose text is given as a list of one part; the others' is given as text.
    system_moved : bool
        Whether a system text opens the next user's turn, since the template has no place for it.
    """

    parts: frozenset[str] = frozenset()
    system_moved: bool = False


def as_texts(messages: Sequence[Message], where: str) -> list[dict[str, Any]]:
    """Messages with the text of each as one string, whatever form it was given in.

    Raises
    ------
    RequestError
        A message lacks its role or content, or holds something other than text.
    """
    made = []
    for message in messages:
        content = message.get("content")
        if "role" not in message or (content is None and not message.get("tool_calls")):
            raise RequestError(
                f"{where} has a chat message with keys {sorted(message)}; each needs 'role' and 'content'"
            )
        if isinstance(content, Sequence) and not isinstance(content, str):
            odd = [p for p in content if not (isinstance(p, Mapping) and isinstance(p.get("text"), str))]
            if odd:
                kind = odd[0].get("type") if isinstance(odd[0], Mapping) else type(odd[0]).__name__
                raise RequestError(f"{where} has a part of type {kind!r}; only parts of text can be read")
            content = "".join(part["text"] for part in content)
        if content is not None and not isinstance(content, str):
            raise RequestError(
                f"{where} has a chat message whose content is a {type(content).__name__}; give text, or a list of parts of text"
            )
        made.append({**message, "content": content})
    return made


def arranged(messages: Sequence[Message], form: Form) -> list[Message]:
    """Messages (with their texts as strings) in a form."""
    made: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if form.system_moved and message["role"] == "system":
            waiting.append(message["content"])
            continue
        content = message["content"]
        if waiting and message["role"] == "user":
            content, waiting = "\n\n".join([*waiting, content]), []
        if message["role"] in form.parts and content is not None:
            content = [{"type": "text", "text": content}]
        made.append({**message, "content": content})
    return made


def keeping_form(write: Callable[[Sequence[Message]], str], messages: Sequence[Message]) -> Form:
    """The first form in which a template keeps the text of every message of a conversation of this shape.

    Parameters
    ----------
    write : callable (messages) -> str
        The template.
    messages : sequence of messages
        With texts as strings (`as_texts`).

    Raises
    ------
    RequestError
        In every form some text is left out.
    Exception
        What the template raises for the plainest form, when it refuses all.
    """
    marked = [{**m, "content": f"\ue0f1text{i}\ue0f2"} if m["content"] else m for i, m in enumerate(messages)]
    refusal: Exception | None = None
    lost: list[int] | None = None
    for form in _forms(messages):
        try:
            text = write(arranged(marked, form))
        except RequestError:
            raise
        except Exception as error:  # a template may raise anything at a shape that it does not know
            refusal = refusal or error
            continue
        missing = [i for i, m in enumerate(marked) if m["content"] and m["content"] not in text]
        printed = any(f"text{quote}: {quote}\ue0f1" in text for quote in "'\"")  # the list itself, which is no text
        if not missing and not printed:
            return form
        if lost is None and missing:
            lost = missing
    if lost is None and refusal is not None:
        raise refusal
    lost = lost or [0]
    named = ", ".join(f"message {i + 1} ({messages[i]['role']})" for i in lost)
    raise RequestError(
        f"the chat template leaves out the text of {named} of {len(messages)}, given as text and as parts alike; leave it out, put it "
        "into the user's turn, or use plain text (--template raw)"
    )


def _forms(messages: Sequence[Message]) -> Iterator[Form]:
    """All forms, plain text before parts, and a system turn of its own before one that is moved."""
    roles = sorted({m["role"] for m in messages if m["content"]})
    chosen = sorted(
        product((False, True), repeat=len(roles)), key=lambda choice: (0 < sum(choice) < len(roles), sum(choice))
    )
    followed = any(
        m["role"] == "user" for k, s in enumerate(messages) if s["role"] == "system" for m in messages[k + 1 :]
    )
    for moved in (False, True) if followed else (False,):
        for choice in chosen:
            yield Form(frozenset(role for role, parts in zip(roles, choice, strict=True) if parts), moved)


def lost_text(messages: Sequence[Message], text: str) -> int | None:
    """The first message whose text a template did not write as it is (blanks aside); None where all is there.

    Thinking that a template takes out of an assistant's earlier words is not counted as lost.
    """
    written = "".join(text.split())
    for i, message in enumerate(messages):
        content = message["content"] or ""
        kept = [content, content.rpartition("</think>")[2]] if message["role"] == "assistant" else [content]
        if not any("".join(part.split()) in written for part in kept):
            return i
    return None
