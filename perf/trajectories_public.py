"""Recompute entropies, shapes and every trajectory statistic of the public chains of cot-proxy-tasks-8.

The numbers and figures of docs/trajectories.md come from

    python perf/trajectories_public.py ../shared/data/cot-proxy-tasks-8.tar.gz --out docs/figures
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from precollapse.analysis.trajectories.public import DistributionChain, chain_table, load_distributions
from precollapse.analysis.trajectories.shapes import shape
from precollapse.analysis.trajectories.statistics import (
    early_exit_table,
    epsilon_table,
    family,
    gap_from_counts,
    trajectory_statistics,
)
from precollapse.reports.figures.trajectories import all_figures

FAMILY = ("fisher_two_sided", "spearman_violations", "spearman_coherence", "spearman_final", "logistic_final")


def capped(chain: DistributionChain, cap: int | None) -> list[float]:
    """Entropies at the first cap - 1 sentences and the last: the unit cap, its tail merged."""
    h = chain.entropies.tolist()
    return h if cap is None or len(h) <= cap else [*h[: cap - 1], h[-1]]


def cap_table(chains: list[DistributionChain]) -> pd.DataFrame:
    """The gap under several unit caps and epsilons."""
    rows = []
    right = [c.choices[-1] == c.correct for c in chains]
    for cap in (None, 16, 8, 4):
        for epsilon in (0.01, 0.05, 0.10):
            flags = [shape(capped(c, cap), epsilon).monotone for c in chains]
            yes = [y for y, f in zip(right, flags, strict=True) if f]
            no = [y for y, f in zip(right, flags, strict=True) if not f]
            g = gap_from_counts(sum(yes), len(yes), sum(no), len(no))
            rows.append(
                {
                    "cap": "none" if cap is None else cap,
                    "epsilon": epsilon,
                    "monotone": f"{g.correct_monotone}/{g.n_monotone}",
                    "others": f"{g.correct_other}/{g.n_other}",
                    "gap_points": g.points.estimate,
                    "odds_ratio": g.odds_ratio.estimate,
                    "p_two_sided": g.p_two_sided,
                }
            )
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--out", type=Path, help="folder for the figures")
    parser.add_argument("--resamples", type=int, default=1000)
    options = parser.parse_args()
    pd.set_option("display.width", 200, "display.max_columns", 20)
    chains = load_distributions(options.archive)
    subsets = {
        "all": chains,
        "gpqa": [c for c in chains if c.source == "gpqa_gpqa_diamond"],
    }
    for name, subset in subsets.items():
        table = chain_table(subset)
        table["entropies"] = [c.entropies.tolist() for c in subset]
        found = trajectory_statistics(table, resamples=options.resamples)
        sentences = sum(len(c.probabilities) for c in subset)
        print(f"\n== {name}: {found.n} chains of {found.problems} questions, {sentences} sentences")
        print(f"accuracy {found.accuracy}; gap {found.gap.points} points; odds ratio {found.gap.odds_ratio}")
        print(f"monotone {found.gap.correct_monotone}/{found.gap.n_monotone}", end="; ")
        print(f"others {found.gap.correct_other}/{found.gap.n_other}; Fisher two-sided {found.gap.p_two_sided:.3g}")
        for part in (found.buckets, found.correlations, found.logistic, found.auroc, found.selective):
            print(part.to_string(index=False))
        for t in found.triage:
            print(f"triage at {t.coverage}: {t.accepted} of {t.test} accepted, {t.false_positives:.1f} wrong", end="; ")
            print(
                f"at random {t.at_random:.1f}, reduction {t.reduction}; against confidence {t.reduction_to_confidence}"
            )
        right = table["correct"].tolist()
        print(epsilon_table(table["entropies"], right).to_string(index=False))
        print(early_exit_table(table["entropies"], right).to_string(index=False))
        print(cap_table(subset).to_string(index=False))
        print(family(found.pvalues(), [n for n in FAMILY if n in found.pvalues()]).to_string(index=False))
        by_source = table.groupby("source").agg(
            chains=("chain", "size"),
            questions=("problem", "nunique"),
            whole=("contiguous", "mean"),
            sentences=("points", "mean"),
            correct=("correct", "mean"),
            violations=("violations", "mean"),
        )
        print(by_source.to_string())
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            figures = all_figures(table, "correct", found.buckets, found.accuracy.estimate, start="first sentence")
            for key, figure in figures.items():
                figure.savefig(options.out / f"trajectories_{name}_{key}.png", dpi=110)


if __name__ == "__main__":
    main()
