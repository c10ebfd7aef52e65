"""CPU kernels side by side with torch and with the time to read the unembedding once, in one run.

    python perf/kernels.py [--json FILE] [--repeats 5] [--threads N] [--clock wall|cpu] [--vocabulary 128256] [--width 2048]

Prints a table and, with --json, writes the same numbers. Every time is the median of --repeats calls after one warm-up.
The floor of vocab_stats is the time in which all threads read the unembedding once and do nothing else, measured with a
sum over its bytes as 64-bit integers. On a machine that others use, `--clock cpu --threads 1` counts processor time
instead, which waiting for a processor does not enter (memory that is shared with others still does).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from precollapse.kernels import Moments, logits_stats, native, vocab_stats

LIMITS = {
    ("bfloat16", 1): ("floor", 1.6),
    ("bfloat16", 8): ("floor", 1.6),
    ("bfloat16", 64): ("torch", 1.0),
    ("float32", 1): ("floor", 1.3),
    ("float32", 8): ("torch", 3.0),
    ("float32", 64): ("torch", 1.5),
}


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
clock = CLOCKS["wall"]


def median_ms(call: Callable[[], object], repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        start = clock()
        call()
        times.append(clock() - start)
    return statistics.median(times) * 1e3


def torch_entropy(logits: Tensor) -> Tensor:
    """Entropy as it is usually written."""
    log_p = torch.log_softmax(logits.float(), -1)
    return -(log_p.exp() * log_p).sum(-1)


def processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def measure_vocab(columns: int, width: int, repeats: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for dtype in (torch.bfloat16, torch.float32):
        weight = (torch.randn(columns, width) * 0.02).to(dtype)
        words = weight.view(torch.int64)
        for n in (1, 8, 64):
            hidden = torch.randn(n, width).to(dtype)
            name = str(dtype).removeprefix("torch.")
            floor = median_ms(lambda words=words: words.sum(), repeats)
            ours = median_ms(lambda h=hidden, w=weight: vocab_stats(h, w), repeats)
            theirs = median_ms(lambda h=hidden, w=weight: torch_entropy(h @ w.T), repeats)
            against, limit = LIMITS[name, n]
            met = ours <= limit * floor if against == "floor" else theirs >= limit * ours
            rows.append(
                {
                    "operator": "vocab_stats",
                    "dtype": name,
                    "n": n,
                    "ms": ours,
                    "torch_ms": theirs,
                    "floor_ms": floor,
                    "times_floor": ours / floor,
                    "torch_over_ours": theirs / ours,
                    "gflops": 2e-6 * n * columns * width / ours,
                    "limit": f"<= {limit} x floor" if against == "floor" else f">= {limit} x torch's speed",
                    "met": met,
                }
            )
    return rows


def measure_logits(columns: int, repeats: int) -> dict[str, object]:
    logits = torch.randn(64, columns)
    ours = median_ms(lambda: logits_stats(logits), repeats)
    theirs = median_ms(lambda: torch_entropy(logits), repeats)
    return {
        "operator": "logits_stats",
        "dtype": "float32",
        "n": 64,
        "ms": ours,
        "torch_ms": theirs,
        "torch_over_ours": theirs / ours,
        "limit": ">= 2.0 x torch's speed",
        "met": theirs >= 2 * ours,
    }


def measure_moments(repeats: int) -> dict[str, object]:
    d, n = 2048, 256
    x = torch.randn(n, 1, d)
    moments = Moments(1, d)
    for _ in range(d // n + 1):  # past the point where rows are kept
        moments.update(x)
    flat = x[:, 0].contiguous()
    ours = median_ms(lambda: moments.update(x), repeats)
    theirs = median_ms(lambda: flat.T @ flat, repeats)
    return {
        "operator": "Moments.update",
        "dtype": "float32",
        "n": n,
        "ms": ours,
        "torch_ms": theirs,
        "torch_over_ours": theirs / ours,
        "limit": ">= 1.0 x one matmul's speed",
        "met": theirs >= ours,
    }


# The high-water mark of resident memory is reset just before the call (Linux).
MEMORY = """
import torch
from precollapse.kernels import vocab_stats
hidden, weight = torch.randn(64, {width}), torch.empty({columns}, {width}).normal_(std=0.02)
vocab_stats(hidden, weight[:2000])
def resident(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field))
with open("/proc/self/clear_refs", "w") as marks:
    marks.write("5")
before = resident("VmRSS")
{call}
print(resident("VmHWM") - before)
"""


def peak_mb(call: str, columns: int, width: int) -> float:
    script = MEMORY.format(call=call, columns=columns, width=width)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="also write the numbers to this file")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    asked = parser.parse_args()
    if asked.clock == "cpu" and asked.threads != 1:
        parser.error("--clock cpu adds up all threads; it says something with --threads 1 only")
    global clock
    clock = CLOCKS[asked.clock]
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    forms = native.forms()
    machine = {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "clock": asked.clock,
        "form": forms[-1] if forms else "torch (C++ forms not built)",
        "torch": torch.__version__,
        "vocabulary": asked.vocabulary,
        "width": asked.width,
    }
    rows = measure_vocab(asked.vocabulary, asked.width, asked.repeats)
    rows += [measure_logits(asked.vocabulary, asked.repeats), measure_moments(asked.repeats)]
    memory = {
        "vocab_stats_extra_mb": peak_mb("vocab_stats(hidden, weight)", asked.vocabulary, asked.width),
        "torch_extra_mb": peak_mb("torch.log_softmax(hidden @ weight.T, -1)", asked.vocabulary, asked.width),
    }
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(
        f"{'operator':15s} {'dtype':9s} {'n':>4s} {'ms':>8s} {'torch':>8s} {'floor':>7s} {'x floor':>8s} {'x torch':>8s}  limit"
    )
    for row in rows:
        floor = f"{row['floor_ms']:7.1f} {row['times_floor']:8.2f}" if "floor_ms" in row else f"{'':7s} {'':8s}"
        print(
            f"{row['operator']:15s} {row['dtype']:9s} {row['n']:4d} {row['ms']:8.1f} {row['torch_ms']:8.1f} {floor} "
            f"{row['torch_over_ours']:8.2f}  {row['limit']}: {'met' if row['met'] else 'NOT MET'}"
        )
    print(
        f"extra memory, float32, n=64: {memory['vocab_stats_extra_mb']:.1f} MB; torch {memory['torch_extra_mb']:.1f} MB"
    )
    if asked.json:
        with open(asked.json, "w") as file:
            json.dump({"machine": machine, "rows": rows, "memory": memory}, file, indent=1)


if __name__ == "__main__":
    main()
