"""The measuring scripts run, and write what they print; on toy sizes, where their times mean nothing."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from precollapse.kernels import native

PERF = Path(__file__).parents[1] / "perf"


def run(tmp_path: Path, script: str, *asked: str, before: str = "") -> tuple[subprocess.CompletedProcess[str], dict]:
    """The script in a process of its own, after the lines `before`; what it printed, and what it wrote."""
    found = tmp_path / "found.json"
    code = f"{before}\nimport runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, str(PERF / script), "--json", str(found), *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done, json.loads(found.read_text())


def test_gpu_script_at_toy_sizes(tmp_path: Path) -> None:
    """Every section's checks hold, every operator stands beside torch eager and compiled, broken packages are told."""
    broken = tmp_path / "cut_cross_entropy"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise RuntimeError('built for another CUDA')")
    done, found = run(tmp_path, "gpu.py", "--selftest", before=f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    assert "all checks hold" in done.stdout and "more than 2^31 elements hold" in done.stdout
    assert "cut-cross-entropy does not run here: RuntimeError: built for another CUDA" in done.stdout
    names = {row["name"].split()[0] for row in found["rows"] if "times_eager" in row and "times_compiled" in row}
    assert names == {"vocab_stats", "logits_stats", "attention_row", "gather_rows", "Moments.update"}
    assert all(row["error"] < 1e-5 for row in found["rows"] if "error" in row)
    assert found["failed"] == []


def test_gpu_script_tells_what_failed(tmp_path: Path) -> None:
    wrong = (
        "import precollapse.kernels as kernels; right = kernels.logits_stats\n"
        "kernels.logits_stats = lambda z, *a, **b: right(z * 1.001, *a, **b)"
    )
    done, found = run(tmp_path, "gpu.py", "--selftest", "--only", "one_pass,attention", before=wrong)
    assert done.returncode == 1 and "one_pass" in found["failed"] and "attention" not in found["failed"]


@pytest.mark.skipif(not native.forms(), reason="needs the C++ forms")
def test_cpu_script_at_toy_sizes(tmp_path: Path) -> None:
    asked = ("--vocabulary", "2048", "--width", "64", "--repeats", "1", "--threads", "1")
    done, found = run(tmp_path, "kernels.py", *asked)
    assert done.returncode == 0, done.stderr[-2000:]
    assert {(row["operator"], row["dtype"], row["n"]) for row in found["rows"]} >= {
        ("vocab_stats", dtype, n) for dtype in ("bfloat16", "float32") for n in (1, 8, 64)
    } | {("logits_stats", "float32", 64), ("Moments.update", "float32", 256)}
    assert [(row["dtype"], row["n"]) for row in found["handover"]] == [
        (dtype, n) for dtype in ("bfloat16", "float32") for n in (64, 256, 1024)
    ]
    assert all(0 < row["share"] and math.isfinite(row["share"]) for row in found["norm"])
    assert found["machine"]["threads"] == 1 and set(found["memory"]) == {"vocab_stats_extra_mb", "torch_extra_mb"}
