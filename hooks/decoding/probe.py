"""Which way of running a model is right for it: the fast one where a probe finds its states equal to plain passes.

Guarantees that every fast way (a tree of branches in one pass, continuations of one prefix, prompts that share a prefix) is
tried on the same small prompts, held against plain passes by one measure (`hooks.differences`: float64, row by row), remembered per
model and attention implementation, and left for a slower one with the reason said. This prevents the silent fault of a
family that ignores a mask, a position or a window, and still returns numbers.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..differences import largest, limits, relative_difference
from ..evaluation import evaluating
from .rotary import length_rule

RESERVE = 8
"""Positions that a probe may use beyond the tokens of `sample_tokens`."""
_TOKENS = 24
_LONGEST_WINDOW = 512
_FEWEST_TOKENS = 6


@dataclass(frozen=True)
class Method:
    """How a model is run.

    Attributes
    ----------
    name : str
    reason : str or None
        Why a faster way was not taken.
    error : float
        Largest relative difference of the probe's states from those of plain passes, NaN where none was measured.
    """

    name: str
    reason: str | None
    error: float


@dataclass(frozen=True)
class Way:
    """One way of running the probe's prompts.

    Attributes
    ----------
    name : str
    title : str
        The way as the subject of a sentence, such as "one pass under a tree mask".
    states : callable
        Runs it; returns tensors [..., d] of states, those of the plain passes in the same order.
    unfit : str or None
        Why it need not even be tried.
    """

    name: str
    title: str
    states: Callable[[], Sequence[Tensor]]
    unfit: str | None = None


_METHODS: weakref.WeakKeyDictionary[Any, dict[tuple[str, ...], Method]] = weakref.WeakKeyDictionary()


def remembered(model: Any, question: tuple[str, ...], answer: Callable[[], Method]) -> Method:
    """The answer to a question about a model, found once for each of its attention implementations.

    Parameters
    ----------
    model : PreTrainedModel
    question : tuple of str
        What is asked, apart from the model and its attention implementation.
    answer : callable
        Runs the model, in evaluation mode and without gradients.
    """
    key = (*question, str(getattr(model.config, "_attn_implementation", None)))
    methods = _METHODS.setdefault(model, {})
    if key not in methods:
        with torch.no_grad(), evaluating(model):
            methods[key] = answer()
    return methods[key]


def forget(model: Any) -> None:
    """Forget what was found of a model, which was changed."""
    _METHODS.pop(model, None)


def choose(ways: Sequence[Way], plain: Callable[[], Sequence[Tensor]], otherwise: str, dtype: torch.dtype) -> Method:
    """The first of some ways whose states equal those of plain passes, as far as the dtype explains; else `otherwise`.

    Parameters
    ----------
    ways : sequence of Way
        Fastest first.
    plain : callable
        Runs the same prompts plainly; returns tensors [..., d] of states. Called once, and only when some way is fit to be tried.
    otherwise : str
        Name of what is always right.
    dtype : torch.dtype
        In which the model computes; some families hand out float32 whatever that is.
    """
    reasons: list[str] = []
    expected, error = None, math.nan
    for way in ways:
        reason = way.unfit
        if reason is None:
            expected = plain() if expected is None else expected
            try:
                error = largest(map(relative_difference, way.states(), expected))
            except Exception as failure:  # the model's own code runs here and may raise anything
                first_line = (str(failure) or "no message").splitlines()[0]
                error = math.nan
                reason = f"{way.title} failed in the model's own code ({type(failure).__name__}: {first_line})"
            else:
                if error <= limits(dtype).states:
                    return Method(way.name, "; ".join(reasons) or None, error)
                reason = f"{way.title} gave states that differ by {error:.2g} from those of plain passes"
        reasons.append(reason)
    return Method(otherwise, "; ".join(reasons), error)


def sample_tokens(model: Any, count: int = 0) -> tuple[list[int], list[int]]:
    """Arbitrary tokens for a probe: a text that is longer than a short sliding window, and `count` tokens besides.

    The text leaves `RESERVE` positions of the model's context, and of the length at which its rotary embedding changes.
    """
    config = model.config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None) or 0
    length = _TOKENS + (window if window <= _LONGEST_WINDOW else 0)
    rule = length_rule(config)
    limits = (getattr(config, "max_position_embeddings", None), None if rule is None else rule.limit)
    length = max(_FEWEST_TOKENS, min([length, *(limit - RESERVE for limit in limits if limit)]))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, config.vocab_size, (length + count,), generator=generator).tolist()
    return ids[:length], ids[length:]
