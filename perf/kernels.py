"""CPU kernels side by side with torch and with the time to read the unembedding once, in one run.

    python perf/kernels.py [--json FILE] [--repeats 5] [--threads N] [--clock wall|cpu] [--vocabulary 128256] [--width 2048]

Prints a table and, with --json, writes the same numbers. Every time is the median of --repeats calls after one warm-up.
The floor of vocab_stats is the time in which all threads read the unembedding once and do nothing else, measured with a
sum over its bytes as 64-bit integers. Two decisions are measured as well: whether many rows should be handed over to torch's
matrix product (its products alone, in chunks and in float32, against the whole of vocab_stats), and whether the final norm
should be folded in (the norm as a pass of its own against vocab_stats). On a machine that others use, `--clock cpu --threads 1` counts processor time
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


def measure_handover(columns: int, width: int, repeats: int) -> list[dict[str, object]]:
    """The whole of vocab_stats against no more than the products that a form over torch's matmul would need.

    On an eighth of the vocabulary: the time of both grows with it.
    """
    rows: list[dict[str, object]] = []
    columns = max(1, columns // 8)
    for dtype in (torch.bfloat16, torch.float32):
        weight = (torch.randn(columns, width) * 0.02).to(dtype)
        for n in (64, 256, 1024):
            hidden = torch.randn(n, width).to(dtype)

            def products(hidden: Tensor = hidden, weight: Tensor = weight) -> None:
                wide = hidden.float()
                for start in range(0, len(weight), 4096):
                    wide @ weight[start : start + 4096].float().T

            ours = median_ms(lambda h=hidden, w=weight: vocab_stats(h, w), repeats)
            alone = median_ms(products, repeats)
            rows.append(
                {
                    "dtype": str(dtype).removeprefix("torch."),
                    "n": n,
                    "vocabulary": columns,
                    "ms": ours,
                    "products_ms": alone,
                    "products_over_ours": alone / ours,
                    "gflops": 2e-6 * n * columns * width / ours,
                }
            )
    return rows


def measure_norm(width: int, vocabulary_ms: dict[int, float], repeats: int) -> list[dict[str, object]]:
    """A final RMSNorm as a pass of its own, in bfloat16, against vocab_stats of as many rows."""
    norm = torch.nn.RMSNorm(width, dtype=torch.bfloat16)
    rows: list[dict[str, object]] = []
    with torch.no_grad():
        for n, whole in vocabulary_ms.items():
            hidden = torch.randn(n, width).bfloat16()
            alone = median_ms(lambda h=hidden: norm(h), repeats)
            rows.append({"n": n, "norm_ms": alone, "vocab_stats_ms": whole, "share": alone / whole})
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


def measure_moments(d: int, repeats: int) -> dict[str, object]:
    n = 256
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
def growth(call):
    with open("/proc/self/clear_refs", "w") as marks:
        marks.write("5")
    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before
print(growth(lambda: vocab_stats(hidden, weight)), growth(lambda: torch.log_softmax(hidden @ weight.T, -1)))
"""


def peak_mb(columns: int, width: int) -> dict[str, float]:
    """Growth of resident memory at n = 64 in float32, in a process of its own."""
    script = MEMORY.format(columns=columns, width=width)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    ours, theirs = (int(kilobytes) / 1024 for kilobytes in done.stdout.split())
    return {"vocab_stats_extra_mb": ours, "torch_extra_mb": theirs}


def markdown(rows: list[dict[str, object]]) -> str:
    """The operators' table as docs/kernels.md has it."""
    lines = [
        "| operator | dtype | n | ms | torch | times the floor | torch / ours | wanted | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        floor = f"{row['times_floor']:.2f}" if "times_floor" in row else ""
        met = "met" if row["met"] else "**not met**"
        lines.append(
            f"| {row['operator']} | {row['dtype']} | {row['n']} | {row['ms']:.1f} | {row['torch_ms']:.1f} | {floor} | "
            f"{row['torch_over_ours']:.2f} | {row['limit']} | {met} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="also write the numbers to this file")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--markdown", action="store_true", help="print the table of operators as Markdown, and no more")
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
    rows += [measure_logits(asked.vocabulary, asked.repeats), measure_moments(asked.width, asked.repeats)]
    if asked.markdown:
        print(markdown(rows))
        return
    handover = measure_handover(asked.vocabulary, asked.width, asked.repeats)
    taken = {int(str(row["n"])): float(str(row["ms"])) for row in rows if row.get("dtype") == "bfloat16"}
    norm = measure_norm(asked.width, taken, asked.repeats)
    memory = peak_mb(asked.vocabulary, asked.width)
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
    for row in handover:
        print(
            f"{row['dtype']:9s} n={row['n']:<5d} V={row['vocabulary']}: vocab_stats {row['ms']:.1f} ms ({row['gflops']:.1f} GFLOP/s), "
            f"torch's products alone {row['products_ms']:.1f} ms, {row['products_over_ours']:.2f} times as long"
        )
    for row in norm:
        print(
            f"final norm, n={row['n']}: {row['norm_ms']:.4f} ms, {100 * float(str(row['share'])):.3f} % of vocab_stats"
        )
    print(
        f"extra memory, float32, n=64: {memory['vocab_stats_extra_mb']:.1f} MB; torch {memory['torch_extra_mb']:.1f} MB"
    )
    if asked.json:
        with open(asked.json, "w") as file:
            json.dump(
                {"machine": machine, "rows": rows, "handover": handover, "norm": norm, "memory": memory}, file, indent=1
            )


if __name__ == "__main__":
    main()
