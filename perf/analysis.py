"""How long the full analysis of a run takes, and the same probe work with a plain scikit-learn pipeline.

Run `python perf/analysis.py` (about 5 minutes on 2 cores) or `--quick` (under a minute). Two comparisons are printed:

* small: both sides do all of the work, nothing is extrapolated; * full: 200 items x 3 regimes, 32 layers of 4096
features. Ours runs whole. The scikit-learn side would take hours, so a few
  of its fits are timed and multiplied by their number; the table says how many were run.

Both sides are given the states in memory, in the run's float16. Wall and processor seconds are both given: on a machine
that others use too, the latter is the fairer ratio.
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

from precollapse.analysis import cells
from precollapse.analysis.probing import probes, splits

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


class Watch:
    """Wall and processor seconds since it was made."""

    def __init__(self) -> None:
        self.wall, self.processor = time.perf_counter(), time.process_time()

    def read(self) -> np.ndarray:
        """[wall, processor] seconds."""
        return np.array([time.perf_counter() - self.wall, time.process_time() - self.processor])


def ours(run: Run, n_splits: int, shuffles: int, bar: bool) -> tuple[np.ndarray, cells.RunAnalysis]:
    """[wall, processor] seconds of the full analysis."""
    progress = None
    if bar and sys.stderr.isatty():
        from tqdm import tqdm

        line = tqdm(total=100, unit="%", leave=False)
        progress = lambda fraction, what: (line.set_description(what), line.update(int(fraction * 100) - line.n))  # noqa: E731
    watch = Watch()
    found = cells.analyse(run, cells.Settings(n_splits=n_splits, shuffles=shuffles), progress)
    return watch.read(), found


def plain_fit(scaled: np.ndarray, labels: np.ndarray, train: np.ndarray, c: float) -> np.ndarray:
    """One fit as most probing code does it, and the scores of all rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(C=c, max_iter=1000).fit(scaled[train], labels[train])
    return model.decision_function(scaled)


def plain(run: Run, n_splits: int, shuffles: int) -> tuple[np.ndarray, dict[str, float]]:
    """[wall, processor] seconds of the plain pipeline: main split, shuffles, repeated splits, layers, transfer."""
    watch = Watch()
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
    return watch.read(), scores


def _best(
    scaled: np.ndarray, labels: np.ndarray, truth: np.ndarray, train: np.ndarray, validation: np.ndarray
) -> np.ndarray:
    paths = [plain_fit(scaled, labels, train, c) for c in probes.C_GRID]
    return max(paths, key=lambda s: roc_auc_score(truth[validation], s[validation]))


def _permuted(y: np.ndarray, train: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    labels = y.copy()
    labels[train] = rng.permutation(labels[train])
    return labels


def sampled_fits(run: Run, shuffles: int, n_splits: int) -> dict[str, Any]:
    """What the plain pipeline's fits would take: a fit of each C on true and on permuted labels, times their number."""
    regime = REGIMES[0]
    y, states = run.correct[regime], run.states_by_regime[regime]
    plan = splits.split_items(np.arange(len(y)), y, seed=0)
    train, _, _ = plan.rows(np.arange(len(y)))
    flat = states.reshape(len(y), -1).astype(np.float32)
    watch = Watch()
    scaled = StandardScaler().fit(flat[train]).transform(flat)
    scaling = watch.read()
    rng = np.random.default_rng(0)
    whole = [_timed(scaled, labels, train, c) for c in probes.C_GRID for labels in (y, _permuted(y, train, rng))]
    one = states[:, 0].astype(np.float32)
    one = StandardScaler().fit(one[train]).transform(one)
    single = [_timed(one, y, train, c) for c in probes.C_GRID]
    vectors = len(REGIMES) * (1 + shuffles + n_splits)
    layers = len(REGIMES) * states.shape[1]
    total = sum(whole) / 2 * vectors + sum(single) * layers + scaling * len(REGIMES) * (n_splits + 1)
    return {
        "fits_timed": len(whole) + len(single),
        "median_fit_s": medians.median(float(t[0]) for t in whole),
        "fits_needed": (vectors + layers) * len(probes.C_GRID),
        "plain_s_estimated": float(total[0]),
        "plain_processor_s_estimated": float(total[1]),
    }


def _timed(scaled: np.ndarray, labels: np.ndarray, train: np.ndarray, c: float) -> np.ndarray:
    watch = Watch()
    plain_fit(scaled, labels, train, c)
    return watch.read()


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
        "ours_s": float(mine[0]),
        "ours_processor_s": float(mine[1]),
        "plain_s": float(theirs[0]),
        "plain_processor_s": float(theirs[1]),
        "times_faster": float(theirs[0] / mine[0]),
        "times_less_processor": float(theirs[1] / mine[1]),
        "largest_auroc_difference": gap,
    }
    _show("small", result, args.json)
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
            "ours_s": float(mine[0]),
            "ours_processor_s": float(mine[1]),
            "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
            **theirs_full,
            "times_faster": float(theirs_full["plain_s_estimated"] / mine[0]),
            "times_less_processor": float(theirs_full["plain_processor_s_estimated"] / mine[1]),
        }
        _show("full", result, args.json)
    if args.json:
        print(json.dumps(result))


def _show(name: str, result: dict[str, Any], as_json: bool) -> None:
    """Print one comparison as soon as it is done."""
    if as_json:
        return
    print(f"{name}:")
    for key, value in result[name].items():
        print(f"  {key:28s} {value:.4g}" if isinstance(value, float) else f"  {key:28s} {value}", flush=True)


if __name__ == "__main__":
    main()
