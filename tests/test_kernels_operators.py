"""Rows of attention, gathered rows, and all operators as torch.library sees them; what is refused, and how."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from precollapse.kernels import attention_row, gather_rows, logits_stats, native, vocab_stats
from precollapse.kernels.registry import OPERATORS

B, H, G, T, D = 3, 6, 2, 9, 16
BOUND = OPERATORS["attention_row"].forms["torch"].accuracy[torch.float32]["row"]
ROW = {"rtol": BOUND.relative, "atol": BOUND.absolute}


def attention_inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(B, H, T, D), torch.randn(B, G, T, D)


def sdpa_row(query: Tensor, key: Tensor, index: Tensor, **asked: Any) -> Tensor:
    """The weights that torch's attention applied: attend to the identity as values."""
    values = torch.eye(T).expand(B, G, T, T)
    out = torch.nn.functional.scaled_dot_product_attention(query, key, values, enable_gqa=True, **asked)
    return out[torch.arange(len(index)), :, index]


@pytest.mark.parametrize("backend", ["reference", "torch", "auto"])
def test_attention_row_is_what_sdpa_applies(backend: str) -> None:
    query, key = attention_inputs()
    index = torch.tensor([8, 4, 0])
    row = attention_row(query, key, index, backend=backend)
    torch.testing.assert_close(row, sdpa_row(query, key, index, is_causal=True), **ROW)
    assert row.dtype == torch.float32 and row.shape == (B, H, T)
    torch.testing.assert_close(row.sum(-1), torch.ones(B, H))
    last = attention_row(query, key, scale=0.5, backend=backend)
    expected = sdpa_row(query, key, torch.full((B,), T - 1), is_causal=True, scale=0.5)
    torch.testing.assert_close(last, expected, **ROW)
    torch.testing.assert_close(attention_row(query[:, :, -1:], key, scale=0.5, backend=backend), last)


def test_attention_masks() -> None:
    query, key = attention_inputs()
    index = torch.tensor([8, 7, 6])
    causal = torch.ones(T, T).tril().bool()
    padded = torch.ones(B, T).bool()
    padded[1, :3], padded[2, 7:] = False, False
    full = causal & padded[:, None, None, :]
    expected = sdpa_row(query, key, index, attn_mask=full)
    for mask in (padded, full, torch.zeros(full.shape).masked_fill(~full, -math.inf)):
        torch.testing.assert_close(attention_row(query, key, index, mask=mask), expected, **ROW)
    finite = torch.zeros(full.shape).masked_fill(~full, torch.finfo(torch.float32).min)
    torch.testing.assert_close(attention_row(query, key, index, mask=finite), expected, **ROW)
    window = causal & ~causal.tril(-4)
    banded = sdpa_row(query, key, index, attn_mask=window.expand(B, 1, T, T))
    torch.testing.assert_close(attention_row(query, key, index, window=4), banded, **ROW)
    whole = torch.ones(1, 1, T, T).bool()
    both_ways = sdpa_row(query, key, index, attn_mask=whole)
    torch.testing.assert_close(attention_row(query, key, index, mask=whole), both_ways, **ROW)


