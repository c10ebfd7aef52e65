"""What steering learns from a run, and the states that it may be measured on.

Guarantees that the direction and the probe see training items only, that items are dealt as the run's own reports deal them,
and that every item that either has seen, also one that made a saved vector, is left out of what is measured. This prevents
effects that are measured on the items that made the vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ... import store
from ...analysis.directions import TrainingStates, balancing_labels, item_names
from ...analysis.probing import splits
from ...analysis.probing.linear import LinearProbe
from ...errors import RequestError
from ...hooks.steering import SteeringVector
from .config import SteerConfig
from .same_model import capture_of, check_same_model
from .vectors import steering_vector


def learn(config: SteerConfig, run: store.Run, chosen: store.Run) -> tuple[SteeringVector, LinearProbe, store.Run]:
    """The vector, the probe that scores steered states, and the states that neither has seen.

    Parameters
    ----------
    config : SteerConfig
    run, chosen : store.Run
        The whole run, which is split into parts as its reports split it, and the cells of it that are steered.

    Raises
    ------
    RequestError
        If the run lacks the target or the layer, its states do not define the direction, the saved vector is another model's or
        layer's, or no item is held out.
    """
    items = item_names(chosen.states)
    split = _split(run.states, config.target, config.seed)
    seen = {item for item, part in split.part.items() if part != 2}
    if config.vector is None:
        assert config.layer is not None
        vector = steering_vector(
            chosen,
            config.layer,
            config.target,
            method=config.method,
            site=config.site,
            positive=config.positive,
            negative=config.negative,
            split=split,
            seed=config.seed,
        )
    else:
        vector = SteeringVector.load(config.vector)
        if config.layer is not None:
            captured = chosen.sites.get(vector.site, ())
            layer = captured[config.layer] if -len(captured) <= config.layer < 0 else config.layer
            if layer != vector.layer:
                raise RequestError(
                    f"the saved vector is for layer {vector.layer}, but layer {config.layer} was asked for"
                )
        check_same_model(vector.provenance, capture_of(run), "the saved vector was made with")
        seen |= set(vector.train_items) | set(vector.validation_items)
    data = TrainingStates.read(
        chosen,
        probe_layer(config, chosen),
        config.target,
        "resid_post",
        config.positive,
        config.negative,
        None,
        None,
        split=split,
        seed=config.seed,
    )
    keep = [item for item in dict.fromkeys(items) if item not in seen]
    if config.n is not None:
        keep = _sample(keep, config.n, config.seed)
    wanted = set(keep)
    rows = [i for i, item in enumerate(items) if item in wanted]
    if not rows:
        raise RequestError("no item is held out from the vector; use a run with more items than the vector has seen")
    return vector, data.probe(), chosen.take(np.array(rows))


def probe_layer(config: SteerConfig, run: store.Run) -> int:
    """The layer whose resid_post the probe reads (RequestError where the run does not hold it)."""
    layers = run.sites.get("resid_post")
    if not layers:
        raise RequestError("the run holds no resid_post, which the probe reads; make it with --sites resid_post")
    layer = -1 if config.probe_layer is None else config.probe_layer
    if layer not in layers and not -len(layers) <= layer < 0:
        raise RequestError(f"resid_post of layer {layer} is not in the run; it has {', '.join(map(str, layers))}")
    return layers[layer] if layer < 0 else layer


def _split(states: pd.DataFrame, target: str, seed: int) -> splits.Split:
    """Items (benchmark, item_id) by part: each benchmark split over all its regimes, as reports of the run split it."""
    if target not in states.columns:
        raise RequestError(f"the run has no column {target!r}; it has {', '.join(map(str, states.columns))}")
    part: dict[Any, int] = {}
    for name, rows in states.groupby("benchmark", sort=False):
        dealt = splits.split_items([str(i) for i in rows["item_id"]], balancing_labels(rows[target]), seed=seed)
        part |= {(str(name), item): number for item, number in dealt.part.items()}
    return splits.Split(part, seed, True)


def _sample(items: list[tuple[str, str]], n: int, seed: int) -> list[tuple[str, str]]:
    """At most n items of each benchmark."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for item in items:
        groups.setdefault(item[0], []).append(item)
    rng = np.random.default_rng(seed)
    return [group[i] for group in groups.values() for i in sorted(rng.permutation(len(group))[:n])]
