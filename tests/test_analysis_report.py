"""The report of a run: what every format shows, what is missing and why, and what a hostile output can do (nothing)."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from precollapse.analysis import cells, hypotheses, options, regimes, statistics
from precollapse.analysis.probing import probes, splits
from precollapse.errors import RequestError
from precollapse.reports import study as report

QUICK = cells.Settings(n_splits=3, shuffles=4, resamples=60)
HOSTILE = "</script><script>alert(1)</script><b>bold</b> & \u2028 | done"


class Run:
    """A run in memory, with the interface of `store.Run`."""

    def __init__(self, states, arrays, layers, **rest):
        self.states, self.arrays, self.sites = states, arrays, {"resid_post": tuple(layers)}
        self.manifest = rest.get("manifest", {"model": "toy"})
        self.failed_cells = rest.get("failed", {})
        self.progress = rest.get("progress", SimpleNamespace(complete=True))
        self.config, self.path = {}, rest.get("path", "toy.zarr")
        self.reads = 0

    def resid(self, layer=None, site="resid_post", regime=None, benchmark=None, items=None):
        keep = np.ones(len(self.states), bool)
        for column, value in (("regime", regime), ("benchmark", benchmark)):
            if value is not None:
                keep &= (self.states[column] == value).to_numpy()
        self.reads += 1
        return self.arrays[keep][:, self.sites[site].index(layer)]


def make(n=30, layers=(0, 2, 5), d=16, seed=0, skip=(), generate=True, all_wrong=("gsm8k", "babble"), **rest):
    """Two benchmarks under three regimes; H falls by 1 bit under cot and rises under babble."""
    rng = np.random.default_rng(seed)
    rows, arrays = [], []
    for benchmark, choice in (("gsm8k", False), ("arc_challenge", True)):
        skill, base = rng.standard_normal(n), rng.standard_normal((n, len(layers), d))
        for regime, shift in (("baseline", 0.0), ("cot", -1.0), ("babble", 0.5)):
            right = rng.random(n) < 1 / (1 + np.exp(-2 * skill))
            if (benchmark, regime) == all_wrong:
                right[:] = False
            states = base + 0.3 * rng.standard_normal(base.shape)
            states[right, :, :3] += 1.5
            for i in range(n):
                if (benchmark, regime, i) in skip or (benchmark, regime) in skip:
                    continue
                gold = "ABCD"[i % 4] if choice else str(i)
                said = gold if right[i] else ("ABCD"[(i + 1) % 4] if choice else "-1")
                row = {
                    "id": f"{benchmark}/q{i}/{regime}",
                    "benchmark": benchmark,
                    "regime": regime,
                    "item_id": f"q{i}",
                    "question": f"Question {i} {HOSTILE}",
                    "prompt": f"Solve {i}",
                    "gold": gold,
                    "choices": json.dumps({k: "x" for k in "ABCD"}) if choice else None,
                    "format": "choice" if choice else "free",
                    "text": f"It is {said}" if generate else None,
                    "answer": said if generate else None,
                    "correct": bool(right[i]) if generate else None,
                    "compliant": bool(rng.random() < 0.9) if generate else None,
                    "output_tokens": int(rng.integers(2, 90)) if generate else None,
                    "truncated": bool(rng.random() < 0.2) if generate else None,
                    "prompt_tokens": int(rng.integers(30, 90)),
                    "entropy_bits": 3.0 + shift + 0.3 * rng.standard_normal(),
                    "option_entropy_bits": float(rng.random() * 2) if choice else None,
                    "option_margin": float(rng.random()) if choice else None,
                    "option_mass": float(rng.random()) if choice else None,
                    "option_choice": gold if choice and i % 2 else ("A" if choice else None),
                }
                rows.append(row)
                arrays.append(states[i])
    frame = pd.DataFrame(rows).convert_dtypes()
    floats = [c for c in frame if c.startswith(("entropy", "option_e", "option_m"))]
    frame[floats] = frame[floats].astype("float64")
    return Run(frame, np.array(arrays, dtype="float16"), layers, **rest)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    told = []
    run = make(failed={("math500", "cot"): "the model ran out of memory"}, path="/somewhere/toy.zarr")
    made = report.write_report([run], out, settings=QUICK, progress=lambda f, w: told.append((f, w)))
    return made, out, told, run


def test_table_has_one_row_per_cell_with_the_numbers_of_the_states(written):
    made, _, _, run = written
    assert list(zip(made.table["benchmark"], made.table["regime"], strict=True)) == [
        ("gsm8k", "baseline"),
        ("gsm8k", "cot"),
        ("gsm8k", "babble"),
        ("arc_challenge", "baseline"),
        ("arc_challenge", "cot"),
        ("arc_challenge", "babble"),
        ("math500", "cot"),
    ]
    for _, row in made.table.iloc[:6].iterrows():
        states = run.states[(run.states["benchmark"] == row["benchmark"]) & (run.states["regime"] == row["regime"])]
        assert row["n"] == len(states) == 30
        assert row["accuracy"] == pytest.approx(states["correct"].astype(float).mean())
        assert row["entropy_bits"] == pytest.approx(states["entropy_bits"].mean())
        assert row["entropy_sd"] == pytest.approx(states["entropy_bits"].std())
        assert row["output_tokens"] == pytest.approx(states["output_tokens"].astype(float).mean())
        assert row["dimension_ceiling"] == 29 and 1 < row["dimension"] < 29
    labels = made.table.set_index(["benchmark", "regime"])["label"]
    assert labels["gsm8k", "cot"] == "CF" and labels["gsm8k", "babble"] == "EC" and labels["gsm8k", "baseline"] == ""


def test_every_missing_value_says_why(written):
    made, out, _, _ = written
    table = made.table.set_index(["benchmark", "regime"])
    assert "auroc: one class in the train part (0 of 18 positive)" in table.loc[("gsm8k", "babble"), "missing"]
    assert np.isnan(table.loc[("gsm8k", "babble"), "auroc"])
    assert "option_entropy_bits: free response has no options" in table.loc[("gsm8k", "cot"), "missing"]
    assert "entropy_change: the baseline itself" in table.loc[("gsm8k", "baseline"), "missing"]
    assert table.loc[("math500", "cot"), "missing"] == "all: the cell failed: the model ran out of memory"
    text = made.to_text()
    assert "one class in the train part (0 of 18 positive)" in text and "ran out of memory" in text
    assert "nan" not in text.lower() and "nan" not in made.to_markdown().lower().replace("finance", "")
    assert "out of memory" in (out / "report.md").read_text() and "out of memory" in (out / "report.html").read_text()


def test_formats_agree(written):
    made, out, _, _ = written
    content = json.loads((out / "report.json").read_text())
    csv = pd.read_csv(out / "report.csv")
    for got in (pd.DataFrame(content["table"]), csv):
        for column in ("accuracy", "entropy_change_lower", "auroc", "dimension"):
            np.testing.assert_allclose(got[column].astype(float), made.table[column].astype(float))
    assert content["settings"]["resamples"] == 60 and content["models"] == ["toy"]
    assert content["table"][2]["auroc"] is None
    robustness = pd.read_csv(out / "tables" / "robustness.csv")
    assert {"train_auroc", "test_auroc_lower", "shuffle_auroc", "gap", "splits_mean"} <= set(robustness)


def test_probe_column_is_the_probe_of_the_shared_split(written):
    made, _, _, run = written
    rows = (run.states["benchmark"] == "arc_challenge").to_numpy()
    part = run.states[rows]
    split = splits.split_items(part["item_id"], part["correct"], seed=0)
    cot = (part["regime"] == "cot").to_numpy()
    got = probes.recoverability(
        run.arrays[rows][cot], part["correct"][cot], part["item_id"][cot], split=split, shuffles=4, resamples=60
    )
    row = made.robustness.set_index(["benchmark", "regime"]).loc[("arc_challenge", "cot")]
    assert row["test_auroc"] == pytest.approx(got.test_auroc) and row["C"] == got.C
    assert row["shuffle_p"] == pytest.approx(got.shuffle_p)
    transfer = made.transfer.set_index(["over", "within", "train", "test"])["auroc"]
    assert transfer["regimes", "arc_challenge", "cot", "cot"] == pytest.approx(got.test_auroc)
    assert transfer["benchmarks", "cot", "arc_challenge", "arc_challenge"] == pytest.approx(got.test_auroc)


def test_figures_are_there_with_their_numbers_and_their_command(written):
    made, out, told, _ = written
    names = {f.name for f in made.figures}
    assert {"accuracy", "entropy", "entropy_change", "dimension_by_layer", "auroc", "heatmaps", "formats"} <= names
    assert {"dimension_by_items", "transfer_regimes", "transfer_benchmarks", "said"} <= names
    for figure in made.figures:
        assert figure.png.stat().st_size > 2000 and figure.svg.read_text().lstrip().startswith("<?xml")
        assert len(pd.read_csv(figure.csv).columns) > 2
        assert "precollapse report toy.zarr" in figure.caption and f"{figure.name}.csv" in figure.caption
    assert f"figures/{made.figures[0].png.name}" in (out / "report.md").read_text()
    fractions = [f for f, _ in told]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0 and all(0 <= f <= 1 for f in fractions)


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.sources, self.data, self.inside = [], [], "", False

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        found = dict(attrs)
        self.sources += [found[k] for k in ("src", "href") if found.get(k)]
        self.inside = found.get("id") == "items-data"

    def handle_data(self, data):
        if self.inside:
            self.data += data

    def handle_endtag(self, tag):
        self.inside = False


def test_page_fetches_nothing_and_shows_hostile_text_as_text(written):
    _, out, _, run = written
    page = _Page()
    page.feed((out / "report.html").read_text())
    assert all(s.startswith(("data:", "#")) for s in page.sources)
    assert page.tags.count("script") == 2 and "b" not in page.tags
    items = json.loads(page.data)
    assert len(items["rows"]) == len(run.states)
    question = [c["name"] for c in items["columns"]].index("question")
    assert items["rows"][0][question] == f"Question 0 {HOSTILE}"
    shown = [c["name"] for c in items["columns"]]
    assert {"prompt", "text", "answer", "entropy_bits", "option_mass"} <= set(shown)
    assert "http://" not in (out / "report.html").read_text().replace("http://www.w3.org", "")


def test_a_run_without_outputs_still_reports_entropy_and_dimension():
    made = report.write_report(make(generate=False), None, settings=QUICK)
    assert made.table["accuracy"].isna().all() and made.table["auroc"].isna().all()
    assert made.table["entropy_bits"].notna().all() and made.table["dimension"].notna().all()
    assert made.table["missing"].str.contains("accuracy: no output was generated").all()
    assert made.table["missing"].str.contains("auroc: no usable rows").all()
    choice = made.options.set_index("regime").loc["cot"]
    assert choice["choice_accuracy"] > 0 and np.isnan(choice["answer_accuracy"]) and np.isnan(choice["mcnemar_p"])


def test_a_run_without_states_reports_outcomes_entropy_and_stored_moments(tmp_path):
    run = make(n=20)
    run.sites = {}
    kept = {"count": 20, "trace": [1.0, 3.0], "participation_ratio": [4.0, 8.0]}
    kept["participation_ratio_unbiased"] = [None, 12.0]
    run.manifest = {"model": "toy", "moments": {"gsm8k/cot": kept}}
    kept["layers"] = [3, 7]
    run.config["moments"] = True
    made = report.write_report(run, tmp_path, settings=QUICK)
    by_layer = made.dimension
    assert by_layer["layer"].tolist() == [3, 7] and by_layer["participation_ratio"].tolist() == [4.0, 8.0]
    assert by_layer["weight"].tolist() == [0.25, 0.75] and by_layer["components_90"].isna().all()
    assert (
        "moments are added up once the run is finished" in made.table.set_index("regime")["missing"]["babble"].iloc[0]
    )
    table = made.table.set_index(["benchmark", "regime"])
    assert table["accuracy"].notna().all() and table["entropy_bits"].notna().all() and table["auroc"].isna().all()
    assert "auroc: no states of the residual stream were captured" in table.loc[("gsm8k", "cot"), "missing"]
    assert table.loc[("gsm8k", "cot"), "dimension"] == pytest.approx((1 * 4 + 3 * 8) / 4)
    assert table.loc[("gsm8k", "cot"), "dimension_unbiased"] == 12.0
    assert np.isnan(table.loc[("gsm8k", "baseline"), "dimension"])
    with pytest.raises(RequestError, match="no site 'attn_out'"):
        report.write_report(run, None, settings=cells.Settings(site="attn_out"))


def test_missing_regimes_and_items_are_paired_by_item():
    run = make(skip={("gsm8k", "cot", 3), ("gsm8k", "baseline", 4), ("arc_challenge", "baseline")})
    made = report.write_report(run, None, settings=QUICK).table.set_index(["benchmark", "regime"])
    assert made.loc[("gsm8k", "cot"), "n"] == 29 and made.loc[("gsm8k", "cot"), "entropy_change_n"] == 28
    assert ("arc_challenge", "baseline") not in made.index
    assert "no baseline to compare with" in made.loc[("arc_challenge", "cot"), "missing"]
    assert made.loc[("gsm8k", "cot"), "label"] == "CF"


def test_one_item_and_broken_states():
    single = report.write_report(make(n=1), None, settings=QUICK).table
    assert single["auroc"].isna().all() and single["dimension"].isna().all() and single["entropy_bits"].notna().all()
    assert (single["label"] == "").all()
    run = make()
    run.arrays[4, 1, 2] = np.nan
    broken = report.write_report(run, None, settings=QUICK)
    assert broken.robustness.iloc[0]["left_out"] == 1 and broken.table.iloc[0]["dimension_ceiling"] == 28


def test_two_runs_stand_in_one_report():
    small = cells.Settings(n_splits=1, shuffles=0, resamples=20, cross_benchmark=False)
    made = report.write_report([make(n=12), make(n=12, seed=1, manifest={"model": "other"})], None, settings=small)
    assert list(dict.fromkeys(made.table["model"])) == ["toy", "other"] and len(made.table) == 12
    assert made.to_text().splitlines()[1].startswith("model")
    twins = report.write_report([make(n=8, path="a.zarr"), make(n=8, path="b.zarr")], None, settings=small)
    assert list(dict.fromkeys(twins.table["model"])) == ["toy (a.zarr)", "toy (b.zarr)"]


def test_an_incomplete_run_says_so():
    progress = SimpleNamespace(complete=False, states=180, states_total=400)
    made = report.write_report(make(progress=progress), None, settings=QUICK)
    assert "180 of 400 states" in made.to_text() and "180 of 400 states" in made.to_markdown()


def test_same_seed_same_report():
    a, b = (report.write_report(make(n=15), None, settings=QUICK) for _ in range(2))
    pd.testing.assert_frame_equal(a.table, b.table)
    pd.testing.assert_frame_equal(a.robustness, b.robustness)


def test_layers_are_read_once_per_pass():
    run = make()
    cells.analyse(run, cells.Settings(n_splits=5, shuffles=2, resamples=20, cross_benchmark=False))
    assert run.reads == 2 * 2 * 3  # benchmarks x (finite check + one pass) x layers


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"site": "attn_out"}, "no site 'attn_out'; it holds: resid_post"),
        ({"target": "happy"}, "no column 'happy'"),
        ({"probe": "svm"}, "no probe 'svm'"),
        ({"layers": [1]}, r"layers \[1\] are not among"),
    ],
)
def test_wrong_settings_are_refused(change, message):
    with pytest.raises(RequestError, match=message):
        report.write_report(make(n=5), None, settings=cells.Settings(**change))


def test_wrong_runs_and_folders_are_refused(tmp_path):
    with pytest.raises(RequestError, match="No run was given"):
        report.write_report([], None)
    empty = make(n=5)
    empty.states = empty.states.iloc[:0]
    with pytest.raises(RequestError, match="no committed state"):
        report.write_report(empty, None)
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot be written"):
        report.write_report(make(n=5), tmp_path / "file")


def test_another_target_and_layer_sets():
    run = make()
    run.states["long"] = run.states["output_tokens"].astype(float) > 45
    settings = cells.Settings(target="long", layers=[[0], [2, 5]], n_splits=1, shuffles=1, resamples=20)
    made = report.write_report(run, None, settings=settings)
    assert set(made.robustness["layers"]) <= {"0", "2 5"} and made.robustness["test_auroc"].notna().any()
    letters = cells.Settings(target="option_choice", n_splits=1, shuffles=1, resamples=20, cross_benchmark=False)
    several = report.write_report(run, None, settings=letters).table.set_index(["benchmark", "regime"])
    assert np.isfinite(several.loc[("arc_challenge", "cot"), "auroc"])


def test_a_target_of_two_labels_is_read_like_yes_and_no():
    run = make()
    run.states["finish"] = np.where(run.states["correct"].astype(bool), "stop", "length")
    run.states["wrong"] = ~run.states["correct"].astype(bool)
    names = cells.Settings(target="finish", n_splits=1, shuffles=1, resamples=20, cross_benchmark=False)
    right = cells.Settings(target="correct", n_splits=1, shuffles=1, resamples=20, cross_benchmark=False)
    a, b = (report.write_report(run, None, settings=s) for s in (names, right))  # "length" < "stop": stop is class 1
    pd.testing.assert_frame_equal(a.predictors, b.predictors)
    pd.testing.assert_series_equal(a.table["auroc"], b.table["auroc"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"resamples": 0}, "resamples must be a whole number from 1"),
        ({"shuffles": -1}, "shuffles must be"),
        ({"n_splits": 10**9}, "splits must be a whole number from 0 to 10000, found 1000000000"),
        ({"level": 95}, "level must lie between 0 and 1"),
        ({"target": "entropy_bits"}, "'entropy_bits' holds numbers"),
        ({"target": "output_tokens"}, "'output_tokens' holds numbers"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes, message):
    with pytest.raises(RequestError, match=message):
        cells.analyse(make(n=6), cells.Settings(**changes))


def test_states_kept_by_head_are_read_side_by_side():
    run = make(n=12)
    plain = report.write_report(run, None, settings=cells.Settings(n_splits=1, shuffles=1, resamples=20))
    run.sites, run.arrays = {"z": run.sites["resid_post"]}, run.arrays.reshape(*run.arrays.shape[:2], 4, -1)
    by_head = report.write_report(run, None, settings=cells.Settings("z", n_splits=1, shuffles=1, resamples=20))
    pd.testing.assert_frame_equal(plain.table, by_head.table)


def test_models_are_not_pooled_in_the_figure_of_formats(tmp_path):
    runs = [make(n=8, seed=i, manifest={"model": f"toy{i}"}) for i in range(2)]
    runs[1].states["entropy_bits"] += 3
    report.write_report(runs, tmp_path, settings=QUICK)
    drawn = pd.read_csv(tmp_path / "figures" / "formats.csv").set_index(["model", "format", "regime"])
    assert len(drawn) == 2 * 2 * 3 and (drawn["n"] == 8).all()
    for i, run in enumerate(runs):
        means = run.states.groupby(["format", "regime"])["entropy_bits"].mean()
        for (kind, regime), mean in means.items():
            assert drawn.loc[(f"toy{i}", kind, regime), "entropy_bits"] == pytest.approx(mean)


# -- regimes and options -----------------------------------------------------------------------------------------------


def test_label_needs_an_interval_that_excludes_zero():
    rng = np.random.default_rng(0)
    base = pd.Series(rng.standard_normal(40), index=range(40))
    falls = regimes.entropy_change(base - 0.5 + 0.1 * rng.standard_normal(40), base)
    assert falls.label == "CF" and falls.change.upper < 0
    assert regimes.entropy_change(base + 0.5, base).label == "EC"
    assert regimes.entropy_change(base + rng.standard_normal(40), base).label == "unclear"
    lone = regimes.entropy_change(base.iloc[:1], base)
    assert lone.label == "" and lone.change.left_out == 39 and "one value" in lone.change.reason


def test_too_few_pairs_get_no_label():
    """Five pairs of one sign have a two-sided sign-test p of 1/16: scipy's binomial test says so too."""
    from scipy import stats

    base = pd.Series(np.linspace(2.8, 3.3, 9))
    for n in range(2, 10):
        could = stats.binomtest(n, n).pvalue < 0.05
        assert regimes.entropy_change(base[:n] - 1, base[:n]).label == ("CF" if could else "unclear")


