"""Methods on tasks: scores against scikit-learn and closed forms, planted signals, memory of questions, resuming."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import confusion_matrix, r2_score, roc_auc_score

from precollapse.analysis import detection
from precollapse.cli.main import main
from precollapse.errors import RequestError
from precollapse.studies.tasks import TaskData, TaskRow, methods, protocol
from precollapse.studies.tasks.effects import explained


def rows_of(split, n, text, *, per_question=4, seed=0, target=False):
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        positive = bool(i % 2)
        rows.append(
            TaskRow(
                f"{split}/{i}",
                split,
                f"{split}-{i // per_question}",
                "",
                text(positive, rng),
                label=None if target else positive,
                target=float(positive) + rng.normal() if target else None,
            )
        )
    return rows


def data_of(text, sizes=(400, 200, 400), number=3, **settings):
    parts = [
        rows_of(split, n, text, seed=k, **settings)
        for k, (split, n) in enumerate(zip(("train", "val", "test"), sizes, strict=True))
    ]
    return TaskData(number, tuple(row for part in parts for row in part), {}, ())


def scores(fitted, part="test"):
    return {score.metric: score for score in fitted.scores if score.part == part}


# --- scores -------------------------------------------------------------------------------------------------------------


def test_rates_are_those_of_the_confusion_matrix():
    rng = np.random.default_rng(0)
    y, score = rng.integers(0, 2, 200), rng.random(200)
    tn, fp, fn, tp = confusion_matrix(y, score >= 0.4).ravel()
    found = detection.rates(y, score >= 0.4)
    assert found.tpr == pytest.approx(tp / (tp + fn)) and found.tnr == pytest.approx(tn / (tn + fp))
    assert found.gmean2 == pytest.approx(found.tpr * found.tnr) and found.called == pytest.approx((tp + fp) / 200)
    best = max((detection.rates(y, score >= t).gmean2, -t) for t in np.arange(1, 100) / 100)
    assert detection.rates(y, score >= detection.choose_threshold(y, score)).gmean2 == pytest.approx(best[0])


def test_intervals_resample_whole_questions():
    """Rows of a question say the same, so that an interval over rows would be narrower by the root of their number."""
    rng = np.random.default_rng(1)
    y = np.repeat(rng.integers(0, 2, 60), 25)
    score = np.repeat(np.clip(rng.normal(0.4 + 0.2 * y[::25], 0.2), 0, 1), 25)
    questions = np.repeat(np.arange(60), 25)
    whole = detection.detection(y, score, 0.5, questions)
    single = detection.detection(y, score, 0.5, np.arange(y.size))
    width = [found.gmean2.upper - found.gmean2.lower for found in (whole, single)]
    assert width[0] / width[1] == pytest.approx(5, rel=0.25)
    assert whole.auroc.estimate == pytest.approx(roc_auc_score(y, score))


def test_the_adjusted_rate_is_that_of_the_rows_the_intervention_made():
    """Positives of which 70 % were made: the detector finds 90 % of those and calls the others as it calls negatives."""
    rng = np.random.default_rng(2)
    n = 40_000
    y = np.arange(n) < n // 2
    made = y & (rng.random(n) < 0.7)
    fired = np.where(made, rng.random(n) < 0.9, rng.random(n) < 0.2)
    share = np.where(y, 0.7, np.nan)
    found = detection.detection(y, fired.astype(float), 0.5, np.arange(n), share, resamples=20)
    assert found.adjusted.estimate / found.tnr.estimate == pytest.approx(0.9, abs=0.015)
    assert found.tpr.estimate == pytest.approx(0.7 * 0.9 + 0.3 * 0.2, abs=0.01)


def test_one_class_is_undefined_and_scores_outside_are_refused():
    found = detection.detection(np.ones(8), np.linspace(0, 1, 8), 0.5, np.arange(8))
    assert math.isnan(found.gmean2.estimate) and found.gmean2.reason == "one class only"
    assert math.isnan(detection.choose_threshold(np.ones(8), np.linspace(0, 1, 8)))
    with pytest.raises(RequestError, match=r"must lie in \[0, 1\]"):
        detection.choose_threshold(np.array([0, 1]), np.array([-1.0, 2.0]))


def test_r2_is_scikit_learns_and_recalibration_undoes_a_scale():
    rng = np.random.default_rng(3)
    questions = np.repeat(np.arange(40), 10)
    y = rng.normal(size=400)
    guess = 5 + 3 * y + 0.3 * rng.normal(size=400)
    found = detection.prediction(y, guess, questions)
    assert found.r2.estimate == pytest.approx(r2_score(y, guess)) and found.r2.estimate < -5
    assert found.recalibrated_r2.estimate > 0.98 and found.rank.estimate > 0.98 and found.labelled == 10


def test_shares_explained():
    about = {"intv_rate": 0.8, "ctrl_rate": 0.2}
    followed = TaskRow("a", "test", "q", "", "", label=True, about=about)
    free = TaskRow("b", "test", "q", "", "", label=False, about=about)
    shares = explained(5, [followed, free])
    assert shares[0] == pytest.approx(0.75) and math.isnan(shares[1]) and explained(3, [followed]) is None
    kept = [
        TaskRow(str(i), "test", "q", "", "", label=True, about={"switch_rate": 0.3, "variant": "v"}) for i in range(20)
    ]
    assert explained(4, kept) == pytest.approx([0.75] * 20)


# --- methods ------------------------------------------------------------------------------------------------------------

FILLER = "we look at this and then at that until it is clear what follows from it".split()


def drawn(rng, n, first=""):
    return " ".join([first, *rng.choice(FILLER, n)])


@pytest.mark.parametrize("seed", range(3))
def test_a_planted_signal_of_one_deviation_is_found(seed):
    """d' = 1 in one number, seen by a regression on that number: AUROC is Phi(1 / sqrt 2) = 0.760."""

    def text(positive, rng):
        return "x" * int(np.exp(6 + 0.3 * (float(positive) + rng.normal())))

    found = scores(protocol.fit(data_of(text, per_question=1), "length", seed=seed, resamples=20))
    assert found["auroc"].estimate == pytest.approx(norm.cdf(1 / math.sqrt(2)), abs=0.03 * 2)


