"""What the model would answer if it were made to answer now, at every boundary of a chain of reasoning.

Guarantees that each forced distribution equals the one of a separate pass over prompt, prefix and anchor, whatever else is in
the batch. All boundaries of a chain are branches of one forward pass (`hooks.decoding.tree`); families for which that does not
hold reuse the prefix's cache, and the result says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import RequestError
from ...hooks.decoding.branches import Branches, BranchScores, Step
from ...hooks.decoding.probe import Method
from ...hooks.decoding.tree import TRUNK, Segment, method_for
from ...hooks.prompts.options import score_options
from ...hooks.prompts.rendering import Renderer
from .answers import (
    ANCHOR,
    ANCHOR_PARAPHRASES,
    AnswerSet,
    anchor_tokens,
    answer_forms,
    candidate_forms,
    exclusive_logprobs,
    sequence_logprobs,
)
from .segmentation import Boundaries, Segmentation, segment, to_tokens, token_ends_of_ids, token_ends_of_text


@dataclass(frozen=True)
class ForcedTrajectory:
    """Forced answers along one chain; k boundaries, K options, C candidates, L blocks.

    Attributes
    ----------
    boundaries : int64 [k]
        Chain tokens in each prefix; 0 is the empty prefix.
    labels : tuple of str
        The K options; empty without options.
    option_logprobs : float64 [k, K]
        Log-probability (nats, over the full vocabulary) of each option after the anchor, its surface forms together,
        without what goes on to another option that starts alike (`4` without `42`).
    entropy_nats, entropy_bits : float64 [k]
        Entropy of the distribution renormalised over the options (over the candidates when there are no options).
    choice : tuple of str
        The most probable option (or candidate) at each boundary.
    option_mass : float64 [k]
        Probability of all options together.
    margin : float64 [k]
        Log-probability of the best option minus that of the second best (nats).
    vocabulary_entropy_bits : float64 [k]
        Entropy of the whole next-token distribution after the anchor.
    candidates : tuple of str
    candidate_logprobs : float64 [k, C] or None
        Log-probability (nats) of each candidate answer as a sequence after the anchor and a space.
    resid_boundary, resid_answer : float32 [k, L, d] or None
        Residual stream at the prefix's last token and at the anchor's last token, on request.
    segmentation : Segmentation or None
        None when the boundaries were given.
    inside, collapsed : int
        Boundaries moved to a token's end, and boundaries dropped because they shared a token.
    chain_tokens : int
    tokens_run : int
        Tokens the model ran for the pass this chain was part of.
    method : Method
    """

    boundaries: np.ndarray
    labels: tuple[str, ...]
    option_logprobs: np.ndarray
    entropy_nats: np.ndarray
    entropy_bits: np.ndarray
    choice: tuple[str, ...]
    option_mass: np.ndarray
    margin: np.ndarray
    vocabulary_entropy_bits: np.ndarray
    candidates: tuple[str, ...]
    candidate_logprobs: np.ndarray | None
    resid_boundary: np.ndarray | None
    resid_answer: np.ndarray | None
    segmentation: Segmentation | None
    inside: int
    collapsed: int
    chain_tokens: int
    tokens_run: int
    method: Method


@dataclass(frozen=True)
class _Chain:
    """One chain ready to run: prompt and chain ids, token counts at the boundaries, and what to score there."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    boundaries: Boundaries
    segmentation: Segmentation | None
    options: AnswerSet
    candidates: AnswerSet


