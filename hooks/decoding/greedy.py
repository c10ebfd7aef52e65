"""Greedy generation that goes on from a capture's own prefill.

Guarantees: one prefill serves the capture and the generation, so the text is what the captured state led to; decoding is
plain argmax without hidden penalties or sampling; rows that have finished leave the batch and do not disturb the others; each
output's length, and whether the cap cut it off, is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import CaptureError
from ..batches import CapturedBatch
from ..evaluation import evaluating
from . import passes
from .rotary import length_rule, switches
from .steps import cache_of, step_inputs
from .stops import before_stop, reached


@dataclass(frozen=True)
class Output:
    """What a model wrote after one prompt.

    Attributes
    ----------
    token_ids : tuple of int
        Without the end-of-text token.
    text : str
        Decoded without special tokens.
    truncated : bool
        Whether the cap cut the output off before the model ended it.
    stop : str or None
        The stop text before which the output ends, where one ended it.
    """

    token_ids: tuple[int, ...]
    text: str
    truncated: bool
    stop: str | None = None

    @property
    def finish_reason(self) -> str:
        """ "length" when truncated, "stop_text" before a stop text, else "stop"."""
        return "length" if self.truncated else "stop" if self.stop is None else "stop_text"


def end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The token ids that end an output: the generation config's, the model config's and the tokenizer's."""
    found: set[int] = set()
    for owner in (getattr(model, "generation_config", None), model.config, tokenizer):
        value = getattr(owner, "eos_token_id", None)
        if value is not None:
            found.update(value if isinstance(value, list | tuple) else [value])
    return frozenset(int(i) for i in found)


@torch.no_grad()
def continue_greedily(
    model: Any, tokenizer: Any, captured: CapturedBatch, max_new_tokens: int, stops: Sequence[str] = ()
) -> list[Output]:
    """Write on after the prompts of one captured batch.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    tokenizer : transformers.PreTrainedTokenizerBase
    captured : CapturedBatch
        From `Extractor.stream(..., keep_cache=True)`. Its cache is used up.
    max_new_tokens : int
        Cap on tokens per output, at least 1.
    stops : sequence of str
        Texts before which an output ends.

    Returns
    -------
    list of Output
        In batch order.
    """
    if captured.cache is None:
        raise CaptureError("generation needs the cache of its prefill; capture with keep_cache=True")
    with evaluating(model):
        return _continue(model, tokenizer, captured, max_new_tokens, stops)


def _continue(
    model: Any, tokenizer: Any, captured: CapturedBatch, max_new_tokens: int, stops: Sequence[str]
) -> list[Output]:
    stop = torch.as_tensor(sorted(end_ids(model, tokenizer)), device=captured.next_token.device)
    cache, batch = captured.cache, captured.batch
    rows = torch.arange(len(batch.rows), device=stop.device)
    mask = batch.attention_mask
    positions = torch.as_tensor([len(ids) for ids in captured.states.token_ids], device=stop.device)
    token = captured.next_token
    rule = length_rule(model.config.get_text_config(decoder=True))
    written: list[list[int]] = [[] for _ in batch.rows]
    truncated = [True] * len(batch.rows)
    for step in range(max_new_tokens):
        for row, value, end in zip(rows.tolist(), token.tolist(), torch.isin(token, stop).tolist(), strict=True):
            if truncated[row] and not end:  # else it ends, or has ended in a batch that it cannot leave
                written[row].append(value)
                end = reached(tokenizer, written[row], stops)
            truncated[row] = truncated[row] and not end
        ended = torch.tensor([not truncated[row] for row in rows.tolist()], device=token.device)
        if bool(ended.all()) or step == max_new_tokens - 1:
            break
        if bool(ended.any()):
            keep = (~ended).nonzero()[:, 0]
            if _select(cache, keep):
                rows, token, positions = rows[keep], token[keep], positions[keep]
                mask = None if mask is None else mask[keep]
        if mask is not None:
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        if switches(rule, int(positions.max()) + 1):
            output = _run_again(model, captured, rows.tolist(), written, token, step)
        else:
            with passes.generated_pass([batch.rows[row] for row in rows.tolist()]):
                output = model(**step_inputs(model, cache, token, mask, positions))
        cache = cache_of(output) or cache
        following = output.logits[:, -1].argmax(-1)
        # where rows cannot leave the batch, one that has ended keeps its end token, so that it stays ended
        ended = torch.isin(token, stop)
        token = torch.where(ended, token, following) if bool(ended.any()) else following
        positions = positions + 1
    outputs = []
    for ids, cut in zip(written, truncated, strict=True):
        kept, text, before = before_stop(tokenizer, ids, stops)
        outputs.append(Output(kept, text, cut, before))
    return outputs


def _run_again(
    model: Any, captured: CapturedBatch, rows: list[int], written: list[list[int]], token: torch.Tensor, step: int
) -> Any:
    """Prompts and outputs run whole, where a rotary embedding turns from here on otherwise than in the cached keys.

    Such batches hold prompts of one length (see `hooks.decoding.rotary`), so there is no padding.
    """
    prompts = captured.states.token_ids
    whole = []
    for row, last in zip(rows, token.tolist(), strict=True):
        output = [*written[row], *[last] * (step + 1 - len(written[row]))]  # a row that has ended repeats its end
        whole.append([*prompts[row], *output])
    ids = torch.tensor(whole, device=token.device)
    length = len(prompts[rows[0]])
    with passes.whole_pass([captured.batch.rows[row] for row in rows], length, step + 1, token.device):
        return model(input_ids=ids, use_cache=True, logits_to_keep=1)


def _select(cache: Any, keep: torch.Tensor) -> bool:
    """Keep only some rows of a cache; False where this kind of cache cannot do it."""
    layers = getattr(cache, "layers", None)
    if not layers or not all(hasattr(layer, "batch_select_indices") for layer in layers):
        return False
    cache.batch_select_indices(keep)
    return True