def test_predictors_keep_their_declared_direction():
    states = pd.DataFrame({"entropy_bits": [1.0, 2, 3, 4] * 5, "compliant": [True] * 20, "prompt_tokens": [None] * 20})
    outcome = pd.Series([False, False, True, True] * 5)
    found = regimes.predictive_power(states, outcome, resamples=50).set_index("predictor")
    assert found.loc["entropy_bits", "auroc"].estimate == 0.0 and found.loc["entropy_bits", "sign"] == -1
    assert found.loc["compliant", "auroc"].estimate == 0.5
    assert "constant" in found.loc["compliant", "spearman"].reason and "prompt_tokens" not in found.index


def test_option_summary_counts_what_was_known_and_not_said():
    states = pd.DataFrame(
        {
            "option_choice": ["A", "A", "B", "C"],
            "answer": ["A", "B", None, "D"],
            "gold": ["A", "A", "B", "D"],
            "text": ["..."] * 4,
            "choices": ['{"A": "1", "B": "2", "C": "3", "D": "4"}'] * 4,
            "option_entropy_bits": [0.0, 1.0, 2.0, 1.0],
            "option_mass": [0.5] * 4,
            "option_margin": [1.0] * 4,
        }
    )
    got = options.summary(states, resamples=50)
    assert (got.knew_not_said, got.said_not_knew, got.unanswered) == (2, 1, 1)
    assert got.agreement.estimate == pytest.approx(1 / 3)
    assert got.choice_accuracy.estimate == 0.75 and got.answer_accuracy.estimate == 0.5
    assert got.relative_entropy.estimate == pytest.approx(0.5) and got.test.counts == (1, 2, 1, 0)
    assert got.information.n == 3 and got.information.plug_in == pytest.approx(np.log2(3) - 2 / 3)
    assert options.summary(states.assign(option_choice=None)) is None


