"""Steering vectors against statsmodels, scikit-learn and planted directions; the dose response against arithmetic by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from precollapse import store
from precollapse.analysis.dose_response import dose_response, slopes
from precollapse.analysis.probing.splits import Split, split_items
from precollapse.errors import RequestError
from precollapse.hooks import Extractor, SteeringVector, steering_vector
from precollapse.hooks.decoding.greedy import continue_greedily
from precollapse.studies.config import StudyConfig
from precollapse.studies.steering import SteerConfig, run_steer, save
from precollapse.studies.study import run_study

D = 12


class FakeRun:
    """The part of a run that a vector is made from, in memory."""

    def __init__(self, states: pd.DataFrame, x: np.ndarray) -> None:
        self.states, self.x = states.reset_index(drop=True), x
        self.sites = {"resid_post": tuple(range(x.shape[1]))}
        self.manifest = {"capture": {"model": "none", "n_layers": x.shape[1]}}
        self.path, self.config_hash = "fake.zarr", "0" * 64

    def select(self, regime: Any = None, benchmark: Any = None) -> FakeRun:
        keep = np.ones(len(self.states), bool)
        for name, value in (("regime", regime), ("benchmark", benchmark)):
            if value is not None:
                keep &= self.states[name].isin([value] if isinstance(value, str) else value).to_numpy()
        return FakeRun(self.states[keep], self.x[keep])

    def resid(self, layer: int, site: str = "resid_post") -> np.ndarray:
        return self.x[:, layer]


def fake_run(
    n: int = 80, regimes: tuple[str, ...] = ("baseline",), d: int = D, seed: int = 0, gap: float = 2.0
) -> FakeRun:
    """States that differ between classes along a known direction, with regimes that differ along another."""
    rng = np.random.default_rng(seed)
    rows, x = [], []
    for r, regime in enumerate(regimes):
        for i in range(n):
            right = bool(rng.random() < (0.3 if r == 0 else 0.6))
            state = rng.standard_normal((2, d)) * np.linspace(0.5, 3.0, d)
            state[:, 0] += gap * right
            state[:, 1] += 20.0 * r
            x.append(state)
            rows.append(
                {"benchmark": "b", "regime": regime, "item_id": f"i{i}", "correct": right, "entropy_bits": state[0, 0]}
            )
            rows[-1]["option_choice"] = "ABC"[i % 3]
    states = pd.DataFrame(rows).astype({"correct": "boolean", "option_choice": "string"})
    return FakeRun(states, np.array(x))


def half_split(run: FakeRun) -> Split:
    """Every fifth item is held out, every fifth is for validation."""
    items = list(dict.fromkeys(run.states["item_id"]))
    return Split({item: {0: 2, 1: 1}.get(k % 5, 0) for k, item in enumerate(items)}, 0, False)


# -- vectors ---------------------------------------------------------------------------------------------------------


def test_mean_difference_of_training_items_only() -> None:
    run = fake_run()
    split = half_split(run)
    part = run.states["item_id"].map(split.part).to_numpy()
    y = run.states["correct"].to_numpy(bool)
    made = steering_vector(run, 1, split=split)
    x = run.x[:, 1]
    expected = x[(part == 0) & y].mean(0) - x[(part == 0) & ~y].mean(0)
    np.testing.assert_allclose(made.vector, expected, rtol=1e-6, atol=1e-6)
    assert made.norm == pytest.approx(np.linalg.norm(expected), rel=1e-6)
    run.x[part != 0] = 1e6
    np.testing.assert_array_equal(steering_vector(run, 1, split=split).vector, made.vector)
    assert set(made.train_items) == {("b", i) for i, p in split.part.items() if p == 0}
    assert made.provenance["n_train"] == (part == 0).sum() and made.provenance["n_positive"] == ((part == 0) & y).sum()


def test_regimes_are_compared_within_themselves() -> None:
    """The difference is the coefficient of the class in statsmodels' regression with an intercept per regime."""
    import statsmodels.api as sm

    run = fake_run(60, ("baseline", "cot"))
    split = half_split(run)
    part = run.states["item_id"].map(split.part).to_numpy()
    train = part == 0
    design = np.column_stack([run.states["correct"], run.states["regime"] == "baseline", run.states["regime"] == "cot"])
    expected = [sm.OLS(run.x[train, 1, k], design[train].astype(float)).fit().params[0] for k in range(D)]
    made = steering_vector(run, 1, split=split)
    np.testing.assert_allclose(made.vector, expected, rtol=1e-5, atol=1e-5)
    assert abs(float(made.vector[1])) < 2.0, "the regimes differ by 20 along this axis, which is not the outcome's"
    with_probe = steering_vector(run, 1, method="probe", split=split)
    assert abs(float(with_probe.vector[1])) < 2.0


