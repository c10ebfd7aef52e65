"""Steering a finished run's held-out items: what a direction does at several doses, beside random directions as long.

Guarantees: the direction and the probe see training items only and every effect is measured on items that neither has
seen; each dose is compared with the same prompts unsteered, pair by pair; the prompts are the run's own token ids, and the
model is checked to be the run's own. This prevents the two usual faults of steering results: effects measured on the
items that made the vector, and effects that any vector of that length would have had.
"""

from __future__ import annotations

import math
import os
import sys
from typing import Any

import pandas as pd
from tqdm import tqdm

from ... import schema, store
from ...analysis.directions import item_names
from ...analysis.dose_response import dose_response, slopes
from ...errors import RequestError
from ...hooks import Extractor
from ...hooks.steering import Steering, SteeringVector
from ...reports.steering import SteerReport
from .config import SteerConfig
from .held_out import learn, probe_layer
from .measure import HeldOutPrompts, measure
from .same_model import capture_of, check_same_model, entropy_drift, model_request

BASELINE = "unsteered"
VECTOR = "vector"


def run_steer(config: SteerConfig, *, progress: bool = True, extractor: Extractor | None = None) -> SteerReport:
    """Steer a run's held-out items along a vector at several doses, and along random directions of its length.

    Parameters
    ----------
    config : SteerConfig
    progress : bool
        Show a bar on stderr.
    extractor : Extractor, optional
        The run's model, already loaded.

    Returns
    -------
    SteerReport

    Raises
    ------
    RequestError
        If the run lacks what is needed, its states do not define the direction, or the model is not the run's.
    """
    run = _study(config)
    request = model_request(config, run)
    if extractor is None:
        request.check_device()
    chosen = run.select(regime=config.regimes, benchmark=config.benchmarks)
    vector, probe, held_out = learn(config, run, chosen)
    states = held_out.states
    wants_text = config.generate and states["correct"].notna().any()
    if config.positions == "generated" and not wants_text:
        raise RequestError(
            "positions='generated' steers what the model writes, but the run was made without generating; choose other positions"
        )
    if extractor is None:
        extractor = request.load()
    check_same_model(extractor.manifest(), capture_of(run), "this is")
    steerings = _doses(config, vector)
    for dose in steerings.values():
        dose.check_model(extractor)
    prompts = HeldOutPrompts.of(held_out, extractor, config, bool(wants_text))
    layer = probe_layer(config, chosen)
    frames = []
    drift = math.nan
    total = (1 + len(steerings)) * len(states)
    share_prefix = extractor.share_prefix
    extractor.share_prefix = "never"  # as under a steering, so that pairs differ by it alone
    try:
        with tqdm(
            total=total,
            unit="state",
            disable=not (progress and sys.stderr.isatty()),
            file=sys.stderr,
            dynamic_ncols=True,
        ) as bar:
            for (direction, scale), steering in {(BASELINE, 0.0): None, **steerings}.items():
                bar.set_description(f"{direction} {scale:+g}" if steering else direction)
                frame = measure(prompts, steering, probe, layer, bar)
                if steering is None:
                    drift = entropy_drift(frame, states, extractor, run)
                frames.append(frame.assign(direction=direction, scale=scale))
        capture = extractor.manifest()
    finally:
        extractor.share_prefix = share_prefix
    outcomes = pd.concat(frames, ignore_index=True)
    settings: dict[str, Any] = {"resamples": config.resamples, "level": config.level, "seed": config.seed}
    summary = {
        "run": os.path.basename(str(run.path).rstrip("/")),
        "model": capture["model"],
        "site": vector.site,
        "layer": vector.layer,
        "mode": config.mode,
        "positions": config.positions if isinstance(config.positions, str) else list(config.positions),
        "target": vector.target,
        "method": vector.method,
        "vector_norm": vector.norm,
        "median_state_norm": vector.provenance.get("median_state_norm"),
        "held_out_states": len(states),
        "held_out_items": len(set(item_names(states))),
        "controls": config.controls,
        "generated": bool(wants_text),
        "probe_layer": layer,
        "probe_train_auroc": probe.train_auroc,
        "probe_validation_auroc": probe.validation_auroc,
        "probe_note": probe.note,
        "baseline_entropy_drift_bits": drift,
        **settings,
        "provenance": dict(vector.provenance),
        "capture": capture,
    }
    return SteerReport(dose_response(outcomes, **settings), slopes(outcomes, **settings), outcomes, vector, summary)


def _study(config: SteerConfig) -> store.Run:
    """The run, which must be a study: only its prompts and its model are known."""
    run = store.open_run(config.run)
    kind = run.manifest.get("kind")
    if kind != schema.STUDY_KIND or schema.TOKEN_IDS not in run.ragged_arrays:
        description = "an import" if "imported_from" in run.manifest else kind or "of another kind"
        raise RequestError(
            f"{run.path} is not a study (it is {description}), so it does not say which model and prompts to steer: give the run that `precollapse run` made"
        )
    return run


def _doses(config: SteerConfig, vector: SteeringVector) -> dict[tuple[str, float], Steering]:
    """Each direction at each scale but 0."""
    directions = {VECTOR: vector}
    directions |= {f"random {k}": vector.random(config.seed + k) for k in range(config.controls)}
    return {
        (name, scale): direction.steering(scale, config.positions, config.mode)
        for name, direction in directions.items()
        for scale in config.scales
        if scale != 0
    }
