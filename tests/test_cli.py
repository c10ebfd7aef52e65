"""The command line: exit statuses, one-sentence refusals, machine-readable output, results on stdout only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from precollapse.cli.main import main

STUDY = [
    "--benchmark",
    "builtin,builtin_choice",
    "--n",
    "5",
    "--regimes",
    "baseline,cot",
    "--max-new-tokens",
    "5",
    "--quiet",
]


@pytest.fixture(scope="module")
def run(tiny_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run.zarr"
    assert main(["run", "--model", str(tiny_folder), "--out", str(out), *STUDY]) == 0
    return out


def test_run_prints_its_cells_and_resumes_at_once(run, tiny_folder, capsys):
    assert main(["run", "--model", str(tiny_folder), "--out", str(run), *STUDY, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["complete"] and [(c["benchmark"], c["regime"], c["states"]) for c in printed["cells"]] == [
        ("builtin", "baseline", 5),
        ("builtin", "cot", 5),
        ("builtin_choice", "baseline", 5),
        ("builtin_choice", "cot", 5),
    ]


def test_info_and_verify(run, capsys):
    assert main(["info", str(run)]) == 0
    text = capsys.readouterr().out
    assert "builtin_choice" in text and "tiny-llama" in text
    assert main(["info", str(run), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["cells"]) == 4
    assert main(["verify", str(run)]) == 0
    assert "sound" in capsys.readouterr().out


def test_verify_finds_a_flipped_byte_and_repair_takes_it_back(tiny_folder, tmp_path, capsys):
    out = tmp_path / "hurt.zarr"
    arguments = ["run", "--model", str(tiny_folder), "--out", str(out), *STUDY]
    assert main(arguments) == 0
    biggest = max((p for p in out.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(biggest.read_bytes())
    data[len(data) // 2] ^= 1
    biggest.write_bytes(data)
    capsys.readouterr()
    assert main(["verify", str(out), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["sound"] and len(found["faults"]) == 1 and biggest.parent.name in found["faults"][0]
    assert main(["repair", str(out)]) == 0
    assert main(arguments) == 0
    assert main(["verify", str(out)]) == 0


def test_report_writes_its_files(run, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main(["report", str(run), "--out", str(tmp_path / "report"), "--quiet"]) == 0
    assert "builtin_choice" in capsys.readouterr().out
    for name in ("report.md", "report.csv", "report.html"):
        assert (tmp_path / "report" / name).stat().st_size > 500
    assert main(["report", str(run), "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--benchmark", "gsm9k"], "benchmark 'gsm9k' is unknown"),
        (["run", "--regimes", "cot,nope"], "nope"),
        (["run", "--sites", "resid_past"], "site 'resid_past' is unknown"),
        (["run", "--layers", "0,7"], "layer 7 does not exist"),
        (["run", "--layers", "-1,-9"], "layer -9 does not exist"),
        (["steer", "/nowhere", "--layer", "1", "--scales", "-8,much"], "comma list of numbers"),
        (["steer", "/nowhere", "--layer", "1", "--scales", "-8,8"], "/nowhere"),
        (["profile", "--model", "/nowhere", "--n", "2"], "neither an existing folder"),
        (["trajectories", "--rule", "verse"], "unknown segmentation rule"),
        (["trajectories", "--m", "0"], "must be 1 or more"),
        (["trajectories", "--temperature", "-1"], "temperature"),
        (["export", "/nowhere", "--npz"], "/nowhere"),
        (["export", "/nowhere"], "required"),
        (["import", "/nowhere", "--out", "x.zarr"], "/nowhere"),
        (["run", "--layers", "first"], "'first' is not a number"),
        (["run", "--backend", "jax"], "backend 'jax' is unknown"),
        (["run", "--items", "gsm8k"], "is not NAME=FILE"),
        (["run", "--benchmark", "gsm8k", "--items", "gsm8k=/nowhere.jsonl"], "/nowhere.jsonl"),
        (["run", "--max-new-tokens", "many"], "neither a number nor"),
        (["run", "--n", "0"], "n must be a whole number"),
        (["run", "--template", "both"], "invalid choice"),
        (["run", "--revision", "main"], "leave it out"),
        (["info"], "required"),
        (["info", "s3://"], "give a folder, or s3://bucket/prefix"),
        (["info", "s3://runs/a#1"], "has '#'"),
        (["info", ""], "'' is none"),
        (["run", "--out", __file__], "lies in or on a file"),
        (["report", "/nowhere"], "/nowhere"),
        (["verify", "/"], "not a precollapse run"),
        (["fly"], "invalid choice"),
    ],
)
def test_wrong_requests_are_one_sentence_with_exit_status_2(arguments, sentence, tiny_folder, tmp_path, capsys):
    if arguments[0] in ("run", "trajectories"):
        arguments = [*arguments, "--model", str(tiny_folder), "--quiet"]
        if "--out" not in arguments:
            arguments += ["--out", str(tmp_path / "x.zarr")]
        if "--n" not in arguments:
            arguments += ["--n", "2"]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if not line.startswith("Loading weights")]
    assert len(lines) == 1 and lines[0].startswith("precollapse: ") and sentence in lines[0]
    assert not (tmp_path / "x.zarr").exists()


def test_malformed_items_name_file_and_line(tiny_folder, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "1 + 1?", "answer": "2"}\n{"question": "1 +\n')
    out = tmp_path / "x.zarr"
    assert (
        main(
            [
                "run",
                "--model",
                str(tiny_folder),
                "--out",
                str(out),
                "--benchmark",
                "mine",
                "--items",
                f"mine={rows}",
                "--quiet",
            ]
        )
        == 2
    )
    error = capsys.readouterr().err
    assert "rows.jsonl" in error and "line 2" in error
    rows.write_text("")
    assert (
        main(
            [
                "run",
                "--model",
                str(tiny_folder),
                "--out",
                str(out),
                "--benchmark",
                "mine",
                "--items",
                f"mine={rows}",
                "--quiet",
            ]
        )
        == 2
    )


def test_a_disk_that_fills_up_fails_with_1_and_loses_nothing(tiny_folder, tmp_path, capsys):
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)], capture_output=True
    ).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        out = folder / "run.zarr"
        arguments = ["run", "--model", str(tiny_folder), "--out", str(out), *STUDY[:-1], "--quiet", "--shard-size", "1"]
        arguments[arguments.index("--n") + 1] = "12"
        assert main(arguments) == 1
        assert "full" in capsys.readouterr().err
        from precollapse import open_run, verify

        kept = len(open_run(out).states)
        assert verify(out) == []
        assert subprocess.run(["mount", "-o", "remount,size=40m", str(folder)], capture_output=True).returncode == 0
        assert main(arguments) == 0
        assert 0 < kept < len(open_run(out).states) == 48
    finally:
        subprocess.run(["umount", str(folder)], capture_output=True)


def test_the_module_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "precollapse", "--version"], capture_output=True, text=True, cwd=Path.home()
    )
    assert done.returncode == 0 and done.stdout.startswith("precollapse ")
    done = subprocess.run(
        [sys.executable, "-m", "precollapse", "info", "/nowhere"], capture_output=True, text=True, cwd=Path.home()
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stdout == ""
