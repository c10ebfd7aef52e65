"""Triton forms under the interpreter against the float64 reference.

The interpreter is chosen when triton is imported, so these tests run in a process of their own: collected normally, the
file holds one test, which starts pytest on it with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
inside = pytest.mark.skipif(not INTERPRETING, reason="runs in the interpreter's process")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.skipif(INTERPRETING, reason="this is the interpreter's process")
def test_under_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "--override-ini=addopts=--import-mode=importlib", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "14 passed" in done.stdout, done.stdout[-500:]


def same(found: Any, expected: Any, relative: float = 1e-6) -> None:
    torch.testing.assert_close(found.entropy_bits, expected.entropy_bits, rtol=relative, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(found.logsumexp, expected.logsumexp, rtol=relative, atol=2e-6, equal_nan=True)
    assert torch.equal(found.top_ids, expected.top_ids)
    torch.testing.assert_close(found.top_logits, expected.top_logits, rtol=2e-6, atol=2e-6, equal_nan=True)
    torch.testing.assert_close(found.option_logits, expected.option_logits, rtol=2e-6, atol=2e-6, equal_nan=True)


ASKED: list[dict[str, Any]] = [
    {"top_k": 3, "option_ids": [[1, 2], [5]]},
    {"scale": 0.5, "softcap": 5.0, "bias": "random"},
    {"softcap": 1000.0, "bias": "shifted"},
]


@inside
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (torch.float32, (1, 64, 300)),
        (torch.float32, (18, 40, 64)),
        (torch.bfloat16, (5, 33, 97)),
        (torch.float16, (2, 32, 65)),
    ],
)
def test_vocab_stats(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    from precollapse.kernels import vocab_stats

    torch.manual_seed(0)
    n, d, columns = shape
    hidden, weight = torch.randn(n, d).to(dtype), (torch.randn(columns, d) / math.sqrt(d)).to(dtype)
    bias = torch.randn(columns).masked_fill(torch.rand(columns) < 0.3, -math.inf)
    for asked in ASKED:
        given = {"random": bias, "shifted": bias - 3000, None: None}[asked.get("bias")]
        options = {name: value for name, value in asked.items() if name != "bias"}
        found, expected = (
            vocab_stats(hidden, weight, given, backend=backend, **options) for backend in ("triton", "reference")
        )
        # A float32 logit near -3000 keeps 2e-4; with a soft cap the common offset cannot be taken out first.
        same(found, expected, 1e-3 if asked.get("bias") == "shifted" else 1e-6)


@inside
def test_rounded_logits() -> None:
    from precollapse.kernels import vocab_stats

    torch.manual_seed(0)
    hidden, weight = torch.randn(2, 32).bfloat16(), torch.randn(90, 32).bfloat16() / 4
    for name in ("bfloat16", "float16"):
        found, expected = (
            vocab_stats(hidden, weight, softcap=4.0, logits_dtype=name, backend=backend)
            for backend in ("triton", "reference")
        )
        same(found, expected, 1e-4)


@inside
def test_the_chunked_way_is_the_same() -> None:
    from precollapse.kernels import triton_vocab

    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(3, 16), torch.randn(700, 16), torch.randn(700)
    triton_vocab.CHUNK = 256
    ids = torch.tensor([[3, 5]] * 3)
    ways = [
        triton_vocab.vocab_stats(hidden, weight, bias, None, 1.0, ids, 2, None, way) for way in ("fused", "chunked")
    ]
    for fused, chunked in zip(*ways, strict=True):
        torch.testing.assert_close(fused, chunked, rtol=1e-6, atol=1e-6)


def rows() -> torch.Tensor:
    torch.manual_seed(0)
    z = torch.randn(9, 1500)
    z[1] -= 3000
    z[2, 7:] = -math.inf
    z[3, ::2] = -math.inf
    z[4] = -math.inf
    z[5] = torch.randn(1500) - 30
    z[5, 800] = 8.0
    z[6] = 0.0
    z[7, 3] = math.nan
    z[8] = torch.linspace(-50, 50, 1500)
    return z


@inside
@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_stats(dtype: torch.dtype) -> None:
    from precollapse.kernels import logits_stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, expected = (
            logits_stats(rows().to(dtype), top_k=3, option_ids=[[0], [1, 9]], backend=backend)
            for backend in ("triton", "reference")
        )
        same(found, expected)
        one, two = (
            logits_stats(torch.tensor([[2.0]]), top_k=1, backend=backend) for backend in ("triton", "reference")
        )
    same(one, two)
    assert one.entropy_bits.item() == 0.0


@inside
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_row(dtype: torch.dtype) -> None:
    from precollapse.kernels import attention_row

    torch.manual_seed(0)
    query, key = torch.randn(2, 6, 5, 24).to(dtype), torch.randn(2, 2, 9, 24).to(dtype)
    index, kept = torch.tensor([4, 1]), torch.rand(2, 9) < 0.8
    for asked in (
        {},
        {"index": index, "softcap": 2.0, "window": 3, "sinks": torch.randn(6), "scale": 0.3},
        {"mask": kept, "index": index},
        {"mask": torch.randn(2, 1, 5, 9)},
        {"mask": torch.rand(1, 6, 5, 9) < 0.5, "index": index},
        {"mask": torch.zeros(2, 9).bool(), "sinks": torch.zeros(6)},
    ):
        found, expected = (attention_row(query, key, backend=backend, **asked) for backend in ("triton", "reference"))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


@inside
def test_gather_rows() -> None:
    from precollapse.kernels import gather_rows

    x, index = torch.randn(3, 5, 70), torch.tensor([0, 4, 2])
    for target in (torch.float32, torch.float16):
        found, expected = torch.zeros(2, 3, 2, 70).to(target).unbind(0)
        gather_rows(x, index, found, 1, backend="triton")
        gather_rows(x, index, expected, 1)
        assert torch.equal(found, expected)


@inside
def test_product_of_moments() -> None:
    from precollapse.kernels.triton_moments import add_product

    torch.manual_seed(0)
    x, m2 = torch.randn(50, 70), torch.ones(70, 70, dtype=torch.float64)
    add_product(x, m2)
    expected = x.double().T @ x.double() + 1
    assert (m2 - expected).triu().norm() < 1e-6 * expected.norm()
