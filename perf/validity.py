"""What common shortcuts do to the numbers, beside what this package does: the tables of docs/validity.md.

Run `python perf/validity.py` (about 4 minutes on 2 cores), or `--repeats 20` for a look. Every table is a simulation
with a known truth, seeded.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator

import numpy as np
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from precollapse.analysis import dimension, statistics
from precollapse.analysis.probing import probes, splits, transfer

ITEMS, LAYERS, FEATURES = 60, 12, 48
REGIMES = ("baseline", "cot", "babble")


def _noise(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((ITEMS, LAYERS, FEATURES)), np.arange(ITEMS) % 2 == 0


def chosen_on_test(rng: np.random.Generator, seed: int) -> tuple[float, float]:
    """C and layer with the best test AUROC, that AUROC reported; no signal in the data."""
    x, y = _noise(rng)
    split = splits.split_items(np.arange(ITEMS), y, seed=seed)
    train, _, test = split.rows(np.arange(ITEMS))
    best = 0.0
    for layer in range(LAYERS):
        scaled = StandardScaler().fit(x[train, layer]).transform(x[:, layer])
        for c in probes.C_GRID:
            model = LogisticRegression(C=c, max_iter=500).fit(scaled[train], y[train])
            best = max(best, float(roc_auc_score(y[test], model.decision_function(scaled[test]))))
    sets = [[layer] for layer in range(LAYERS)]
    ours = probes.recoverability(x, y, layers=sets, split=split, shuffles=0, resamples=1)
    return best, ours.test_auroc


def rows_split(rng: np.random.Generator, seed: int) -> tuple[float, float]:
    """Rows of three regimes split as if they were items; states name their item, the outcome is the item's."""
    fingerprint, right = rng.standard_normal((ITEMS, FEATURES)), rng.random(ITEMS) < 0.5
    x = np.concatenate([fingerprint + 0.5 * rng.standard_normal(fingerprint.shape) for _ in REGIMES])
    y, items = np.tile(right, 3), np.tile(np.arange(ITEMS), 3)
    leaky = probes.recoverability(x, y, items=np.arange(x.shape[0]), seed=seed, shuffles=0, resamples=1)
    ours = probes.recoverability(x, y, items=items, seed=seed, shuffles=0, resamples=1)
    return leaky.test_auroc, ours.test_auroc


def transfer_on_training_items(rng: np.random.Generator, seed: int) -> tuple[float, float]:
    """Probe trained on baseline, scored on all cot items, training items among them; no shared rule in the data."""
    fingerprint, right = rng.standard_normal((ITEMS, FEATURES)), rng.random(ITEMS) < 0.5
    x = {r: fingerprint + 0.5 * rng.standard_normal(fingerprint.shape) for r in REGIMES[:2]}
    scaler = StandardScaler().fit(x["baseline"])
    train, _, _ = splits.split_items(np.arange(ITEMS), right, seed=seed).rows(np.arange(ITEMS))
    model = LogisticRegression(C=1.0, max_iter=500).fit(scaler.transform(x["baseline"][train]), right[train])
    leaky = roc_auc_score(right, model.decision_function(scaler.transform(x["cot"])))
    ours = transfer.transfer_matrix(x, {r: right for r in x}, np.arange(ITEMS), seed=seed, resamples=1)
    return float(leaky), float(ours.auroc.loc["baseline", "cot"])


def scaler_on_all(rng: np.random.Generator, seed: int) -> tuple[float, float]:
    """Scaler fitted on all items, C fixed at 1; no signal. The one harmless-looking leak of the four."""
    x, y = _noise(rng)
    flat = x.reshape(ITEMS, -1)
    split = splits.split_items(np.arange(ITEMS), y, seed=seed)
    train, _, test = split.rows(np.arange(ITEMS))
    out = []
    for rows in (np.arange(ITEMS), train):
        scaled = StandardScaler().fit(flat[rows]).transform(flat)
        model = LogisticRegression(C=1.0, max_iter=500).fit(scaled[train], y[train])
        out.append(float(roc_auc_score(y[test], model.decision_function(scaled[test]))))
    return out[0], out[1]


