"""The check at load: a model whose numbers we cannot vouch for is refused before a study is built on it.

Guarantees, on a few short prompts, that the fused statistics equal those of the model's own logits, that a batch gives what
single prompts give under padding on either side, and that the parts of each block add up to its output.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from ..errors import CaptureError, PrecollapseError
from .backends import make_backend
from .backends.protocol import Backend, Request
from .decoding.steps import step_inputs
from .differences import largest, limits, relative_difference
from .evaluation import evaluating
from .prompts.boundary import assemble
from .unembedding import row_statistics


@dataclass(frozen=True)
class GateReport:
    """What the check measured.

    Attributes
    ----------
    statistics_error_bits : float
        Largest difference between the fused entropy and that of the model's own logits, in bits.
    right_padding_error, left_padding_error : float
        Largest relative difference of a batched state from the same prompt alone: max |a - b| / max |b| per row. On the left
        also of the logits one token later, as generation goes on from the cache.
    parts_error : float
        Largest relative difference between resid_pre + attn_out + mlp_out and resid_post; NaN where the model lacks a part.
    dtype : str
    logits_error : float
        Largest difference of a fused logit, or of the logsumexp, from the model's own, relative to the largest logit of the prompt.
    """

    statistics_error_bits: float
    right_padding_error: float
    left_padding_error: float
    parts_error: float
    dtype: str
    logits_error: float = float("nan")

    @property
    def left_padding_safe(self) -> bool:
        """Whether padding on the left changes nothing, as batched generation needs."""
        return self.left_padding_error <= limits(self.dtype).states

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a manifest."""
        return {name: None if value != value else value for name, value in asdict(self).items()}


