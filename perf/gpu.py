"""Every operator on the GPU at hand: checked against float64, timed, and held against the device's own two floors.

    python perf/gpu.py [--json FILE] [--seconds 220] [--only vocab,attention] [--width 4096] [--vocabulary 128256]

Bandwidth is measured as a copy, arithmetic as a square matrix product. Every operator stands beside the same result in
torch, eager and compiled, and the vocabulary statistics beside public fused kernels where those are installed and run. A
section that fails says so and the next one runs; the exit status is 1 when a check of ours failed. Opens nothing new
when --seconds are used up. Without a GPU, --selftest runs the same sections at toy sizes on the CPU, where times mean
nothing and torch.compile stands for its tracing alone.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from precollapse.kernels import Moments, attention_row, gather_rows, logits_stats, registry, vocab_stats

Row = dict[str, Any]


class Bench:
    """Sizes, device, floors, and the rows found so far."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.device = torch.device("cpu" if asked.selftest else "cuda")
        self.toy = asked.selftest
        self.columns = 3000 if self.toy else asked.vocabulary
        self.width = 64 if self.toy else asked.width
        self.deadline = time.monotonic() + asked.seconds
        self.rows: list[Row] = []
        self.bandwidth = self.rate = math.nan

    def out_of_time(self, before: str) -> bool:
        late = time.monotonic() > self.deadline
        if late:
            print(f"out of time before {before}", flush=True)
        return late

    def room(self, gigabytes: float) -> bool:
        """Whether this much memory is free; toy sizes always fit."""
        return self.toy or torch.cuda.mem_get_info()[0] > gigabytes * 1e9

    def ms(self, call: Callable[[], object], repeats: int = 9) -> float:
        """Median milliseconds of single calls, the caches filled with other data before each."""
        for _ in range(2):
            call()
        if self.device.type != "cuda":
            start = time.perf_counter()
            call()
            return (time.perf_counter() - start) * 1e3
        flush = torch.empty(64 << 20, dtype=torch.int32, device=self.device)
        times = []
        for _ in range(repeats):
            flush.zero_()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return statistics.median(times)

    def beside(self, ours: float, plain: Callable[[], object], compiles: bool = True) -> Row:
        """How many times longer the same takes in torch, eager and compiled."""
        found: Row = {"times_eager": self.ms(plain, 5) / ours}
        if compiles and not self.out_of_time("torch.compile"):
            try:
                torch._dynamo.reset()
                fast = torch.compile(plain, backend="eager" if self.toy else "inductor", dynamic=False)
                found["times_compiled"] = self.ms(fast, 5) / ours
            except Exception as error:
                print(f"torch.compile does not run here: {type(error).__name__}: {str(error)[:200]}", flush=True)
        return found

    def add(self, name: str, ms: float, bytes_moved: float = 0.0, flops: float = 0.0, **more: Any) -> None:
        """One line: time, the rates reached, and the share of the greater of the two floors."""
        floor = max(bytes_moved / self.bandwidth, flops / self.rate) * 1e3
        row = {"name": name, "ms": ms, "gb_s": bytes_moved / ms / 1e6, "tflop_s": flops / ms / 1e9, "floor_ms": floor}
        row |= {"share_of_floor": floor / ms, **more}
        self.rows.append(row)
        extra = "  ".join(
            f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in more.items()
        )
        print(
            f"{name:44s} {ms:9.3f} ms {row['gb_s']:8.0f} GB/s {row['tflop_s']:7.1f} TFLOP/s  {100 * floor / ms:5.1f} % of floor  {extra}",
            flush=True,
        )


def floors(bench: Bench) -> None:
    side = 256 if bench.toy else 8192
    source = torch.empty((1 << 20) if bench.toy else (1 << 30), dtype=torch.int8, device=bench.device)
    target = torch.empty_like(source)
    bench.bandwidth = 2 * source.numel() / (bench.ms(lambda: target.copy_(source)) / 1e3)
    a = torch.randn(side, side, device=bench.device).bfloat16()
    bench.rate = 2 * side**3 / (bench.ms(lambda: a @ a) / 1e3)
    print(
        f"copy bandwidth {bench.bandwidth / 1e9:.0f} GB/s, bfloat16 product {bench.rate / 1e12:.1f} TFLOP/s", flush=True
    )


def exact(logits: Tensor) -> Tensor:
    z = logits.double()
    return torch.distributions.Categorical(logits=z, validate_args=False).entropy() / math.log(2)


def eager(hidden: Tensor, weight: Tensor) -> Tensor:
    log_p = torch.log_softmax((hidden @ weight.T).float(), -1)
    return -(log_p.exp() * log_p).sum(-1)


