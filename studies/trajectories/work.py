"""The items and given chains of a trajectory study, before a model has seen them.

Guarantees that a chains file is read once, so that the digest a run records is that of the chains it followed; that given
chains and items belong together; and that an item that does not fit the model's context, or whose options it cannot tell apart,
is refused by its name before any work.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import schema, strict_json
from ...analysis.trajectories.public import load_texts
from ...checks import shown
from ...errors import RequestError
from ...hooks import Extractor
from ...hooks.prompts.rendering import Rendered, Renderer
from .. import benchmarks
from .answers import anchor_tokens, answer_forms
from .config import TrajectoryConfig
from .segmentation import token_ends_of_text

REGIME = "chain"
_ANSWER_TOKENS = 48  # room kept after an anchor for the longest answer that is scored


@dataclass(frozen=True)
class Work:
    """One item to follow: `chain` is its given text, None to have the model write one."""

    benchmark: str
    item: benchmarks.Item
    chain: str | None

    @property
    def id(self) -> str:
        return schema.state_id(self.benchmark, self.item.id, REGIME)

    @property
    def seed_name(self) -> str:
        """What its random numbers are drawn by: the same for an item in every version, whatever its id."""
        return schema.joined_id(self.id)

    @property
    def graded(self) -> bool:
        """Whether there is a gold answer."""
        return self.item.answer != ""

    def key(self) -> dict[str, str]:
        """What the plan keeps of it."""
        return {"id": self.id, "benchmark": self.benchmark, "regime": REGIME, "item_id": self.item.id}


def load_work(config: TrajectoryConfig) -> tuple[tuple[Work, ...], dict[str, str]]:
    """Items and given chains of a study, in plan order, and the digest of each chains file that they were read from.

    Raises
    ------
    RequestError
        When a file is missing or malformed, given chains and items do not belong together, or nothing says which answers to
        compare.
    """
    work: list[Work] = []
    digests: dict[str, str] = {}
    for name in config.benchmarks:
        source = config.chains.get(name)
        if source is None:
            items = benchmarks.load(name, config.n, config.seed, config.items.get(name))
            work += [Work(name, item, None) for item in items]
            continue
        content = _content(source)
        digests[name] = _digest(content)
        if str(source).endswith((".tar.gz", ".tgz")):
            texts = load_texts(source)
            if _digest(_content(source)) != digests[name]:
                raise RequestError(f"{source} was changed while it was read; start again when it stands still")
            work += [Work(name, benchmarks.Item(c.name, c.prompt, ""), c.text) for c in texts[: config.n]]
            continue
        chains = _chain_rows(content, source)
        items_by_id = {item.id: item for item in benchmarks.load(name, None, config.seed, config.items.get(name))}
        strangers = [i for i in chains if i not in items_by_id]
        if strangers:
            raise RequestError(
                f"{source} has a chain for {strangers[0]!r}, which is no item of {name}; use the items' ids"
            )
        work += [Work(name, items_by_id[i], text) for i, text in list(chains.items())[: config.n]]
    _check_candidates(config, work)
    return tuple(work), digests


def identity(work: Sequence[Work]) -> dict[str, Any]:
    """What a run's settings keep of its items: count and digest."""
    content = json.dumps(
        [[w.seed_name, w.item.question, w.item.answer, w.item.choices] for w in work], ensure_ascii=False
    )
    return {"count": len(work), "sha256": hashlib.sha256(content.encode()).hexdigest()[:16]}


def _check_candidates(config: TrajectoryConfig, work: Sequence[Work]) -> None:
    """Refuse forced answers of free-response items when nothing says which answers to compare."""
    if "forced" not in config.measures or "sampled" in config.measures or config.options is not None:
        return
    for w in work:
        if w.graded and w.item.choices is None:
            raise RequestError(
                f"{w.benchmark} is free response, and forced answers compare at least two: sample continuations as well (--both) to compare what the model itself answers, or name the answers with --options"
            )


def _content(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RequestError(f"cannot read the chains of {path} ({error.strerror}); give an existing file") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _chain_rows(content: bytes, path: str | Path) -> dict[str, str]:
    """Chains by the id of their item, from the content of the JSON Lines file `path`."""
    chains: dict[str, str] = {}
    try:
        lines = content.decode().split("\n")  # at \n alone: texts of JSON may hold what str.splitlines breaks at
    except UnicodeDecodeError as error:
        raise RequestError(f"cannot read the chains of {path} ({error}); give UTF-8 text") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = strict_json.loads(line)
        except ValueError as error:
            raise RequestError(f"{path}, line {number}, is not JSON ({error})") from error
        if not isinstance(row, dict) or not isinstance(row.get("chain"), str) or "id" not in row:
            raise RequestError(f"{path}, line {number}, needs an id and a chain of text")
        if str(row["id"]) in chains:
            raise RequestError(f"{path}, line {number}, is a second chain for {shown(row['id'])}; give one per item")
        chains[str(row["id"])] = row["chain"]
    if not chains:
        raise RequestError(f"{path} holds no chains; each line needs an id and a chain")
    return chains


def render_work(
    config: TrajectoryConfig, work: Sequence[Work], extractor: Extractor, renderer: Renderer
) -> Mapping[tuple[str, str, str], tuple[Work, Rendered]]:
    """Every item with its prompt's token ids, by `schema.item_key`; lengths and options are checked here.

    Raises
    ------
    RequestError
        If a prompt with its budgets does not fit the model's context, or options cannot be told apart.
    """
    limit = extractor.context_length
    budget = config.continuation_tokens if "sampled" in config.measures else 0
    if "forced" in config.measures:
        anchors = [anchor_tokens(extractor.tokenizer, a, config.end_tag, config.tag_side) for a in config.anchors]
        budget = max(budget, max(map(len, anchors)) + _ANSWER_TOKENS)
    members = {}
    for w in work:
        rendered = renderer.render(*_prompt(config, w, renderer))
        length = config.chain_tokens if w.chain is None else len(token_ends_of_text(extractor.tokenizer, w.chain)[0])
        needed = len(rendered.token_ids) + length + budget
        if limit is not None and needed > limit:
            raise RequestError(
                f"{w.id} needs {needed} tokens (prompt {len(rendered.token_ids)}, chain {length}, what follows {budget}), "
                f"but the model's context is {limit}; lower the budgets or leave the item out"
            )
        if "forced" in config.measures:
            options = config.options or w.item.choices
            if options is not None:
                answer_forms(extractor.tokenizer, tuple(options), f"options of {w.id}")
        members[schema.item_key(w.key())] = (w, rendered)
    return members


def takes_system_turn(renderer: Renderer) -> bool:
    """Whether the model's chat template has a place for a system prompt; some refuse one or leave it out."""
    return renderer.describe().get("chat", {}).get("system") == "own turn"


def _prompt(config: TrajectoryConfig, work: Work, renderer: Renderer) -> tuple[Any, str, list[tuple[int, int]]]:
    """The question (with its options) under the system prompt, which the renderer puts into the user's turn where it can have none of
    its own; plain text where the tokenizer has no chat template. What `Renderer.render` takes."""
    where = f"the prompt of {work.id}"
    question = work.item.question
    if work.item.choices is not None:
        question += "\n\n" + "\n".join(f"{label}) {text}" for label, text in work.item.choices.items())
    if not renderer.has_chat_template:
        head = f"{config.system}\n\n" if config.system else ""
        return f"{head}{question}\n\n", where, [(len(head), len(head) + len(question))]
    system = [{"role": "system", "content": config.system}] if config.system else []
    return [*system, {"role": "user", "content": question}], where, []