LEAKS: dict[str, Callable[[np.random.Generator, int], tuple[float, float]]] = {
    "C and layer chosen on the test part": chosen_on_test,
    "split by row, not by item": rows_split,
    "transfer tested on training items": transfer_on_training_items,
    "scaler fitted on all items": scaler_on_all,
}


def leaks(repeats: int) -> Iterator[str]:
    """Mean AUROC of each shortcut and of ours; the truth is 0.5 everywhere."""
    yield "| shortcut | its AUROC | ours | truth |"
    yield "|---|---|---|---|"
    for name, simulate in LEAKS.items():
        found = np.array([simulate(np.random.default_rng(k), k) for k in range(repeats)])
        mean, error = np.nanmean(found, axis=0), np.nanstd(found, axis=0, ddof=1) / np.sqrt(repeats)
        yield f"| {name} | {mean[0]:.3f} ± {error[0]:.3f} | {mean[1]:.3f} ± {error[1]:.3f} | 0.500 |"


def coverage(repeats: int) -> Iterator[str]:
    """Share of 95% intervals that hold the true AUROC of binormal scores, by size of the test part."""
    yield "| test items | true AUROC | percentile bootstrap | Newcombe | shown in tables | undefined resamples |"
    yield "|---|---|---|---|---|---|"
    for n in (8, 12, 20, 40, 100, 200):
        for shift in (0.5, 1.0, 2.0):
            rng, truth = np.random.default_rng(n), float(stats.norm.cdf(shift / np.sqrt(2)))
            held, undefined = np.zeros(3), 0.0
            for k in range(repeats):
                y = np.arange(n) < n // 2
                boot = statistics.bootstrap_auroc(y, rng.standard_normal(n) + shift * y, resamples=400, seed=k)
                closed = statistics.newcombe_auroc(boot.estimate, n // 2, n - n // 2)
                used = closed if n // 2 < probes.BOOTSTRAP_ROWS or boot.lower == boot.upper else boot
                held += [i.lower <= truth <= i.upper for i in (boot, closed, used)]
                undefined += boot.undefined / 400
            share = held / repeats
            yield (
                f"| {n} | {truth:.3f} | {share[0]:.1%} | {share[1]:.1%} | {share[2]:.1%} | {undefined / repeats:.2%} |"
            )


def dimensions(repeats: int) -> Iterator[str]:
    """Participation ratio of n states of 576 features whose covariance has a known spectrum."""
    yield "| states | truth | plug-in | unbiased | ceiling |"
    yield "|---|---|---|---|---|"
    spectrum = 1.0 / np.arange(1, 577) ** 0.7
    truth = spectrum.sum() ** 2 / (spectrum**2).sum()
    for n in (24, 50, 100, 200, 1000):
        rng = np.random.default_rng(n)
        found = []
        for _ in range(max(4, repeats // 10)):
            gram = dimension.centred_gram(rng.standard_normal((n, 576)) * np.sqrt(spectrum))
            found.append((dimension.ratio_from_gram(gram), dimension.ratio_from_gram(gram, unbiased=True)))
        plug_in, corrected = np.array(found).T
        yield (
            f"| {n} | {truth:.1f} | {plug_in.mean():.1f} ± {plug_in.std(ddof=1):.1f} "
            f"| {corrected.mean():.1f} ± {corrected.std(ddof=1):.1f} | {n - 1} |"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--repeats", type=int, default=200, help="simulated data sets per line (coverage: 5 times as many)"
    )
    tables = {
        "shortcuts": ("Shortcuts", leaks, 1),
        "coverage": ("Coverage of 95% intervals", coverage, 5),
        "dimension": ("Participation ratio", dimensions, 1),
    }
    parser.add_argument("--table", choices=list(tables), help="print one table only")
    args = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, (title, lines, times) in tables.items():
            if args.table in (None, name):
                if args.table is None:
                    print(f"\n{title}\n")
                for line in lines(times * args.repeats):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
