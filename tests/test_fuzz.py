"""Mutated inputs to every parser of foreign files and texts: the short form of perf/fuzz.py."""

from __future__ import annotations

import pytest

from precollapse.perf import fuzz

COUNTS = {"latex": 60, "jsonl": 150}


@pytest.mark.parametrize(
    "name",
    ["gguf", "safetensors", "safetensors of the store", "json", "yaml", "regimes", "hypotheses", "jsonl", "latex"],
)
@pytest.mark.filterwarnings("ignore")
def test_mutated_inputs_are_read_or_refused(name, tmp_path):
    (parser,) = [p for p in fuzz.parsers(tmp_path) if p.name == name]
    assert [f"{fault.what}: {fault.data[:300]!r}" for fault in fuzz.faults(parser, COUNTS.get(name, 300), seed=1)] == []


def test_a_parser_that_fails_is_reported(tmp_path):
    broken = fuzz.Parser("broken", (b"abc",), lambda data: None if data == b"abc" else [][0])
    assert {fault.what.split(":")[0] for fault in fuzz.faults(broken, 5, seed=0)} == {"IndexError"}
