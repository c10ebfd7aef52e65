"""From a run to a vector that steers: the learnt direction as a `hooks.SteeringVector`.

Guarantees that what a vector says of itself (items seen, split, settings) is what it was learnt from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...analysis.directions import learn_direction
from ...hooks.steering import SteeringVector


def steering_vector(
    run: Any,
    layer: int,
    target: str = "correct",
    *,
    method: str = "mean-difference",
    site: str = "resid_post",
    positive: Any = None,
    negative: Any = None,
    benchmark: str | Sequence[str] | None = None,
    regime: str | Sequence[str] | None = None,
    split: Any = None,
    seed: int = 0,
) -> SteeringVector:
    """Make a steering vector from a run's states and a column of outcomes.

    Parameters
    ----------
    run : store.Run
        What `open_run` returns.
    layer : int
        A captured layer; negative ones count back from the last captured one.
    target : str
        A column of `run.states`. Yes/no columns (`correct`, `compliant`, `truncated`) make two classes; a column of
        names (`option_choice`, `answer`, `gold`) needs `positive`; a column of numbers (`entropy_bits`,
        `option_margin`, `output_tokens`) is cut at its median over the training states of each benchmark and regime, the
        upper half positive.
    method : {"mean-difference", "probe"}
        "mean-difference": mean state of the positive class minus that of the negative one. "probe": the gradient of
        a logistic probe's logit with respect to the state, that is, its weights divided by its scaler's scales; C is
        chosen on validation items by AUROC.
    site : str
    positive, negative : optional
        Values of the two classes; with `positive` alone all other values are negative.
    benchmark, regime : str or sequence of str, optional
        Use these states only.
    split : optional
        A split by item, as `analysis.splits.split_items` makes: its `part` maps items to 0 (training), 1 (validation)
        or 2 (held out). Items are named by (benchmark, item_id), or by `item_id` alone where there is one benchmark.
        None deals the items 60/20/20, balanced by label.
    seed : int
        Seed of that split.

    Returns
    -------
    SteeringVector
        Both methods' vectors have the length of the mean difference, so that one scale means one displacement.

    Raises
    ------
    RequestError
        If a name is unknown, no state has the outcome, or the training states hold one class only.

    Notes
    -----
    With several regimes or benchmarks, classes are compared within each (benchmark, regime) cell: the difference is
    the coefficient of the class in a regression with one intercept per cell, and the probe sees states centred by cell.

    Examples
    --------
    >>> import precollapse as pc
    >>> from precollapse.hooks import steering_vector
    >>> run = pc.open_run("run.zarr")
    >>> vector = steering_vector(run, layer=1, target="gold", benchmark="builtin_choice", positive="B", negative="A")
    >>> vector.layer, vector.site
    (1, 'resid_post')
    """
    learnt = learn_direction(
        run,
        layer,
        target,
        method=method,
        site=site,
        positive=positive,
        negative=negative,
        benchmark=benchmark,
        regime=regime,
        split=split,
        seed=seed,
    )
    return SteeringVector(
        torch.as_tensor(learnt.vector, dtype=torch.float32),
        learnt.site,
        learnt.layer,
        learnt.method,
        learnt.target,
        provenance=learnt.provenance,
        train_items=learnt.train_items,
        validation_items=learnt.validation_items,
    )
