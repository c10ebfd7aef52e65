"""What comes out: no name of a run acts on a terminal, a page, a spreadsheet or a folder, and no output is put where it must not be."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from precollapse import RequestError, destination, store, visible
from precollapse.cli import main, terminal
from precollapse.cli.main import failure
from precollapse.reports import output_folder, overview
from precollapse.reports.document import Document, Section
from precollapse.reports.figures import Plan, draw, style
from precollapse.reports.tables import Shown, as_markdown, as_text
from precollapse.reports.tables.frames import as_csv
from precollapse.reports.trajectory_draft import Draft

HOSTILE = "\x1b[31mred\x1b]0;title\x07\r\u202e<script>alert(1)</script>|`x`$a_b$%[a](http://x)\x9b2J\ud800"
TEXT = HOSTILE[:-1]
"""The same without its half surrogate, which a table cannot hold."""
STEERING = ("\x1b", "\r", "\x07", "\u202e", "\x9b", "\ud800", "\x00")


def small_run(folder, benchmark="b", regime="r", kind=None):
    """A run of two states with names of the caller's choice."""
    states = [{"id": f"{i}", "benchmark": benchmark, "regime": regime, "item_id": f"i{i}"} for i in range(2)]
    plan = store.Plan.build(states, 2)
    manifest = {"model": "m"} | ({"kind": kind} if kind else {})
    with store.open_writer(
        folder,
        plan=plan,
        config={},
        manifest=manifest,
        arrays={"resid_post": store.ArraySpec(layers=(0,), shape=(1, 4), dtype="float32")},
        columns={"text": "string"},
    ) as writer:
        for index in writer.claimed():
            writer.write(index, arrays={"resid_post": np.zeros((2, 1, 4), np.float32)}, table={"text": ["=1+1", TEXT]})
    return folder


# --- steering characters ------------------------------------------------------------------------------------------------


def test_steering_characters_are_written_out_as_json_writes_them():
    shown = visible.visible(HOSTILE)
    assert not any(character in shown for character in STEERING)
    assert json.loads(f'"{shown}"') == HOSTILE  # it is also what the text is in JSON
    assert visible.visible("zwölf\n\t— 日本 👍🏽 ‌") == "zwölf\n\t— 日本 👍🏽 ‌"
    assert visible.one_line("a\r\nb\nc\td") == "a b c d"
    assert json.loads(f'"{visible.written_out(chr(0x1F600))}"') == "\U0001f600"


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "a/b", "a b", "..", "", "\x1b[31m", "x" * 5000, "\ud800"])
def test_a_file_named_after_something_stands_in_its_folder(name):
    made = visible.file_name(name)
    assert "/" not in made and not made.startswith(".") and 0 < len(made) < 120 and made.isprintable()
    assert made != visible.file_name(name + "_")
    assert visible.file_name("cot-open_2.1") == "cot-open_2.1"


def test_names_of_a_draft_lead_to_no_other_folder():
    draft = Draft(None, "precollapse report")
    draft.scope = "../../evil"
    assert "/" not in draft.named("chains_sampled")
    draft.scope = "gsm8k"
    assert draft.named("chains_sampled") == "gsm8k_chains_sampled"


def test_a_report_writes_into_its_folder_alone(tmp_path):
    with pytest.raises(RequestError, match="outside of the folder"):
        output_folder.write_folder(tmp_path / "report", {"../evil.csv": "x"})
    assert not (tmp_path / "evil.csv").exists()


def test_markdown_carries_no_html_no_link_and_no_broken_table():
    table = Shown(HOSTILE, ("a", HOSTILE), (("1", HOSTILE), ("<0.001", "a\\|b")), (HOSTILE,), HOSTILE)
    document = Document(HOSTILE, (HOSTILE,), (Section(HOSTILE, (HOSTILE, table)),), None, (HOSTILE,), (("f", HOSTILE),))
    markdown = document.to_markdown()
    assert "<script" not in markdown and "</script" not in markdown and "](http" not in markdown
    assert not any(character in markdown for character in STEERING)
    rows = [line for line in as_markdown(table).splitlines() if line.startswith("|")]
    assert len(rows) == 4
    for row in rows:
        bars = row.replace("\\\\", "").replace("\\|", "").count("|")
        assert bars == 3, row
    assert "<0.001" in markdown  # a number is no markup
    markdown.encode()