@pytest.mark.parametrize("d,n", [(6, 120), (200, 60)], ids=["fewer features", "more features"])
def test_probe_direction_is_scikit_learns(d: int, n: int) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.preprocessing import StandardScaler

    run = fake_run(n, d=d, gap=4.0)
    split = half_split(run)
    part = run.states["item_id"].map(split.part).to_numpy()
    x, y = run.x[:, 0], run.states["correct"].to_numpy(bool)
    scaler = StandardScaler().fit(x[part == 0])
    z = scaler.transform(x)
    best, found = -1.0, None
    for c in (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0):
        model = LogisticRegression(C=c, tol=1e-10, max_iter=100_000).fit(z[part == 0], y[part == 0])
        mark = roc_auc_score(y[part == 1], model.decision_function(z[part == 1]))
        if mark > best + 1e-9:
            best, found = mark, (c, model.coef_[0] / scaler.scale_)
    assert found is not None
    made = steering_vector(run, 0, method="probe", split=split)
    assert made.provenance["C"] == found[0] and made.provenance["validation_auroc"] == pytest.approx(best)
    cosine = float(made.vector.double().numpy() @ found[1] / np.linalg.norm(found[1]) / made.norm)
    assert cosine > 1 - 1e-6
    assert made.norm == pytest.approx(steering_vector(run, 0, split=split).norm), "one scale, one displacement"


def test_default_split_is_by_item_balanced_and_seeded() -> None:
    run = fake_run(100, ("baseline", "cot"))
    a, b = steering_vector(run, 0, seed=3), steering_vector(run, 0, seed=3)
    assert torch.equal(a.vector, b.vector) and a.train_items == b.train_items
    assert a.train_items != steering_vector(run, 0, seed=4).train_items
    assert not set(a.train_items) & set(a.validation_items)
    assert 58 <= len(a.train_items) <= 62 and 18 <= len(a.validation_items) <= 22
    labels = run.states[run.states["regime"] == "baseline"].set_index("item_id")["correct"]
    assert abs(labels[[i for _, i in a.train_items]].mean() - labels.mean()) < 0.05


def test_targets() -> None:
    run = fake_run()
    split = half_split(run)
    train = (run.states["item_id"].map(split.part) == 0).to_numpy()
    x, h, option = run.x[:, 0], run.states["entropy_bits"].to_numpy(), run.states["option_choice"].to_numpy(str)
    high = h > np.median(h[train])
    made = steering_vector(run, 0, "entropy_bits", split=split)
    np.testing.assert_allclose(made.vector, x[train & high].mean(0) - x[train & ~high].mean(0), rtol=1e-5, atol=1e-5)
    assert "median" in made.target
    for negative, others in ((None, option != "A"), ("B", option == "B")):
        made = steering_vector(run, 0, "option_choice", positive="A", negative=negative, split=split)
        expected = x[train & (option == "A")].mean(0) - x[train & others].mean(0)
        np.testing.assert_allclose(made.vector, expected, rtol=1e-5, atol=1e-5)
    run.states.loc[::3, "correct"] = pd.NA  # states without an outcome are left out
    y = run.states["correct"]
    known, up = y.notna().to_numpy(), y.fillna(False).to_numpy(bool)
    expected = x[train & known & up].mean(0) - x[train & known & ~up].mean(0)
    np.testing.assert_allclose(steering_vector(run, 0, split=split).vector, expected, rtol=1e-5, atol=1e-5)


