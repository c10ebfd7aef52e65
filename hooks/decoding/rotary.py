"""Rotary embeddings that turn by the length of the whole batch, and which prompts may therefore run together.

Guarantees that a prompt's positions are turned as they would be if it ran alone. LongRoPE (Phi-3 with long context) takes
one set of factors up to the length it was pretrained for and another beyond, dynamic NTK scales by the length itself, and
transformers decides both by the largest position of a batch: one long prompt would change the states of all beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LengthRule:
    """How a model's rotary embedding depends on length.

    Attributes
    ----------
    kind : {"longrope", "dynamic"}
    limit : int
        Tokens up to which nothing changes.
    """

    kind: str
    limit: int


def length_rule(config: Any) -> LengthRule | None:
    """The rule of a model's config, None where rotary embeddings do not depend on length.

    Parameters
    ----------
    config : transformers.PreTrainedConfig
        Of the language model (`get_text_config(decoder=True)`).
    """
    found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for own in (
        found,
        *(value for value in found.values() if isinstance(value, dict)),
    ):  # some have one per kind of layer
        kind = str(own.get("rope_type", ""))
        if kind == "longrope":
            return LengthRule(kind, int(own.get("original_max_position_embeddings") or config.max_position_embeddings))
        if "dynamic" in kind:
            return LengthRule("dynamic", int(config.max_position_embeddings))
    return None


def together(rule: LengthRule | None, lengths: Sequence[int], generating: bool) -> list[list[int]]:
    """Which prompts may share a batch.

    Parameters
    ----------
    rule : LengthRule or None
    lengths : sequence of int
        Tokens of each prompt.
    generating : bool
        Whether tokens will be added: prompts below the limit must then reach it at the same step, so only equal lengths
        go together.

    Returns
    -------
    list of list of int
        Every prompt in exactly one part, in order within it; one part where nothing depends on length.
    """
    if rule is None:
        return [list(range(len(lengths)))]
    parts: dict[tuple[bool, int], list[int]] = {}
    for i, length in enumerate(lengths):
        beyond = length > rule.limit
        alike = rule.kind == "longrope" if beyond else not generating
        parts.setdefault((beyond, 0 if alike else length), []).append(i)
    return list(parts.values())


def switches(rule: LengthRule | None, length: int) -> bool:
    """Whether LongRoPE turns a sequence of `length` tokens otherwise than it turned the keys of its first length - 1."""
    return rule is not None and rule.kind == "longrope" and length == rule.limit + 1