def relative(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs() / expected.abs().clamp_min(1e-12)).max().item()


def must(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def vocab(bench: Bench) -> None:
    weight = (torch.randn(bench.columns, bench.width, device=bench.device) * 0.02).bfloat16()
    for n in (1, 64, 4096, 8, 512):  # every new size may compile and choose tiles: the telling ones first
        if bench.out_of_time(f"vocab_stats n={n}"):
            return
        compiles, top = n in (1, 64, 4096), n in (1, 4096)
        n = min(n, 8) if bench.toy else n
        hidden = torch.randn(n, bench.width, device=bench.device).bfloat16()
        few = hidden[:16]
        z = few.double() @ weight.double().T
        found = vocab_stats(hidden, weight)
        error = relative(found.entropy_bits[: len(few)], exact(z))
        must(error < 1e-5, f"entropy is off by {error:.1e} at n={n}")
        moved, flops = weight.numel() * 2 + hidden.numel() * 2, 2.0 * n * weight.numel()
        ms = bench.ms(lambda h=hidden: vocab_stats(h, weight))
        torchs = bench.beside(ms, lambda h=hidden: eager(h, weight), compiles)
        bench.add(f"vocab_stats bf16 n={n}", ms, moved, flops, error=error, **torchs)
        if top:
            found = vocab_stats(few, weight, top_k=10, option_ids=[[1, 2], [3]])
            must(relative(found.entropy_bits, exact(z)) < 1e-5, f"with top_k the entropy differs at n={n}")
            values, ids = z.topk(10)
            must(bool((found.top_ids == ids).float().mean() > 0.9), f"top-10 differs at n={n}")
            must(bool(torch.allclose(found.top_logits.double(), values, atol=1e-4)), f"top logits differ at n={n}")
            merged = z[:, 1:3].logsumexp(1)
            must(bool(torch.allclose(found.option_logits[:, 0].double(), merged, atol=1e-4)), "options differ")
            with_top = bench.ms(lambda h=hidden: vocab_stats(h, weight, top_k=10))
            bench.add(f"vocab_stats bf16 n={n} top_k=10", with_top, moved, flops)


def ways(bench: Bench) -> None:
    """The fused tiles and the cuBLAS chunks apart, and the tile configurations that were chosen."""
    if bench.device.type != "cuda" or not registry.has_triton():
        return
    from precollapse.kernels.triton_forms import tile_sizes
    from precollapse.kernels.triton_forms.vocab import _faster
    from precollapse.kernels.triton_forms.vocab import vocab_stats as by_triton
    from precollapse.kernels.vocab_arguments import VocabArguments

    weight = (torch.randn(bench.columns, bench.width, device=bench.device) * 0.02).bfloat16()
    for n in (512, 4096):
        hidden = torch.randn(n, bench.width, device=bench.device).bfloat16()
        for way in ("fused", "chunked"):
            ms = bench.ms(lambda h=hidden, w=way: by_triton(VocabArguments(h, weight), w), 5)
            bench.add(f"  {way} n={n}", ms, weight.numel() * 2, 2.0 * n * weight.numel())
    print("  chosen: fused at", {key[0]: faster for key, faster in _faster.items()})
    capability = tile_sizes.capability(weight.device)
    for tuner in (tile_sizes.autotuned(key, capability, True, torch.bfloat16, False) for key in tile_sizes.TABLE):
        for best in tuner.cache.values():
            print("  tile:", best)


def others(bench: Bench) -> None:
    """Public fused kernels where they are installed; their losses stand for their statistics. Theirs may break."""
    n = 8 if bench.toy else 4096
    weight = (torch.randn(bench.columns, bench.width, device=bench.device) * 0.02).bfloat16()
    hidden = torch.randn(n, bench.width, device=bench.device).bfloat16()
    target = torch.randint(0, bench.columns, (n,), device=bench.device)
    ours = bench.ms(lambda: vocab_stats(hidden, weight), 5)

    def cut_cross_entropy() -> Callable[[], object]:
        from cut_cross_entropy import linear_cross_entropy

        return lambda: linear_cross_entropy(hidden, weight, target)

    def liger() -> Callable[[], object]:
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

        return lambda: liger_fused_linear_cross_entropy(hidden, weight, target)

    for name, found in (("cut-cross-entropy", cut_cross_entropy), ("Liger", liger)):
        try:
            ms = bench.ms(found(), 5)
        except ImportError as error:
            print(f"{name} is not installed, or does not import: {error}", flush=True)
        except Exception as error:
            print(f"{name} does not run here: {type(error).__name__}: {str(error)[:200]}", flush=True)
        else:
            flops = 2.0 * n * weight.numel()
            bench.add(f"{name} n={n} (loss only)", ms, weight.numel() * 2, flops, ours_faster=ms / ours)


def one_pass(bench: Bench) -> None:
    def plain(logits: Tensor) -> Tensor:
        log_p = torch.log_softmax(logits.float(), -1)
        return -(log_p.exp() * log_p).sum(-1)

    for dtype in (torch.float32, torch.bfloat16):
        for n in (1, 64, 1024):
            compiles = n == 1024
            n = min(n, 3) if bench.toy else n
            logits = (torch.randn(n, bench.columns, device=bench.device) * 3).to(dtype)
            error = relative(logits_stats(logits).entropy_bits, exact(logits))
            must(error < 1e-6, f"logits_stats {dtype} n={n} is off by {error:.1e}")
            ms = bench.ms(lambda x=logits: logits_stats(x))
            torchs = bench.beside(ms, lambda x=logits: plain(x), compiles)
            name = str(dtype).removeprefix("torch.")
            bench.add(f"logits_stats {name} n={n}", ms, logits.numel() * logits.element_size(), error=error, **torchs)


def hard_cases(bench: Bench) -> None:
    """The kinds of rows that public kernels get wrong."""
    random = torch.randn(6, bench.columns, device=bench.device)
    random[1] -= 3000
    random[2, ::2] = -math.inf
    random[3, : bench.columns // 2] = -math.inf
    random[4] = -math.inf
    random[5] -= 16
    random[5, 77] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = logits_stats(random, top_k=3)
    for row in (0, 1, 2, 3, 5):
        kept = random[row : row + 1, torch.isfinite(random[row])]
        error = relative(found.entropy_bits[row : row + 1], exact(kept))
        must(error < 1e-6, f"row {row} is off by {error:.1e}")
    must(bool(found.entropy_bits[4].isnan()), "a row of minus infinity must be NaN")
    hidden, weight = torch.randn(3, 64, device=bench.device), torch.randn(5000, 64, device=bench.device) / 8
    bias = torch.zeros(5000, device=bench.device)
    bias[1::2] = -math.inf
    capped = torch.tanh((hidden.double() @ weight.double().T)[:, ::2] / 2) * 2
    error = relative(vocab_stats(hidden, weight, bias, softcap=2.0).entropy_bits, exact(capped))
    must(error < 1e-6, f"float32 with softcap and excluded columns is off by {error:.1e}")
    print(f"hard cases hold (float32 products: {error:.1e})", flush=True)


def attention(bench: Bench) -> None:
    tokens = 64 if bench.toy else 8192
    query = torch.randn(8, 32, 1, 128, device=bench.device).bfloat16()
    key = torch.randn(8, 8, tokens, 128, device=bench.device).bfloat16()
    expected = attention_row(query, key, backend="reference")
    error = (attention_row(query, key) - expected).abs().max().item()
    must(error < 1e-5, f"attention_row is off by {error:.1e}")
    moved = key.numel() * 2 + expected.numel() * 4
    ms = bench.ms(lambda: attention_row(query, key))

    def plain() -> Tensor:
        scores = query.view(8, 8, 4, 128) @ key.transpose(2, 3)
        return torch.softmax(scores.float() / math.sqrt(128), -1).view(8, 32, tokens)

    bench.add(f"attention_row B=8 H=32/8 T={tokens}", ms, moved, error=error, **bench.beside(ms, plain))


def gather(bench: Bench) -> None:
    x = torch.randn(64, 8 if bench.toy else 512, bench.width, device=bench.device).bfloat16()
    index, rows = torch.randint(0, x.shape[1], (64,), device=bench.device), torch.arange(64, device=bench.device)
    out = torch.zeros(64, 4, bench.width, device=bench.device)
    gather_rows(x, index, out, 2)
    must(torch.equal(out[:, 2], x[rows, index].float()), "gather_rows differs")
    ms = bench.ms(lambda: gather_rows(x, index, out, 2))

    def plain() -> None:
        out[:, 1] = x[rows, index].float()

    bench.add("gather_rows B=64", ms, 64 * bench.width * 6, **bench.beside(ms, plain))
    if bench.device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            gather_rows(x, index, out, 3)
        out.zero_()
        graph.replay()
        must(torch.equal(out[:, 3], x[rows, index].float()), "under a CUDA graph")


def moments(bench: Bench) -> None:
    d = bench.width
    x = torch.randn(300 if bench.toy else 4096, 1, d, device=bench.device) + 10
    state = Moments(1, d, bench.device)
    state.update(x).update(x)
    covariance = torch.cov(x[:, 0].double().T)
    n = len(x)
    error = ((state.covariance(0) * (2 * n - 1) / (2 * n - 2) - covariance).norm() / covariance.norm()).item()
    must(error < 5e-6, f"Moments are off by {error:.1e}")
    ms = bench.ms(lambda: state.update(x), 3)
    total = torch.zeros(d, d, dtype=torch.float64, device=bench.device)

    def plain() -> None:
        centred = x[:, 0] - x[:, 0].mean(0)
        total.add_(centred.T @ centred)

    torchs = bench.beside(ms, plain)
    bench.add(f"Moments.update n={n} d={d} float32", ms, d * d * 8, 1.0 * n * d * d, error=error, **torchs)


def far_offsets(bench: Bench) -> None:
    """Tensors of more than 2^31 elements, each looked at where an offset of 32 bits would wrap."""
    if not bench.room(45):
        print("far offsets: not looked at, 45 GB of memory are not free")
        return
    device, count = bench.device, (1 << 14) if bench.toy else (1 << 31) + (1 << 26)
    width = 64 if bench.toy else 4096
    weight = torch.empty(count // width, width, dtype=torch.bfloat16, device=device).normal_(std=0.02)
    hidden = torch.randn(2, width, device=device).bfloat16()
    found, expected = (vocab_stats(hidden, weight, top_k=5, backend=form) for form in ("auto", "reference"))
    must(relative(found.entropy_bits, expected.entropy_bits) < 1e-5, "vocab_stats of a far weight")
    last = len(weight) - 1
    weight[last] = hidden[0]
    must(vocab_stats(hidden, weight, top_k=1).top_ids[0, 0].item() == last, "the last row of a far weight")
    x = weight.view(2, -1, width)
    place = torch.tensor([5, x.shape[1] - 1], device=device)
    out = torch.zeros(2, 1, width, device=device)
    gather_rows(x, place, out, 0)
    must(torch.equal(out[1, 0], x[1, -1].float()), "gather_rows past 2^31")
    logits = weight.view(-1, 2048 if bench.toy else 131072)[:-1]
    found = logits_stats(logits, top_k=2)
    must(relative(found.entropy_bits[-3:], exact(logits[-3:])) < 1e-6, "logits_stats past 2^31")
    must(bool((found.top_ids[-3:, 0] == logits[-3:].argmax(1)).all()), "top_k of logits past 2^31")
    key = weight.view(1, 2, -1, 64 if bench.toy else 128)
    query = torch.randn(1, 4, 1, key.shape[3], device=device).bfloat16()
    row = attention_row(query, key)[:, 3:]
    must((row - attention_row(query[:, 3:], key[:, 1:])).abs().max().item() < 1e-6, "attention_row past 2^31")
    del weight, x, logits, key
    d = 300 if bench.toy else 46400
    rows = torch.randn(64, d, device=device)
    if bench.device.type == "cuda" and registry.has_triton():
        from precollapse.kernels.triton_forms.moments import add_product

        square = torch.zeros(d, d, dtype=torch.float64, device=device)
        add_product(rows, square)
        corner = rows[:, -100:].double()
        must(
            bool(torch.allclose(square[-100:, -100:].triu(), (corner.T @ corner).triu(), atol=1e-3)),
            "Moments past 2^31",
        )
    print("tensors of more than 2^31 elements hold", flush=True)


SECTIONS = (floors, hard_cases, far_offsets, vocab, one_pass, attention, gather, moments, ways, others)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="also write the numbers to this file")
    parser.add_argument("--seconds", type=float, default=220.0)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--selftest", action="store_true", help="toy sizes on the CPU, to test this script")
    parser.add_argument("--only", help="comma list of sections: " + ", ".join(section.__name__ for section in SECTIONS))
    asked = parser.parse_args()
    wanted = asked.only.split(",") if asked.only else [section.__name__ for section in SECTIONS]
    if unknown := sorted(set(wanted) - {section.__name__ for section in SECTIONS}):
        parser.error(f"there is no section {', '.join(unknown)}; --help lists them")
    if not asked.selftest and not torch.cuda.is_available():
        parser.error("no GPU is visible to torch; --selftest runs the script itself at toy sizes")
    torch.manual_seed(0)
    where = "CPU" if asked.selftest else torch.cuda.get_device_name()
    print(f"{where}, torch {torch.__version__}", flush=True)
    bench, failed = Bench(asked), []
    for section in SECTIONS:
        if section.__name__ not in wanted:
            continue
        if bench.out_of_time(section.__name__):
            continue
        try:
            section(bench)
        except Exception:
            failed.append(section.__name__)
            traceback.print_exc()
    print("failed: " + ", ".join(failed) if failed else "all checks hold")
    if asked.json:
        with open(asked.json, "w") as file:
            json.dump(
                {"device": where, "torch": torch.__version__, "rows": bench.rows, "failed": failed}, file, indent=1
            )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
