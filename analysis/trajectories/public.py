"""The public chains of cot-proxy-tasks: forced answer distributions, and texts, of Qwen3-32B.

Task 8 holds, for ten chains per question, the model's distribution over the options after each sentence; task 7 holds whole
chains as text. Guarantees that every distribution sums to one, that sentences are in order, and that chains whose sentences
were sampled rather than taken whole are marked, since a violation between sentences 0 and 50 is not the same as one between
neighbours. A malformed record is refused by its name in the archive.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...errors import RequestError
from .shapes import distribution_entropy, shape


@dataclass(frozen=True)
class DistributionChain:
    """One chain of task 8.

    Attributes
    ----------
    name : str
        Unique: question and rollout.
    question, source, split : str
        The question's id, the benchmark it comes from, and the archive's split.
    labels : tuple of str
    probabilities : float64 [sentences, K]
        Distribution over the options after each sentence, each row summing to one.
    sentences : int64 [sentences]
        Index of each sentence in the chain.
    characters : int64 [sentences]
        Characters of the chain up to and including each sentence.
    correct : str
        The right option.
    """

    name: str
    question: str
    source: str
    split: str
    labels: tuple[str, ...]
    probabilities: np.ndarray
    sentences: np.ndarray
    characters: np.ndarray
    correct: str

    @property
    def entropies(self) -> np.ndarray:
        """Entropy after each sentence in nats, [sentences]."""
        return distribution_entropy(self.probabilities)

    @property
    def choices(self) -> tuple[str, ...]:
        """Most probable option after each sentence; the first in label order where several are equally probable."""
        return tuple(self.labels[i] for i in self.probabilities.argmax(axis=1))

    @property
    def contiguous(self) -> bool:
        """Whether every sentence of the chain is there."""
        return bool((np.diff(self.sentences) == 1).all())


@dataclass(frozen=True)
class TextChain:
    """One chain of task 7: its question, prompt, text, length in the writing model's tokens, and the archive's length label."""

    name: str
    question: str
    split: str
    prompt: str
    text: str
    tokens: int
    label: str


def load_distributions(path: str | Path) -> list[DistributionChain]:
    """Chains of cot-proxy-tasks-8, by name.

    Raises
    ------
    RequestError
        When the archive is missing, holds no such chains, or holds a malformed one.
    """
    chains = []
    for name, record in _records(path):
        if "sentence_summaries" in record:
            with _whole_record(name):
                chains.append(_distribution_chain(name, record))
    if not chains:
        raise RequestError(f"{path} holds no chains with sentence_summaries; give the archive of cot-proxy-tasks-8")
    return sorted(chains, key=lambda c: c.name)


def load_texts(path: str | Path) -> list[TextChain]:
    """Chains of cot-proxy-tasks-7, by name, each with the prompt it answers (RequestError as above)."""
    prompts: dict[str, str] = {}
    found: list[tuple[str, dict[str, Any]]] = []
    for name, record in _records(path):
        if "chain_of_thought" in record:
            found.append((name, record))
        elif "prompt_text" in record:
            with _whole_record(name):
                prompts[record["question_id"]] = record["prompt_text"]
    if not found:
        raise RequestError(f"{path} holds no chains with chain_of_thought; give the archive of cot-proxy-tasks-7")
    chains = []
    for name, r in found:
        with _whole_record(name):
            question = r["question_id"]
            if question not in prompts:
                raise RequestError(f"{name}: its question {question!r} has no prompt in the archive")
            chains.append(
                TextChain(
                    f"{question}/{r['rollout_idx']}", question, Path(name).parent.name, prompts[question],
                    r["chain_of_thought"], int(r["token_length"]), r["label"],
                )
            )  # fmt: skip
    return sorted(chains, key=lambda c: c.name)


def _records(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        archive = tarfile.open(path, "r:gz")
    except (OSError, tarfile.TarError) as error:
        raise RequestError(f"cannot read the archive {path} ({error}); give the .tar.gz of cot-proxy-tasks") from error
    with archive:
        for member in archive:
            if not member.isfile() or not member.name.endswith(".json"):
                continue
            handle = archive.extractfile(member)
            assert handle is not None
            try:
                record = json.load(handle)
            except (ValueError, RecursionError) as error:
                raise RequestError(f"{member.name} in {path} is not JSON ({error})") from error
            if isinstance(record, dict):
                yield member.name, record


@contextmanager
def _whole_record(name: str) -> Iterator[None]:
    """Refuses a record that lacks a field, or has one of another type, by the name of its file."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise RequestError(
            f"{name} is no whole record of cot-proxy-tasks ({error!r:.200}); give its archive"
        ) from error


def _distribution_chain(name: str, record: dict[str, Any]) -> DistributionChain:
    steps = record["sentence_summaries"]
    labels = tuple(sorted({label for s in steps for label in s["answer_distribution"]}))
    p = np.array([[s["answer_distribution"].get(label, 0.0) for label in labels] for s in steps], dtype=np.float64)
    sentences = np.array([s["sentence_idx"] for s in steps], dtype=np.int64)
    if len(steps) == 0 or (p < 0).any() or np.abs(p.sum(axis=1) - 1).max() > 1e-6 or (np.diff(sentences) <= 0).any():
        raise RequestError(f"{name} holds no ordered sentences with distributions that sum to 1")
    question, rollout = record["question_id"], record["source_rollout_idx"]
    return DistributionChain(
        name=f"{question}/{rollout}",
        question=question,
        source=question.rstrip("0123456789").rstrip("_"),
        split=Path(name).parent.name,
        labels=labels,
        probabilities=p,
        sentences=sentences,
        characters=np.array([s["partial_cot_length"] for s in steps], dtype=np.int64),
        correct=record["correct_answer"],
    )


def chain_table(chains: list[DistributionChain], epsilon: float = 0.01) -> pd.DataFrame:
    """One row a chain, as `trajectory_statistics` takes it.

    Columns: chain, problem, source, split, contiguous, those of `trajectories.shape_table`, confidence (probability of the
    final choice), length (characters up to the last sentence), answer, correct.
    """
    rows = []
    for c in chains:
        s = shape(c.entropies, epsilon)
        rows.append(
            {
                "chain": c.name, "problem": c.question, "source": c.source, "split": c.split, "contiguous": c.contiguous,
                "monotone": s.monotone, "violations": s.violations, "max_violation": s.max_violation,
                "coherence": s.coherence, "initial": s.initial, "final": s.final, "points": s.points,
                "excluded": s.reason is not None, "confidence": float(c.probabilities[-1].max()),
                "length": int(c.characters[-1]), "answer": c.choices[-1], "correct": c.choices[-1] == c.correct,
            }
        )  # fmt: skip
    return pd.DataFrame(rows).astype({"monotone": "boolean", "violations": "Int64"})
