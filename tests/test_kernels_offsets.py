"""Tensors that reach past 2^31 elements: an offset of 32 bits would wrap and read, or write, somewhere else.

The rows lie far apart in memory that is asked for and never touched between them, so the tensors cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from precollapse.kernels import Moments, attention_row, gather_rows, logits_stats, native, vocab_stats

FAR = 60_000_000  # elements from one row to the next: the 36th begins past 2^31
FORMS = ("reference", "torch", *(("cpu",) if native.forms() else ()))


def far(x: Tensor) -> Tensor:
    """The same values, the first axis FAR elements apart."""
    try:
        memory = torch.empty(FAR * (len(x) - 1) + x[0].numel(), dtype=x.dtype)
    except RuntimeError as error:
        pytest.skip(f"the system gives no {2 * FAR * len(x) >> 30} GB of untouched memory: {error}")
    inner = x[0].contiguous().stride()
    view = memory.as_strided(x.shape, (FAR, *inner))
    assert (len(x) - 1) * FAR > 2**31
    view.copy_(x)
    return view


@pytest.mark.parametrize("form", FORMS)
def test_vocab_stats(form: str) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(40, 33).bfloat16(), torch.randn(50, 33).bfloat16() / 4
    plain = vocab_stats(hidden, weight, top_k=3, option_ids=[[49, 3], [48]], backend=form)
    for given in ((far(hidden), weight), (hidden, far(weight))):
        found = vocab_stats(*given, top_k=3, option_ids=[[49, 3], [48]], backend=form)
        for mine, expected in zip(vars(found).values(), vars(plain).values(), strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_logits_stats(form: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, 700).bfloat16()
    plain = logits_stats(logits, top_k=3, option_ids=[[49, 3], [48]], backend=form)
    found = logits_stats(far(logits), top_k=3, option_ids=[[49, 3], [48]], backend=form)
    for mine, expected in zip(vars(found).values(), vars(plain).values(), strict=True):
        assert torch.equal(mine, expected)


def test_the_others() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 3, 8).bfloat16()
    index, out = torch.randint(0, 3, (40,)), far(torch.zeros(40, 2, 8).bfloat16())
    gather_rows(far(x), index, out, 1)
    assert torch.equal(out[:, 1], x[torch.arange(40), index]) and out[:, 0].eq(0).all()
    query, key = torch.randn(40, 2, 1, 8).bfloat16(), torch.randn(40, 2, 5, 8).bfloat16()
    assert torch.equal(attention_row(far(query), far(key)), attention_row(query, key))
    moments, expected = Moments(3, 8), Moments(3, 8)
    moments.update(far(x))
    expected.update(x)
    for state in (moments, expected):
        state._fold()
    assert torch.equal(moments.covariance(2), expected.covariance(2)) and torch.equal(moments.mean, expected.mean)


class Launches:
    """Stands for a Triton kernel and keeps the grids that it was launched with."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        self.grids.append(grid)
        return lambda *arguments, **constants: None


def test_grids_end_where_a_gpu_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first axis of a grid may have more than 65535 programs: five million keys, a million columns asked for."""
    pytest.importorskip("triton")
    from precollapse.kernels.attention_arguments import AttentionArguments
    from precollapse.kernels.triton_forms import attention, vocab
    from precollapse.kernels.vocab_arguments import VocabArguments

    launches = Launches()
    for module, name in (
        (attention, "scores_kernel"),
        (attention, "softmax_kernel"),
        (vocab, "picked_kernel"),
    ):
        monkeypatch.setattr(module, name, launches)
    key = torch.zeros(1, 1, 1, 16).expand(1, 1, 5_000_000, 16)
    attention.attention_row(AttentionArguments(torch.zeros(1, 2, 1, 16), key, None, None, 1.0, None, None, None))
    hidden, weight, ids = torch.zeros(2, 8), torch.zeros(9, 8), torch.zeros(2, 1 << 20, dtype=torch.int64)
    vocab.picked_logits(hidden, weight, vocab.Transform(VocabArguments(hidden, weight)), ids)
    assert len(launches.grids) == 3
    for grid in launches.grids:
        assert grid[0] < 2**31 and all(size <= 65535 for size in grid[1:])
