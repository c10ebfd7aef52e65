"""Entropy along chains of reasoning: the study runner.

Guarantees what the study runner does: everything that can be refused is refused before any work, batches and random numbers
are formed within a shard and from each item's own name, so a resumed run equals an uninterrupted one, and one benchmark that
fails does not stop the others.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ... import store
from ...analysis.trajectories.preregistration import load_preregistration
from ...analysis.trajectories.public import load_texts
from ...errors import RequestError
from ...hooks import Extractor
from ...hooks.decoding.continuations import decoding_for
from ...hooks.decoding.tree import method_for
from ...hooks.rendering import Rendered
from ...store.settings import check_settings, started_run
from .. import benchmarks
from ..run_model import RunModel
from ..shard_loop import complete
from .config import TrajectoryConfig, defaults, file_digest, settings
from .forced import (
    anchor_tokens,
    answer_forms,
)
from .segmentation import token_ends_of_text
from .shards import COLUMNS, Work, make_shard, ragged

_ANSWER_TOKENS = 48  # room kept after an anchor for the longest answer that is scored


def run_trajectories(
    config: TrajectoryConfig, *, progress: bool = True, extractor: Extractor | None = None
) -> store.Run:
    """Follow the chains of a study's items, or continue where its run was left.

    Parameters
    ----------
    config : TrajectoryConfig
    progress : bool
        Show a bar with rate and time left on stderr.
    extractor : Extractor, optional
        An extractor of the config's model that is already loaded.

    Returns
    -------
    store.Run
        The finished run; benchmarks that failed are in `run.failed_cells`.

    Raises
    ------
    RequestError
        If something asked for does not exist or does not fit; nothing has been written then.
    StoreError
        If the run cannot be written; what is committed stays.
    StudyInterrupted
        After Ctrl-C.
    """
    work = load_work(config)
    _check_candidates(config, work)
    model = RunModel.of(config.model, config.revision, extractor)
    out = os.fspath(config.out)
    plan = store.Plan.build((w.key() for w in work), config.shard_size)
    existing = started_run(out)
    asked = full_settings(config, work) | model.settings(existing)
    if existing is not None:
        plan = store.Plan.build((w.key() for w in work), existing.plan.shard_size)
        check_settings(out, plan=plan, config=asked, config_defaults=defaults())
        if existing.progress.complete:
            return existing
    if extractor is None:
        extractor = Extractor.from_pretrained(config.model, "hf", config.dtype, config.device, model.revision)
    members = render_work(config, work, extractor)
    with store.open_writer(
        out,
        plan=plan,
        config=asked,
        config_defaults=defaults(),
        manifest=_manifest(config, extractor),
        arrays={},
        columns=COLUMNS,
        ragged=ragged(config),
    ) as writer:
        complete(
            writer,
            lambda shard, bar: make_shard(config, extractor, [members[state["id"]] for state in shard.states], bar),
            unit="chain",
            progress=progress,
        )
    return store.open_run(out)


def load_work(config: TrajectoryConfig) -> list[Work]:
    """Items and given chains of a study, in plan order.

    Raises
    ------
    RequestError
        When a file is missing or malformed, or given chains and items do not belong together.
    """
    work: list[Work] = []
    for name in config.benchmarks:
        source = config.chains.get(name)
        if source is not None and str(source).endswith((".tar.gz", ".tgz")):
            texts = load_texts(source)
            for c in texts[: config.n]:
                work.append(Work(name, benchmarks.Item(c.name, c.prompt, ""), c.text))
            continue
        chains = None if source is None else _chain_rows(Path(source))
        if chains is None:
            items = benchmarks.load(name, config.n, config.seed, config.items.get(name))
            work += [Work(name, item, None) for item in items]
            continue
        known = {item.id: item for item in benchmarks.load(name, None, config.seed, config.items.get(name))}
        unknown = [i for i in chains if i not in known]
        if unknown:
            raise RequestError(
                f"{source} has a chain for {unknown[0]!r}, which is no item of {name}; use the items' ids"
            )
        work += [Work(name, known[i], text) for i, text in list(chains.items())[: config.n]]
    return work


def _check_candidates(config: TrajectoryConfig, work: Sequence[Work]) -> None:
    """Refuse forced answers of free-response items when nothing says which answers to compare."""
    if "forced" not in config.measures or "sampled" in config.measures or config.options is not None:
        return
    for w in work:
        if w.graded and w.item.choices is None:
            raise RequestError(
                f"{w.benchmark} is free response, and forced answers compare at least two: sample continuations as well (--both) to compare what the model itself answers, or name the answers with --options"
            )


def _chain_rows(path: Path) -> dict[str, str]:
    chains: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read the chains of {path} ({error})") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise RequestError(f"{path}, line {number}, is not JSON ({error})") from error
        if not isinstance(row, dict) or not isinstance(row.get("chain"), str) or "id" not in row:
            raise RequestError(f"{path}, line {number}, needs an id and a chain of text")
        if str(row["id"]) in chains:
            raise RequestError(f"{path}, line {number}, is a second chain for {row['id']!r}; give one per item")
        chains[str(row["id"])] = row["chain"]
    if not chains:
        raise RequestError(f"{path} holds no chains; each line needs an id and a chain")
    return chains


def full_settings(config: TrajectoryConfig, work: list[Work]) -> dict[str, Any]:
    """Every setting that decides a number but the model, with the identity of the items, the chains and the registration."""
    asked = settings(config)
    asked["device_type"] = (
        torch.device(config.device).type if config.device else ("cuda" if torch.cuda.is_available() else "cpu")
    )
    content = json.dumps([[w.id, w.item.question, w.item.answer, w.item.choices] for w in work], ensure_ascii=False)
    asked["items"] = {"count": len(work), "sha256": hashlib.sha256(content.encode()).hexdigest()[:16]}
    asked["chains"] = {name: file_digest(path) for name, path in config.chains.items()}
    asked["preregistration"] = (
        None if config.preregistration is None else load_preregistration(config.preregistration).sha256
    )
    return asked


def render_work(config: TrajectoryConfig, work: list[Work], extractor: Extractor) -> dict[str, tuple[Work, Rendered]]:
    """Every item with its prompt's token ids, by id; lengths and options are checked here.

    Raises
    ------
    RequestError
        If a prompt with its budgets does not fit the model's context, or options cannot be told apart.
    """
    limit = extractor.context_length
    budget = config.continuation_tokens if "sampled" in config.measures else 0
    if "forced" in config.measures:
        asked = [anchor_tokens(extractor.tokenizer, a, config.end_tag, config.tag_side) for a in config.anchors]
        budget = max(budget, max(map(len, asked)) + _ANSWER_TOKENS)
    members = {}
    own_turn = takes_system_turn(extractor)
    for w in work:
        rendered = extractor.renderer.render(_prompt(config, w, extractor, own_turn), f"the prompt of {w.id}")
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
        members[w.id] = (w, rendered)
    return members


def takes_system_turn(extractor: Extractor) -> bool:
    """Whether the model's chat template has a place for a system prompt; some refuse one."""
    if not extractor.renderer.has_chat_template:
        return False
    try:
        extractor.renderer.render([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])
    except RequestError:
        return False
    return True


