"""How long the full analysis of a run takes, and the same probe work with a plain scikit-learn pipeline.

Run `python perf/analysis.py` (about 5 minutes on 2 cores) or `--quick` (under a minute). Two comparisons are printed:

* small: both sides do all of the work, nothing is extrapolated; * full: 200 items x 3 regimes, 32 layers of 4096
features. Ours runs whole. The scikit-learn side would take hours, so a few
  of its fits are timed and multiplied by their number; the table says how many were run.

Both sides are given the states in memory, in the run's float16.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics as medians
import sys
import time
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from precollapse.analysis import cells, probes, splits

REGIMES = ("baseline", "cot", "babble")


class Run:
    """A synthetic run in memory: one benchmark, three regimes, a weak signal in every layer."""

    def __init__(self, items: int, layers: int, features: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        skill = rng.standard_normal(items)
        rows: list[dict[str, Any]] = []
        self.states_by_regime: dict[str, np.ndarray] = {}
        self.correct: dict[str, np.ndarray] = {}
        base = rng.standard_normal((items, layers, features), dtype=np.float32)
        for regime in REGIMES:
            correct = rng.random(items) < 1 / (1 + np.exp(-skill))
            states = base + rng.standard_normal(base.shape, dtype=np.float32)
            states[correct, :, : max(1, features // 64)] += 0.5
            self.states_by_regime[regime] = states.astype(np.float16)
            self.correct[regime] = correct
            for i in range(items):
                rows.append(
                    {"benchmark": "synthetic", "regime": regime, "item_id": f"q{i}", "correct": bool(correct[i])}
                )
        frame = pd.DataFrame(rows)
        frame["entropy_bits"] = rng.gamma(2.0, 1.0, len(frame))
        frame["output_tokens"] = rng.integers(1, 200, len(frame))
        self.states = frame
        self.sites = {"resid_post": tuple(range(layers))}
        self.manifest = {"model": "synthetic"}
        self.progress = SimpleNamespace(complete=True)

    def resid(self, layer: int, site: str = "resid_post", benchmark: str | None = None, **_: Any) -> np.ndarray:
        """One layer of all states [n, d]."""
        return np.concatenate([self.states_by_regime[r][:, layer] for r in REGIMES])


def ours(run: Run, n_splits: int, shuffles: int, bar: bool) -> tuple[float, cells.RunAnalysis]:
    """Seconds of the full analysis."""
    progress = None
    if bar and sys.stderr.isatty():
        from tqdm import tqdm

        line = tqdm(total=100, unit="%", leave=False)
        progress = lambda fraction, what: (line.set_description(what), line.update(int(fraction * 100) - line.n))  # noqa: E731
    started = time.perf_counter()
    found = cells.analyse(run, cells.Settings(n_splits=n_splits, shuffles=shuffles), progress)
    return time.perf_counter() - started, found


def plain_fit(scaled: np.ndarray, labels: np.ndarray, train: np.ndarray, c: float) -> np.ndarray:
    """One fit as most probing code does it, and the scores of all rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(C=c, max_iter=1000).fit(scaled[train], labels[train])
    return model.decision_function(scaled)


def plain(run: Run, n_splits: int, shuffles: int) -> tuple[float, dict[str, float]]:
    """Seconds of the plain pipeline doing the probes: main split, label shuffles, repeated splits, layer curve, transfer."""
    started = time.perf_counter()
    items = np.arange(len(run.correct[REGIMES[0]]))
    rng = np.random.default_rng(0)
    scores: dict[str, float] = {}
    names = run.states["item_id"].to_numpy(object)
    shared = splits.split_items(names, run.states["correct"], seed=0)
    for regime in REGIMES:
        y = run.correct[regime]
        flat = run.states_by_regime[regime].reshape(len(items), -1).astype(np.float32)
        for k in range(n_splits + 1):
            plan = shared if k == 0 else splits.split_items(names, run.states["correct"], seed=k)
            train, validation, test = plan.rows([f"q{i}" for i in items])
            scaler = StandardScaler().fit(flat[train])
            scaled = scaler.transform(flat)
            vectors = [y] + ([_permuted(y, train, rng) for _ in range(shuffles)] if k == 0 else [])
            for number, labels in enumerate(vectors):
                best = _best(scaled, labels, y, train, validation)
                if k == 0 and number == 0:
                    scores[regime] = float(roc_auc_score(y[test], best[test]))
        train, validation, _ = shared.rows([f"q{i}" for i in items])
        for layer in range(run.states_by_regime[regime].shape[1]):
            one = run.states_by_regime[regime][:, layer].astype(np.float32)
            _best(StandardScaler().fit(one[train]).transform(one), y, y, train, validation)
        scaler = StandardScaler().fit(flat[train])
        for other in REGIMES:
            scaler.transform(run.states_by_regime[other].reshape(len(items), -1).astype(np.float32))
    return time.perf_counter() - started, scores