def checked(backend: Backend, prompts: list[tuple[int, ...]], pad_id: int, device: torch.device) -> GateReport:
    """The gate; whatever the model's own code or its shapes raise there is the model being read wrongly.

    Raises
    ------
    CaptureError
        When the gate finds wrong numbers, or the model cannot be read. Errors of the package and of memory pass as they are.
    """
    try:
        return gate(backend, prompts, pad_id, device)
    except (PrecollapseError, torch.cuda.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise CaptureError(
            f"this {backend.architecture.model_type} model failed the check at load: {type(error).__name__}: "
            f"{(str(error) or 'no message').splitlines()[0]}. Its architecture is read wrongly, or it is no causal language model"
        ) from error


def gate(backend: Backend, prompts: list[tuple[int, ...]], pad_id: int, device: torch.device) -> GateReport:
    """Measure a loaded model on a few prompts of different lengths.

    Parameters
    ----------
    backend : Backend
    prompts : list of tuple of int
        Token ids, at least two lengths.
    pad_id : int
    device : torch.device

    Returns
    -------
    GateReport

    Raises
    ------
    CaptureError
        If the statistics, the right-padded batch or the sum of parts is off by more than the dtype explains. (Left padding is
        only reported: families that cannot bear it are generated from in groups of equal length.)
    """
    architecture = backend.architecture
    layers = tuple(range(len(architecture.blocks)))
    parts = [s for s in ("resid_pre", "attn_out", "mlp_out", "resid_post") if s in backend.sites]
    resid = parts.index("resid_post")

    def capture(rows: list[int], side: str) -> tuple[list[torch.Tensor], torch.Tensor]:
        batch = assemble(rows, prompts, pad_id, side, device)
        got = backend.rows(batch, Request(tuple(parts), layers, batch.boundary[:, None]))
        return [got.sites[s][:, 0].double() for s in parts], got.final_norm[:, 0]

    single = [capture([i], "right") for i in range(len(prompts))]
    if architecture.source == "structure":
        _check_blocks(backend, prompts[0], single[0][0][resid][0], device)
    everyone = list(range(len(prompts)))
    errors = {}
    for side in ("right", "left"):
        batched, _ = capture(everyone, side)
        errors[side] = largest(relative_difference(batched[resid][i], single[i][0][resid][0]) for i in everyone)
    # a backend that gives no cache is generated from through the plain model
    stepping = backend if backend.gives_cache else make_backend(backend.model)
    errors["left"] = largest([errors["left"], *_step_errors(stepping, prompts, pad_id, device)])
    compared = [_compared(backend, prompts[i], single[i][1], device) for i in everyone]
    statistics_error, logits_error = (largest(one) for one in zip(*compared, strict=True))
    parts_error = float("nan")
    if len(parts) == 4:
        parts_error = largest(relative_difference(pre + attn + mlp, post) for (pre, attn, mlp, post), _ in single)
    report = GateReport(
        statistics_error,
        errors["right"],
        errors["left"],
        parts_error,
        str(single[0][1].dtype).removeprefix("torch."),
        logits_error,
    )
    computed = (
        single[0][1].dtype,
        backend.model.dtype,
    )  # a family may keep its residual in float32 and compute in 16 bits
    allowed = limits(min(computed, key=lambda dtype: dtype.itemsize))
    _refuse(
        architecture.model_type,
        "entropy of the fused statistics differs from that of the model's own logits",
        report.statistics_error_bits,
        allowed.entropy_bits,
        "bits",
    )
    _refuse(
        architecture.model_type,
        "logits (or their logsumexp) differ from the model's own",
        logits_error,
        allowed.logits,
        "of the largest logit",
    )
    _refuse(
        architecture.model_type,
        "state of a prompt in a padded batch differs from the same prompt alone",
        report.right_padding_error,
        allowed.states,
        "relative",
    )
    if not np.isnan(parts_error):
        _refuse(
            architecture.model_type,
            "sum of resid_pre, attn_out and mlp_out differs from resid_post",
            parts_error,
            allowed.states,
            "relative",
        )
    return report


def _check_blocks(backend: Backend, prompt: tuple[int, ...], found: torch.Tensor, device: torch.device) -> None:
    """Hold resid_post [L, d] of blocks that were found by structure to the model's own hidden states.

    These are a block's input or its output, by family; the last output is left out, which the final norm may have changed.
    """
    with torch.no_grad(), evaluating(backend.model):
        ids = torch.tensor([prompt], device=device)
        own = backend.model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
    if not own:
        return
    apart = []
    for shift in (0, 1):
        rows = [h[0, -1].double() for h in own[shift : shift + len(found) - 1]]
        fits = len(rows) == len(found) - 1 and all(row.shape == found[0].shape for row in rows)
        apart.append(largest([0.0, *map(relative_difference, found, rows)]) if fits else float("inf"))
    _refuse(
        backend.architecture.model_type,
        "output of the blocks that were found by structure differs from the model's own hidden states",
        min(apart),
        limits(backend.model.dtype).states,
        "relative",
    )


def _refuse(model: str, what: str, found: float, allowed: float, unit: str) -> None:
    if not found <= allowed:  # also true for NaN
        raise CaptureError(
            f"this {model} model failed the check at load: the {what} by {found:.3g} {unit} (at most {allowed:g} is explained by its dtype). "
            "Its architecture is read wrongly, or it computes in a way that padding disturbs; check=False overrides"
        )


def _step_errors(backend: Backend, prompts: list[tuple[int, ...]], pad_id: int, device: torch.device) -> list[float]:
    """How far one more token after a left-padded prefill is from the same tokens run alone without a cache.

    A prefill may be right while the step that goes on from it is not: some families misread the mask there. A family whose
    cache is out of reach cannot be generated from, which is said when it is tried, and counts as infinitely far here.
    """
    model = backend.model
    batch = assemble(range(len(prompts)), prompts, pad_id, "left", device)
    following = prompts[0][0]
    token = torch.full_like(batch.boundary, following)
    mask = batch.attention_mask
    if mask is not None:
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    try:
        cache = backend.rows(batch, Request((), (), batch.boundary[:, None], use_cache=True)).cache
        if cache is None:
            return [float("inf")]
        step = step_inputs(model, cache, token, mask, lengths)
        with torch.no_grad(), evaluating(model):
            stepped = model(**step).logits[:, -1].double()
    except Exception:  # the family's own cache code runs here and may raise anything: it cannot be generated from
        return [float("inf")]
    with torch.no_grad(), evaluating(model):
        alone = [
            model(input_ids=torch.tensor([[*p, following]], device=device), use_cache=False).logits[0, -1].double()
            for p in prompts
        ]
    return [relative_difference(a, b) for a, b in zip(stepped, alone, strict=True)]


def _compared(
    backend: Backend, prompt: tuple[int, ...], final: torch.Tensor, device: torch.device
) -> tuple[float, float]:
    """How far the fused entropy (bits) and the fused logits (relative to the largest) are from those of the model's own pass.

    Entropy alone is one number, which a wrong scale, a missing layer before the unembedding or another order of tokens may leave nearly
    as it is. So the logits of the model's likeliest tokens and of others across the vocabulary are compared one by one, and the
    logsumexp, and the fused top token has to be one that the model itself gives its largest logit, as far as rounding goes.
    """
    with torch.no_grad(), evaluating(backend.model):
        output = backend.model(input_ids=torch.tensor([prompt], device=device), use_cache=False)
    logits = output.logits[0, -1].double().to(final.device)
    log_p = torch.log_softmax(logits, -1)
    own = float(-(log_p.exp() * log_p).nan_to_num(0.0).sum() / np.log(2))
    finite = torch.isfinite(logits).nonzero()[:, 0]
    if not len(finite):
        return float("nan"), float("nan")
    top = logits.topk(min(_LIKELIEST, len(logits))).indices
    across = finite[torch.linspace(0, len(finite) - 1, min(_ACROSS, len(finite)), device=finite.device).long()]
    ids = torch.cat([top[torch.isfinite(logits[top])], across]).unique()
    fused = row_statistics(backend.architecture, final, 1, ids.view(1, -1, 1))
    scale = float(logits[finite].abs().max().clamp_min(1e-30))
    apart = (fused.option_logits.reshape(-1).to(ids.device).double() - logits[ids]).abs().max()
    best = int(fused.top_ids.reshape(-1)[0])
    behind = logits.max() - logits[best] if best < len(logits) else torch.tensor(float("inf"))
    summed = abs(float(torch.logsumexp(logits, -1)) - float(fused.logsumexp.reshape(-1)[0]))
    return abs(own - float(fused.entropy_bits[0])), largest(
        [float(apart) / scale, float(behind) / scale, summed / scale]
    )


_LIKELIEST, _ACROSS = 8, 16
"""Tokens of which the check compares logits: the likeliest ones, and others across the vocabulary."""
