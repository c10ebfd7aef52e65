"""What holds for a whole run, whichever of its states are selected.

Guarantees that it is fixed when the run is opened, but for the manifest and the failed cells, which are read once when they are first
asked for.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

from ..files.errors import readable
from ..geometry import ArraySpec
from ..log.commits import Commit
from ..log.notes import read_notes
from ..plan import Plan
from .progress import Progress, failed_cells, progress
from .snapshot import Snapshot


class RunFacts:
    """The plan, settings, contents and progress of a run."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    @property
    def path(self) -> str:
        """Where the run lies."""
        return self._snapshot.files.path

    @property
    def plan(self) -> Plan:
        """The plan of the whole run."""
        return self._snapshot.run.plan

    @property
    def config(self) -> dict[str, Any]:
        """The settings that the run was started with."""
        return dict(self._snapshot.run.config)

    @property
    def config_hash(self) -> str:
        """SHA-256 of the settings that differ from their defaults."""
        return self._snapshot.run.config_hash

    @property
    def arrays(self) -> dict[str, ArraySpec]:
        """What each state has of each array."""
        return dict(self._snapshot.run.arrays)

    @property
    def sites(self) -> dict[str, tuple[int, ...]]:
        """Model layer numbers of each array that has layers."""
        return {name: spec.layers for name, spec in self.arrays.items() if spec.layers is not None}

    @property
    def ragged_arrays(self) -> dict[str, str]:
        """Type of each array whose length differs between states."""
        return dict(self._snapshot.run.ragged)

    @property
    def columns(self) -> dict[str, str]:
        """Type of each table column of the plan."""
        return dict(self._snapshot.run.columns)

    @property
    def commits(self) -> dict[int, Commit]:
        """The commit of each committed shard of the whole run."""
        return dict(self._snapshot.commits)

    @property
    def faults(self) -> dict[int, str]:
        """What is wrong with the commit of each shard that was left out for it."""
        return dict(self._snapshot.faults)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """How the run came about: what its writers noted, settings, format, and wall time per cell."""
        snapshot = self._snapshot
        with readable(self.path):
            notes, faults, _ = read_notes(snapshot.files)
        for fault in faults.values():
            warnings.warn(f"{fault} Its entries are left out.", stacklevel=2)
        seconds = {f"{c.benchmark}/{c.regime}": c.seconds for c in self.progress.cells if c.seconds is not None}
        return {
            **notes,
            "format": self._snapshot.run.format,
            "config": self.config,
            "config_hash": self.config_hash,
            "duplicates": list(self.plan.duplicates),
            "wall_seconds": seconds,
        }

    @cached_property
    def failed_cells(self) -> dict[tuple[str, str], str]:
        """Reason by (benchmark, regime) for cells that could not be finished."""
        return failed_cells(self._snapshot)

    @cached_property
    def progress(self) -> Progress:
        """How far the whole run is."""
        return progress(self._snapshot, self.failed_cells)
