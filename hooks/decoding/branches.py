"""Probabilities of token sequences that branch off texts, all of them read from one run of a tree.

Guarantees that a sequence's log-probability is the sum of its tokens' ones, each read at the position before it over the full
vocabulary, and that each position's distribution is computed once, however many sequences begin there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..architectures import Architecture, describe
from ..unembedding import row_statistics
from .tree import Row, Segment, run


@dataclass(frozen=True)
class Step:
    """One token of a sequence: the row whose distribution holds its log-probability, and the token."""

    row: int
    token: int


@dataclass(frozen=True)
class BranchScores:
    """What a run of branches gives; R rows were read, of L blocks.

    Attributes
    ----------
    logprobs : dict of Step to float
        Log-probability (nats, over the full vocabulary) of every step.
    entropy_bits : dict of int to float
        Entropy of the next-token distribution at every row whose distribution was asked for.
    residual : float32 [R, L, d] or None
        Each block's output at every row, when asked for.
    tokens_run : int
        Tokens the model ran.
    """

    logprobs: dict[Step, float]
    entropy_bits: dict[int, float]
    residual: np.ndarray | None
    tokens_run: int


class Branches:
    """Collects texts, branches of them, and what to read there; runs all at once."""

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._rows: list[Row] = []
        self._tokens: dict[int, dict[int, None]] = {}  # per row whose distribution is read, the tokens of its steps

    def add(self, segment: Segment) -> int:
        """Add a run of tokens; returns its number, which later segments may name as their parent."""
        self._segments.append(segment)
        return len(self._segments) - 1

    def read(self, segment: int, index: int) -> int:
        """Read the state at token `index` of a segment; returns the row's number."""
        self._rows.append(Row(segment, index))
        return len(self._rows) - 1

    def read_distribution(self, segment: int, index: int) -> int:
        """Read the next-token distribution at token `index` of a segment as well; returns the row's number."""
        row = self.read(segment, index)
        self._tokens[row] = {}
        return row

    def score(self, tokens: Sequence[int], segment: int, row: int) -> list[Step]:
        """Score a sequence that goes on from the end of a segment, whose distribution is read at `row`."""
        steps = [self._step(row, tokens[0])]
        if len(tokens) > 1:
            branch = self.add(Segment(tuple(tokens[:-1]), segment, len(self._segments[segment].tokens)))
            steps += [self._step(self.read(branch, i), token) for i, token in enumerate(tokens[1:])]
        return steps

    def _step(self, row: int, token: int) -> Step:
        self._tokens.setdefault(row, {})[token] = None
        return Step(row, token)

    def run(self, model: Any, method: str, residual: bool = False) -> BranchScores:
        """Run everything that was added; `method` as in `hooks.decoding.tree.run`."""
        states = run(model, self._segments, self._rows, residual, method)
        logprobs, entropy_bits = self._read(describe(model), states.final)
        blocks = None if states.residual is None else states.residual.float().cpu().numpy()
        return BranchScores(logprobs, entropy_bits, blocks, states.tokens)

    def _read(self, arch: Architecture, final: torch.Tensor) -> tuple[dict[Step, float], dict[int, float]]:
        """Log-probability (nats) of every step, and the entropy (bits) of every distribution."""
        rows = list(self._tokens)
        width = max(1, max(len(tokens) for tokens in self._tokens.values()))
        ids = torch.full((len(rows), width), -1, dtype=torch.int64)
        for i, row in enumerate(rows):
            tokens = list(self._tokens[row])
            ids[i, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        states = final[torch.tensor(rows, device=final.device)]
        stats = row_statistics(arch, states, 0, ids[:, :, None].to(final.device))
        values = (stats.option_logits.double() - stats.logsumexp[:, None]).cpu().numpy()
        logprobs = {
            Step(row, token): float(values[i, j])
            for i, row in enumerate(rows)
            for j, token in enumerate(self._tokens[row])
        }
        return logprobs, dict(zip(rows, stats.entropy_bits.cpu().tolist(), strict=True))