def test_tables_of_a_terminal_stay_in_their_rows():
    table = Shown("t", ("name", "x"), (("a\nb", "1"), (HOSTILE, "2")))
    text = as_text(table)
    assert len(text.splitlines()) == 5 and not any(character in text for character in STEERING)
    frame = pd.DataFrame({"benchmark": [TEXT, "a\nb"], "states": [1, 2], "accuracy": [0.5, None]})
    text = overview.as_text(frame)
    assert len(text.splitlines()) == 3 and not any(character in text for character in STEERING)


# --- CSV ----------------------------------------------------------------------------------------------------------------


def test_no_cell_of_a_csv_is_a_formula_and_numbers_stay_numbers():
    frame = pd.DataFrame(
        {
            "text": ["=1+1", "+cmd", "-cmd|x", "@sum", "\tx", "\rx", "plain", None, "-5", "+1.5e3", "＝1"],
            "number": [-1.5, 0.1 + 0.2, np.nan, np.inf, -np.inf, 1e-300, 1, 2, 3, 4, 5],
            "whole": range(-5, 6),
            "=name": TEXT,
        }
    )
    written = as_csv(frame)
    back = pd.read_csv(io.StringIO(written), float_precision="round_trip")
    assert list(back["text"][:6]) == ["'=1+1", "'+cmd", "'-cmd|x", "'@sum", "'\tx", "'\\u000dx"]
    assert (
        list(back["text"][8:]) == ["-5", "+1.5e3", "'＝1"] and back["text"][6] == "plain" and pd.isna(back["text"][7])
    )
    pd.testing.assert_series_equal(back["number"], frame["number"])
    assert list(back["whole"]) == list(range(-5, 6)) and list(back.columns) == ["text", "number", "whole", "'=name"]
    assert back["text"].str.removeprefix("'")[0] == "=1+1"
    assert not any(character in written for character in STEERING)
    plain = pd.DataFrame({"a": ["x", "y"], "b": [1, 2], "c": [True, False], "d": pd.array([1, None], "Int64")})
    assert as_csv(plain) == plain.to_csv(index=False)


# --- figures ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [TEXT, "$a$", "a_b^{", "$\\frac{$", "_hidden", "100 % of $5"])
def test_any_name_can_be_drawn_and_the_svg_is_sound(tmp_path, name):
    pytest.importorskip("matplotlib")

    def bars(data):
        canvas, axes = style.subplots(figsize=(3, 2))
        axes.plot([0, 1], [0, 1], label=data["regime"].iloc[0])
        axes.set_title(data["regime"].iloc[0])
        axes.set_xticks([0], [data["regime"].iloc[0]])
        assert axes.get_legend_handles_labels()[1]
        axes.legend()
        return canvas

    figure = draw(Plan("bars", "Bars", "Caption.", pd.DataFrame({"regime": [name]}), bars), tmp_path, "precollapse")
    svg = figure.contents["bars.svg"].decode()
    ElementTree.fromstring(svg)
    assert "<script" not in svg and not any(character in svg for character in STEERING)
    figure.contents["bars.csv"].decode()


# --- where output may go ------------------------------------------------------------------------------------------------


def test_no_results_in_a_run_or_below_it(tmp_path):
    run = tmp_path / "run.zarr"
    run.mkdir()
    (run / "plan.json").write_text("{}")
    (tmp_path / "link").symlink_to(run)
    for place in (
        run,
        run / "report",
        run / "a" / "b",
        tmp_path / "link" / "x",
        tmp_path / "x" / ".." / "run.zarr" / "y",
    ):
        with pytest.raises(RequestError, match="lies in the run .*; give a folder outside of it"):
            destination.for_results(place)
    assert destination.for_results(tmp_path / "run-report") == tmp_path / "run-report"
    assert destination.for_a_run(run) == str(run)
    with pytest.raises(RequestError, match="lies in the run"):
        destination.for_a_run(run / "other.zarr")
    assert sorted(p.name for p in run.iterdir()) == ["plan.json"]


@pytest.mark.parametrize("place", ["s3://b/x", "s3:/b/x", "http://h/x", "gs://b/x", "file:///tmp/x", ""])
def test_an_address_never_becomes_a_folder(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="is an address|names no folder"):
        destination.for_results(place)
    assert not list(tmp_path.iterdir())


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert destination.for_results("~/report") == tmp_path / "report"
    assert destination.for_a_run("~/run.zarr") == str(tmp_path / "run.zarr")
    assert destination.for_a_run("s3://bucket/~/x") == "s3://bucket/~/x"