def forced_answers(
    ex: Any,
    prompts: Sequence[Any],
    chains: Sequence[str | Sequence[int]],
    rule: str = "sentence",
    anchor: str = ANCHOR,
    options: Sequence[str] | Sequence[Sequence[str]] | None = ("A", "B", "C", "D"),
    *,
    cap: int | None = None,
    candidates: Sequence[Sequence[str]] | None = None,
    end_tag: str | None = None,
    tag_side: str = "before",
    boundaries: Sequence[Sequence[int]] | None = None,
    residual: bool = False,
    method: str = "auto",
    tokens_per_pass: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[ForcedTrajectory]:
    """Force an answer at every boundary of each chain and read its distribution.

    Parameters
    ----------
    ex : Extractor, or anything with `.model` and `.tokenizer`
        A Hugging Face causal language model in evaluation mode.
    prompts : sequence
        One per chain: text, chat messages or token ids, as `Extractor.capture` takes them.
    chains : sequence of str or of token ids
        The reasoning, as text (tokenised by itself) or as the ids the model wrote.
    rule : str, default "sentence"
        Segmentation rule (`segmentation.RULES`).
    anchor : str
        Appended at every boundary.
    options : tuple of str, one tuple per chain, or None
        Answers whose probabilities are compared. With neither options nor candidates only the vocabulary entropy is read.
    cap : int or None
        Most units; the tail is merged into the last.
    candidates : sequence of sequences of str, optional
        Per chain, free-response answers whose sequence log-probability is wanted.
    end_tag, tag_side : str
        End-of-thinking tag of the model, and whether it goes "before" or "after" the anchor.
    boundaries : sequence of sequences of int, optional
        Chain tokens per prefix, instead of `rule`.
    residual : bool
        Also keep the residual stream at each boundary and at each anchor's end.
    method : {"auto", "tree", "cache", "separate"}
        "auto" takes one pass where the model allows it (`hooks.decoding.tree.method_for`).
    tokens_per_pass : int, optional
        Put several chains into one pass while they hold at most this many tokens. None: one chain a pass.
    progress : callable, optional
        Called with the number of chains just done.

    Returns
    -------
    list of ForcedTrajectory
        One per chain; the empty prefix (0 tokens) comes first unless `boundaries` says otherwise.

    Raises
    ------
    RequestError
        When the lists differ in length, a rule or option is not usable, or a chain does not fit the model's context; no
        work has been done then.

    Examples
    --------
    >>> import precollapse as pc
    >>> from precollapse.studies import trajectories
    >>> ex = pc.Extractor.from_pretrained("smollm2-135m-instruct")
    >>> chain = " Fire burns. What burns is hot."
    >>> forced = trajectories.forced_answers(ex, ["Is fire A) hot or B) cold?"], [chain], options=("A", "B"))[0]
    >>> forced.option_logprobs.shape[1], len(forced.boundaries) == len(forced.entropy_nats)
    (2, True)
    """
    per_anchor = forced_under_anchors(
        ex, prompts, chains, (anchor,), rule=rule, options=options, cap=cap, candidates=candidates, end_tag=end_tag,
        tag_side=tag_side, boundaries=boundaries, residual=residual, method=method, tokens_per_pass=tokens_per_pass,
        progress=progress,
    )  # fmt: skip
    return [by_anchor[0] for by_anchor in per_anchor]


def forced_under_anchors(
    ex: Any,
    prompts: Sequence[Any],
    chains: Sequence[str | Sequence[int]],
    anchors: Sequence[str] = ANCHOR_PARAPHRASES,
    *,
    rule: str = "sentence",
    options: Sequence[str] | Sequence[Sequence[str]] | None = ("A", "B", "C", "D"),
    cap: int | None = None,
    candidates: Sequence[Sequence[str]] | None = None,
    end_tag: str | None = None,
    tag_side: str = "before",
    boundaries: Sequence[Sequence[int]] | None = None,
    residual: bool = False,
    method: str = "auto",
    tokens_per_pass: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[list[ForcedTrajectory]]:
    """`forced_answers` under several wordings of the anchor, all of them branches of the same pass.

    Returns
    -------
    list of list of ForcedTrajectory
        Per chain, one trajectory per anchor.
    """
    model, tokenizer = ex.model, ex.tokenizer
    if not anchors:
        raise RequestError("at least one anchor is needed")
    suffixes = [anchor_tokens(tokenizer, a, end_tag, tag_side) for a in anchors]
    prepared = _prepare(tokenizer, prompts, chains, rule, cap, options, candidates, boundaries)
    limit = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    for i, chain in enumerate(prepared):
        answers = max(chain.options.longest, chain.candidates.longest, 1)
        needed = len(chain.prompt) + len(chain.tokens) + max(map(len, suffixes)) + answers - 1
        if limit is not None and needed > limit:
            raise RequestError(
                f"chain {i} needs {needed} positions with its prompt and anchor, but the model has {limit}; shorten it"
            )
    chosen = method_for(model) if method == "auto" else Method(method, "asked for", math.nan)
    results: list[list[ForcedTrajectory]] = []
    for group in _groups(prepared, suffixes, tokens_per_pass):
        results += _run_group(model, group, suffixes, residual, chosen)
        if progress is not None:
            progress(len(group))
    return results


def _prepare(
    tokenizer: Any,
    prompts: Sequence[Any],
    chains: Sequence[str | Sequence[int]],
    rule: str,
    cap: int | None,
    options: Sequence[Any] | None,
    candidates: Sequence[Sequence[str]] | None,
    boundaries: Sequence[Sequence[int]] | None,
) -> list[_Chain]:
    shared = options is None or all(isinstance(o, str) for o in options)
    lengths = {
        "chains": chains,
        "candidates": candidates,
        "boundaries": boundaries,
        "options": None if shared else options,
    }
    for name, given in lengths.items():
        if given is not None and len(given) != len(prompts):
            raise RequestError(f"{len(prompts)} prompts but {len(given)} {name}; give one per prompt")
    renderer = Renderer(tokenizer)
    answer_sets: dict[tuple[str, ...], AnswerSet] = {(): AnswerSet((), ())}
    prepared = []
    for i, (prompt, chain) in enumerate(zip(prompts, chains, strict=True)):
        labels = () if options is None else tuple(options if shared else options[i])
        if labels not in answer_sets:
            answer_sets[labels] = answer_forms(tokenizer, labels, f"options of chain {i}")
        if isinstance(chain, str):
            text = chain
            ids, ends = token_ends_of_text(tokenizer, chain)
        else:
            ids = [int(t) for t in chain]
            text, ends = token_ends_of_ids(tokenizer, ids)
        if boundaries is None:
            cuts: Segmentation | None = segment(text, rule, cap, ends)
            at = to_tokens(cuts.ends if cuts else (), ends)
        else:
            cuts, at = None, _given(boundaries[i], len(ids), i)
        offered = AnswerSet((), ()) if candidates is None else candidate_forms(tokenizer, candidates[i])
        prepared.append(
            _Chain(renderer.render(prompt, f"prompt {i}").token_ids, tuple(ids), at, cuts, answer_sets[labels], offered)
        )
    return prepared


def _given(counts: Sequence[int], length: int, i: int) -> Boundaries:
    counts = tuple(int(c) for c in counts)
    if not counts or sorted(set(counts)) != list(counts) or counts[0] < 0 or counts[-1] > length:
        raise RequestError(f"the boundaries of chain {i} must ascend within 0..{length} tokens, got {list(counts)}")
    return Boundaries(counts, 0, 0)


def _groups(
    chains: Sequence[_Chain], suffixes: Sequence[tuple[int, ...]], budget: int | None
) -> Iterator[list[_Chain]]:
    """Consecutive chains that share a pass."""
    group: list[_Chain] = []
    used = 0
    for chain in chains:
        answers = sum(len(f) - 1 for s in (chain.options, chain.candidates) for forms in s.forms for f in forms)
        size = len(chain.prompt) + len(chain.tokens)
        size += len(chain.boundaries.tokens) * sum(len(s) + answers for s in suffixes)
        if group and (budget is None or used + size > budget):
            yield group
            group, used = [], 0
        group.append(chain)
        used += size
    if group:
        yield group


@dataclass(frozen=True)
class _Point:
    """Rows of one boundary under one anchor."""

    boundary: int
    answer: int
    options: list[list[list[Step]]]
    candidates: list[list[list[Step]]]


def _run_group(
    model: Any, group: Sequence[_Chain], suffixes: Sequence[tuple[int, ...]], residual: bool, method: Method
) -> list[list[ForcedTrajectory]]:
    branches = Branches()
    points: list[list[list[_Point]]] = []
    for chain in group:
        trunk = branches.add(Segment(chain.prompt + chain.tokens, TRUNK, 0))
        starts = [len(chain.prompt) + count for count in chain.boundaries.tokens]
        prefix_rows = [branches.read(trunk, start - 1) for start in starts]
        of_chain = []
        for suffix in suffixes:
            of_anchor = []
            for start, prefix_row in zip(starts, prefix_rows, strict=True):
                anchor = branches.add(Segment(suffix, trunk, start))
                row = branches.read_distribution(anchor, len(suffix) - 1)
                options, candidates = (
                    [[branches.score(form, anchor, row) for form in forms] for forms in answers.forms]
                    for answers in (chain.options, chain.candidates)
                )
                of_anchor.append(_Point(prefix_row, row, options, candidates))
            of_chain.append(of_anchor)
        points.append(of_chain)
    scores = branches.run(model, method.name, residual)
    return [
        [_trajectory(chain, of_anchor, scores, method) for of_anchor in of_chain]
        for chain, of_chain in zip(group, points, strict=True)
    ]


def _trajectory(
    chain: _Chain,
    points: list[_Point],
    scores: BranchScores,
    method: Method,
) -> ForcedTrajectory:
    k = len(points)
    logprobs, blocks = scores.logprobs, scores.residual
    options = np.array(
        [exclusive_logprobs(chain.options, p.options, logprobs) for p in points], dtype=np.float64
    ).reshape(k, -1)
    offered = np.array([sequence_logprobs(p.candidates, logprobs) for p in points], dtype=np.float64).reshape(k, -1)
    compared, labels = options, chain.options.labels
    if not labels:
        labels = chain.candidates.labels
        compared = np.array([exclusive_logprobs(chain.candidates, p.candidates, logprobs) for p in points]).reshape(
            k, -1
        )
    comparison = score_options(compared, np.zeros(k))
    return ForcedTrajectory(
        boundaries=np.array(chain.boundaries.tokens, dtype=np.int64),
        labels=chain.options.labels,
        option_logprobs=options,
        entropy_nats=comparison.entropy_bits * math.log(2),
        entropy_bits=comparison.entropy_bits,
        choice=tuple(labels[i] for i in compared.argmax(axis=1)) if labels else (),
        option_mass=comparison.mass,
        margin=comparison.margin,
        vocabulary_entropy_bits=np.array([scores.entropy_bits[p.answer] for p in points]),
        candidates=chain.candidates.labels,
        candidate_logprobs=offered if chain.candidates.labels else None,
        resid_boundary=None if blocks is None else blocks[[p.boundary for p in points]],
        resid_answer=None if blocks is None else blocks[[p.answer for p in points]],
        segmentation=chain.segmentation,
        inside=chain.boundaries.inside,
        collapsed=chain.boundaries.collapsed,
        chain_tokens=len(chain.tokens),
        tokens_run=scores.tokens_run,
        method=method,
    )
