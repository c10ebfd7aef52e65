"""Time of forced answers and sampled trajectories against running every prefix anew, on the embedded model.

Every contender computes the same numbers (checked: the largest difference is printed). Medians over the repeats, which
are interleaved so that a busy moment hits all contenders; run it on an idle machine:

    python perf/trajectories.py [--repeats 3] [--only forced|sampled]
"""

from __future__ import annotations

import argparse
import copy
import inspect
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from precollapse.hooks import Extractor
from precollapse.hooks.decoding.continuations import decoding_for
from precollapse.hooks.decoding.steps import cache_of
from precollapse.hooks.decoding.tree import method_for
from precollapse.studies.trajectories import ANCHOR, forced_answers
from precollapse.studies.trajectories.chains import sample_continuations
from precollapse.studies.trajectories.segmentation import segment, to_tokens, token_ends_of_text

CLOCK = time.perf_counter
OPTIONS = ("A", "B", "C", "D")
QUESTION = (
    "A shop sells pens at 3 for $2 and folders at $1.50 each. Ana buys 12 pens and 4 folders and pays with a $20 note. "
    "How much change does she get?\nA) $6\nB) $8\nC) $4\nD) $12"
)
SENTENCES = (
    "Let us see what Ana buys.", "She buys pens and folders.", "Pens come in packs of three.", "A pack costs two dollars.",
    "Twelve pens make four packs.", "Four packs cost eight dollars.", "So the pens cost $8.", "Now the folders.",
    "A folder costs $1.50.", "She takes four of them.", "Four times 1.50 is 6.", "So the folders cost $6.",
    "Is anything else bought?", "No, that is all.", "The total is 8 plus 6.", "That makes 14 dollars.",
    "She pays with a $20 note.", "The change is 20 minus 14.", "That is 6 dollars.", "Let me check the pens again.",
    "Twelve divided by three is four.", "Four times two is eight.", "Good, the pens are right.", "And the folders again.",
    "Two folders cost three dollars.", "So four cost six dollars.", "Good, that is right too.", "The sum of both is 14.",
    "Twenty minus fourteen is six.", "The change is six dollars.", "Option A says $6.", "So option A must be right.",
    "Option B would mean $8.", "That is only the pens.", "Option D would mean $12.", "That cannot be either.", "Option C would mean $4.", "For that the total would have to be 16.",
    "But the total is 14, as we have seen twice.", "So no other option fits the numbers given.",
    "I am sure of the result now.", "The answer is the first option.",
)  # fmt: skip


