"""Mutated inputs to every parser of foreign files and texts: GGUF and safetensors headers, JSON, YAML, JSON Lines, LaTeX.

Each input is a sound one with a few of its bytes flipped, cut, doubled, nested or replaced by what parsers trip over. It must be read, or refused
with the package's own error, within its time and its memory; anything else is printed with the input that showed it. Seeded: the same
number is the same input.

Usage: python perf/fuzz.py [--n 100000] [--only json,yaml] [--seed 0]     (100,000 inputs take about 15 minutes on two cores)
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import struct
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precollapse import declared, strict_json, strict_yaml
from precollapse.errors import PrecollapseError
from precollapse.hooks.loading import gguf_file, weight_files
from precollapse.store.formats import tensors
from precollapse.studies import benchmarks, graded_files, prompts
from precollapse.studies.grading import grade

SECONDS = 2.0
"""Processor time of this process that an input may use."""
HANGS = 30
"""Seconds after which an input counts as one that does not end."""
GROWTH_BYTES = 512 << 20
"""Memory that this process may gain over all inputs of a parser."""
_WORKER_SECONDS = 1.0

_TOKENS = (
    b"\0", b"\xff", b"\xfe\xff", b"\x80", b"\xed\xa0\x80", b"\\ud800", b"NaN", b"1e999", b"-0", b"9" * 400, b"null", b'""', b"[]", b"{}", b"[" * 2000, b"{\"a\":" * 2000, b"&a ", b"*a ",
    b"!!python/object ", b"!!int x", b"---\n", b"\n", b"\r\n", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"<<: ", b"'", b'"', b"\\", b"{", b"}", b"\\frac{", b"\\boxed{", b"\\left(", b"^{9^{9^{9}}}", b"\\sqrt{",
    b"$" * 40, b" " * 3000, b"\\ldots", b"####", b"<think>", b"\\text{", b"_{", b"!", b"\\begin{pmatrix}", b"&", b"\\pm", struct.pack("<Q", 2**64 - 1), struct.pack("<Q", 2**40), struct.pack("<I", 0), struct.pack("<i", -1),
)  # fmt: skip


@dataclass(frozen=True)
class Parser:
    """A parser, sound inputs to it, and the errors that it may refuse with."""

    name: str
    seeds: tuple[bytes, ...]
    read: Callable[[bytes], Any]
    refusals: tuple[type[BaseException], ...] = (PrecollapseError,)


@dataclass(frozen=True)
class Fault:
    """An input that was neither read nor refused as it should be."""

    parser: str
    what: str
    data: bytes


def mutated(rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    """A sound input with one to six faults."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randint(1, 6)):
        kind, at = rng.randrange(8), rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.randint(1, 24))
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:end]
        elif kind == 2:
            data[at:at] = data[at:end] * rng.choice((1, 2, 50))
        elif kind == 3:
            data[at:at] = rng.choice(_TOKENS)
        elif kind == 4:
            data[at:end] = rng.choice(_TOKENS)
        elif kind == 5:
            del data[at:]
        elif kind == 6:
            other = rng.choice(seeds)
            start = rng.randrange(len(other) + 1)
            data[at:end] = other[start : start + 40]
        else:
            data[at:end] = rng.randbytes(rng.randint(1, 8))
    return bytes(data)