def _best(
    scaled: np.ndarray, labels: np.ndarray, truth: np.ndarray, train: np.ndarray, validation: np.ndarray
) -> np.ndarray:
    paths = [plain_fit(scaled, labels, train, c) for c in probes.C_GRID]
    return max(paths, key=lambda s: roc_auc_score(truth[validation], s[validation]))


def _permuted(y: np.ndarray, train: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    labels = y.copy()
    labels[train] = rng.permutation(labels[train])
    return labels


def sampled_fits(run: Run, shuffles: int, n_splits: int) -> dict[str, float]:
    """Seconds that the plain pipeline's fits would take: a median fit of each C, true and permuted labels, times their number."""
    regime = REGIMES[0]
    y = run.correct[regime]
    flat = run.states_by_regime[regime].reshape(len(y), -1).astype(np.float32)
    plan = splits.split_items(np.arange(len(y)), y, seed=0)
    train, _, _ = plan.rows(np.arange(len(y)))
    started = time.perf_counter()
    scaled = StandardScaler().fit(flat[train]).transform(flat)
    scaling = time.perf_counter() - started
    rng = np.random.default_rng(0)
    times = []
    for c in probes.C_GRID:
        for labels in (y, _permuted(y, train, rng)):
            started = time.perf_counter()
            plain_fit(scaled, labels, train, c)
            times.append(time.perf_counter() - started)
    vectors = len(REGIMES) * (1 + shuffles + n_splits)
    return {
        "fits_timed": len(times),
        "median_fit_s": medians.median(times),
        "fits_needed": vectors * len(probes.C_GRID),
        "estimated_s": sum(times) / 2 * vectors + scaling * len(REGIMES) * (n_splits + 1),
    }


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    result: dict[str, Any] = {}
    small = Run(items=80, layers=4, features=256 if args.quick else 512)
    n_splits, shuffles = (3, 5) if args.quick else (5, 10)
    mine, found = ours(small, n_splits, shuffles, bar=False)
    theirs, scores = plain(small, n_splits, shuffles)
    gap = max(abs(cell.probe.test_auroc - scores[cell.regime]) for cell in found.cells if cell.probe is not None)
    result["small"] = {
        "items": 80,
        "layers": 4,
        "features": small.states_by_regime["cot"].shape[2],
        "splits": n_splits,
        "shuffles": shuffles,
        "ours_s": mine,
        "plain_s": theirs,
        "times_faster": theirs / mine,
        "largest_auroc_difference": gap,
    }
    if not args.quick:
        full = Run(items=200, layers=32, features=4096)
        mine, found = ours(full, 20, 100, bar=True)
        theirs_full = sampled_fits(full, 100, 20)
        result["full"] = {
            "items": 200,
            "layers": 32,
            "features": 4096,
            "splits": 20,
            "shuffles": 100,
            "ours_s": mine,
            "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
            **theirs_full,
            "times_faster": theirs_full["estimated_s"] / mine,
        }
    if args.json:
        print(json.dumps(result))
        return
    for name, values in result.items():
        print(f"{name}:")
        for key, value in values.items():
            print(f"  {key:26s} {value:.4g}" if isinstance(value, float) else f"  {key:26s} {value}")


if __name__ == "__main__":
    main()
