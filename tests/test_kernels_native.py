"""The compiled library: which one is accepted, what happens when memory runs out, threads, and how it is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from precollapse.kernels import Moments, logits_stats, native, vocab_stats

ROOT = Path(__file__).parents[1]
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
needs_forms = pytest.mark.skipif(not native.forms(), reason="needs the C++ forms")


def test_interface_numbers_agree() -> None:
    found = re.search(r"#define PC_ABI (\d+)", (ROOT / "csrc" / "precollapse.h").read_text())
    assert found is not None and int(found.group(1)) == native.ABI


@needs_compiler
@pytest.mark.parametrize(("abi", "said"), [("", "interface 1"), ("int pc_abi(void) { return 99; }", "interface 99")])
def test_a_library_of_another_make_is_refused(abi: str, said: str, tmp_path: Path) -> None:
    """Every function is there, but takes other arguments: called, it would write anywhere."""
    names = ("pc_forms", "pc_vocab_stats", "pc_logits_stats", "pc_moments_update")
    source = abi + "".join(f"int {name}(void) {{ return 1; }}" for name in names)
    built = tmp_path / "stale.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", built], input=source.encode(), check=True)
    found = native.read(built)
    assert isinstance(found, str) and said in found and "reinstall precollapse" in found


# Every allocation but the first few fails, from whichever thread it comes.
STARVED = r"""
#include <stdio.h>
#include <stdlib.h>
#include <atomic>
#include <new>
#include <vector>
#include "precollapse.h"
std::atomic<long> left(1L << 40);
void *operator new(size_t size) {
    if (left.fetch_sub(1) <= 0) throw std::bad_alloc();
    return malloc(size);
}
void operator delete(void *p) noexcept { free(p); }
void operator delete(void *p, size_t) noexcept { free(p); }
int main() {
    const int n = 32, d = 16, columns = 20000, k = 256;
    std::vector<float> hidden(n * d, 0.5f), weight(columns * d, 0.25f), top(n * k);
    std::vector<int64_t> ids(n * k);
    std::vector<double> entropy(n), lse(n), pivot(d), mean(d), m2(d * d), cube(d);
    double square = 0, fourth = 0;
    long failures = 0, successes = 0;
    for (long allowed = 0; allowed < 150; allowed++) {
        left = allowed;
        int status[3] = {
            pc_vocab_stats(0, 3, 0, hidden.data(), n, d, d, weight.data(), columns, d, 0, 0, 0, 1, 0, k, entropy.data(),
                           lse.data(), top.data(), ids.data()),
            (left = allowed, pc_logits_stats(0, 3, 0, weight.data(), 2, columns * d / 2, columns * d / 2, k,
                                             entropy.data(), lse.data(), top.data(), ids.data())),
            (left = allowed, pc_moments_update(0, 3, 0, weight.data(), 5000, d, d, 0, pivot.data(), mean.data(),
                                               m2.data(), &square, cube.data(), &fourth)),
        };
        left = 1L << 40;
        for (int s : status) s ? failures++ : successes++;
    }
    printf("%ld %ld\n", failures, successes);
}
"""


@needs_compiler
def test_memory_that_runs_out_in_a_thread_is_told(tmp_path: Path) -> None:
    (tmp_path / "starved.cpp").write_text(STARVED)
    sources = [tmp_path / "starved.cpp", ROOT / "csrc" / "precollapse.cpp", ROOT / "csrc" / "form_portable.cpp"]
    flags = ["-O1", "-std=c++17", "-w", "-pthread", f"-I{ROOT / 'csrc'}"]
    subprocess.run(["g++", *flags, *sources, "-o", tmp_path / "starved"], check=True)
    done = subprocess.run([tmp_path / "starved"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    failures, successes = map(int, done.stdout.split())
    assert failures > 20 and successes > 20


def updated() -> Callable[[], object]:
    states = Moments(1, 1024).update(torch.randn(1024, 1, 1024))
    x = torch.randn(12288, 1, 1024)
    return lambda: states.update(x)


CALLS: dict[str, Callable[[], Callable[[], object]]] = {
    "vocab_stats": lambda: partial(vocab_stats, torch.randn(128, 512), torch.randn(20000, 512)),
    "logits_stats": lambda: partial(logits_stats, torch.randn(800, 100000)),
    "Moments": updated,
}


@needs_forms
@pytest.mark.parametrize("name", CALLS)
def test_other_threads_run_on(name: str) -> None:
    """The interpreter lock is released while C++ computes: a thread that wakes every millisecond keeps waking."""
    call, wakes, stop = CALLS[name](), [], threading.Event()

    def wake() -> None:
        while not stop.is_set():
            wakes.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=wake)
    thread.start()
    try:
        start = time.perf_counter()
        call()
        end = time.perf_counter()
    finally:
        stop.set()
        thread.join()
    during = [at for at in wakes if start < at < end]
    assert end - start > 0.02, "too short to tell"
    assert len(during) >= 5


@needs_compiler
def test_built_without_torch_and_replaced_whole(tmp_path: Path) -> None:
    """`build_ext --inplace` where torch cannot be imported; a library that a process holds is not written into."""
    checkout = copied(tmp_path)
    blocked = tmp_path / "blocked"
    (blocked / "torch").mkdir(parents=True)
    (blocked / "torch" / "__init__.py").write_text("raise ImportError('no torch in an isolated build')")
    # One instruction set and no optimisation: this is about the build, not about what it makes.
    script = (checkout / "setup.py").read_text().replace("-O3", "-O0")
    (checkout / "setup.py").write_text(re.sub(r"^FORMS = \{.*?^\}", "FORMS = {}", script, flags=re.S | re.M))
    environment = {**os.environ, "PYTHONPATH": str(blocked)}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=checkout, env=environment, check=True, capture_output=True)
    (target,) = checkout.glob("kernels/_native*.so")
    assert not isinstance(native.read(target), str)
    with target.open("rb") as held:
        before = os.fstat(held.fileno()).st_ino
        subprocess.run(command, cwd=checkout, env=environment, check=True, capture_output=True)
        assert target.stat().st_ino != before and os.fstat(held.fileno()).st_nlink == 0
        assert held.read() and not list(checkout.glob("kernels/*.part"))


def test_installed_without_a_compiler(tmp_path: Path) -> None:
    """A wheel is made all the same, says what it left out, and holds the Python of the kernels."""
    checkout, wheels = copied(tmp_path), tmp_path / "wheels"
    environment = {**os.environ, "CC": "no-such-compiler", "CXX": "no-such-compiler"}
    script = (
        "import sys; from setuptools import build_meta; "
        "print(build_meta.build_wheel(sys.argv[1], {'--build-option': []}))"
    )
    wheels.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script, wheels], cwd=checkout, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "no-such-compiler" in done.stdout + done.stderr
    (wheel,) = wheels.glob("*.whl")
    names = subprocess.run([sys.executable, "-m", "zipfile", "-l", wheel], capture_output=True, text=True).stdout
    assert "precollapse/kernels/native.py" in names and "_native" not in names
    assert "precollapse/py.typed" in names and "licenses/LICENSE" in names
    rooms = {path.parent.name for path in ROOT.glob("[a-z]*/__init__.py")} - {"tests", "perf", "examples"}
    wanted = {path for room in rooms for path in (ROOT / room).rglob("*.py")} | set(ROOT.glob("reports/templates/*"))
    missing = [path for path in wanted if f"precollapse/{path.relative_to(ROOT).as_posix()}" not in names]
    assert not missing, "the wheel lacks files of the package"
    assert not re.search(r"precollapse/(tests|perf|examples|setup\.py)", names)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    alone = subprocess.run(
        [
            sys.executable,
            "-c",
            "import precollapse as pc; print(pc.__file__, pc.analysis.statistics.wilson(3, 4).lower)",
        ],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
    )
    assert alone.returncode == 0 and str(tmp_path) in alone.stdout, alone.stderr[-500:]


def copied(folder: Path) -> Path:
    """What the build reads of this checkout."""
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "py.typed"):
        shutil.copy(ROOT / name, checkout)
    shutil.copytree(ROOT / "csrc", checkout / "csrc")
    for room in sorted({path.parent.name for path in ROOT.glob("[a-z]*/__init__.py")} - {"tests", "perf", "examples"}):
        shutil.copytree(ROOT / room, checkout / room, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for source in ROOT.glob("*.py"):
        shutil.copy(source, checkout)
    return checkout