def test_what_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "x", "/proc/nothing/x", tmp_path / ("x" * 300)):
        if str(place).endswith("xxx"):
            continue
        with pytest.raises(RequestError, match="cannot be written"):
            destination.for_results(place)
    assert destination.for_results(tmp_path / "new" / "deep") and not (tmp_path / "new").exists()


def test_every_out_is_looked_at_before_anything_is_computed(tmp_path, monkeypatch, capsys):
    """The model does not exist and is never asked for; the run of a report is not read."""
    run = small_run(tmp_path / "run.zarr")
    before = sorted(str(p) for p in run.rglob("*"))
    from precollapse.studies import models

    monkeypatch.setattr(models.RunModel, "load", lambda self: pytest.fail("the model was loaded"))
    inside, file = str(run / "x"), tmp_path / "file"
    file.write_text("")
    for words in (
        ["report", str(run)],
        ["export", str(run), "--npz"],
        ["steer", str(run), "--layer", "0"],
        ["run", "--n", "1"],
        ["trajectories", "--n", "1"],
        ["import", str(tmp_path)],
    ):
        assert main([*words, "--out", inside]) == 2, words
        message = capsys.readouterr().err
        assert "lies in the run" in message and message.count("\n") == 1, words
    for words in (["report", str(run)], ["steer", str(run), "--layer", "0"]):
        for place in ("s3://bucket/x", "http://host/x"):
            assert main([*words, "--out", place]) == 2
            assert "is an address" in capsys.readouterr().err
        assert main([*words, "--out", str(file / "x")]) == 2
        assert "cannot be written" in capsys.readouterr().err
    assert sorted(str(p) for p in run.rglob("*")) == before
    assert not (tmp_path / "s3:").exists()


def test_names_of_a_run_act_on_no_terminal(tmp_path, capsys):
    run = small_run(tmp_path / "run.zarr", benchmark="\x1b[31mred\r|", regime="<b>\u202e=x")
    for words in (
        ["info", str(run)],
        ["verify", str(run)],
        ["info", str(run), "--json"],
        ["report", str(run), "--quiet"],
    ):
        main(words)
        printed = capsys.readouterr()
        for text in printed:
            assert not any(character in text for character in STEERING), words
    assert main(["info", str(tmp_path / "\x1b[31m")]) == 2
    assert "\x1b" not in capsys.readouterr().err


# --- streams ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def streams(monkeypatch):
    def give(encoding):
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict") for _ in range(2))
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        return out, err

    return give


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_every_encoding_can_show_every_text(tmp_path, streams, encoding):
    run = small_run(tmp_path / "run.zarr", benchmark="Größe—日本")
    out, err = streams(encoding)
    assert main(["info", str(run)]) == 0
    assert main(["info", str(tmp_path / "日本")]) == 2
    for stream in (out, err):
        assert stream.errors == "strict"
        stream.flush()
    assert b"Gr" in out.buffer.getvalue()
    if encoding == "ascii":
        assert rb"Gr\u00f6\u00dfe-\u65e5" in out.buffer.getvalue() and rb"\u65e5\u672c" in err.buffer.getvalue()


class _Full(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("stream", [_Full(), None])
def test_a_full_or_closed_output_is_no_fault_of_the_package(tmp_path, monkeypatch, capsys, stream):
    run = small_run(tmp_path / "run.zarr")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(terminal, "close_output", lambda: None)
    assert main(["info", str(run)]) == 1
    message = capsys.readouterr().err
    assert "the output could not be written" in message and "report it" not in message


def test_a_full_device_and_a_folder_that_has_gone(tmp_path):
    run = small_run(tmp_path / "run.zarr")
    gone = tmp_path / "gone"
    gone.mkdir()
    program = [sys.executable, "-m", "precollapse"]
    with open("/dev/full", "w") as full:
        done = subprocess.run([*program, "info", str(run)], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "could not be written" in done.stderr
    code = "import os, sys; os.rmdir(os.getcwd()); from precollapse.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "report", str(run), "--out", "x"]
    done = subprocess.run(command, cwd=gone, capture_output=True, text=True)
    assert done.returncode == 2 and "working folder does not exist" in done.stderr, done.stderr


def test_arguments_that_are_no_text_are_refused(capsys):
    assert main(["info", "x\udcff.zarr"]) == 2
    message = capsys.readouterr().err
    assert "bytes that are no text" in message and "report it" not in message
    message.encode()


def test_long_messages_are_cut(capsys):
    assert main(["info", "x" * 100_000]) in (1, 2)
    assert len(capsys.readouterr().err) < 4200


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (RecursionError("maximum recursion depth exceeded"), 2, "more deeply"),
        (MemoryError(), 1, "not enough memory"),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), 1, "No space left on device"),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), 2, "rename it"),
        (KeyError("ours"), 1, "please report it"),
        (FileNotFoundError(errno.ENOENT, "No such file", "x"), 1, "please report it"),
    ],
)
def test_only_our_faults_are_to_be_reported(error, status, words):
    sentence, given = failure(error)
    assert given == status and words in sentence
    assert ("report it" in sentence) == (words == "please report it")


