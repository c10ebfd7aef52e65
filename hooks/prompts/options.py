"""Answer options to token ids: every one-token form in which a model may write an option.

Guarantees that an option's probability counts all its one-token spellings (with and without a leading space), each once, and
that an option with none is refused by name instead of being scored by its first piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import RequestError


@dataclass(frozen=True)
class OptionForms:
    """Token ids of one prompt's options.

    Attributes
    ----------
    labels : tuple of str
    forms : tuple of tuple of int
        For each option the ids of its one-token forms.
    """

    labels: tuple[str, ...]
    forms: tuple[tuple[int, ...], ...]


def option_forms(tokenizer: Any, labels: Sequence[str], where: str = "options") -> OptionForms:
    """Find the one-token forms of each option.

    Raises
    ------
    RequestError
        If fewer than two options are given, two are the same or share a token, or one has no one-token form.
    """
    if not all(isinstance(label, str) for label in labels):
        raise RequestError(f"{where} must be strings, found {list(labels)!r}; write for example ('1', '2')")
    labels = tuple(labels)
    if len(labels) < 2 or len(set(labels)) != len(labels):
        raise RequestError(f"{where} must be at least two different strings, found {list(labels)}")
    forms = []
    for label in labels:
        if not isinstance(label, str) or not label.strip():
            raise RequestError(f"{where} holds {label!r}; every option must be a non-empty string")
        found: list[int] = []
        for text in (label, " " + label):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            if len(ids) == 1:
                found.append(int(ids[0]))
        for piece in (label, "\u2581" + label, "\u0120" + label):
            piece_id = tokenizer.get_vocab().get(piece) if found or len(label) == 1 else None
            # byte-level vocabularies write byte 0xE9 as "é": only a piece that reads as the label is a form of it
            if piece_id is None:
                continue
            if tokenizer.decode([piece_id], clean_up_tokenization_spaces=False).strip() == label.strip():
                found.append(int(piece_id))
        if not found:
            raise RequestError(
                f"option {label!r} of {where} is no single token for this tokenizer, with or without a leading space; use one-token options such as letters"
            )
        forms.append(tuple(dict.fromkeys(found)))
    taken: dict[int, str] = {}
    for label, ids in zip(labels, forms, strict=True):
        for i in ids:
            if taken.setdefault(i, label) != label:
                raise RequestError(
                    f"options {taken[i]!r} and {label!r} of {where} share token {i}, so they cannot be told apart; rename one"
                )
    return OptionForms(labels, tuple(forms))


def forms_of_prompts(tokenizer: Any, options: Any, n: int) -> list[OptionForms | None] | None:
    """Option forms of each of n prompts: one tuple of options serves all, a list holds one tuple (or None) per prompt.

    Raises
    ------
    RequestError
        If the options are of another form, or one of them cannot be scored (see `option_forms`).
    """
    if options is None:
        return None
    if isinstance(options, str) or not isinstance(options, Sequence):
        raise RequestError(
            f"options must be a tuple of strings such as ('A', 'B'), or a list of such tuples, found {options!r}"
        )
    if all(isinstance(o, str) for o in options):
        return [option_forms(tokenizer, options)] * n
    if len(options) != n:
        raise RequestError(
            f"options has {len(options)} entries for {n} prompts; give one tuple for all, or one per prompt"
        )
    forms: dict[tuple[str, ...], OptionForms] = {}
    of_prompts: list[OptionForms | None] = []
    for i, o in enumerate(options):
        if o is not None and (isinstance(o, str) or not isinstance(o, Sequence)):
            raise RequestError(f"options of prompt {i} must be a tuple of strings or None, found {o!r}")
        key = None if o is None else tuple(o)
        if key is not None and key not in forms:
            forms[key] = option_forms(tokenizer, key, f"options of prompt {i}")
        of_prompts.append(None if key is None else forms[key])
    return None if all(o is None for o in of_prompts) else of_prompts


def form_ids(options: Sequence[OptionForms | None]) -> np.ndarray:
    """The forms of every prompt's options as one int64 array [n, K, F], filled up with -1."""
    k = max((len(o.labels) for o in options if o), default=0)
    f = max((len(group) for o in options if o for group in o.forms), default=0)
    ids = np.full((len(options), k, f), -1, dtype=np.int64)
    for i, o in enumerate(options):
        for j, group in enumerate(o.forms if o else ()):
            ids[i, j, : len(group)] = group
    return ids


@dataclass(frozen=True)
class OptionScores:
    """What `score_options` finds; see `States` for the meaning of each array."""

    logprobs: np.ndarray
    entropy_bits: np.ndarray
    margin: np.ndarray
    mass: np.ndarray


def score_options(option_logits: np.ndarray, logsumexp: np.ndarray) -> OptionScores:
    """Compare the options of each prompt.

    Parameters
    ----------
    option_logits : float [n, K]
        Logit of each option with its forms merged by logsumexp; NaN past a prompt's own options.
    logsumexp : float64 [n]
        Log normaliser over the full vocabulary (nats).

    Returns
    -------
    OptionScores
        All NaN for a prompt without options.
    """
    logprobs = option_logits.astype(np.float64) - np.asarray(logsumexp, dtype=np.float64)[:, None]
    n = len(logprobs)
    entropy, margin, mass = (np.full(n, np.nan) for _ in range(3))
    for i, row in enumerate(logprobs):
        own = row[~np.isnan(row)]
        if len(own) < 2:
            continue
        total = np.logaddexp.reduce(own)
        log_p = own - total
        p = np.exp(log_p)
        entropy[i] = max(0.0, -float((p * np.where(p > 0, log_p, 0.0)).sum()) / np.log(2))
        second, best = np.sort(own)[-2:]
        margin[i], mass[i] = best - second, np.exp(total)
    return OptionScores(logprobs, entropy, margin, mass)
