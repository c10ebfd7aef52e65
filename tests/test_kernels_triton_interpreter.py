"""Triton forms under the interpreter against the float64 reference.

The interpreter is chosen when triton is imported, so these tests run in a process of their own: collected normally, the
file holds one test, which starts pytest on it with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from precollapse.kernels.registry import OPERATORS, Tolerance
from precollapse.kernels.vocab_arguments import VocabArguments

pytest.importorskip("triton")

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
inside = pytest.mark.skipif(not INTERPRETING, reason="runs in the interpreter's process")
FORMS = str(Path(__file__).with_name("test_kernels_forms.py"))  # with the Triton forms among them
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.skipif(INTERPRETING, reason="this is the interpreter's process")
def test_under_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "--override-ini=addopts=--import-mode=importlib", __file__, FORMS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-4000:]
    assert re.search(r"\b[1-9]\d* passed", done.stdout), done.stdout[-500:]
    assert "failed" not in done.stdout


def bounds_of(operator: str) -> Mapping[str, Tolerance]:
    """What the Triton form of an operator states: the same for every dtype that it is made for."""
    return OPERATORS[operator].forms["triton"].accuracy[torch.bfloat16]


def same(found: Any, expected: Any, operator: str = "vocab_stats", hard: str | None = None) -> None:
    """Within the form's bounds; `hard` names the bound of a hard kind of logits, for entropy and logsumexp."""
    assert torch.equal(found.top_ids, expected.top_ids)
    bounds = bounds_of(operator)
    for name in ("entropy_bits", "logsumexp", "top_logits", "option_logits"):
        relative = bounds[hard if hard is not None and name in ("entropy_bits", "logsumexp") else name].relative
        mine, right = vars(found)[name], vars(expected)[name]
        torch.testing.assert_close(mine, right, rtol=relative, atol=bounds[name].absolute, equal_nan=True)


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Rows of attention within the form's bounds."""
    bound = bounds_of("attention_row")["row"]
    torch.testing.assert_close(found, expected, rtol=bound.relative, atol=bound.absolute, equal_nan=True)


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
        same(found, expected, hard="common offset" if asked.get("bias") == "shifted" else None)


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
        same(found, expected, hard="rounded logits")


@inside
@pytest.mark.parametrize("way", ["fused", "chunked"])
@pytest.mark.parametrize("scale", [-1.5, 0.0, 1.0, 2.0])
def test_excluded_columns_stay_out(way: str, scale: float) -> None:
    """A negative scale would turn an excluded column's minus infinity into plus infinity, one of 0 into NaN."""
    from precollapse.kernels import vocab_stats
    from precollapse.kernels.triton_forms import vocab

    torch.manual_seed(0)
    hidden, weight = torch.randn(2, 16), torch.randn(70, 16) / 4
    bias = torch.randn(70).masked_fill(torch.arange(70) % 3 == 0, -math.inf)
    options = [[0, 1], [2]]
    ids = torch.tensor([[[0], [1], [2]]] * 2)
    for softcap in (None, 4.0):
        expected = vocab_stats(hidden, weight, bias, softcap, scale, options, 5, backend="reference")
        arguments = VocabArguments(hidden, weight, bias, softcap, scale, ids, 5)
        entropy, lse, top, top_ids, picked = vocab.vocab_stats(arguments, way)
        bound = bounds_of("vocab_stats")["entropy_bits"]
        torch.testing.assert_close(entropy, expected.entropy_bits, rtol=bound.relative, atol=0)
        assert torch.equal(top_ids, expected.top_ids) and picked[:, 0].eq(-math.inf).all()


@inside
def test_the_chunked_way_is_the_same() -> None:
    from precollapse.kernels.triton_forms import vocab

    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(3, 16), torch.randn(700, 16), torch.randn(700)
    vocab.CHUNK = 256
    arguments = VocabArguments(hidden, weight, bias, option_ids=torch.tensor([[[3], [5]]] * 3), top_k=2)
    ways = [vocab.vocab_stats(arguments, way) for way in ("fused", "chunked")]
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
        same(found, expected, "logits_stats")
        one, two = (
            logits_stats(torch.tensor([[2.0]]), top_k=1, backend=backend) for backend in ("triton", "reference")
        )
    same(one, two, "logits_stats")
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
        near(found, expected)


