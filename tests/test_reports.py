"""What all reports share: folders written whole, figures that leave no trace, kinds of runs, values as JSON and as text."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from markupsafe import Markup

from precollapse.analysis.cells import Settings
from precollapse.analysis.statistics import Interval
from precollapse.errors import RequestError
from precollapse.reports import kinds, output_folder, page
from precollapse.reports.document import Document, Drawing, Section, Strong
from precollapse.reports.figures import Plan, bars, draw
from precollapse.reports.figures.chains import chain_drawing
from precollapse.reports.plain import to_json
from precollapse.reports.tables import Shown, texts

HOSTILE = "</td><script>alert(1)</script>{{ 7 * 7 }} | \x00"


# -- folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_is_written_whole_or_not_at_all(tmp_path):
    output_folder.write_folder(tmp_path, {"report.md": "before", "tables/a.csv": "1"})
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(RuntimeError), output_folder.staged(tmp_path) as stage:
        (stage / "report.md").write_text("half")
        raise RuntimeError
    with pytest.raises(RequestError, match="is a folder where"):
        output_folder.write_folder(tmp_path, {"report.md": "after", "tables": "in the way"})
    names = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert names == ["mine.txt", "report.md", "tables/a.csv"]
    assert (tmp_path / "report.md").read_text() == "before"
    written = output_folder.write_folder(tmp_path, {"report.md": "after", "figures/b.png": b"2"})
    assert [p.read_bytes() for p in written] == [b"after", b"2"]
    new = tmp_path / "ordinary"
    new.write_text("")
    assert (tmp_path / "report.md").stat().st_mode == new.stat().st_mode


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot be written"):
        output_folder.write_folder(tmp_path / "file", {"a": "b"})


# -- figures ---------------------------------------------------------------------------------------------------------


def _plan():
    data = pd.DataFrame(
        {"model": "m", "benchmark": "b", "regime": ["baseline", "cot"], "accuracy": [0.5, math.nan]}
    ).assign(accuracy_lower=0.4, accuracy_upper=0.6)
    return Plan("accuracy", "Accuracy", "Bars.", data, bars("accuracy", "accuracy"))


def test_drawing_leaves_the_callers_matplotlib_as_it_was(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    from matplotlib import pyplot

    backend = matplotlib.get_backend()
    pyplot.switch_backend("svg")
    mine = pyplot.figure()
    settings = dict(matplotlib.rcParams)
    try:
        figure = draw(_plan(), tmp_path, "precollapse report")
        assert matplotlib.get_backend() == "svg" and dict(matplotlib.rcParams) == settings
        assert pyplot.get_fignums() == [mine.number]
    finally:
        pyplot.close(mine)
        pyplot.switch_backend(backend)
    assert figure.image.startswith(b"\x89PNG") and not list(tmp_path.iterdir())
    assert figure.contents == draw(_plan(), tmp_path, "precollapse report").contents


def test_without_matplotlib_the_report_is_refused_before_the_work(tmp_path, monkeypatch):
    from precollapse.reports import study
    from precollapse.reports.figures import style

    monkeypatch.setattr(style, "has_matplotlib", lambda: False)
    with pytest.raises(RequestError, match="Figures need matplotlib"):
        study.write_report(SimpleNamespace(manifest={"model": "m"}), tmp_path)


# -- pages -----------------------------------------------------------------------------------------------------------


def test_markdown_and_page_hold_the_same_and_every_text_is_escaped():
    table = Shown(
        "Table", ("a", "b"), (("1.23 [1.00, 1.50]", HOSTILE), ("— (1)", "x\ny")), ("(1) one class",), "Caption."
    )
    chain = chain_drawing(HOSTILE, [HOSTILE], [0.5, math.nan, 0.9], ["", HOSTILE, "c"], ["n"] * 3)
    assert isinstance(chain, Markup) and "<script" not in chain and "\x00" not in chain.split("<svg")[1]
    document = Document(
        "Title",
        ("Lead.", Strong("Few.")),
        (Section("Part", ("Paragraph.", table, Drawing(chain))),),
        facts=(("seed", "0"),),
    )
    markdown, html = document.to_markdown(), page.rendered(document)
    for text in (
        "Title",
        "Lead.",
        "Few.",
        "Part",
        "Paragraph.",
        "Caption.",
        "1.23 [1.00, 1.50]",
        "— (1)",
        "(1) one class",
    ):
        assert text in markdown and text in html
    assert (
        html.count("<script") == 1
        and "alert(1)</script>" not in html
        and "{{ 7 * 7 }}" in html
        and html.count("<svg") == 1
        and html.count("<circle") == 3
    )
    assert "| x y |" in markdown and "\\|" in markdown and "drawings are in report.html" in markdown


# -- kinds -----------------------------------------------------------------------------------------------------------


def _run(kind):
    return SimpleNamespace(manifest={} if kind is None else {"kind": kind}, path="a.zarr", sites={})


def test_the_kind_of_a_run_chooses_its_report():
    assert kinds.report_kind([_run(None), _run("study")]).name == "study"
    assert kinds.report_kind([_run("trajectories")]).name == "trajectories"
    with pytest.raises(RequestError, match="different kinds"):
        kinds.report_kind([_run("study"), _run("trajectories")])
    with pytest.raises(RequestError, match="has no report"):
        kinds.report_kind([_run("poem")])
    with pytest.raises(RequestError, match="No run was given"):
        kinds.report_kind([])


@pytest.mark.parametrize("name", sorted(set(kinds.OPTIONS) - kinds.KINDS["trajectories"].options))
def test_an_option_that_a_kind_does_not_read_is_refused(name):
    request = kinds.ReportRequest([_run("trajectories")], options={**kinds.OPTIONS, name: "other"})
    with pytest.raises(RequestError, match=f"--{name} is for studies, and a.zarr holds trajectories"):
        kinds.KINDS["trajectories"].write(request)


def test_options_default_to_what_the_analysis_does():
    defaults = {f.name: f.default for f in fields(Settings)} | {"layers": "all", "hypotheses": None}
    names = {"splits": "n_splits"}
    assert kinds.OPTIONS == {name: defaults[names.get(name, name)] for name in kinds.OPTIONS}


# -- values ----------------------------------------------------------------------------------------------------------


def test_what_is_not_a_number_is_null_in_json():
    values = [math.nan, math.inf, None, pd.NA, pd.NaT, np.float32("nan")]
    content = {"missing": values, "there": [np.int64(3), np.bool_(True), np.array([0.5, np.nan])], 7: (1,)}
    assert json.loads(to_json(content)) == {"missing": [None] * 6, "there": [3, True, [0.5, None]], "7": [1]}


def test_values_as_texts():
    assert [texts.value(v) for v in (None, math.nan, True, 3.0, 0.00012345, 123.456, math.inf, "x", 4)] == [
        "—", "—", "yes", "3", "0.000123", "123.5", "infinite", "x", "4"
    ]  # fmt: skip
    assert texts.between(Interval(0.5, 0.25, 0.75), scale=100) == "50.00 [25.00, 75.00]"
    assert texts.between(Interval(0.5, math.nan, math.nan), 1, signed=True) == "+0.5"
    assert texts.between(Interval(math.nan, math.nan, math.nan)) == "undefined" == texts.p_value(math.nan)
    assert (texts.number(0.0001, 3), texts.number(math.nan), texts.percent(0.125)) == ("<0.001", "—", "12.5 %")
