"""Memory does not grow over repeated captures."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from precollapse import Extractor
from precollapse.hooks.small_models import small_model, small_tokenizer


def resident_kib() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("the system keeps no /proc/self/status")
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmRSS:"))


def test_two_hundred_captures_hold_what_twenty_hold():
    extractor = Extractor(small_model("llama", layers=1), small_tokenizer(), share_prefix="always", check=False)
    prompts = ["Solve it. " * 4 + f"{i}" * (1 + i % 5) for i in range(6)] + ["one run whole", "and another"]

    def run(times):
        for _ in range(times):
            extractor.capture(prompts, attention="summary")
        gc.collect()
        return resident_kib()

    before = run(20)
    assert run(180) < 1.02 * before