# -- hypotheses --------------------------------------------------------------------------------------------------------

STUDY = """
alpha: 0.05
hypotheses:
  - {id: H1, test: entropy_change, benchmark: gsm8k, regime: cot, alternative: less, statement: cot lowers H}
  - {id: H2, test: accuracy_change, benchmark: arc_challenge, regime: babble}
  - {id: H3, test: probe_above_chance, benchmark: gsm8k, regime: babble, alternative: greater}
  - {id: H4, test: probe_change, benchmark: arc_challenge, regime: cot, family: other}
  - {id: H5, test: entropy_predicts, benchmark: gsm8k, regime: baseline, family: other}
  - {id: H6, test: known_not_said, benchmark: arc_challenge, regime: cot, family: other}
"""


def test_declared_hypotheses_get_verdicts_and_others_do_not(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    family = hypotheses.load(tmp_path / "study.yaml")
    run = make(manifest={"model": "toy", hypotheses.RECORDED: family.sha256})
    made = report.write_report(run, None, settings=QUICK, hypotheses=family)
    declared = made.hypotheses[made.hypotheses["declared"] == "yes"].set_index("id")
    assert declared.loc["H1", "verdict"] == "supported" and declared.loc["H1", "effect_upper"] < 0
    assert declared.loc["H3", "verdict"] == "not testable" and "one class" in declared.loc["H3", "reason"]
    first = declared[declared["family"] == "declared"]
    adjusted = statistics.holm(first["p"].to_numpy(float)).adjusted
    np.testing.assert_allclose(first["p_holm"].astype(float), adjusted)
    others = made.hypotheses[made.hypotheses["declared"] == "exploratory"]
    assert len(others) and (others["verdict"] == "").all()
    assert not (
        (others["test"] == "entropy_change") & (others["benchmark"] == "gsm8k") & (others["regime"] == "cot")
    ).any()
    assert "recorded by the run before it started" in made.to_text()
    foreign = report.write_report(make(n=8), None, settings=QUICK, hypotheses=family)
    assert "when they were declared is not known" in foreign.to_text()
    changed = make(n=8, manifest={"model": "toy", hypotheses.RECORDED: "0" * 64})
    assert (
        "treat them as not declared" in report.write_report(changed, None, settings=QUICK, hypotheses=family).to_text()
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hypotheses: 3", "a list under"),
        ("hypotheses: [{id: a}]", "lacks 'test'"),
        ("hypotheses: [{id: a, test: magic, benchmark: b, regime: c}]", "the test 'magic'"),
        ("hypotheses: [{id: a, test: probe_change, benchmark: b, regime: c, power: 1}]", "unknown field 'power'"),
        ("hypotheses: [{id: a, test: probe_change, benchmark: b, regime: c, alternative: up}]", "alternative is 'up'"),
        ("alpha: 2\nhypotheses: []", "alpha is 2"),
        ("a: [", "not valid YAML"),
        ("hypotheses: []", "declares no hypothesis"),
        ("alpha: 2020-13-45", "not valid YAML"),
        ("hypotheses: [{id: a}]\nhypotheses: [{id: b}]", "'hypotheses' appears twice"),
        ("beta: 1\nhypotheses: [{id: a}]", "unknown field 'beta'"),
        ("hypotheses: [{1: a, 2: b}]", "unknown field '1'"),
        ("hypotheses: [{id: a, test: [x], benchmark: b, regime: c}]", r"test is \['x'\]"),
        ("hypotheses: [{id: a, test: probe_change, benchmark: b, regime: no}]", "regime is False"),
        (
            "hypotheses: [{id: a, test: probe_change, benchmark: b, regime: c},"
            " {id: a, test: probe_change, benchmark: b, regime: d}]",
            "declared twice",
        ),
    ],
)
def test_a_bad_study_file_is_refused(tmp_path, text, message):
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(RequestError, match=message):
        hypotheses.load(tmp_path / "study.yaml")
    with pytest.raises(RequestError, match="cannot be read"):
        hypotheses.load(tmp_path / "absent.yaml")
    (tmp_path / "study.yaml").write_bytes(text.encode("utf-16"))
    with pytest.raises(RequestError, match="not UTF-8"):
        hypotheses.load(tmp_path / "study.yaml")


