"""A whole run: its benchmarks one after the other, then transfer between them.

Guarantees that a request which the run cannot meet is refused before a layer is read, and that progress is told layer by layer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ..probing import probes
from .across import across_benchmarks
from .benchmark import analyse_benchmark
from .results import RunAnalysis
from .settings import Settings
from .source import RunLike, Source

Progress = Callable[[float, str], None]


def analyse(
    run: RunLike, settings: Settings | None = None, progress: Progress | None = None, name: str = ""
) -> RunAnalysis:
    """Analyse one run.

    Parameters
    ----------
    run : RunLike
    settings : Settings
    progress : callable (fraction done 0..1, what is being done), optional
    name : str
        Name of the model in tables; default what the manifest says.

    Raises
    ------
    RequestError
        When the run holds no committed state, or lacks the site, a layer, the probe or the target asked for.
    """
    settings = settings or Settings()
    started = time.perf_counter()
    source = Source.of(run, settings, name)
    probes.get_probe(settings.probe)
    names = list(dict.fromkeys([*run.states["benchmark"].astype(str), *(b for b, _ in source.failed)]))
    between = settings.cross_benchmark and len(names) > 1 and len(source.layers) > 0
    step = _counted(progress, (len(names) + between) * len(source.layers))
    benchmarks = [analyse_benchmark(source, benchmark, settings, step) for benchmark in names]
    cross = across_benchmarks(source, benchmarks, settings, step) if between else {}
    return RunAnalysis(
        source.model,
        tuple(benchmarks),
        cross,
        settings,
        source.site,
        source.layers,
        time.perf_counter() - started,
        tuple(source.notes()),
    )


def _counted(progress: Progress | None, steps: int) -> Callable[[str], None]:
    """What is called after each step with what was done, and tells the fraction of all steps."""
    done = 0

    def step(what: str) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(min(1.0, done / max(steps, 1)), what)

    return step
