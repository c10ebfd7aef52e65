"""Memory does not grow over repeated captures, measured so that one whole sequence kept per capture would show."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from precollapse import Extractor
from precollapse.hooks.small_models import VOCABULARY, small_tokenizer

WIDTH = 256
HEAD = "Solve it step by step, and give the answer in the end. " + "..." * 8
PROMPTS = [HEAD + "=" * (8 + i) for i in range(3)]
CAPTURES = 200
ALLOWED = 1.02


def resident() -> int:
    """Bytes of this process that are in memory."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@pytest.fixture(scope="module")
def model() -> Any:
    if not Path("/proc/self/status").exists():
        pytest.skip("the system keeps no /proc/self/status")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=128,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def growth(model: Any, share_prefix: str) -> float:
    """Resident memory after `CAPTURES` captures over that after the first ones."""
    ex = Extractor(model, small_tokenizer(), share_prefix=share_prefix, check=False)

    def run(times: int) -> int:
        for _ in range(times):
            ex.capture(PROMPTS, ("resid_post", "z", "final_norm"), attention="rows", options=("A", "B"))
        return resident()

    before = run(20)
    return run(CAPTURES - 20) / before


@pytest.mark.parametrize("share_prefix", ["never", "always"])
def test_memory_is_flat_over_200_captures(model: Any, share_prefix: str) -> None:
    assert growth(model, share_prefix) < ALLOWED


def test_a_whole_sequence_kept_per_capture_would_be_found(model: Any) -> None:
    """The measure itself, with the leak that it is there for: one [B, T, d] per capture."""
    kept: list[torch.Tensor] = []

    def leaks(_module: Any, _inputs: Any, output: Any) -> None:
        kept.append(output[0] if isinstance(output, tuple) else output)

    handle = model.model.layers[0].register_forward_hook(leaks)
    try:
        grown = growth(model, "never")
    finally:
        handle.remove()
    assert len(kept) == CAPTURES and kept[0].ndim == 3
    assert grown > ALLOWED
