"""Cost of a capture: every layer's resid_post and the next-token entropy, on GSM8K prompts, CPU or GPU.

Arms, each in a process of its own for memory and all in turn for time:
  backbone   the model without its unembedding and without hooks, on the same batches (equal lengths together)
  plain      precollapse, whole prompts
  capture    precollapse as it comes (prompts that begin alike share their prefix)
  summary    the same with attention="summary"
Times are medians over rounds, in wall-clock and in CPU seconds; CPU seconds are what a busy machine disturbs least.

With --peers FILE the shared side-by-side script is run as well, on the same prompts: Hugging Face output_hidden_states,
nnsight and TransformerLens.

Usage: python perf/capture.py --items gsm8k.jsonl [--n 32] [--shots 0] [--rounds 3] [--peers FILE] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ARMS = ("backbone", "plain", "capture", "summary")
PEERS = ("hf_hidden", "nnsight", "transformer_lens")


def prompts(path: str, n: int, shots: int) -> list[str]:
    """The prompts of the shared side-by-side script: an instruction, `shots` solved items, a question."""
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    head = "".join(f"Problem: {r['question']}\nSolution: {r['answer']}\n\n" for r in rows[-shots:]) if shots else ""
    ask = "Solve this math problem step by step. Show your\nreasoning, then give the final answer after ####.\n\n"
    return [f"{ask}{head}Problem: {r['question']}\nSolution:" for r in rows[:n]]


def arms(extractor: Any, texts: list[str]) -> dict[str, Any]:
    """What each arm does once, as callables on one loaded model."""
    import torch

    from precollapse.hooks.prompts.boundary import assemble, group

    ids = [r.token_ids for r in extractor.render(texts)]
    batches = group([len(p) for p in ids], extractor.batch_tokens)

    def backbone() -> None:
        with torch.no_grad():
            for rows in batches:
                batch = assemble(rows, ids, extractor.renderer.pad_id, "right", extractor.device)
                extractor.backend.architecture.backbone(input_ids=batch.input_ids, use_cache=False)

    def captured(share_prefix: str, attention: str) -> Any:
        extractor.share_prefix = share_prefix
        return extractor.capture(texts, attention=attention)

    return {
        "backbone": backbone,
        "plain": lambda: captured("never", "none"),
        "capture": lambda: captured("auto", "none"),
        "summary": lambda: captured("auto", "summary"),
    }


def timed(work: Any) -> tuple[float, float]:
    """Wall-clock and CPU seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def peak(args: argparse.Namespace, arm: str) -> float | None:
    """Peak memory of one arm in a fresh process, MiB: the model is loaded first, and does not count its loading."""
    command = [sys.executable, __file__, *sys.argv[1:], "--peak-of", arm]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def peers(args: argparse.Namespace, folder: str) -> dict[str, float]:
    """Wall-clock seconds by arm of the shared script."""
    command = [sys.executable, args.peers, "--model", folder, "--items", args.items, "--n", str(args.peers_n or args.n)]
    command += ["--shots", str(args.shots), "--rounds", str(args.peers_rounds), "--batch", "8"]
    command += ["--arms", ",".join(("bare", *PEERS, "precollapse"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, file=sys.stderr)
    rows = [line.split() for line in done.stdout.splitlines()]
    return {row[0]: float(row[1]) for row in rows if len(row) == 8 and row[0] != "arm"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", default="../shared/data/gsm8k.jsonl", help="JSON Lines with question and answer")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--n", type=int, default=32)
    parser.add_argument("--shots", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--peers", help="the shared side-by-side script")
    parser.add_argument("--peers-n", type=int, help="fewer prompts for the side-by-side")
    parser.add_argument("--peers-rounds", type=int, default=1)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from precollapse import Extractor

    extractor = Extractor.from_pretrained(args.model, check=False, batch_tokens=args.batch_tokens)
    for weight in extractor.model.parameters():  # a mapped file counts once it is read: all of the model, for every arm
        weight.sum()
    texts = prompts(args.items, args.n, args.shots)
    work = arms(extractor, texts)
    for arm, warm in arms(extractor, texts[:2]).items():
        if arm == (args.peak_of or arm):
            warm()
    if args.peak_of:
        from precollapse.studies.profile import peak_mib

        print(json.dumps(peak_mib(work[args.peak_of], False)))
        return 0
    chosen = args.arms.split(",")
    times: dict[str, list[tuple[float, float]]] = {arm: [] for arm in chosen}
    for i in range(args.rounds):
        for arm in chosen if i % 2 == 0 else chosen[::-1]:
            times[arm].append(timed(work[arm]))
            print(f"round {i} {arm}: {times[arm][-1][0]:.2f} s, CPU {times[arm][-1][1]:.2f} s", file=sys.stderr)
    found: dict[str, Any] = {"prompts": args.n, "shots": args.shots, "arms": {}}
    for arm, own in times.items():
        wall, cpu = (statistics.median(t[j] for t in own) for j in (0, 1))
        memory = None if args.no_memory else peak(args, arm)
        found["arms"][arm] = {"wall": wall, "cpu": cpu, "peak_mib": memory, "prompts_per_second": args.n / wall}
    if args.peers:
        from precollapse.hooks import loading

        folder = loading.converted(loading.resolve(args.model))
        found["peers"] = peers(args, str(folder))
    if args.json:
        print(json.dumps(found, indent=1))
        return 0
    show(found)
    return 0


def show(found: dict[str, Any]) -> None:
    """The table and the ratios that are asked for."""
    own = found["arms"]
    print(f"{'arm':20s}{'wall s':>9s}{'CPU s':>9s}{'peak MiB':>10s}{'prompts/s':>11s}")
    for arm, row in own.items():
        memory = "-" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
        print(f"{arm:20s}{row['wall']:9.2f}{row['cpu']:9.2f}{memory:>10s}{row['prompts_per_second']:11.2f}")

    def ratio(name: str, a: str, b: str, key: str) -> None:
        if a in own and b in own and own[a][key] is not None:
            print(f"{name:60s}{own[a][key] / own[b][key]:8.3f}")

    for key in ("wall", "cpu"):
        ratio(f"{key}: whole prompts over the bare backbone", "plain", "backbone", key)
        ratio(f"{key}: capture as it comes over the bare backbone", "capture", "backbone", key)
        ratio(f"{key}: attention summary over none", "summary", "capture", key)
    ratio("peak memory over the bare backbone", "capture", "backbone", "peak_mib")
    side = found.get("peers", {})
    fastest = min((side[p] for p in PEERS if p in side), default=None)
    if fastest is not None and "precollapse" in side:
        print(f"{'times as fast as the fastest peer':60s}{fastest / side['precollapse']:8.2f}")


if __name__ == "__main__":
    sys.exit(main())
