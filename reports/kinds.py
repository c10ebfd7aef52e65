"""Which report a run has: one entry per kind of run.

Guarantees that a new kind of work brings its report by adding an entry here, that an option which a kind does not read is
refused by name instead of being silently ignored, and that runs of different kinds are never reported together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from .. import declared
from ..declared import Declaration
from ..errors import RequestError
from ..layers import held_layers

Progress = Callable[[float, str], None]
STUDY = "study"
"""Kind of a run whose manifest names none."""
OPTIONS: dict[str, Any] = {
    "site": "resid_post",
    "layers": "all",
    "probe": "logistic",
    "target": "correct",
    "splits": 20,
    "shuffles": 100,
    "resamples": 1000,
    "hypotheses": None,
}
"""Every option that a kind of report may read, with its default (that of `analysis.cells.Settings`)."""


class FinishedReport(Protocol):
    """What every report offers."""

    def to_text(self) -> str:
        """For a terminal."""
        ...

    def to_markdown(self) -> str:
        """As Markdown."""
        ...

    def to_json(self) -> str:
        """All numbers; those that are not defined are null."""
        ...

    def written(self) -> str:
        """What was written where, or how to have it written."""
        ...


@dataclass(frozen=True)
class ReportRequest:
    """What a report is made of.

    Attributes
    ----------
    runs : sequence of Run
        All of one kind.
    out : path, optional
        Folder to write to; None writes nothing.
    seed : int
        Of everything random.
    options : mapping of str to Any
        Values by name, of the names in `OPTIONS`; one that is left out has its default.
    progress : callable (fraction done 0..1, what is being done), optional
    command : str, optional
        The command that makes the report; named under its figures.
    """

    runs: Sequence[Any]
    out: Path | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress | None = None
    command: str | None = None


@dataclass(frozen=True)
class ReportKind:
    """How runs of one kind are reported.

    Attributes
    ----------
    name : str
        `kind` of the run's manifest.
    plural : str
        What a message calls such runs.
    options : frozenset of str
        Options that the report reads, beside `out` and `seed`.
    module, function : str
        Where the report is made: takes a `ReportRequest`, returns a `FinishedReport`. Imported when it is needed.
    """

    name: str
    plural: str
    options: frozenset[str]
    module: str
    function: str

    def write(self, request: ReportRequest) -> FinishedReport:
        """Make the report, and write it where a folder is named.

        Raises
        ------
        RequestError
            An option that this kind does not read, a run that lacks what is asked for, or a folder that cannot be written.
        """
        for name, value in request.options.items():
            if name not in self.options and value != OPTIONS.get(name):
                owners = " and ".join(kind.plural for kind in KINDS.values() if name in kind.options) or "no report"
                paths = ", ".join(str(run.path) for run in request.runs)
                raise RequestError(f"--{name} is for {owners}, and {paths} holds {self.plural}; leave it out")
        make: Callable[[ReportRequest], FinishedReport] = getattr(
            import_module(self.module, __package__), self.function
        )
        return make(request)


KINDS: dict[str, ReportKind] = {
    kind.name: kind
    for kind in (
        ReportKind(
            STUDY,
            "studies",
            frozenset(OPTIONS),
            ".kinds",
            "_study",
        ),
        ReportKind("trajectories", "trajectories", frozenset({"resamples", "hypotheses"}), ".kinds", "_trajectories"),
    )
}
"""Kinds of runs that have a report, by the name that their manifest gives."""


def report_kind(runs: Sequence[Any]) -> ReportKind:
    """The kind of report that these runs have.

    Raises
    ------
    RequestError
        No run, runs of different kinds, or a kind that has no report.
    """
    if not runs:
        raise RequestError("No run was given; name at least one.")
    names = {str(run.manifest.get("kind") or STUDY) for run in runs}
    if len(names) > 1:
        listed = ", ".join(sorted(names))
        raise RequestError(f"the runs are of different kinds ({listed}); report studies and trajectories apart")
    (name,) = names
    if name not in KINDS:
        raise RequestError(
            f"{runs[0].path} is a run of kind {name!r}, which has no report; there is one for {', '.join(KINDS)}"
        )
    return KINDS[name]


def _study(request: ReportRequest) -> FinishedReport:
    from ..analysis.cells import Settings
    from .study import write_report

    chosen = OPTIONS | dict(request.options)
    layers = None if chosen["layers"] == "all" else _layer_sets(chosen["layers"], chosen["site"], request.runs)
    settings = Settings(
        site=chosen["site"],
        layers=layers,
        probe=chosen["probe"],
        target=chosen["target"],
        seed=request.seed,
        resamples=chosen["resamples"],
        shuffles=chosen["shuffles"],
        n_splits=chosen["splits"],
    )
    return write_report(
        request.runs,
        request.out,
        settings=settings,
        hypotheses=_hypotheses(request),
        progress=request.progress,
        command=request.command,
    )


def _hypotheses(request: ReportRequest) -> Declaration | None:
    """The file named for this report; None leaves those that the runs recorded."""
    path = request.options.get("hypotheses")
    return None if path is None else declared.load(path)


def _layer_sets(text: str, site: str, runs: Sequence[Any]) -> list[tuple[int, ...]]:
    """Sets of layers apart by "/", of those that the runs hold."""
    held = [tuple(run.sites.get(site, ())) for run in runs]
    if len(set(held)) > 1:
        raise RequestError(f"the runs hold different layers of {site}; report them apart to choose --layers")
    return [held_layers(part, held[0], "--layers") for part in text.split("/")]


def _trajectories(request: ReportRequest) -> FinishedReport:
    from .trajectories import trajectory_report

    first, *rest = request.runs
    others = {Path(str(run.path)).stem: run for run in rest}
    return trajectory_report(
        first,
        request.out,
        seed=request.seed,
        resamples=request.options.get("resamples", OPTIONS["resamples"]),
        others=others or None,
        hypotheses=_hypotheses(request),
        command=request.command,
    )