def test_numbers_are_cut_within_each_regime() -> None:
    """One cut over regimes whose entropies differ by more than they vary would make the regime the class, and leave no pair within one."""
    run = fake_run(regimes=("baseline", "cot"))
    second = (run.states["regime"] == "cot").to_numpy()
    run.states.loc[second, "entropy_bits"] += 100.0
    split = half_split(run)
    train = (run.states["item_id"].map(split.part) == 0).to_numpy()
    x, h = run.x[:, 0], run.states["entropy_bits"].to_numpy()
    differences, weights = [], []
    for here in (train & ~second, train & second):
        high = h > np.median(h[here])
        differences.append(x[here & high].mean(0) - x[here & ~high].mean(0))
        weights.append((here & high).sum() * (here & ~high).sum() / here.sum())
    expected = np.average(differences, axis=0, weights=weights)
    made = steering_vector(run, 0, "entropy_bits", split=split)
    np.testing.assert_allclose(made.vector, expected, rtol=1e-5, atol=1e-5)
    assert "within each of 2 benchmarks and regimes" in made.target


@pytest.mark.parametrize(
    "options,message",
    [
        ({"target": "right"}, "no column 'right'; it has benchmark"),
        ({"method": "pca"}, "method 'pca' is unknown"),
        ({"target": "option_choice"}, "holds names .*say which is positive"),
        ({"target": "option_choice", "positive": "Z"}, "no state has option_choice = 'Z'; its values are A, B, C"),
        ({"target": "option_choice", "negative": "A"}, "two different classes"),
        ({"target": "correct", "positive": "perhaps"}, "no state has correct = 'perhaps'; its values are"),
        ({"site": "z"}, "no layers of site 'z'; it has resid_post"),
        ({"target": "benchmark", "positive": "b"}, "one class of benchmark = b against all else only"),
        ({"split": SimpleNamespace(part={"i0": 0})}, "item 'i1' of b is not in the split"),
    ],
)
def test_bad_requests(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        steering_vector(fake_run(), 0, **options)


def test_no_outcomes_at_all() -> None:
    run = fake_run()
    run.states["correct"] = pd.array([pd.NA] * len(run.states), dtype="boolean")
    with pytest.raises(RequestError, match="no state has a value of 'correct'"):
        steering_vector(run, 0)


def test_classes_may_be_named_as_on_a_command_line() -> None:
    run = fake_run()
    for positive, negative in (("True", None), ("True", "False")):
        named = steering_vector(run, 0, positive=positive, negative=negative)
        assert torch.equal(named.vector, steering_vector(run, 0).vector)
    assert torch.equal(steering_vector(run, 0, positive="False").vector, -steering_vector(run, 0).vector)


def test_a_vector_with_numpy_numbers_in_its_provenance_is_saved(tmp_path: Path) -> None:
    made = replace(steering_vector(fake_run(), 0), provenance={"seed": np.int64(3), "norms": np.arange(2.0)})
    made.save(tmp_path / "v.safetensors")
    assert SteeringVector.load(tmp_path / "v.safetensors").provenance == {"seed": 3, "norms": [0.0, 1.0]}
    with pytest.raises(RequestError, match="cannot be written as JSON"):
        replace(made, provenance={"x": object()}).save(tmp_path / "w.safetensors")
    with pytest.raises(RequestError, match="cannot be written"):
        made.save(tmp_path / "nowhere" / "v.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["v.safetensors"]


def test_a_saved_vectors_layer_counts_back_from_the_last_captured_one(
    study: tuple[store.Run, Extractor], tiny_folder: Path, tmp_path: Path
) -> None:
    """With layers 0 and 2 captured, -1 is layer 2 and -2 is layer 0, as where the vector is made."""
    config = StudyConfig(
        tmp_path / "run.zarr", str(tiny_folder), ("builtin_choice",), n=12, regimes=("baseline",), layers="0,2",
        generate=False, template="raw",
    )  # fmt: skip
    run = run_study(config, progress=False, extractor=study[1])
    steering_vector(run, 2, "entropy_bits").save(tmp_path / "v.safetensors")
    asked = {
        "vector": tmp_path / "v.safetensors",
        "target": "entropy_bits",
        "scales": (2,),
        "controls": 0,
        "generate": False,
    }
    for layer in (-1, 2, None):
        made = run_steer(SteerConfig(run.path, layer, resamples=20, **asked), progress=False, extractor=study[1])
        assert made.vector.layer == 2
    for layer in (-2, 0):
        with pytest.raises(RequestError, match=f"vector is for layer 2, but layer {layer} was asked for"):
            run_steer(SteerConfig(run.path, layer, **asked), progress=False, extractor=study[1])


def test_file_of_a_vector(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    made = steering_vector(fake_run(40, ("baseline", "cot")), 1, method="probe")
    made.save(tmp_path / "v.safetensors")
    np.testing.assert_array_equal(load_file(tmp_path / "v.safetensors")["vector"], made.vector.numpy())
    assert [p.name for p in tmp_path.iterdir()] == ["v.safetensors"]
    back = SteeringVector.load(tmp_path / "v.safetensors")
    assert torch.equal(back.vector, made.vector)
    for name in ("site", "layer", "method", "target", "train_items", "validation_items"):
        assert getattr(back, name) == getattr(made, name)
    assert dict(back.provenance) == dict(made.provenance)
    steering = back.steering(-2.0, "boundary")
    assert (steering.site, steering.layer, steering.scale, steering.positions) == ("resid_post", 1, -2.0, "boundary")
    (tmp_path / "broken").write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
    for name, words in (("poor", "{}"), ("list", "[]"), ("none", None)):
        metadata = None if words is None else {"precollapse_steering_vector": words}
        save_file({"vector": made.vector.numpy()}, tmp_path / name, metadata=metadata)
    for name in ("broken", "absent", "poor", "list", "none"):
        with pytest.raises(RequestError, match="cannot be read as a steering vector"):
            SteeringVector.load(tmp_path / name)


def test_random_controls_have_the_length_and_nothing_else() -> None:
    made = steering_vector(fake_run(d=400), 0)
    controls = [made.random(seed) for seed in range(20)]
    assert all(c.norm == pytest.approx(made.norm, rel=1e-6) for c in controls)
    cosines = [float(c.vector.double() @ made.vector.double()) / made.norm**2 for c in controls]
    assert max(map(abs, cosines)) < 0.25 and len({round(c, 9) for c in cosines}) == 20
    assert torch.equal(made.random(3).vector, controls[3].vector)


# -- dose response ---------------------------------------------------------------------------------------------------


def outcomes_by_hand() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = []
    for direction, scale in [
        ("unsteered", 0.0),
        ("vector", -1.0),
        ("vector", 2.0),
        ("random 0", 2.0),
        ("random 1", 2.0),
    ]:
        for regime in ("baseline", "cot"):
            for i in range(15):
                noise = float(np.random.default_rng(i).standard_normal())  # the same for all doses: pairs cancel it
                effect = {"vector": 0.5 * scale, "random 0": 0.2, "random 1": -0.1}.get(direction, 0.0)
                value = 3.0 + 10 * noise + effect + 0.01 * rng.standard_normal()
                rows.append(
                    {"benchmark": "b", "regime": regime, "item": f"i{i}", "direction": direction, "scale": scale}
                )
                rows[-1] |= {"entropy_bits": value, "option_margin": np.nan, "accuracy": float(i % 2)}
    return pd.DataFrame(rows)


def test_dose_response_is_paired() -> None:
    outcomes = outcomes_by_hand()
    table = dose_response(outcomes, resamples=500, level=0.95, seed=0).set_index(
        ["regime", "direction", "scale", "metric"]
    )
    wide = outcomes.pivot_table(index=["regime", "item"], columns=["direction", "scale"], values="entropy_bits")
    for regime in ("baseline", "cot"):
        row = table.loc[regime, "vector", 2.0, "entropy_bits"]
        part = wide.loc[regime]
        change = part["vector", 2.0] - part["unsteered", 0.0]
        assert row["change"] == pytest.approx(change.mean()) and row["n"] == 15
        assert row["lower"] < row["change"] < row["upper"] and row["upper"] - row["lower"] < 0.03
        random = (part["random 0", 2.0] + part["random 1", 2.0]) / 2
        assert row["beyond_random"] == pytest.approx((part["vector", 2.0] - random).mean())
        assert table.loc[regime, "random", 2.0, "entropy_bits"]["change"] == pytest.approx(
            (random - part["unsteered", 0.0]).mean()
        )
    pooled = table.loc["all", "vector", -1.0, "entropy_bits"]
    assert pooled["n"] == 15, "two regimes of one item are one item"
    assert pooled["change"] == pytest.approx(wide["vector", -1.0].mean() - wide["unsteered", 0.0].mean())
    missing = table.loc["baseline", "vector", 2.0, "option_margin"]
    assert missing["n"] == 0 and np.isnan(missing["change"]) and missing["reason"]
    flat = table.loc["all", "vector", 2.0, "accuracy"]
    assert flat["change"] == 0 and (flat["lower"], flat["upper"]) == (0, 0)


def test_slopes_are_least_squares() -> None:
    outcomes = outcomes_by_hand()
    table = slopes(outcomes, resamples=200, level=0.95, seed=0).set_index(["regime", "direction", "metric"])
    mean = outcomes[outcomes["regime"] == "cot"].groupby(["direction", "scale"])["entropy_bits"].mean()
    y = [mean["unsteered", 0.0], mean["vector", -1.0], mean["vector", 2.0]]
    row = table.loc["cot", "vector", "entropy_bits"]
    assert row["slope"] == pytest.approx(np.polyfit([0.0, -1.0, 2.0], y, 1)[0])
    assert row["lower"] < 0.5 < row["upper"] or abs(row["slope"] - 0.5) < 0.02


# -- a whole run -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def study(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[store.Run, Extractor]:
    out = tmp_path_factory.mktemp("steer") / "run.zarr"
    ex = Extractor.from_pretrained(str(tiny_folder))
    config = StudyConfig(
        out,
        str(tiny_folder),
        ("builtin_choice", "builtin"),
        n=20,
        regimes=("baseline",),
        max_new_tokens=6,
        template="raw",
    )
    return run_study(config, progress=False, extractor=ex), ex


@pytest.fixture(scope="module")
def report(study: tuple[store.Run, Extractor]) -> Any:
    run, ex = study
    config = SteerConfig(
        run.path, -2, (-3, 3), "entropy_bits", probe_layer=1, controls=2, resamples=200, benchmarks=("builtin_choice",)
    )
    return run_steer(config, progress=False, extractor=ex)


def test_run_steer_measures_held_out_items(study: tuple[store.Run, Extractor], report: Any) -> None:
    run, ex = study
    own = run.select(benchmark="builtin_choice")
    held_out = set(report.outcomes["item"])
    high = list(own.states["entropy_bits"] > own.states["entropy_bits"].median())
    split = split_items([str(i) for i in own.states["item_id"]], high, seed=0)
    assert held_out == {f"builtin_choice/{i}" for i, p in split.part.items() if p == 2}
    seen = set(report.vector.train_items) | set(report.vector.validation_items)
    assert seen == {("builtin_choice", i) for i, p in split.part.items() if p < 2}
    assert report.vector.layer == 1
    base = report.outcomes[report.outcomes["direction"] == "unsteered"].set_index("id")
    stored = own.states.set_index("id").loc[base.index]
    np.testing.assert_allclose(base["entropy_bits"], stored["entropy_bits"], rtol=1e-5)
    np.testing.assert_allclose(base["option_margin"], stored["option_margin"], rtol=1e-4, atol=1e-5)
    assert list(base["text"]) == list(stored["text"]) and list(base["accuracy"]) == list(
        stored["correct"].astype(float)
    )
    assert report.summary["baseline_entropy_drift_bits"] < 1e-4
    assert len(report.outcomes) == len(held_out) * (1 + 2 * 3)


def test_a_direction_from_few_states_says_so(study: tuple[store.Run, Extractor], report: Any) -> None:
    own = study[0].select(benchmark="builtin_choice").states
    train = own[[("builtin_choice", i) in set(report.vector.train_items) for i in own["item_id"]]]["entropy_bits"]
    rarer = min(int((train > train.median()).sum()), int((train <= train.median()).sum()))
    assert 0 < rarer < 10
    assert f"rests on {rarer} training states of the rarer class" in report.markdown()
    assert "validation states of the rarer class" in report.markdown()  # the probe's
    enough = {**report.vector.provenance, "n_train": 25, "n_positive": 10}
    told = replace(report, vector=replace(report.vector, provenance=enough)).markdown()
    assert "training states of the rarer class" not in told


def test_run_steer_equals_steering_by_hand(study: tuple[store.Run, Extractor], report: Any) -> None:
    run, ex = study
    rows = {i: row for i, row in enumerate(run.states.to_dict("records"))}
    steered = report.outcomes[(report.outcomes["direction"] == "vector") & (report.outcomes["scale"] == 3.0)].set_index(
        "id"
    )
    base = report.outcomes[report.outcomes["direction"] == "unsteered"].set_index("id")
    block, v = ex.model.model.layers[1], 3.0 * report.vector.vector
    for i, row in rows.items():
        if row["id"] not in steered.index:
            continue
        ids = run.ragged("token_ids", i).tolist()

        def change(_m: Any, _a: Any, out: torch.Tensor, length: int = len(ids)) -> torch.Tensor:
            out = out.clone()
            out[:, length - 1 :] += v  # the boundary and what is generated
            return out

        written, handle = list(ids), block.register_forward_hook(change)
        try:
            for step in range(6):
                with torch.no_grad():
                    logits = ex.model(input_ids=torch.tensor([written]), use_cache=False).logits[0, -1].double()
                if step == 0:
                    p = torch.log_softmax(logits, -1)
                    entropy = float(-(p.exp() * p).sum() / np.log(2))
                written.append(int(logits.argmax()))
        finally:
            handle.remove()
        assert steered.loc[row["id"], "entropy_bits"] == pytest.approx(entropy, rel=1e-4)
        text = ex.tokenizer.decode(written[len(ids) :], skip_special_tokens=True)
        assert steered.loc[row["id"], "text"] == text
    # the probe reads the steered layer itself, so its logit moves by the same amount on every item
    moved = (steered["probe_logit"] - base["probe_logit"]).to_numpy()
    assert moved.std() < 1e-3 * abs(moved.mean()) + 1e-9
    other = report.outcomes[(report.outcomes["direction"] == "vector") & (report.outcomes["scale"] == -3.0)].set_index(
        "id"
    )
    np.testing.assert_allclose(other["probe_logit"] - base["probe_logit"], -moved, rtol=1e-3, atol=1e-6)
    assert not np.allclose(steered["entropy_bits"], base["entropy_bits"], atol=1e-3)


def test_report_forms(report: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    text = report.markdown()
    assert "| vector | +3 |" in text and "| random | -3 |" in text and "vector − random" in text and "nan" not in text
    content = json.loads(report.to_json())
    assert len(content["table"]) == len(report.table) and content["summary"]["layer"] == 1
    save(report, tmp_path / "out")
    names = {p.name for p in (tmp_path / "out").iterdir()}
    numbers = {"steer.json", "table.csv", "slopes.csv", "outcomes.csv", "vector.safetensors"}
    assert names == {"steer.md", "steer.html", "steer.png", "steer.svg", "steer.csv"} | numbers
    page = (tmp_path / "out" / "steer.html").read_text()
    assert '<svg role="img"' in page and '<td class="tight">vector</td>' in page and "nan" not in page.split("<h2")[1]
    report.figure(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_saved_vector_free_items_and_no_generation(
    study: tuple[store.Run, Extractor], report: Any, tmp_path: Path
) -> None:
    run, ex = study
    report.vector.save(tmp_path / "v.safetensors")
    config = SteerConfig(
        run.path,
        vector=tmp_path / "v.safetensors",
        scales=(2,),
        target="entropy_bits",
        controls=1,
        generate=False,
        n=3,
        positions="boundary",
        benchmarks=("builtin",),
        resamples=50,
    )
    found = run_steer(config, progress=False, extractor=ex)
    assert torch.equal(found.vector.vector, report.vector.vector) and len(set(found.outcomes["item"])) == 3
    assert "accuracy" not in found.outcomes and "option_margin" not in found.outcomes
    assert set(found.table["metric"]) == {"entropy_bits", "probe_logit"}


def test_greedy_continuation_is_untouched_afterwards(study: tuple[store.Run, Extractor], report: Any) -> None:
    run, ex = study
    assert ex.steerings == [] and not any(m._forward_hooks or m._forward_pre_hooks for m in ex.model.modules())
    ids = run.ragged("token_ids", 0).tolist()
    captured = next(iter(ex.stream(ex.render([ids]), keep_cache=True)))
    assert continue_greedily(ex.model, ex.tokenizer, captured, 6)[0].text == run.states["text"][0]


@pytest.mark.parametrize(
    "options,message",
    [
        ({"layer": 1, "scales": (0,)}, "one of them not 0"),
        ({"layer": 1, "scales": ("a",)}, "scales must be numbers"),
        ({"layer": 1, "mode": "plus"}, "mode 'plus' is unknown"),
        ({"layer": 1, "method": "pca"}, "method 'pca' is unknown"),
        ({"layer": 1, "controls": -1}, "controls must be a whole number of at least 0"),
        ({}, "say where to steer"),
        ({"layer": 1, "positions": "generated", "generate": False}, "nothing is to be generated"),
        ({"layer": 1, "max_new_tokens": 8, "generate": False}, "nothing is to be generated; leave one out"),
    ],
)
def test_settings_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SteerConfig("run.zarr", **options)


def test_what_the_run_lacks_is_said(study: tuple[store.Run, Extractor]) -> None:
    run, ex = study
    for options, message in [
        ({"layer": 7, "target": "entropy_bits"}, "no layer 7"),
        ({"layer": 1, "target": "hope"}, "no column 'hope'"),
        ({"layer": 1, "target": "entropy_bits", "probe_layer": 9}, "resid_post of layer 9 is not in the run"),
        ({"layer": 1, "target": "entropy_bits", "regimes": ("cot",)}, "no regime 'cot'"),
    ]:
        with pytest.raises(RequestError, match=message):
            run_steer(SteerConfig(run.path, **options), progress=False, extractor=ex)  # type: ignore[arg-type]
    from precollapse.perf.small_models import small_model, small_tokenizer

    other = Extractor(small_model("gpt2"), small_tokenizer(), check=False)
    with pytest.raises(RequestError, match="model_type is llama, but this is one whose model_type is gpt2"):
        run_steer(SteerConfig(run.path, 1, target="entropy_bits"), progress=False, extractor=other)


# -- the run's own model ----------------------------------------------------------------------------------------------


def test_a_hub_model_is_the_commit_that_the_run_was_made_of(hub: Any, tmp_path: Path, capsys: Any) -> None:
    first, second = "a" * 40, "b" * 40
    hub(first, None)
    config = StudyConfig(
        tmp_path / "run.zarr",
        "lab/tiny",
        ("builtin_choice",),
        n=12,
        regimes=("baseline",),
        generate=False,
        template="raw",
    )
    run = run_study(config, progress=False)
    assert run.manifest["capture"]["model_revision"] == first, "a branch is no revision"
    hub(second, 7)
    with pytest.raises(RequestError, match=f"{first}.*{second}"):
        run_study(config, progress=False)
    assert len(run_study(replace(config, revision=first), progress=False)) == len(run)
    asked = {"layer": 1, "target": "entropy_bits", "scales": (2,), "controls": 0, "generate": False, "resamples": 20}
    made = run_steer(SteerConfig(run.path, **asked), progress=False)
    assert made.summary["capture"]["model_revision"] == first and made.summary["baseline_entropy_drift_bits"] < 1e-4
    with pytest.raises(
        RequestError, match=f"model_revision is {first}, but this is one whose model_revision is {second}"
    ):
        run_steer(SteerConfig(run.path, revision="main", **asked), progress=False)
    from precollapse.cli.main import main

    words = ["steer", str(run.path), "--layer", "1", "--target", "entropy_bits", "--no-generate", "--quiet"]
    assert main([*words, "--model", "lab/tiny", "--revision", second]) == 2
    assert "model_revision" in capsys.readouterr().err


def test_other_weights_are_refused_by_their_entropies(study: tuple[store.Run, Extractor]) -> None:
    """A model object carries no revision: what it computes must tell."""
    import copy

    run, ex = study
    asked = SteerConfig(run.path, 1, (2,), "entropy_bits", controls=0, generate=False, resamples=20)
    model = copy.deepcopy(ex.model)
    same = run_steer(asked, progress=False, extractor=Extractor(model, ex.tokenizer, check=False))
    assert same.summary["baseline_entropy_drift_bits"] < 1e-4
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(1.05)
    with pytest.raises(RequestError, match="unsteered entropies differ from the run's by .* bits in the median"):
        run_steer(asked, progress=False, extractor=Extractor(model, ex.tokenizer, check=False))
    half = Extractor(copy.deepcopy(ex.model).bfloat16(), ex.tokenizer, check=False)
    assert run_steer(asked, progress=False, extractor=half).summary["baseline_entropy_drift_bits"] > 1e-4


def test_a_vector_of_another_model_is_refused(study: tuple[store.Run, Extractor], report: Any, tmp_path: Path) -> None:
    from dataclasses import replace

    run, ex = study
    for name, value in (("model_revision", "sha256:0"), ("tokenizer_hash", "0"), ("n_layers", 30), ("d_model", 64)):
        replace(report.vector, provenance={**report.vector.provenance, name: value}).save(tmp_path / "v.safetensors")
        config = SteerConfig(run.path, vector=tmp_path / "v.safetensors", target="entropy_bits", controls=0)
        with pytest.raises(RequestError, match=f"the saved vector was made with one whose {name} is"):
            run_steer(config, progress=False, extractor=ex)


def test_the_baseline_runs_as_the_doses_do(study: tuple[store.Run, Extractor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a steering no prefix is shared; the unsteered side of each pair must not share one either."""
    run, ex = study
    modes = []
    stream = Extractor._stream

    def watched(self: Extractor, *arguments: Any) -> Any:
        modes.append("never" if self.steerings else self.share_prefix)
        return stream(self, *arguments)

    monkeypatch.setattr(Extractor, "_stream", watched)
    monkeypatch.setattr(ex, "share_prefix", "always")
    made = run_steer(
        SteerConfig(run.path, 1, (2,), "entropy_bits", controls=0, generate=False, resamples=20),
        progress=False,
        extractor=ex,
    )
    assert len(modes) >= 2 and set(modes) == {"never"} and ex.share_prefix == "always"
    assert made.summary["capture"]["share_prefix"] == "never"