def test_attention_sinks_and_softcap() -> None:
    """Written out as the models' slow attention does it."""
    query, key = attention_inputs()
    sinks = torch.randn(H)
    scores = query[:, :, -1:] @ key.repeat_interleave(H // G, 1).transpose(2, 3) / math.sqrt(D)
    scores = 2.0 * torch.tanh(scores / 2.0)
    joined = torch.cat([scores, sinks.view(1, H, 1, 1).expand(B, H, 1, 1)], -1).softmax(-1)
    row = attention_row(query, key, softcap=2.0, sinks=sinks)
    torch.testing.assert_close(row, joined[:, :, 0, :-1], **ROW)
    assert (row.sum(-1) < 1).all()


def test_attention_rows_that_see_nothing_are_nan() -> None:
    query, key = attention_inputs()
    nothing = torch.zeros(B, T).bool()
    assert attention_row(query, key, mask=nothing).isnan().all()
    assert attention_row(query, key, mask=nothing, sinks=torch.zeros(H)).isnan().all()


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("target", [torch.float32, torch.float16, torch.bfloat16])
def test_gather_rows(source: torch.dtype, target: torch.dtype) -> None:
    x = torch.randn(4, 7, 10).to(source)
    out = torch.full((4, 3, 10), 7.0).to(target)
    index = torch.tensor([6, 0, 3, 3])
    assert gather_rows(x, index, out, 1) is None
    for b in range(4):
        assert torch.equal(out[b, 1], x[b, index[b]].to(target))
    assert out[:, [0, 2]].eq(7).all()
    gather_rows(x.transpose(0, 1).contiguous().transpose(0, 1), index, out, 2)
    assert torch.equal(out[:, 2], out[:, 1])


class Hooked(torch.nn.Module):
    """Blocks with a tap behind each, as a capture puts it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.relu(block(x))
        return x


def test_gather_rows_in_hooks_under_compile() -> None:
    model, out, index = Hooked(), torch.zeros(2, 3, 8), torch.tensor([1, 4])
    for layer, block in enumerate(model.blocks):

        def tap(module: torch.nn.Module, args: object, value: Tensor, layer: int = layer) -> None:
            gather_rows(value, index, out, layer)

        block.register_forward_hook(tap)
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        model(x)
        expected = out.clone()
        for again in (x, torch.randn(2, 5, 8)):
            model(again)
            expected = out.clone()
            out.zero_()
            torch.compile(model, fullgraph=True, backend="aot_eager")(again)
            torch.testing.assert_close(out, expected)


def test_statistics_under_compile() -> None:
    hidden, weight = torch.randn(3, 8), torch.randn(40, 8)
    query, key = attention_inputs()

    def measured(h: Tensor) -> tuple[Tensor, ...]:
        stats = vocab_stats(h * 2, weight, top_k=2, option_ids=[1, 2])
        return stats.entropy_bits, stats.option_logits, logits_stats(h).logsumexp, attention_row(query, key)

    found = torch.compile(measured, fullgraph=True, backend="aot_eager")(hidden)
    for mine, expected in zip(found, measured(hidden), strict=True):
        torch.testing.assert_close(mine, expected)


query, key = attention_inputs()
SAMPLES: dict[str, list[tuple[Any, ...]]] = {
    "vocab_stats": [
        (torch.randn(3, 8), torch.randn(30, 8), None, None, 1.0, None, 0, None, form)
        for form in ("reference", "torch", "cpu")
    ]
    + [(torch.randn(2, 8), torch.randn(9, 8), torch.randn(9), 3.0, 2.0, torch.ones(2, 2, 1).long(), 4, None, "cpu")],
    "logits_stats": [(torch.randn(3, 30), torch.ones(3, 1, 2).long(), 2, form) for form in ("torch", "cpu")],
    "attention_row": [(query, key, torch.tensor([1, 2, 3]), None, 0.25, 5.0, 3, torch.randn(H), "torch")],
    "gather_rows": [(torch.randn(2, 5, 4), torch.tensor([1, 3]), torch.zeros(2, 3, 4), 1, "torch")],
}


@pytest.mark.parametrize(("name", "which"), [(name, i) for name, calls in SAMPLES.items() for i in range(len(calls))])
def test_opcheck(name: str, which: int) -> None:
    torch.library.opcheck(getattr(torch.ops.precollapse, name).default, SAMPLES[name][which])


def test_no_gradient_is_said() -> None:
    hidden = torch.randn(2, 8, requires_grad=True)
    stats = vocab_stats(hidden, torch.randn(9, 8))
    with pytest.raises(ValueError, match="vocab_stats has no gradient"):
        stats.entropy_bits.sum().backward()
    with pytest.raises(ValueError, match="logits_stats has no gradient"):
        logits_stats(hidden).logsumexp.sum().backward()
    with pytest.raises(ValueError, match="attention_row has no gradient"):
        attention_row(query.clone().requires_grad_(), key).sum().backward()
    with pytest.raises(ValueError, match="out requires a gradient"):
        gather_rows(torch.randn(1, 2, 3), torch.tensor([0]), torch.zeros(1, 1, 3, requires_grad=True), 0)
    gather_rows(hidden[None], torch.tensor([1]), torch.zeros(1, 1, 8), 0)  # reading a leaf is no request


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_open", lambda: "the C++ forms were not built; install a C++ compiler.")
    native.load.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="slower torch forms on the CPU: the C.. forms were not built; install"):
            found = vocab_stats(h, w)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(vocab_stats(h, w).entropy_bits, found.entropy_bits)
        with pytest.raises(ValueError, match="backend='cpu' was asked for, but the C.. forms were not built"):
            vocab_stats(h, w, backend="cpu")
        assert native.forms() == ()
    finally:
        native.load.cache_clear()


@pytest.mark.parametrize("compiled", [False, True])
def test_gather_rows_keeps_its_buffer_out_of_the_graph(compiled: bool) -> None:
    """Hooks of a model that is called without no_grad: the buffer would hold the graph, and be refused at the next layer."""
    x, index, out = torch.randn(2, 5, 8, requires_grad=True), torch.tensor([1, 3]), torch.zeros(2, 3, 8)

    def fill(x: Tensor) -> None:
        for layer in range(3):
            gather_rows(x * (layer + 1), index, out, layer)

    (torch.compile(fill, backend="aot_eager", fullgraph=True) if compiled else fill)(x)
    assert not out.requires_grad
    expected = torch.stack([x.detach()[torch.arange(2), index] * (layer + 1) for layer in range(3)], 1)
    torch.testing.assert_close(out, expected)


def test_attention_of_no_sequences() -> None:
    query, key = attention_inputs()
    assert attention_row(query[:0], key[:0]).shape == (0, H, T)


def test_whole_numbers_may_be_numpys() -> None:
    query, key = attention_inputs()
    assert torch.equal(attention_row(query, key, window=np.int64(4)), attention_row(query, key, window=4))  # type: ignore[arg-type]
    x, index, out = torch.randn(2, 5, 8), torch.tensor([1, 3]), torch.zeros(2, 3, 8)
    gather_rows(x, index, out, np.int64(2))  # type: ignore[arg-type]
    assert torch.equal(out[:, 2], x[torch.arange(2), index])


def test_options_as_numpy_may_hold_them() -> None:
    hidden, weight = torch.randn(2, 8), torch.randn(30, 8)
    expected = vocab_stats(hidden, weight, option_ids=[3, 2, 1, 0], top_k=3)
    for given in (np.arange(4)[::-1], np.array([3, 2, 1, 0], dtype=">i8"), np.array([3, 2, 1, 0], dtype=np.uint8)):
        found = vocab_stats(hidden, weight, option_ids=given, top_k=np.int64(3))  # type: ignore[arg-type]
        assert torch.equal(found.option_logits, expected.option_logits) and torch.equal(found.top_ids, expected.top_ids)


h, w = torch.randn(2, 8), torch.randn(30, 8)
x, ids, out = torch.randn(2, 5, 8), torch.tensor([0, 1]), torch.zeros(2, 3, 8)
meta = torch.randn(30, 8, device="meta")
BAD: list[tuple[type[Exception], str, Callable[[], object]]] = [
    (TypeError, "hidden must be a torch.Tensor, found list", lambda: vocab_stats([1.0], w)),  # type: ignore[arg-type]
    (ValueError, r"hidden must have 2 dimensions, found shape \(8,\)", lambda: vocab_stats(h[0], w)),
    (
        ValueError,
        r"weight has shape \(30, 7\); axis 1 must be 8, the width of hidden",
        lambda: vocab_stats(h, w[:, :7]),
    ),
    (TypeError, "hidden is torch.float32 but weight torch.bfloat16", lambda: vocab_stats(h, w.bfloat16())),
    (TypeError, "weight must be one of .*, found int8", lambda: vocab_stats(h, w.to(torch.int8))),
    (ValueError, "weight is on meta but hidden on cpu", lambda: vocab_stats(h, meta)),
    (ValueError, "weight must hold at least one row", lambda: vocab_stats(h, w[:0])),
    (ValueError, r"bias has shape \(29,\); axis 0 must be 30", lambda: vocab_stats(h, w, torch.zeros(29))),
    (TypeError, "bias must be one of .* found int64", lambda: vocab_stats(h, w, torch.zeros(30).long())),
    (
        ValueError,
        "softcap must be None or a positive finite number that float32 can hold, found -1",
        lambda: vocab_stats(h, w, softcap=-1.0),
    ),
    (
        ValueError,
        "softcap must be None or a positive finite number that float32 can hold, found 0",
        lambda: vocab_stats(h, w, softcap=0.0),
    ),
    (ValueError, "scale must be finite, found inf", lambda: vocab_stats(h, w, scale=math.inf)),
    (ValueError, "top_k must lie between 0 and the vocabulary size 30, found 31", lambda: vocab_stats(h, w, top_k=31)),
    (ValueError, "top_k must lie between 0 and the vocabulary size 30, found -1", lambda: vocab_stats(h, w, top_k=-1)),
    (TypeError, "top_k must be an int, found 2.0", lambda: vocab_stats(h, w, top_k=2.0)),  # type: ignore[arg-type]
    (ValueError, "option_ids holds 30; ids run from 0 to 29", lambda: vocab_stats(h, w, option_ids=[3, 30])),
    (ValueError, "option_ids holds -2; ids run", lambda: logits_stats(h, option_ids=[-2])),
    (ValueError, r"option_ids must be \[K\], \[n, K\]", lambda: vocab_stats(h, w, option_ids=torch.ones(3, 1).long())),
    (TypeError, "option_ids must be int64 or int32, found", lambda: vocab_stats(h, w, option_ids=torch.ones(2, 1))),
    (ValueError, "option_ids is empty", lambda: vocab_stats(h, w, option_ids=[])),
    (
        TypeError,
        "must hold ints or sequences of ints, found float: 1.5",
        lambda: vocab_stats(h, w, option_ids=[1, 1.5]),
    ),  # type: ignore[list-item]
    (TypeError, "must hold ints or sequences of ints, found str: '12'", lambda: vocab_stats(h, w, option_ids=["12"])),  # type: ignore[list-item]
    (
        TypeError,
        "option_ids must hold whole numbers, found float64",
        lambda: vocab_stats(h, w, option_ids=np.ones(2)),
    ),
    (
        TypeError,
        "option_ids must be a tensor, an array or a sequence, found 5",
        lambda: vocab_stats(h, w, option_ids=5),
    ),  # type: ignore[arg-type]
    (ValueError, "option_ids holds 1180591620717411303424, which", lambda: vocab_stats(h, w, option_ids=[2**70])),
    (ValueError, "float32 can hold, found 3.5e.38", lambda: vocab_stats(h, w, softcap=3.5e38)),
    (TypeError, "softcap must be a number, found '30'", lambda: vocab_stats(h, w, softcap="30")),  # type: ignore[arg-type]
    (TypeError, "scale must be a number, found None", lambda: vocab_stats(h, w, scale=None)),  # type: ignore[arg-type]
    (TypeError, "backend must be a string, found None", lambda: vocab_stats(h, w, backend=None)),  # type: ignore[arg-type]
    (TypeError, "weight must be a dense tensor, found sparse_coo", lambda: vocab_stats(h, w.to_sparse())),
    (TypeError, "layer must be an int, found 1.0", lambda: gather_rows(x, ids, out, 1.0)),  # type: ignore[arg-type]
    (TypeError, "window must be an int, found 2.5", lambda: attention_row(query, key, window=2.5)),  # type: ignore[arg-type]
    (ValueError, "query has heads of width 0", lambda: attention_row(query[..., :0], key[..., :0])),
    (ValueError, "logits_dtype must be None", lambda: vocab_stats(h, w, logits_dtype="int8")),
    (ValueError, "backend='gpu' is not one of", lambda: vocab_stats(h, w, backend="gpu")),
    (ValueError, "backend='triton' was asked for", lambda: vocab_stats(h, w, backend="triton")),
    (ValueError, "has no float64 form", lambda: vocab_stats(h.double(), w.double(), backend="cpu")),
    (TypeError, "logits must be one of .* found int64", lambda: logits_stats(torch.ones(2, 3).long())),
    (ValueError, "at least one column", lambda: logits_stats(torch.ones(2, 0))),
    (ValueError, "index holds 5; positions run from 0 to 4", lambda: gather_rows(x, torch.tensor([0, 5]), out, 0)),
    (ValueError, "index holds -1", lambda: gather_rows(x, torch.tensor([-1, 0]), out, 0)),
    (ValueError, r"layer must lie in \[0, 3\)", lambda: gather_rows(x, ids, out, 3)),
    (ValueError, r"out has shape \(2, 3, 7\); axis 2 must be 8", lambda: gather_rows(x, ids, out[:, :, :7], 0)),
    (ValueError, r"index has shape \(1,\); axis 0 must be 2", lambda: gather_rows(x, ids[:1], out, 0)),
    (TypeError, "index must be one of int64, found int32", lambda: gather_rows(x, ids.int(), out, 0)),
    (ValueError, "6 query heads are not a multiple of 4", lambda: attention_row(query, torch.randn(B, 4, T, D))),
    (TypeError, "query is torch.float32 but key torch.float16", lambda: attention_row(query, key.half())),
    (ValueError, "key holds 8 positions", lambda: attention_row(query, key[:, :, :8])),
    (ValueError, "index holds 9; positions", lambda: attention_row(query, key, torch.tensor([0, 9, 1]))),
    (ValueError, "window must be at least 1, found 0", lambda: attention_row(query, key, window=0)),
    (
        ValueError,
        r"mask is torch.bool of shape \(3, 8\)",
        lambda: attention_row(query, key, mask=torch.ones(3, 8).bool()),
    ),
    (ValueError, r"sinks has shape \(2,\); axis 0 must be 6", lambda: attention_row(query, key, sinks=torch.zeros(2))),
]


@pytest.mark.parametrize("case", range(len(BAD)), ids=lambda i: BAD[i][1][:40])
def test_refused(case: int) -> None:
    error, message, call = BAD[case]
    with pytest.raises(error, match=message):
        call()