def parsers(folder: Path) -> tuple[Parser, ...]:
    """All parsers; files are written to `folder`."""

    def of_file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
        def reading(data: bytes) -> Any:
            path = folder / name
            path.write_bytes(data)
            return read(path)

        return reading

    head = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {"format": "pt"}}
    sound = tensors.header(head) + bytes(24)
    rows = (
        b'{"question": "q", "answer": "4", "text": "The answer is 4."}\n{"question": "r", "answer": "x", "text": "x"}\n',
        b'{"question": "q", "answer": 2, "choices": ["1", "3", "4", "5"], "text": "C"}\n',
        b'{"id": "a", "question": "q", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "B", "text": "B"}\n',
        b'{"question": "q", "options": ["A)21", "B)22"], "correct": "B", "text": "(B)"}\n',
    )
    yaml = (
        b"short:\n  free: 'Q: {question}\\nA:'\n  choice: '{question} {options}'\n  max_new_tokens: 20\n",
        b"title: t\nprotocol: {rule: sentence, m: 3, epsilon: 0.01, seed: 1}\nhypotheses:\n  - {id: H1, estimate: gap_points, criterion: '> 0', p: fisher_greater, family: [H1]}\n",
    )
    values = (b'{"a": [1, 2.5, "x", null, true], "b": {"c": "\\u00e9"}}', b"[[1, [2, [3]]], {}]")
    latex = tuple(
        text.encode()
        for text in (
            r"So \boxed{\frac{1}{2}}.", r"the roots are $x = 1 \pm \sqrt{19}$", r"#### 1,234.50", r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}", r"it is $(-\infty, 2) \cup [3, \infty)$",
            r"\boxed{x^2 + 3x - 6 = 0}", r"$0.\overline{3}$", r"\boxed{2, 4, \ldots, 2n}", r"\boxed{52_8}", r"The answer is (B) $10^{-3}$ \text{ cm}", r"\boxed{\log_2 8 + \sin 30^\circ}",
        )
    )  # fmt: skip

    def graded(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        grade("math500", text, r"\frac{x}{2}", seconds=_WORKER_SECONDS)
        grade("gsm8k", text, "18", seconds=_WORKER_SECONDS)
        grade("aqua_rat", text, "A", {"A": "36", "B": "x^2"}, seconds=_WORKER_SECONDS)

    def loaded(path: Path) -> None:
        for name in ("mine", "mmlu", "arc_challenge", "aqua_rat", "gsm8k"):
            try:
                benchmarks.load(name, path=path)
            except PrecollapseError:
                continue
        graded_files.grade_file(path)

    return (
        Parser("gguf", (_gguf(),), of_file("f.gguf", gguf_file.check_gguf)),
        Parser("safetensors", (sound,), of_file("f.safetensors", lambda path: weight_files.tensors_of([path]))),
        Parser("safetensors of the store", (sound,), lambda data: tensors.parse_header(data, len(data), "the blob")),
        Parser("json", values, lambda data: strict_json.loads(data.decode()), (ValueError,)),
        Parser("yaml", yaml, lambda data: strict_yaml.parse(data, "the file")),
        Parser("regimes", yaml[:1], of_file("f.yaml", prompts.load_regimes)),
        Parser("hypotheses", yaml[1:], of_file("h.yaml", declared.load)),
        Parser("jsonl", rows, of_file("f.jsonl", loaded)),
        Parser("latex", latex, graded),
    )


def _gguf() -> bytes:
    """The header of a small GGUF file, with the data that it names."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    entries = (
        text("general.architecture")
        + struct.pack("<I", 8)
        + text("llama")
        + text("llama.block_count")
        + struct.pack("<II", 4, 2)
    )
    words = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("b") + text("c")
    tensor = text("token_embd.weight") + struct.pack("<IQQIQ", 2, 4, 3, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 3) + entries + words + tensor
    return head + bytes(-len(head) % 32) + bytes(48)


def _too_long(_signal: int, _frame: Any) -> None:
    raise TimeoutError


def faults(parser: Parser, n: int, seed: int) -> Iterator[Fault]:
    """The faults that `n` inputs of a parser show."""
    rng = random.Random(f"{parser.name} {seed}")
    signal.signal(signal.SIGALRM, _too_long)
    for sound in parser.seeds:  # what is loaded when it is first used
        try:
            parser.read(sound)
        except parser.refusals:
            continue
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(n):
        data = mutated(rng, parser.seeds)
        began = time.process_time()
        signal.alarm(HANGS)
        try:
            parser.read(data)
        except parser.refusals:
            pass
        except TimeoutError:
            yield Fault(parser.name, f"did not end within {HANGS} s", data)
        except Exception as error:
            yield Fault(parser.name, f"{type(error).__name__}: {error}"[:300], data)
        finally:
            signal.alarm(0)
        if (used := time.process_time() - began) > SECONDS:
            yield Fault(parser.name, f"used {used:.1f} s", data)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    if grown > GROWTH_BYTES:
        yield Fault(parser.name, f"the process grew by {grown >> 20} MiB", b"")


def main() -> None:
    """Run all parsers, and print what they did."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--n", type=int, default=100_000)
    options.add_argument("--only", default="")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--json", action="store_true")
    arguments = options.parse_args()
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        chosen = [p for p in parsers(Path(name)) if not arguments.only or p.name in arguments.only.split(",")]
        for parser in chosen:
            began, count = time.monotonic(), -(-arguments.n // len(chosen))
            shown = list(faults(parser, count, arguments.seed))
            found[parser.name] = {"inputs": count, "faults": len(shown), "seconds": round(time.monotonic() - began, 1)}
            print(f"{parser.name}: {count} inputs, {len(shown)} faults, {found[parser.name]['seconds']} s", flush=True)
            for fault in shown[:10]:
                print(f"    {fault.what}: {fault.data[:200]!r}", flush=True)
    if arguments.json:
        print(json.dumps(found))
    raise SystemExit(any(parser["faults"] for parser in found.values()))


if __name__ == "__main__":
    main()
