"""Memory does not grow over repeated captures, measured so that one whole sequence kept per capture would show.

The captures run in a process of their own: in the test suite's, gigabytes are resident already (what 2 % of them hides
is more than any leak here), and memory that earlier tests freed takes up what later ones keep.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WIDTH = 256
HEAD = "Solve it step by step, and give the answer in the end. " + "..." * 8
PROMPTS = [HEAD + "=" * (8 + i) for i in range(3)]
CAPTURES = 200
ALLOWED = 1.02
STATUS = Path("/proc/self/status")


def resident() -> int:
    """Bytes of this process that are in memory."""
    gc.collect()
    for line in STATUS.read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def small_llama() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from precollapse.perf.small_models import VOCABULARY

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
    from precollapse import Extractor
    from precollapse.perf.small_models import small_tokenizer

    ex = Extractor(model, small_tokenizer(), share_prefix=share_prefix, check=False)

    def run(times: int) -> int:
        for _ in range(times):
            ex.capture(PROMPTS, ("resid_post", "z", "final_norm"), attention="rows", options=("A", "B"))
        return resident()

    before = run(20)
    return run(CAPTURES - 20) / before


def measure() -> dict[str, Any]:
    """Growth plain, with a shared prefix, and with a leak made on purpose (last, so that it touches no other)."""
    import torch

    model = small_llama()
    grown: dict[str, Any] = {way: growth(model, way) for way in ("never", "always")}
    kept: list[torch.Tensor] = []

    def leaks(_module: Any, _inputs: Any, output: Any) -> None:
        kept.append(output[0] if isinstance(output, tuple) else output)

    model.model.layers[0].register_forward_hook(leaks)
    grown["leak"] = growth(model, "never")
    grown["kept"] = [len(kept), kept[0].ndim]
    return grown


@pytest.fixture(scope="module")
def grown() -> dict[str, Any]:
    if not STATUS.exists():
        pytest.skip("the system keeps no /proc/self/status")
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("share_prefix", ["never", "always"])
def test_memory_is_flat_over_200_captures(grown: dict[str, Any], share_prefix: str) -> None:
    assert grown[share_prefix] < ALLOWED


def test_a_whole_sequence_kept_per_capture_would_be_found(grown: dict[str, Any]) -> None:
    """The measure itself, with the leak that it is there for: one [B, T, d] per capture."""
    assert grown["kept"] == [CAPTURES, 3]
    assert grown["leak"] > ALLOWED


if __name__ == "__main__":
    print(json.dumps(measure()))
