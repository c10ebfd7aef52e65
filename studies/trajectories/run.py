"""Entropy along chains of reasoning as a kind of work.

Guarantees, beyond what the runner does: batches and random numbers are formed within a shard and from each item's own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import declared, schema, store
from ...hooks import Extractor
from ...hooks.decoding.continuations import decoding_for
from ...hooks.decoding.tree import method_for
from .. import prompt_settings, rule_versions, runner
from ..models import ModelRequest
from . import config as configs
from .config import TrajectoryConfig
from .shards import COLUMNS, make_shard, ragged
from .work import Work, identity, load_work, render_work, takes_system_turn


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
    return runner.run(Trajectories.of(config), progress=progress, extractor=extractor)


@dataclass(frozen=True)
class Trajectories:
    """A trajectory study that is ready to run (a `runner.Kind`): its config, and what the files that it names hold.

    Attributes
    ----------
    config : TrajectoryConfig
    declaration : Declaration or None
        The declared hypotheses.
    work : tuple of Work
        In plan order.
    chain_digests : dict of str to str
        Digest of the file of given chains by benchmark.
    """

    config: TrajectoryConfig
    declaration: declared.Declaration | None
    work: tuple[Work, ...]
    chain_digests: Mapping[str, str]
    unit: str = "chain"

    @classmethod
    def of(cls, config: TrajectoryConfig) -> Trajectories:
        """Read the files that a config names (RequestError where they do not fit)."""
        work, digests = load_work(config)
        return cls(config, config.declared_hypotheses(), work, digests)

    @property
    def out(self) -> str | Path:
        return self.config.out

    @property
    def shard_size(self) -> None:
        """A run that is there keeps its own; `TrajectoryConfig.shard_size` is for a new one."""
        return None

    @property
    def model(self) -> ModelRequest:
        c = self.config
        return ModelRequest(
            c.model, dtype=c.dtype, device=c.device, revision=c.revision, context_length=c.context_length
        )

    def keys(self) -> list[dict[str, str]]:
        return [w.key() for w in self.work]

    def settings(self) -> dict[str, Any]:
        return {
            **configs.settings(self.config),
            "items": identity(self.work),
            "chains": dict(self.chain_digests),
            declared.TRAJECTORY_SETTING: None if self.declaration is None else self.declaration.sha256,
        }

    def defaults(self) -> dict[str, Any]:
        return configs.defaults() | dict(rule_versions.FIRST)

    def prepare(self, extractor: Extractor, started: store.Run | None) -> runner.Job:
        config, version = self.config, rule_versions.of_run("segmentation", started)
        renderer = extractor.renderer.using(
            prompt_settings.chat_settings(config.template_args, config.date, config.bos, started)
        )
        members = render_work(config, self.work, extractor, renderer)
        prompt_settings.refuse_same(
            [(w.benchmark, w.id, r) for w, r in members.values()], config.allow_same_prompts or started is not None
        )
        late = prompt_settings.late_settings(renderer, [(w.benchmark, r) for w, r in members.values()], started)

        def make(shard: store.Shard, bar: Any) -> dict[str, Any]:
            return make_shard(
                self.config, extractor, [members[schema.item_key(state)] for state in shard.states], bar, version
            )

        return runner.Job(
            make,
            manifest=self._manifest(extractor) | renderer.describe(),
            columns=COLUMNS,
            shard_size=self.config.shard_size,
            ragged=ragged(self.config),
            settings=late,
        )

    def _manifest(self, extractor: Extractor) -> dict[str, Any]:
        config, declaration = self.config, self.declaration
        tree, decoding = method_for(extractor.model), decoding_for(extractor.model)
        return {
            "kind": schema.TRAJECTORIES_KIND,
            "capture": extractor.manifest(),
            "measures": list(config.measures),
            "system_prompt": "own turn" if takes_system_turn(extractor.renderer) else "opens the user's turn",
            "forced_method": {"name": tree.name, "reason": tree.reason},
            "sampling_method": {"name": decoding.name, "reason": decoding.reason},
            "analysis": {"epsilon": config.epsilon, "tie": config.tie},
            **declared.manifest_entries(declaration),
        }
