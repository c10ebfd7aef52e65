"""The runner: any kind of work, from settings to a finished run.

Guarantees, for every kind alike: everything that can be refused is refused before any work, and before anything is written;
the work is cut into shards before it starts, and a shard's numbers depend on the plan alone, so a resumed run equals an
uninterrupted one; a run is never continued under other settings; one cell that fails does not stop the others; Ctrl-C stops
after the shard in hand. This prevents kinds of work that treat the same mistake, the same device or the same resumption in
ways of their own.

A kind of work is a `Kind` (plain data: what is asked) that turns into a `Job` once its model is loaded (what is done). The
runner and the loop over shards need to know no more of it, and whatever hands shards to several processes needs no more either:
a `Kind` can be pickled, each process prepares it on a model of its own, and the plan and the commits do the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from .. import destination, store
from ..hooks import Extractor
from ..store.settings import check_settings, started_run
from . import rule_versions
from .models import ModelRequest, RunModel
from .prompt_settings import LATE
from .shard_loop import complete


class Kind(Protocol):
    """A kind of work, resolved: all files are read and all of its own checks are made before one exists.

    Each part must be the same at every start of the same command (files edited in between show in `settings`), must need no
    loaded model, and the whole must be plain data that can be pickled.
    """

    @property
    def out(self) -> str | os.PathLike[str]:
        """The run to create or to continue."""

    @property
    def unit(self) -> str:
        """What one state is called on the progress bar and in messages, such as "state" or "chain"."""

    @property
    def model(self) -> ModelRequest:
        """The model that the work is done on."""

    @property
    def shard_size(self) -> int | None:
        """States per shard that the run must have; None takes those of the run that is there, else the job's."""

    def keys(self) -> Iterable[Mapping[str, str]]:
        """`id`, `benchmark`, `regime` and `item_id` of every state, in plan order."""

    def settings(self) -> dict[str, Any]:
        """Every setting that decides a stored number, as JSON values; the model and the device's type are added to them."""

    def defaults(self) -> dict[str, Any]:
        """At what value each setting counts as not given, so that one added later does not change an older run's hash; among them the
        versions of the rules that it goes by (`rule_versions.FIRST`)."""

    def prepare(self, extractor: Extractor, started: store.Run | None) -> Job:
        """The work on its model. What does not fit the model (a length, a site, an option) is refused here.

        Parameters
        ----------
        extractor : Extractor
        started : store.Run or None
            The run that is continued; what it declared when it was begun must be declared again.
        """


@dataclass(frozen=True)
class Job:
    """Work on its model: what the run declares, and how its shards are made.

    Attributes
    ----------
    make : callable (shard, bar) -> dict
        What `Writer.write` takes of one shard (`arrays`, `table`, `ragged`, `blobs`), as declared, one row per state in the
        shard's order. It may advance the bar, one a state. Its numbers depend on the shard's states alone, never on the
        shards before it. An error that it raises fails the shard's cell.
    manifest : mapping
        What a reader should know besides.
    columns, arrays, ragged : mapping
        As in `store.open_writer`.
    shard_size : int
        States per shard of a new run whose kind leaves it open.
    settings : mapping
        The settings that were left to the model, by name.
    committed : callable (writer, shard number), optional
        Called after each commit; whatever it does must be done once however often it is called.
    finished : callable (writer), optional
        Called when no shard is left that can be made; also at each later start of a run with failed cells.
    """

    make: Callable[[store.Shard, tqdm[Any]], dict[str, Any]]
    manifest: Mapping[str, Any]
    columns: Mapping[str, str]
    shard_size: int
    arrays: Mapping[str, store.ArraySpec] = field(default_factory=dict)
    ragged: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    committed: Callable[[store.Writer, int], None] | None = None
    finished: Callable[[store.Writer], None] | None = None


def run(kind: Kind, *, progress: bool = True, extractor: Extractor | None = None) -> store.Run:
    """Do the work, or continue it where its run was left.

    Parameters
    ----------
    kind : Kind
    progress : bool
        Show a bar with rate and time left on stderr.
    extractor : Extractor, optional
        An extractor of the kind's model that is already loaded.

    Returns
    -------
    store.Run
        The finished run; cells that failed are in `run.failed_cells`. A run that was finished before is returned as it is,
        without loading the model.

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
    out = destination.for_a_run(kind.out, "out")
    keys = list(kind.keys())
    model = RunModel.of(kind.model, extractor)
    started = started_run(out)
    settings = full_settings(kind, model, started)
    if started is not None:
        plan = store.Plan.build(keys, kind.shard_size or started.plan.shard_size)
        check_settings(out, plan=plan, config=settings, config_defaults=kind.defaults())
        if started.progress.complete:
            return started
    if not destination.is_address(out):
        destination.writable(Path(out), "out")
    job = kind.prepare(model.load() if extractor is None else extractor, started)
    if started is None:
        plan = store.Plan.build(keys, kind.shard_size or job.shard_size)
    with store.open_writer(
        out,
        plan=plan,
        config=settings | dict(job.settings),
        config_defaults=kind.defaults(),
        manifest=job.manifest,
        arrays=job.arrays,
        columns=job.columns,
        ragged=job.ragged,
    ) as writer:
        complete(writer, job.make, unit=kind.unit, progress=progress, committed=job.committed)
        if job.finished is not None:
            job.finished(writer)
    return store.open_run(out)


def full_settings(kind: Kind, model: RunModel, started: store.Run | None = None) -> dict[str, Any]:
    """Every setting that a run of this kind is started with: the kind's own, the device's type and the model.

    Raises
    ------
    RequestError
        The device does not exist here.
    """
    settings = (
        kind.settings()
        | rule_versions.kept(kind.defaults(), started)
        | {"device_type": kind.model.device_type}
        | model.settings(started)
    )
    kept = {} if started is None else started.config
    return settings | {name: kept[name] for name in LATE if name in kept and settings.get(name) is None}