def test_words_are_found_and_shuffled_labels_are_not():
    def text(positive, rng):
        return drawn(rng, 30, "surely" if positive and rng.random() < 0.8 else "perhaps")

    data = data_of(text)
    assert scores(protocol.fit(data, "tfidf", resamples=20))["auroc"].estimate > 0.85
    aurocs = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        order = rng.permutation([row.label for row in data.rows])
        shuffled = [
            TaskRow(r.id, r.split, r.group, "", r.chain, label=bool(y)) for r, y in zip(data.rows, order, strict=True)
        ]
        aurocs.append(
            scores(protocol.fit(TaskData(3, tuple(shuffled), {}, ()), "tfidf", resamples=5))["auroc"].estimate
        )
    assert abs(np.mean(aurocs) - 0.5) < 3 * np.std(aurocs, ddof=1) / math.sqrt(len(aurocs)) + 1e-9


def test_what_memory_of_questions_gives_is_seen_in_the_prompt_line():
    """Where test questions were trained on, the line that knows questions alone is high; where they were not, at chance."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 2, 40)

    def rows(split, names):
        return [
            TaskRow(f"{split}/{name}-{k}", split, name, "", drawn(rng, 9), label=bool(labels[int(name[1:])]))
            for name in names
            for k in range(5)
        ]

    names = [f"q{i}" for i in range(40)]
    leaking = TaskData(3, (*rows("train", names), *rows("val", names), *rows("test", names)), {}, ())
    apart = TaskData(3, (*rows("train", names[:20]), *rows("val", names[20:30]), *rows("test", names[30:])), {}, ())
    assert scores(protocol.fit(leaking, "prompt", resamples=5))["auroc"].estimate == 1.0
    assert any("stands in" in note for note in protocol.fit(leaking, "prompt", resamples=5).notes)
    assert scores(protocol.fit(apart, "prompt", resamples=5))["auroc"].estimate == 0.5


def test_a_method_of_ones_own_runs_under_the_same_protocol():
    class Vowels:
        def __init__(self, seed=0):
            self.seed = seed

        def fit(self, rows, validation):
            return self

        def score(self, rows):
            return np.array([sum(c in "aeiou" for c in row.text) / max(len(row.text), 1) for row in rows])

    methods.register("vowels", Vowels)
    data = data_of(lambda positive, rng: "aaa" if positive else "bbb", sizes=(8, 8, 8))
    assert scores(protocol.fit(data, "vowels", resamples=5))["gmean2"].estimate == 1.0
    with pytest.raises(RequestError, match="there is a method named 'vowels' already"):
        methods.register("vowels", lambda seed: Vowels())

    class Broken(Vowels):
        def score(self, rows):
            return np.full(len(rows), np.nan)

    with pytest.raises(RequestError, match="some that are not finite"):
        protocol.fit(data, Broken)


def test_a_number_is_predicted_with_its_own_scores():
    def text(positive, rng):
        return drawn(rng, 20, "surely" if positive else "perhaps")

    found = scores(protocol.fit(data_of(text, number=8, target=True), "tfidf", resamples=20))
    assert set(found) == {"r2", "rank", "recalibrated_r2"} and 0.05 < found["r2"].estimate < 0.3


# --- the command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def release(tmp_path):
    rng = np.random.default_rng(6)
    for split in ("train", "val", "test"):
        folder = tmp_path / "release/datasets/6/m" / split
        folder.mkdir(parents=True)
        for i in range(40):
            content = {"question_id": f"{split}{i // 4}", "label": "minority" if i % 2 else "majority"}
            content["cot_content"] = drawn(rng, 20, "surely" if i % 2 else "perhaps")
            (folder / f"r{i}.json").write_text(json.dumps(content))
    return tmp_path / "release"


def test_a_fit_goes_on_with_what_is_missing_and_refuses_other_settings(release, tmp_path, capsys):
    out = tmp_path / "fits"
    command = ["tasks", "fit", str(release), "--task", "6", "--resamples", "20", "--out", str(out), "--quiet"]
    assert main(command) == 0
    first = {path: path.read_bytes() for path in sorted(out.rglob("*.*")) if "tfidf" in str(path)}
    (out / "task-6/tfidf/result.json").unlink()
    kept = out / "task-6/length/result.json"
    stamp = kept.stat().st_mtime_ns
    assert main(command) == 0 and kept.stat().st_mtime_ns == stamp
    again = {path: path.read_bytes() for path in first}

    def stable(raw):
        return {k: v for k, v in json.loads(raw).items() if k != "seconds"}

    assert all(again[p] == raw if p.suffix == ".csv" else stable(again[p]) == stable(raw) for p, raw in first.items())
    capsys.readouterr()
    assert main([*command, "--seed", "3"]) == 2
    assert "was made under other settings (seed: 0, now 3)" in capsys.readouterr().err


def test_a_report_stands_beside_published_values(release, tmp_path, capsys):
    out = tmp_path / "fits"
    assert main(["tasks", "fit", str(release), "--resamples", "20", "--out", str(out), "--quiet"]) == 0
    published = tmp_path / "scores.csv"
    published.write_text("task,method,metric,id,ood\n6_atypical_answer,TF-IDF,gmean2,0.246,0.241\n")
    capsys.readouterr()
    assert main(["tasks", "report", str(out), "--published", str(published)]) == 0
    line = next(text for text in capsys.readouterr().out.splitlines() if " tfidf " in text)
    own = json.loads((out / "task-6/tfidf/result.json").read_text())["scores"][0]
    assert f"{own['estimate']:.3f} [{own['lower']:.3f}, {own['upper']:.3f}]" in line and line.endswith("0.246")
    published.write_text("a,b\n1,2\n")
    assert main(["tasks", "report", str(out), "--published", str(published)]) == 2
    assert main(["tasks", "report", str(tmp_path)]) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--methods", "none"), "methods 'none' is unknown; choose from forced-entropy, length"),
        (("--task", "9"), "task 9 has no rows that a method scores"),
        (("--resamples", "0"), "resamples"),
    ],
)
def test_a_wrong_fit_is_refused_before_anything_is_written(release, tmp_path, capsys, words, sentence):
    assert main(["tasks", "fit", str(release), "--out", str(tmp_path / "fits"), *words]) == 2
    assert sentence in capsys.readouterr().err and not (tmp_path / "fits").exists()
