"""The study as a kind of work: items x regimes through one model, into one run.

Guarantees, beyond what the runner does: batches and generation are formed within a shard, all of one benchmark and regime; a
run that was begun before an array existed goes on without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import declared, schema, store
from ...hooks import Extractor
from .. import prompt_settings, rule_versions, runner
from ..models import ModelRequest
from . import config as configs
from . import moments
from .config import ResolvedStudy, StudyConfig
from .shards import COLUMNS, Recipe, make_shard
from .work import Work, chat_or_raw, identities, load_work, render_work, sampled_ids, stop_texts

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

    Examples
    --------
    >>> import precollapse as pc
    >>> config = pc.StudyConfig("new.zarr", benchmarks=("builtin",), n=2, regimes=("baseline",), max_new_tokens=2)
    >>> run = pc.run_study(config, progress=False)
    >>> len(run.states), int(run.states["output_tokens"].max()) <= 2
    (2, True)
    """
    return runner.run(Study.of(config), progress=progress, extractor=extractor)


@dataclass(frozen=True)
class Study:
    """A study that is ready to run (a `runner.Kind`): its config, the files that it names, and its states.

    Attributes
    ----------
    resolved : ResolvedStudy
    work : tuple of Work
        In plan order.
    """

    resolved: ResolvedStudy
    work: tuple[Work, ...]
    unit: str = "state"

    @classmethod
    def of(cls, config: StudyConfig) -> Study:
        """Read the files that a config names (RequestError where they do not fit)."""
        resolved = configs.resolve(config)
        return cls(resolved, load_work(resolved))

    @property
    def config(self) -> StudyConfig:
        return self.resolved.config

    @property
    def out(self) -> str | Path:
        return self.config.out

    @property
    def shard_size(self) -> int | None:
        return self.config.shard_size

    @property
    def model(self) -> ModelRequest:
        c = self.config
        return ModelRequest(
            c.model,
            c.backend,
            c.dtype,
            c.device,
            c.revision,
            c.batch_tokens,
            c.share_prefix,
            c.compile,
            c.generate,
            c.context_length,
        )

    def keys(self) -> list[dict[str, str]]:
        return [w.key() for w in self.work]

    def settings(self) -> dict[str, Any]:
        declaration = self.resolved.declaration
        return {
            **configs.settings(self.config),
            "batch_tokens": self.model.token_budget,
            "max_new_tokens": dict(self.resolved.caps),
            declared.RECORDED: None if declaration is None else declaration.sha256,
            **identities(self.resolved, self.work),
        }

    def defaults(self) -> dict[str, Any]:
        versions = {"grader": rule_versions.FIRST["grader"]} if self.config.generate else {}
        return configs.defaults() | versions

    def prepare(self, extractor: Extractor, started: store.Run | None) -> runner.Job:
        chosen = self.resolved.config
        renderer = extractor.renderer.using(
            prompt_settings.chat_settings(chosen.template_args, chosen.date, chosen.bos, started)
        )
        template = chat_or_raw(self.resolved, renderer)
        rendered = render_work(self.resolved, self.work, extractor, renderer, template)
        named = [(f"{w.benchmark}/{w.regime}", w.id, r) for w, r in zip(self.work, rendered, strict=True)]
        prompt_settings.refuse_same(named, chosen.allow_same_prompts or started is not None)
        stops = stop_texts(self.resolved, template, started)
        late = prompt_settings.late_settings(
            renderer, [(cell, r) for cell, _, r in named], started, stops if chosen.stop is None else None
        )
        recipe = Recipe.of(self.resolved, extractor, [w.item for w in self.work], stops)
        # A run that was begun before the options had arrays of their own goes on without them.
        left_out = (
            {schema.ATTENTION_OPTIONS}
            if started is not None and schema.ATTENTION_OPTIONS not in started.arrays
            else set()
        )
        arrays = {name: spec for name, spec in recipe.arrays().items() if name not in left_out}
        members = {schema.item_key(w.key()): (w, r) for w, r in zip(self.work, rendered, strict=True)}

        def make(shard: store.Shard, bar: Any) -> dict[str, Any]:
            contents = make_shard(recipe, [members[schema.item_key(state)] for state in shard.states], bar)
            contents["arrays"] = {name: rows for name, rows in contents["arrays"].items() if name not in left_out}
            return contents

        width = extractor.backend.architecture.width

        def fold(writer: store.Writer, shard: int) -> None:
            moments.fold(writer, shard, width)

        def finish(writer: store.Writer) -> None:
            for cell in writer.plan.cells:
                fold(writer, cell.first_shard)
            writer.update_manifest({schema.MOMENTS: moments.summary(store.open_run(self.out), recipe.layers)})

        keeps_moments = self.config.moments
        return runner.Job(
            make,
            manifest={
                **self._manifest(extractor),
                **renderer.describe(),
                "stop": {name: list(texts) for name, texts in stops.items()},
            },
            columns=COLUMNS,
            shard_size=self._default_shard_size(arrays),
            arrays=arrays,
            ragged=recipe.ragged(),
            settings=late,
            committed=fold if keeps_moments else None,
            finished=finish if keeps_moments else None,
        )

    def _default_shard_size(self, arrays: Mapping[str, store.ArraySpec]) -> int:
        size = store.shard_size_for(arrays)
        return min(size, SHARD_STATES_WHEN_GENERATING) if self.config.generate else size

    def _manifest(self, extractor: Extractor) -> dict[str, Any]:
        config = self.config
        return {
            "kind": schema.STUDY_KIND,
            "model": config.model,
            "capture": extractor.manifest(),
            "sampled_ids": sampled_ids(self.resolved, self.work),
            "seed": config.seed,
            "benchmarks": list(config.benchmarks),
            "regimes": list(config.regimes),
            "max_new_tokens": dict(self.resolved.caps) if config.generate else None,
            "decoding": "greedy" if config.generate else None,
            **declared.manifest_entries(self.resolved.declaration),
        }