def test_a_vanished_working_folder_is_told_apart(monkeypatch):
    monkeypatch.setattr(os, "getcwd", lambda: (_ for _ in ()).throw(FileNotFoundError()))
    sentence, status = failure(FileNotFoundError(errno.ENOENT, "No such file or directory"))
    assert status == 2 and "working folder" in sentence


def test_reports_hold_nothing_that_acts(tmp_path):
    """A study whose names and texts are all hostile, as every file of its report."""
    pytest.importorskip("matplotlib")
    from precollapse.analysis import cells
    from precollapse.reports import study

    rng = np.random.default_rng(0)
    rows = []
    for regime in ("baseline", f"={TEXT}"):
        for i in range(12):
            right = bool(rng.random() < 0.5)
            rows.append(
                {
                    "id": f"{regime}{i}", "benchmark": f"@{TEXT}", "regime": regime, "item_id": f"q{i}",
                    "question": TEXT, "prompt": TEXT, "gold": "1", "choices": None, "format": "free",
                    "text": f"=cmd {TEXT}", "answer": "=1" if right else "2", "correct": right, "compliant": True,
                    "output_tokens": 3, "truncated": False, "prompt_tokens": 9, "entropy_bits": float(rng.random()),
                }
            )  # fmt: skip
    frame = pd.DataFrame(rows).convert_dtypes()
    frame["entropy_bits"] = frame["entropy_bits"].astype("float64")
    arrays = rng.standard_normal((len(frame), 1, 4))

    class Run:
        states, sites, failed_cells = frame, {"resid_post": (0,)}, {}
        manifest, config, path = {"model": TEXT}, {}, f"{TEXT}.zarr"
        progress = SimpleNamespace(complete=True)

        def resid(self, layer=None, site="resid_post", regime=None, benchmark=None, items=None):
            keep = np.ones(len(frame), bool) if regime is None else (frame["regime"] == regime).to_numpy(bool)
            return arrays[keep][:, 0]

    report = study.write_report(
        [Run()], tmp_path / "out", settings=cells.Settings(n_splits=2, shuffles=2, resamples=20)
    )
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".md", ".csv", ".svg", ".html", ".json", ".png"}
    for path in files:
        assert path.resolve().is_relative_to(tmp_path / "out")
        if path.suffix == ".png":
            continue
        text = path.read_bytes().decode()
        if path.suffix in (".md", ".csv", ".svg"):
            assert not any(character in text for character in STEERING), path
        if path.suffix in (".md", ".svg"):
            assert "<script" not in text, path
        if path.suffix == ".html":
            assert "<script>alert" not in text
        if path.suffix == ".svg":
            ElementTree.fromstring(text)
        if path.suffix == ".csv" and text:
            table = pd.read_csv(path)
            for column in table.select_dtypes(exclude="number").columns:
                assert not table[column].dropna().astype(str).str.match(r"[=@]").any(), (path, column)
    assert not any(c in visible.visible(report.to_text()) for c in STEERING)


# --- what file managers leave behind ------------------------------------------------------------------------------------


def test_what_a_file_manager_leaves_in_a_run_is_no_fault(tmp_path):
    run = small_run(tmp_path / "run.zarr")
    for folder in [run, *(path for path in run.rglob("*") if path.is_dir())]:
        for name in (".DS_Store", "Thumbs.db", "._0", "desktop.ini"):
            (folder / name).write_bytes(b"litter")
    assert store.verify(run) == [] and len(store.open_run(run)) == 2
    done = store.repair(run)
    assert not done.withdrawn and not done.aside and (run / ".DS_Store").exists()
    out = tmp_path / "out"
    out.mkdir()
    (out / ".DS_Store").write_bytes(b"")
    store.export(run, "safetensors", out)
    for name in (".DS_Store", "Thumbs.db", "._b_r.safetensors"):
        (out / name).write_bytes(b"litter")
    assert len(store.import_activations(out, tmp_path / "again.zarr").states) == 2
