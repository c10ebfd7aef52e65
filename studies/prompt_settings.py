"""Settings of how prompts are put together, checked; and what of them is known only once the model is there.

Guarantees that a run which is continued makes the prompts that it was begun with: the day that its templates are told, the texts at
which its outputs end, and a checksum of the prompts of each cell are in its settings, and are compared when it goes on.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from .. import checks, store
from ..errors import RequestError
from ..hooks.prompts.chat_settings import ChatSettings
from ..hooks.prompts.rendering import Rendered, Renderer

DATE, PROMPTS, STOPS = "date", "rendered_prompts", "stop_texts"
LATE = (DATE, PROMPTS, STOPS)
"""Settings of a run that its model decides: where they are not asked for, a run that is continued has its own."""
ASKED: dict[str, Any] = {
    "template_args": {},
    "date": None,
    "bos": "auto",
    "stop": None,
    "boundaries": ["thinking"],
    "thinking_tags": [],
}
"""Settings that are left out of a run's where they are at these values, as they are in runs of earlier versions."""


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those of `ASKED` that are at their defaults."""
    return {name: value for name, value in values.items() if name not in ASKED or value != ASKED[name]}


def day_text(value: Any) -> str | None:
    """A day as text, such as 2026-12-01; None stays None (RequestError where it is no day)."""
    if value is None:
        return None
    if isinstance(value, datetime.date):
        return value.isoformat()[:10]
    try:
        return datetime.date.fromisoformat(value).isoformat()
    except (TypeError, ValueError):
        raise RequestError(f"date {checks.shown(value)} is no day; write for example 2026-12-01") from None


def json_values(arguments: Any) -> dict[str, Any]:
    """A mapping of names to JSON values (RequestError for any other)."""
    if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
        raise RequestError(f"template_args must map names to JSON values, found {checks.shown(arguments)}")
    try:
        made: dict[str, Any] = json.loads(json.dumps(dict(arguments), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise RequestError(f"template_args must hold JSON values ({error})") from None
    return made


def stop_texts(value: Any, regimes: Sequence[str]) -> Any:
    """Stop texts for all regimes (a list) or by regime (a mapping to lists); None stays None (RequestError for anything else)."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        for name in value:
            if name not in regimes:
                raise RequestError(f"stop names regime {checks.shown(name)}, which is not among {', '.join(regimes)}")
        return {name: _texts(texts) for name, texts in value.items()}
    return _texts(value)


def _texts(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) and text for text in texts):
        raise RequestError(f"stop must be texts of at least one character, found {checks.shown(value)}")
    return list(dict.fromkeys(texts))


def today() -> datetime.date:
    """The day on which a run begins."""
    return datetime.date.today()


def chat_settings(arguments: Mapping[str, Any], date: str | None, bos: str, started: store.Run | None) -> ChatSettings:
    """What chats are rendered with: the day is the one asked for, the one that the run was begun with, else today."""
    text = date or (None if started is None else started.config.get(DATE))
    day = datetime.date.fromisoformat(text) if text else today()
    return ChatSettings(arguments, day, bos)


def late_settings(
    renderer: Renderer,
    prompts: Sequence[tuple[str, Rendered]],
    started: store.Run | None,
    stops: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """The settings that were left to the model, for the run's own; those that a run of an earlier version lacks are left out.

    Parameters
    ----------
    renderer : Renderer
        That made the prompts.
    prompts : sequence of (cell, Rendered)
        In plan order.
    started : store.Run or None
    stops : mapping of str to sequence of str, optional
        Stop texts by regime that were chosen here.

    Raises
    ------
    RequestError
        A cell's prompts are not those that the run was begun with.
    """
    digests = _digests(prompts)
    kept = None if started is None else started.config.get(PROMPTS)
    if kept is not None:
        other = [cell for cell in digests if kept.get(cell, digests[cell]) != digests[cell]]
        if other:
            raise RequestError(
                f"the prompts of {other[0]}{f' and {len(other) - 1} more' if len(other) > 1 else ''} are not those that the run was begun with: "
                "the date, the chat template, its arguments or the tokenizer is another one; give the same ones, or another path"
            )
    day = renderer.settings.day
    made = {
        PROMPTS: digests,
        **({DATE: day.isoformat()} if day is not None and renderer.knows_date else {}),
        **({STOPS: {name: list(texts) for name, texts in stops.items()}} if stops and any(stops.values()) else {}),
    }
    return made if started is None else {name: value for name, value in made.items() if name in started.config}


def refuse_same(prompts: Sequence[tuple[str, str, Rendered]], allowed: bool) -> None:
    """Refuse different items whose prompts are one and the same, since their states would be too.

    Parameters
    ----------
    prompts : sequence of (cell, id, Rendered)
    allowed : bool
        Say nothing.

    Raises
    ------
    RequestError
        Naming two of them, and how many there are.
    """
    first: dict[tuple[str, tuple[int, ...]], str] = {}
    same = []
    for cell, name, rendered in prompts:
        other = first.setdefault((cell, rendered.token_ids), name)
        if other != name:
            same.append((other, name))
    if same and not allowed:
        raise RequestError(
            f"{len(same)} prompts are the same as another item's (the first: {same[0][1]} and {same[0][0]}), so their states would be one; take "
            "one of the items out, or go on with --allow-same-prompts"
        )


def _digests(prompts: Sequence[tuple[str, Rendered]]) -> dict[str, str]:
    """SHA-256 (first 16 hex digits) of the token ids of each cell's prompts."""
    made: dict[str, Any] = {}
    for cell, rendered in prompts:
        made.setdefault(cell, hashlib.sha256()).update(json.dumps(rendered.token_ids).encode() + b"\n")
    return {cell: digest.hexdigest()[:16] for cell, digest in made.items()}
