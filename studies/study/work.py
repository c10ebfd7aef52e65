"""The states of a study before a model has seen them: items under regimes, their prompts, and their token ids.

Guarantees that items are loaded once, so that what a run records of them is what its prompts were made of; and that a prompt
that does not fit the model's context is refused by its name, before any work.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ... import schema
from ...errors import RequestError
from ...hooks import Extractor
from ...hooks.prompts.rendering import Rendered, Renderer
from ...store import Run
from .. import benchmarks, prompts
from ..prompt_settings import STOPS
from .config import ResolvedStudy


@dataclass(frozen=True)
class Work:
    """One state to make: an item under a regime, with its prompt."""

    id: str
    benchmark: str
    regime: str
    item: benchmarks.Item
    prompt: prompts.Prompt

    def key(self) -> dict[str, str]:
        """What the plan keeps of it."""
        return {"id": self.id, "benchmark": self.benchmark, "regime": self.regime, "item_id": self.item.id}


def load_work(study: ResolvedStudy) -> tuple[Work, ...]:
    """All states of a study in plan order (benchmark, regime, item), with their prompts; items are loaded here.

    Raises
    ------
    RequestError
        When an items file is missing or malformed, or a regime has no template for an item.
    """
    config = study.config
    work = []
    for benchmark in config.benchmarks:
        items = benchmarks.load(benchmark, config.n, config.seed, config.items.get(benchmark))
        for name, regime in study.regimes.items():
            for item in items:
                work.append(
                    Work(schema.state_id(benchmark, item.id, name), benchmark, name, item, prompts.render(regime, item))
                )
    return tuple(work)


def identities(study: ResolvedStudy, work: Sequence[Work]) -> dict[str, Any]:
    """What a run's settings keep of its items and templates, so that neither can change while it is continued.

    Returns
    -------
    dict
        `items`: count and digest by benchmark. `templates`: digest by regime and answer format.
    """
    items: dict[str, Any] = {}
    for benchmark in study.config.benchmarks:
        by_id = {w.item.id: w.item for w in work if w.benchmark == benchmark}
        content = json.dumps([[i.id, i.question, i.answer, i.choices] for i in by_id.values()], ensure_ascii=False)
        items[benchmark] = {"count": len(by_id), "sha256": hashlib.sha256(content.encode()).hexdigest()[:16]}
    formats = sorted({w.item.format for w in work})
    templates: Mapping[str, Any] = {
        name: {form: regime.template_hash(form) for form in formats if regime.has_template(form)}
        for name, regime in study.regimes.items()
    }
    return {"items": items, "templates": templates}


def sampled_ids(study: ResolvedStudy, work: Sequence[Work]) -> dict[str, list[str]]:
    """Ids of the items of each benchmark, in plan order."""
    first = study.config.regimes[0]
    ids: dict[str, list[str]] = {w.benchmark: [] for w in work}
    for w in work:
        if w.regime == first:
            ids[w.benchmark].append(w.item.id)
    return ids


def chat_or_raw(study: ResolvedStudy, renderer: Renderer) -> str:
    """Whether prompts go through the chat template ("chat") or not ("raw")."""
    template = study.config.template
    return template if template != "auto" else "chat" if renderer.has_chat_template else "raw"


def stop_texts(study: ResolvedStudy, template: str, started: Run | None) -> dict[str, tuple[str, ...]]:
    """Texts before which an output ends, by regime: those asked for, the regime's own, or for raw text its headings.

    A run that was begun before outputs ended at headings goes on without.
    """
    asked = study.config.stop
    by_headings = template == "raw" and (started is None or STOPS in started.config)
    stops = {}
    for name, regime in study.regimes.items():
        own = asked.get(name) if isinstance(asked, Mapping) else asked
        if own is None:
            own = regime.stop
        stops[name] = tuple(own) if own is not None else regime.headings() if by_headings else ()
    return stops


def render_work(
    study: ResolvedStudy, work: Sequence[Work], extractor: Extractor, renderer: Renderer, template: str
) -> list[Rendered]:
    """Token ids of every state, with lengths checked against the model's context.

    Raises
    ------
    RequestError
        If a prompt cannot be put into tokens without losing text, or (with its output cap, when generating) does not fit the
        context; named by id.
    """
    limit = extractor.context_length
    rendered = []
    for w in work:
        where, regime = f"the prompt of {w.id}", study.regimes[w.regime]
        if template == "chat":
            r = renderer.render(prompts.conversation(regime, w.prompt), where)
        else:
            text, begin, spans = prompts.plain_text(regime, w.prompt)
            r = replace(renderer.render(text, where, spans), offset=begin, length=len(w.prompt.text))
        cap = study.caps.get(w.regime, 0)
        if limit is not None and len(r.token_ids) > limit:
            raise RequestError(
                f"the prompt of {w.id} has {len(r.token_ids)} tokens, more than the model's context of {limit}; leave the item out or shorten it"
            )
        if limit is not None and len(r.token_ids) + cap > limit:
            raise RequestError(
                f"the prompt of {w.id} has {len(r.token_ids)} tokens, which with {cap} output tokens is more than the model's context of {limit}; lower --max-new-tokens"
            )
        rendered.append(r)
    return rendered
