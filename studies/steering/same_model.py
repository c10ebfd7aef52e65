"""Whether the model that is steered is the run's own.

Guarantees that another model is refused whatever it calls itself: by its sizes, tokenizer and revision before anything is run,
and by the entropies of the unsteered prompts after that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ... import store
from ...errors import RequestError
from ...hooks import Extractor
from ...hooks.differences import limits
from ..models import ModelRequest
from .config import SteerConfig


def capture_of(run: store.Run) -> Mapping[str, Any]:
    """What the run says of how it was captured.

    Raises
    ------
    RequestError
        It does not say which model it was made with, or not in a form that this version reads.
    """
    capture = run.manifest.get("capture")
    texts = ("model", "dtype", "model_type")
    if not isinstance(capture, Mapping) or not all(isinstance(capture.get(name), str) for name in texts):
        raise RequestError(
            f"{run.path} does not say which model it was made with (the entry capture of its manifest is missing or damaged); "
            "give a run that `precollapse run` made"
        )
    return capture


def model_request(config: SteerConfig, run: store.Run) -> ModelRequest:
    """The run's own model, unless the config names another."""
    capture = capture_of(run)
    revision, made_of = config.revision, capture.get("model_revision")
    if revision is None and config.model is None and isinstance(made_of, str) and _is_commit(made_of):
        revision = made_of  # the commit that the run was made of, wherever its branch stands now
    return ModelRequest(
        config.model or capture["model"],
        dtype=config.dtype or capture["dtype"],
        device=config.device,
        revision=revision,
        batch_tokens=config.batch_tokens or run.config.get("batch_tokens"),
    )


def check_same_model(mine: Mapping[str, Any], stored: Mapping[str, Any], whose: str) -> None:
    """Refuse a model other than the run's, by what both say of it (RequestError); `whose` opens the clause on the other one."""
    for name in ("model_type", "n_layers", "d_model", "tokenizer_hash", "model_revision"):
        a, b = mine.get(name), stored.get(name)
        if a is None or b is None or a == b or (name == "model_revision" and not _are_alike(a, b)):
            continue
        raise RequestError(
            f"the run was made with a model whose {name} is {b}, but {whose} one whose {name} is {a}; "
            "give what belongs to the run's own model"
        )


def entropy_drift(baseline: pd.DataFrame, states: pd.DataFrame, extractor: Extractor, run: store.Run) -> float:
    """Largest difference of the unsteered entropies from those of the run, in bits.

    Raises
    ------
    RequestError
        If the dtypes do not explain it: then these are not the run's own weights, whatever they call themselves.
    """
    apart = np.abs(baseline["entropy_bits"].to_numpy() - states["entropy_bits"].to_numpy(float))
    allowed = max(limits(d).entropy_bits for d in (extractor.manifest()["dtype"], capture_of(run)["dtype"]))
    typical, most = float(np.median(apart)), float(apart.max())
    if not (typical <= allowed and most <= 4 * allowed):
        raise RequestError(
            f"the unsteered entropies differ from the run's by {typical:.3g} bits in the median and {most:.3g} at most, more "
            f"than the dtypes explain ({allowed:g}); the weights are not those that the run was made with: give its own model"
        )
    return most


def _is_checksum(revision: str | None) -> bool:
    """Whether a revision is the checksum of local files rather than of the Hub."""
    return revision is not None and revision.startswith("sha256:")


def _is_commit(revision: str | None) -> bool:
    """Whether a revision is a commit of the Hub rather than a branch, which may have moved since."""
    return revision is not None and re.fullmatch("[0-9a-f]{40}", revision) is not None


def _are_alike(a: str, b: str) -> bool:
    """Whether two different revisions can be told apart: both are checksums, or both are commits."""
    return (_is_checksum(a) and _is_checksum(b)) or (_is_commit(a) and _is_commit(b))
