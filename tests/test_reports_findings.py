"""What a report says in sentences, and what it keeps of a state's distribution: against the arrays they come from."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest

from precollapse import StudyConfig, run_study
from precollapse.analysis import report
from precollapse.analysis.dose_response import METRICS
from precollapse.reports.findings import steering_findings
from precollapse.reports.study_items import distributions
from precollapse.reports.tables import Shown, shown_frame


@pytest.fixture(scope="module")
def made(tiny_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("findings") / "run.zarr"
    config = StudyConfig(out=out, model=str(tiny_folder), benchmarks=("builtin_choice",), n=6, max_new_tokens=3)
    return run_study(config, progress=False)


def test_first_tokens_and_options_are_those_of_the_arrays(made):
    known = distributions(made)
    states, options = made.states, made.array("option_logprobs")
    for i, key in enumerate(states["id"]):
        top = known[key]["top"]
        chances = np.exp(made.array("top_logits")[i].astype(float) - states["logsumexp"][i])
        np.testing.assert_allclose([p for _, p in top], chances, atol=1e-6)
        assert [text for text, _ in top] == json.loads(states["top_tokens"][i])
        kept = dict(known[key]["options"])
        np.testing.assert_allclose(list(kept.values()), np.exp(options[i][: len(kept)]), atol=1e-6)
        assert abs(sum(kept.values()) - states["option_mass"][i]) < 1e-5


def test_a_report_begins_with_what_it_can_say_and_keeps_each_name_once(made, tmp_path):
    pytest.importorskip("matplotlib")
    written = report.write_report(made, tmp_path / "report")
    findings = written.document().findings
    assert 2 <= len(findings) <= 6 and all("n = " in text or text.startswith(("No", "Best")) for text in findings)
    best = written.table.loc[written.table["accuracy"].idxmax()]
    assert f"{100 * best['accuracy']:.1f} [" in findings[0]
    assert findings[-1].startswith("Nothing can be said about") and "fewer than 5" in findings[-1]
    html = (tmp_path / "report" / "report.html").read_text()
    names = re.findall(r'\bid="([^"]+)"', html)
    assert len(names) == len(set(names)) and "<img" not in html
    pointed = set(re.findall(r'(?:url\(|href=")#([^")]+)', html))
    assert pointed <= set(names)
    assert html.index('id="findings"') < html.index("<table") < html.index("<figure") < html.index('id="items"')
    assert findings[0] in (tmp_path / "report" / "report.md").read_text()


def test_a_number_that_rests_on_few_of_a_kind_is_grey():
    frame = pd.DataFrame({"n_test": [12, 12], "test_positives": [9, 6], "auroc": [0.5, 0.75]})
    shown = shown_frame(frame, (("n", "n_test", 0), ("AUROC", "auroc", 2)), "t", "")
    assert isinstance(shown, Shown) and shown.few == {(0, 1)}


def test_steering_says_what_goes_beyond_random_directions_and_what_does_not():
    row = {"benchmark": "b", "regime": "r", "direction": "vector", "scale": 8.0, "n": 14}
    table = pd.DataFrame(
        [
            row | {"metric": "gold_margin", "beyond_random": 0.5, "beyond_lower": 0.2, "beyond_upper": 0.9},
            row | {"metric": "accuracy", "beyond_random": 0.1, "beyond_lower": -0.1, "beyond_upper": 0.3},
        ]
    )
    said = steering_findings(table, {name: short for name, (short, _) in METRICS.items()})
    assert "+0.500 [0.200, 0.900]" in said[0] and "n = 14" in said[0] and "gold margin" in said[0]
    assert said[1].startswith("Nothing can be said about accuracy") and len(said) == 2
