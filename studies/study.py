"""The study runner: items x regimes through one model, into one run.

Guarantees: everything that can be refused is refused before any work (names, files, prompt lengths, options); the work is
cut into shards before it starts, and batches and generation are formed within a shard, so a resumed run equals an
uninterrupted one; one cell that fails does not stop the others; Ctrl-C stops after the shard in hand.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from typing import Any

from .. import store
from ..analysis import hypotheses
from ..errors import RequestError
from ..hooks import Extractor
from ..hooks import models as hook_models
from ..hooks.extractor import default_batch_tokens
from ..hooks.rendering import Rendered
from ..store.settings import check_settings, started_run
from . import benchmarks, moments, prompts
from .config import StudyConfig, defaults, settings
from .run_model import RunModel
from .shard_loop import complete
from .shards import COLUMNS, OPTION_MASSES, Recipe, Work, make_shard

SHARD_STATES_WHEN_GENERATING = 32


def run_study(config: StudyConfig, *, progress: bool = True, extractor: Extractor | None = None) -> store.Run:
    """Run a study, or continue it where its run was left.

    Parameters
    ----------
    config : StudyConfig
    progress : bool
        Show a bar with rate and time left on stderr.
    extractor : Extractor, optional
        An extractor of the config's model that is already loaded.

    Returns
    -------
    store.Run
        The finished run. Cells that failed are in `run.failed_cells`, with the reason.

    Raises
    ------
    RequestError
        If something asked for does not exist or does not fit; nothing has been written then. `store.ConfigMismatch` names the
        settings in which an existing run differs.
    StoreError
        If the run cannot be written (such as a full disk); what is committed stays.
    StudyInterrupted
        After Ctrl-C.
    """
    known = config.regime_table()
    work = plan_work(config, known)
    model = RunModel.of(config.model, config.revision, extractor)
    out = os.fspath(config.out)
    existing = started_run(out)
    asked = full_settings(config, known, work) | model.settings(existing)
    if existing is not None:
        plan = store.Plan.build((w.key() for w in work), config.shard_size or existing.plan.shard_size)
        check_settings(out, plan=plan, config=asked, config_defaults=defaults())
        if existing.progress.complete:
            return existing
    if extractor is None:
        extractor = Extractor.from_pretrained(
            config.model,
            config.backend,
            config.dtype,
            config.device,
            model.revision,
            batch_tokens=asked["batch_tokens"],
            share_prefix=config.share_prefix,
            compile=config.compile,
        )
    rendered = render_work(config, work, extractor)
    recipe = Recipe.of(config, extractor, work)
    arrays = recipe.arrays()
    # A run that was begun before the options had arrays of their own goes on without them.
    left_out = {OPTION_MASSES} if existing is not None and OPTION_MASSES not in existing.arrays else set()
    arrays = {name: spec for name, spec in arrays.items() if name not in left_out}
    shard_size = config.shard_size or (existing.plan.shard_size if existing else _shard_size(config, arrays))
    plan = store.Plan.build((w.key() for w in work), shard_size)
    by_id = {w.id: (w, r) for w, r in zip(work, rendered, strict=True)}
    with store.open_writer(
        out,
        plan=plan,
        config=asked,
        config_defaults=defaults(),
        manifest=_manifest(config, extractor, work),
        arrays=arrays,
        columns=COLUMNS,
        ragged=recipe.ragged(),
    ) as writer:
        width = extractor.backend.architecture.width

        def make(shard: store.Shard, bar: Any) -> dict[str, Any]:
            made = make_shard(recipe, [by_id[state["id"]] for state in shard.states], bar)
            made["arrays"] = {name: values for name, values in made["arrays"].items() if name not in left_out}
            return made

        def fold(shard: int) -> None:
            if config.moments:
                moments.fold(writer, shard, width)

        complete(
            writer,
            make,
            unit="state",
            progress=progress,
            committed=fold,
        )
        if config.moments:
            for cell in plan.cells:
                fold(cell.first_shard)
            writer.update_manifest({"moments": moments.summary(store.open_run(out), recipe.layers)})
    return store.open_run(out)


def plan_work(config: StudyConfig, known: Mapping[str, prompts.Regime]) -> list[Work]:
    """All states of a study in plan order (benchmark, regime, item), with their prompts; items are loaded here."""
    work = []
    for benchmark in config.benchmarks:
        items = benchmarks.load(benchmark, config.n, config.seed, config.items.get(benchmark))
        for regime in config.regimes:
            for item in items:
                prompt = prompts.render(regime, item, known)
                work.append(Work(f"{benchmark}/{item.id}/{regime}", benchmark, regime, item, prompt))
    return work


def _shard_size(config: StudyConfig, arrays: Mapping[str, store.ArraySpec]) -> int:
    size = store.shard_size_for(arrays)
    return min(size, SHARD_STATES_WHEN_GENERATING) if config.generate else size


def full_settings(config: StudyConfig, known: Mapping[str, prompts.Regime], work: list[Work]) -> dict[str, Any]:
    """Every setting that decides a number but the model, with the identity of the items and the templates."""
    asked = settings(config)
    device_type = hook_models.torch_device(config.device).type
    asked["device_type"] = device_type
    asked["batch_tokens"] = config.batch_tokens or default_batch_tokens(device_type, config.generate)
    asked["max_new_tokens"] = {r: config.cap(r, known) for r in config.regimes} if config.generate else {}
    family = config.declared_hypotheses()
    asked[hypotheses.RECORDED] = None if family is None else family.sha256
    asked["items"] = {}
    for benchmark in config.benchmarks:
        own = {w.item.id: w.item for w in work if w.benchmark == benchmark}
        content = json.dumps([[i.id, i.question, i.answer, i.choices] for i in own.values()], ensure_ascii=False)
        asked["items"][benchmark] = {"count": len(own), "sha256": hashlib.sha256(content.encode()).hexdigest()[:16]}
    formats = sorted({w.item.format for w in work})
    asked["templates"] = {
        r: {f: known[r].template_hash(f) for f in formats if _has(known[r], f)} for r in config.regimes
    }
    return asked


def render_work(config: StudyConfig, work: list[Work], extractor: Extractor) -> list[Rendered]:
    """Token ids of every state, with lengths checked against the model's context.

    Raises
    ------
    RequestError
        If a prompt (with its output cap, when generating) does not fit the context; named by id.
    """
    special = [t for t in extractor.tokenizer.all_special_tokens if t]
    forged = [w.id for w in work if any(token in w.prompt.text for token in special)]
    if forged:
        warnings.warn(
            f"{len(forged)} prompts hold the tokenizer's special tokens as text (the first: {forged[0]}), which it reads as control tokens; reword them if that is not meant",
            stacklevel=2,
        )
    template = config.template
    if template == "auto":
        template = "chat" if extractor.renderer.has_chat_template else "raw"
    limit = extractor.context_length
    rendered = []
    for w in work:
        text = w.prompt.text
        prompt = [{"role": "user", "content": text}] if template == "chat" else text
        r = extractor.renderer.render(prompt, f"the prompt of {w.id}")
        cap = config.cap(w.regime) if config.generate else 0
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


def _manifest(config: StudyConfig, extractor: Extractor, work: list[Work]) -> dict[str, Any]:
    sampled: dict[str, list[str]] = {}
    for w in work:
        ids = sampled.setdefault(w.benchmark, [])
        if w.regime == config.regimes[0]:
            ids.append(w.item.id)
    return {
        "kind": "study",
        "model": config.model,
        "capture": extractor.manifest(),
        "sampled_ids": sampled,
        "seed": config.seed,
        "benchmarks": list(config.benchmarks),
        "regimes": list(config.regimes),
        "max_new_tokens": {r: config.cap(r) for r in config.regimes} if config.generate else None,
        "decoding": "greedy" if config.generate else None,
        **_declared(config),
    }


def _declared(config: StudyConfig) -> dict[str, Any]:
    family = config.declared_hypotheses()
    return {} if family is None else {hypotheses.RECORDED: family.sha256, hypotheses.TEXT: family.text}


def _has(regime: prompts.Regime, form: str) -> bool:
    return (regime.choice if form == benchmarks.CHOICE else regime.free) is not None