def timed(contenders: dict[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Median seconds and the last result of each, interleaved."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    results = {}
    for i in range(repeats):
        for name, call in contenders.items():
            started = CLOCK()
            results[name] = call()
            seconds[name].append(CLOCK() - started)
            print(f"  {i + 1}/{repeats} {name}: {seconds[name][-1]:.2f} s", file=sys.stderr)
    return {name: statistics.median(s) for name, s in seconds.items()}, results


@torch.no_grad()
def forced(ex: Extractor, repeats: int) -> dict[str, Any]:
    """Forced answers at every sentence boundary of one chain."""
    chain = " ".join(SENTENCES)
    prompt = ex.renderer.render([{"role": "user", "content": QUESTION}]).token_ids
    ids, ends = token_ends_of_text(ex.tokenizer, chain)
    counts = to_tokens(segment(chain, "sentence", None, ends).ends, ends).tokens
    anchor = ex.tokenizer(ANCHOR, add_special_tokens=False)["input_ids"]
    tokens = [[ex.tokenizer(t, add_special_tokens=False)["input_ids"][0] for t in (o, " " + o)] for o in OPTIONS]
    contexts = [[*prompt, *ids[:c], *anchor] for c in counts]

    def option_logprobs(logits: torch.Tensor) -> np.ndarray:
        logp = logits.double().log_softmax(-1)
        return torch.stack([logp[:, group].logsumexp(-1) for group in tokens], dim=1).numpy()

    def anew() -> np.ndarray:
        """Every prefix anew, in batches of 8, left-padded, sorted by length as they are."""
        rows = []
        for start in range(0, len(contexts), 8):
            part = contexts[start : start + 8]
            width = max(map(len, part))
            batch = torch.full((len(part), width), ex.renderer.pad_id)
            mask = torch.zeros_like(batch)
            for r, c in enumerate(part):
                batch[r, width - len(c) :] = torch.tensor(c)
                mask[r, width - len(c) :] = 1
            positions = (mask.cumsum(1) - 1).clamp_min(0)
            out = ex.model(
                input_ids=batch, attention_mask=mask, position_ids=positions, logits_to_keep=1, use_cache=False
            )
            rows.append(option_logprobs(out.logits[:, -1]))
        return np.concatenate(rows)

    def reuse() -> np.ndarray:
        """The chain is run once, boundary by boundary, and a copy of its cache continues with each anchor."""
        rows, cache, done = [], None, 0
        text = [*prompt, *ids]
        for count in counts:
            stop = len(prompt) + count
            if stop > done:
                given = {} if cache is None else {CACHE: cache}
                cache = cache_of(
                    ex.model(input_ids=torch.tensor([text[done:stop]]), logits_to_keep=1, use_cache=True, **given)
                )
                done = stop
            out = ex.model(
                input_ids=torch.tensor([anchor]), logits_to_keep=1, use_cache=True, **{CACHE: copy.deepcopy(cache)}
            )
            rows.append(option_logprobs(out.logits[:, -1]))
        return np.concatenate(rows)

    def one_pass() -> np.ndarray:
        return forced_answers(ex, [prompt], [ids], options=OPTIONS)[0].option_logprobs

    names = inspect.signature(type(ex.model).forward).parameters
    CACHE = "cache" if "cache" in names else "past_key_values"
    seconds, found = timed({"one pass": one_pass, "cache reuse": reuse, "every prefix anew": anew}, repeats)
    return {
        "prompt_tokens": len(prompt), "chain_tokens": len(ids), "boundaries": len(counts), "seconds": seconds,
        "against_anew": seconds["every prefix anew"] / seconds["one pass"],
        "against_cache_reuse": seconds["cache reuse"] / seconds["one pass"],
        "largest_difference": {k: float(np.abs(v - found["one pass"]).max()) for k, v in found.items() if k != "one pass"},
    }  # fmt: skip


@torch.no_grad()
def sampled(ex: Extractor, repeats: int, tokens: int) -> dict[str, Any]:
    """Five continuations of eight prefixes."""
    chain = " ".join(SENTENCES[:24])
    prompt = list(ex.renderer.render([{"role": "user", "content": QUESTION}]).token_ids)
    ids, ends = token_ends_of_text(ex.tokenizer, chain)
    counts = to_tokens(segment(chain, "sentence", 8, ends).ends, ends, include_start=False).tokens
    counts = tuple(round(len(ids) * (i + 1) / 8) for i in range(len(counts)))
    text = [*prompt, *ids]
    ex.model.generation_config.pad_token_id = ex.renderer.pad_id
    options = {"do_sample": True, "temperature": 0.7, "top_k": 0, "max_new_tokens": tokens, "min_new_tokens": tokens}

    def shared() -> int:
        found = sample_continuations(ex, [text], [[len(prompt) + c for c in counts]], ["item"], 5, 0.7, tokens)
        return sum(len(c.tokens) for prefix in found[0] for c in prefix)

    def anew() -> int:
        """The library's own sampling, each prefix prompted anew with five returned sequences."""
        written = 0
        for c in counts:
            ids_ = torch.tensor([text[: len(prompt) + c]])
            out = ex.model.generate(ids_, attention_mask=torch.ones_like(ids_), num_return_sequences=5, **options)
            written += out[:, ids_.shape[1] :].numel()
        return written

    # No continuation may end early, so that all contenders write the same number of tokens.
    ends_before, tokenizer_end = ex.model.generation_config.eos_token_id, ex.tokenizer.eos_token
    ex.model.generation_config.eos_token_id, ex.tokenizer.eos_token = None, None
    try:
        seconds, found = timed({"shared prefix": shared, "every prefix anew": anew}, repeats)
    finally:
        ex.model.generation_config.eos_token_id, ex.tokenizer.eos_token = ends_before, tokenizer_end
    return {
        "prompt_tokens": len(prompt), "chain_tokens": len(ids), "prefixes": len(counts), "m": 5, "tokens_each": tokens,
        "seconds": seconds, "tokens_written": found,
        "against_anew": seconds["every prefix anew"] / seconds["shared prefix"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=("forced", "sampled"))
    parser.add_argument("--tokens", type=int, default=150, help="tokens per sampled continuation")
    parser.add_argument("--threads", type=int, help="threads of torch")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count this process's CPU seconds: with --threads 1, comparable on a busy machine",
    )
    options = parser.parse_args()
    if options.cpu_time:
        global CLOCK
        CLOCK = time.process_time
    if options.threads:
        torch.set_num_threads(options.threads)
    ex = Extractor.from_pretrained(options.model, check=False)
    result: dict[str, Any] = {
        "model": options.model, "threads": torch.get_num_threads(), "device": str(ex.device),
        "forced_method": method_for(ex.model).name, "sampling_method": decoding_for(ex.model).name,
    }  # fmt: skip
    if options.only != "sampled":
        result["forced"] = forced(ex, options.repeats)
    if options.only != "forced":
        result["sampled"] = sampled(ex, options.repeats, options.tokens)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