def spread(x: torch.Tensor) -> torch.Tensor:
    """The same values with strides that none of them has by default, among others that must not be read."""
    wide = torch.full([2 * size + 1 for size in x.shape], 3, dtype=x.dtype)
    view = wide[tuple(slice(1, None, 2) for _ in x.shape)]
    view.copy_(x)
    return view


@inside
def test_attention_row_of_strided_input() -> None:
    """Every argument with holes, in reverse order of axes, or one value expanded over the batch or the heads."""
    from precollapse.kernels import attention_row

    torch.manual_seed(0)
    query, key, sinks = torch.randn(3, 6, 5, 24), torch.randn(3, 2, 9, 24), torch.randn(6)
    index, kept, added = torch.tensor([4, 1, 3]), torch.rand(3, 9) < 0.8, torch.randn(3, 6, 5, 9)
    cases: list[dict[str, Any]] = [
        {"index": spread(index), "sinks": spread(sinks), "mask": spread(kept)},
        {"index": index[:1].expand(3), "sinks": sinks[:1].expand(6), "mask": spread(added)},
        {"index": index.flip(0), "sinks": sinks.flip(0), "mask": kept.T.contiguous().T},
        {"sinks": sinks, "mask": added.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)},
        {"mask": kept[:1].expand(3, 9)},
        {"mask": added[:, :, :, :1].expand(3, 6, 5, 9)},
    ]
    swapped = query.transpose(1, 2).contiguous().transpose(1, 2)
    given = ((query, key), (spread(query), spread(key)), (swapped, key))
    for case, asked in enumerate(cases):
        expected = attention_row(query, key, backend="reference", **asked)
        found = attention_row(*given[case % 3], backend="triton", **asked)
        near(found, expected)


@inside
def test_attention_row_of_more_sequences_than_a_grid_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from precollapse.kernels import attention_row
    from precollapse.kernels.triton_forms import attention

    torch.manual_seed(0)
    query, key, index = torch.randn(7, 4, 3, 16), torch.randn(7, 2, 9, 16), torch.tensor([2, 0, 1, 2, 1, 0, 2])
    monkeypatch.setattr(attention, "GRID_END", 3)
    for mask in (None, torch.rand(7, 9) < 0.8, torch.randn(1, 1, 3, 9), torch.randn(7, 4, 3, 9)):
        found = attention_row(query, key, index, mask=mask, backend="triton")
        near(found, attention_row(query, key, index, mask=mask, backend="reference"))


def far(x: torch.Tensor) -> torch.Tensor:
    """The same values, the first axis so far apart, in memory never touched, that 32-bit offsets wrap."""
    apart = 2**31 // (len(x) - 1) + 999
    try:
        memory = torch.empty(apart * (len(x) - 1) + x[0].numel(), dtype=x.dtype)
    except RuntimeError as error:
        pytest.skip(f"the system gives no 8 GB of untouched memory: {error}")
    view = memory.as_strided(x.shape, (apart, *x[0].contiguous().stride()))
    view.copy_(x)
    return view


@inside
@pytest.mark.filterwarnings("error:overflow encountered:RuntimeWarning")
def test_offsets_past_32_bits() -> None:
    from precollapse.kernels import attention_row, gather_rows, logits_stats, vocab_stats

    torch.manual_seed(0)
    hidden, weight, logits = torch.randn(4, 16).half(), torch.randn(35, 16).half(), torch.randn(4, 70).half()
    for rows, table in ((far(hidden), weight), (hidden, far(weight))):
        found, expected = (
            vocab_stats(*given, top_k=2, option_ids=[34], backend=form)
            for given, form in (((rows, table), "triton"), ((hidden, weight), "reference"))
        )
        same(found, expected)
    found, expected = (
        logits_stats(z, top_k=2, backend=form) for z, form in ((far(logits), "triton"), (logits, "reference"))
    )
    same(found, expected, "logits_stats")
    x, index = torch.randn(4, 3, 8).half(), torch.tensor([2, 0, 1, 2])
    for rows in (far(x), far(x.transpose(0, 1).contiguous()).transpose(0, 1)):
        out = far(torch.zeros(4, 2, 8).half())
        gather_rows(rows, index, out, 1, backend="triton")
        assert torch.equal(out[:, 1], x[torch.arange(4), index]) and out[:, 0].eq(0).all()
    query, key, mask = torch.randn(4, 2, 3, 16).half(), torch.randn(4, 2, 5, 16).half(), torch.rand(4, 1, 3, 5) < 0.8
    mask[..., 0] = True
    wide = (far(query), far(key.transpose(0, 2).contiguous()).transpose(0, 2))
    found = attention_row(*wide, index, mask=far(mask), backend="triton")
    expected = attention_row(query, key, index, mask=mask, backend="reference")
    near(found, expected)