def _prompt(config: TrajectoryConfig, work: Work, extractor: Extractor, own_turn: bool) -> Any:
    """The question (with its options) under the system prompt, which opens the user's turn where it can have none of its
    own; plain text where the tokenizer has no chat template."""
    question = work.item.question
    if work.item.choices is not None:
        question += "\n\n" + "\n".join(f"{label}) {text}" for label, text in work.item.choices.items())
    if config.system and not own_turn:
        question = f"{config.system}\n\n{question}"
    if not extractor.renderer.has_chat_template:
        return f"{question}\n\n"
    user = {"role": "user", "content": question}
    return [{"role": "system", "content": config.system}, user] if config.system and own_turn else [user]


def _manifest(config: TrajectoryConfig, extractor: Extractor) -> dict[str, Any]:
    tree, decoding = method_for(extractor.model), decoding_for(extractor.model)
    registered = None if config.preregistration is None else load_preregistration(config.preregistration)
    return {
        "kind": "trajectories",
        "capture": extractor.manifest(),
        "measures": list(config.measures),
        "system_prompt": "own turn" if takes_system_turn(extractor) else "opens the user's turn",
        "forced_method": {"name": tree.name, "reason": tree.reason},
        "sampling_method": {"name": decoding.name, "reason": decoding.reason},
        "analysis": {"epsilon": config.epsilon, "tie": config.tie},
        "preregistration": None if registered is None else {"sha256": registered.sha256, "text": registered.source},
    }