def _declared(text):
    return hypotheses.parse(text.encode(), Path("study.yaml"))


def test_a_field_without_a_value_is_one_that_was_not_given():
    entry = "{id: 0, test: entropy_change, benchmark: gsm8k, regime: cot, against: , model: , family: }"
    (found,) = _declared(f"hypotheses: [{entry}]").hypotheses
    assert (found.id, found.against, found.model, found.family) == ("0", "baseline", "", "declared")


def test_a_hypothesis_about_another_model_stays_in_its_family_untested():
    text = (
        "hypotheses:\n  - {id: H1, test: entropy_change, benchmark: gsm8k, regime: cot}\n"
        "  - {id: H2, test: entropy_change, benchmark: gsm8k, regime: cot, model: other}\n"
    )
    made = report.write_report(make(n=8), None, settings=QUICK, hypotheses=_declared(text))
    rows = made.hypotheses[made.hypotheses["declared"] == "yes"].set_index("id")
    assert rows.at["H2", "verdict"] == "not testable" and "no model 'other'" in rows.at["H2", "reason"]
    assert rows.at["H1", "p_holm"] == pytest.approx(min(1.0, 2 * rows.at["H1", "p"]))


def test_runs_that_recorded_different_files_test_none_and_say_so():
    one, two = (
        f"hypotheses: [{{id: {name}, test: entropy_change, benchmark: gsm8k, regime: cot}}]" for name in ("H1", "H2")
    )
    for texts in ((one, two), (one, None)):
        runs = [make(n=8, manifest={"model": f"toy{i}", hypotheses.TEXT: text}) for i, text in enumerate(texts)]
        made = report.write_report(runs, None, settings=QUICK)
        assert (made.hypotheses["declared"] == "exploratory").all()
        assert "did not record the same hypothesis file" in made.to_text()


def test_importing_the_analysis_loads_no_model_library():
    code = (
        "import sys, precollapse.analysis as a; a.report, a.probes, a.transfer, a.cells, a.page, a.ccs, a.density, a.figures\n"
        "import precollapse.reports.trajectories, precollapse.reports.steering, precollapse.reports.kinds\n"
        "print([m for m in ('torch', 'transformers', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
