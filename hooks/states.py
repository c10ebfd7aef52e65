"""What a capture returns.

Guarantees that every array has exactly one row per prompt in the caller's order, and that the facts needed to repeat the
capture (token ids, boundaries, BOS counts, template hashes, versions) travel with the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

from ..errors import RequestError


@dataclass(frozen=True)
class States:
    """States of `n` prompts at their boundary.

    Site tensors are CPU tensors in the model's dtype and are read as attributes or by name: `states.resid_post`,
    `states["resid_post"]`.

    Attributes
    ----------
    sites : dict of str to tensor
        `[n, L, d]` per layer site (`z`: `[n, L, H, d_head]`, `final_norm`: `[n, d]`). With several positions per prompt an
        axis P follows n.
    layers : tuple of int
        Block index of each entry of the layer axis.
    entropy_bits : float64 [n]
        Entropy of the next-token distribution over the full vocabulary, in bits.
    logsumexp : float64 [n]
        Log normaliser of the logits (nats).
    top_ids : int64 [n, k]
    top_logits : float64 [n, k]
        The k largest logits and their token ids, largest first.
    option_logprobs : float64 [n, K] or None
        Full-vocabulary log-probability (nats) of each option, all its one-token forms together; NaN past a prompt's own options.
    option_entropy_bits : float64 [n] or None
        Entropy of the distribution renormalised over a prompt's own options, in bits.
    option_margin : float64 [n] or None
        Log-probability of the best option minus that of the second best (nats).
    option_mass : float64 [n] or None
        Probability that the next token is one of the options.
    option_labels : list of tuple of str, or None
        The options of each prompt.
    attention_rows : list of float32 tensor [L, H, T_i], or None
        The boundary's attention over the prompt; each row sums to 1 (less with attention sinks).
    attention_summary : dict of str to float64 [n, L, H], or None
        Per head: `entropy_bits`, `first_token` and one mass per named span.
    token_ids : list of tuple of int
    boundary : list of int
        Index of each prompt's last token within `token_ids`.
    positions : list of tuple of int, or None
        Token indices that the site rows were read at, where other positions than the boundary were asked for.
    bos_count : list of int
    texts : list of str or None
    template_hash : list of str
    manifest : dict
        Model, tokenizer, versions and settings.
    """

    sites: Mapping[str, torch.Tensor]
    layers: tuple[int, ...]
    entropy_bits: np.ndarray
    logsumexp: np.ndarray
    top_ids: np.ndarray
    top_logits: np.ndarray
    token_ids: list[tuple[int, ...]]
    boundary: list[int]
    bos_count: list[int]
    texts: list[str | None]
    template_hash: list[str]
    option_logprobs: np.ndarray | None = None
    option_entropy_bits: np.ndarray | None = None
    option_margin: np.ndarray | None = None
    option_mass: np.ndarray | None = None
    option_labels: list[tuple[str, ...]] | None = None
    attention_rows: list[torch.Tensor] | None = None
    attention_summary: Mapping[str, np.ndarray] | None = None
    positions: list[tuple[int, ...]] | None = None
    manifest: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.token_ids)

    def take(self, rows: Sequence[int]) -> States:
        """These prompts only, in this order."""
        chosen = list(rows)

        def part(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {name: own[chosen] for name, own in value.items()}
            if isinstance(value, list):
                return [value[i] for i in chosen]
            return value if value is None else value[chosen]

        whole = ("layers", "manifest")
        return replace(self, **{f.name: part(getattr(self, f.name)) for f in fields(self) if f.name not in whole})

    def __getitem__(self, site: str) -> torch.Tensor:
        if site not in self.sites:
            raise RequestError(
                f"site {site!r} was not captured; these were: {', '.join(self.sites) or 'none'}. Ask for it with sites=(...)"
            )
        return self.sites[site]

    def __getattr__(self, name: str) -> torch.Tensor:
        sites = object.__getattribute__(self, "__dict__").get("sites", {})
        if name in sites:
            return sites[name]
        raise AttributeError(f"States has no {name!r}; captured sites: {', '.join(sites) or 'none'}")