@inside
@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_gather_rows(source: torch.dtype, target: torch.dtype) -> None:
    from precollapse.kernels import gather_rows

    x, index = torch.randn(3, 5, 70).to(source), torch.tensor([0, 4, 2])
    for given in (index, spread(index), index[1:2].expand(3)):
        for rows in (x, spread(x), x.transpose(0, 1).contiguous().transpose(0, 1)):
            found, expected = (spread(torch.zeros(3, 2, 70).to(target)) for _ in range(2))
            gather_rows(rows, given, found, 1, backend="triton")
            gather_rows(rows, given, expected, 1)
            # The interpreter cuts bits off where a GPU rounds to the nearest bfloat16.
            cut = 2.0**-7 if target == torch.bfloat16 != source else 0.0
            torch.testing.assert_close(found, expected, rtol=cut, atol=0)


@inside
def test_one_of_everything() -> None:
    """Sizes of 1, which on a GPU are compiled in as constants."""
    from precollapse.kernels import attention_row, gather_rows, vocab_stats

    out = torch.zeros(1, 1, 1)
    gather_rows(torch.full((1, 1, 1), 5.0), torch.tensor([0]), out, 0, backend="triton")
    assert out.item() == 5.0
    assert attention_row(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1), backend="triton").item() == 1.0
    found, expected = (
        vocab_stats(torch.ones(1, 1), torch.ones(1, 1), top_k=1, option_ids=[0], backend=form)
        for form in ("triton", "reference")
    )
    same(found, expected)


@inside
def test_moments_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments whose products come from the Triton form, as on a GPU."""
    import numpy as np

    from precollapse.kernels import Moments
    from precollapse.kernels.moment_sums import MOMENTS
    from precollapse.kernels.triton_forms import moments as triton_moments

    used = []
    plain = triton_moments.add_product
    monkeypatch.setattr(triton_moments, "add_product", lambda x, m2: (used.append(len(x)), plain(x, m2)))
    monkeypatch.setattr(MOMENTS, "choose", lambda *_: MOMENTS.forms["triton"])
    torch.manual_seed(0)
    for dtype in DTYPES:
        x = (torch.randn(320, 2, 40) * torch.linspace(0.1, 3, 40) + 20).to(dtype)
        moments = Moments(2, 40)
        for part in x.split([100, 170, 50]):
            moments.update(part)
        for layer in range(2):
            expected = np.cov(x[:, layer].double().numpy(), rowvar=False)
            difference = np.linalg.norm(moments.covariance(layer).numpy() - expected)
            assert difference < bounds_of("Moments")["covariance"].relative * np.linalg.norm(expected)
    assert sum(used) >= 3 * 2 * 320


@inside
def test_default_dtype() -> None:
    from precollapse.kernels import attention_row, logits_stats, vocab_stats

    torch.manual_seed(0)
    hidden, weight, query, key = (
        torch.randn(2, 16),
        torch.randn(90, 16),
        torch.randn(1, 2, 1, 16),
        torch.randn(1, 2, 5, 16),
    )

    def measured() -> list[torch.Tensor]:
        asked: dict[str, Any] = {"top_k": 2, "option_ids": [1], "backend": "triton"}
        stats = (
            vocab_stats(hidden, weight, **asked),
            logits_stats(weight.T[:2], **asked),
            vocab_stats(hidden, weight, backend="triton"),
        )
        values = [value for found in stats for value in vars(found).values()]
        return [*values, attention_row(query, key, backend="triton")]

    expected = measured()
    for default in (torch.float64, torch.bfloat16):
        torch.set_default_dtype(default)
        try:
            found = measured()
        finally:
            torch.set_default_dtype(torch.float32)
        for mine, right in zip(found, expected, strict=True):
            assert mine.dtype == right.dtype and torch.equal(mine, right)


@inside
def test_product_of_moments() -> None:
    from precollapse.kernels.triton_forms.moments import add_product

    torch.manual_seed(0)
    x, m2 = torch.randn(50, 70), torch.ones(70, 70, dtype=torch.float64)
    add_product(x, m2)
    expected = x.double().T @ x.double() + 1
    assert (m2 - expected).triu().norm() < 1e-6 * expected.norm()
