"""What a program sets globally for its own tensors must not change what the operators return.

torch has a default dtype, a default device, a precision of float32 products and an autocast; each of them reaches into
functions that do not say otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from precollapse.kernels import Moments, attention_row, gather_rows, logits_stats, native, vocab_stats

DTYPES = (torch.float32, torch.bfloat16)
FORMS = ("reference", "torch", *(("cpu",) if native.forms() else ()))
random = torch.Generator().manual_seed(0)
HIDDEN, WEIGHT, BIAS = (torch.randn(*size, generator=random) for size in ((5, 40), (600, 40), (600,)))
LOGITS = HIDDEN @ WEIGHT.T
QUERY, KEY = torch.randn(2, 4, 3, 16, generator=random), torch.randn(2, 2, 7, 16, generator=random)
STATES, SINKS = torch.randn(70, 2, 20, generator=random) + 5, torch.randn(4, generator=random)


def of_vocab(form: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    asked = {"softcap": 4.0, "scale": 1.5, "option_ids": [[1, 2], [3]], "top_k": 4, "backend": form}
    stats = vocab_stats(HIDDEN.to(dtype), WEIGHT.to(dtype), BIAS, **asked)  # type: ignore[arg-type]
    plain = vocab_stats(HIDDEN.to(dtype), WEIGHT.to(dtype), backend=form)
    return (*vars(stats).values(), *vars(plain).values())


def of_logits(form: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (
        *vars(logits_stats(LOGITS.to(dtype), option_ids=[[1, 2], [3]], top_k=4, backend=form)).values(),
        *vars(logits_stats(WEIGHT[:3].to(dtype), backend=form)).values(),
    )


def of_attention(form: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    if form == "cpu":
        return (attention_row(QUERY.to(dtype), KEY.to(dtype)),)
    return (attention_row(QUERY.to(dtype), KEY.to(dtype), softcap=3.0, sinks=SINKS, window=5, backend=form),)


def of_gather(form: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    out = torch.zeros(2, 2, 16, dtype=dtype, device="cpu")
    gather_rows(QUERY[:, 0], torch.tensor([2, 0], device="cpu"), out, 1)
    return (out,)


def of_moments(form: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    moments = Moments(2, 20, "cpu").update(STATES[:30].to(dtype)).update(STATES[30:].to(dtype))
    moments._fold()
    merged = Moments(2, 20, "cpu").merge(moments)
    merged.update(STATES[:5].to(dtype))
    again = Moments.from_bytes(merged.to_bytes(), "cpu")
    return again.mean, again.covariance(1), again.trace(), again.participation_ratio(True)


OPERATORS: dict[str, Callable[[str, torch.dtype], tuple[Tensor, ...]]] = {
    "vocab_stats": of_vocab,
    "logits_stats": of_logits,
    "attention_row": of_attention,
    "gather_rows": of_gather,
    "Moments": of_moments,
}


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_float32_matmul_precision("highest")


@pytest.fixture(params=[False, True], ids=["compiled", "torch only"])
def uncompiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Moments` has no backend argument: its torch form is reached where nothing was built."""
    if request.param:
        monkeypatch.setattr(native, "load", lambda: None)


def equal(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for mine, right in zip(found, expected, strict=True):
        assert mine.dtype == right.dtype and mine.device == right.device
        assert torch.equal(mine.nan_to_num(7.0), right.nan_to_num(7.0))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.usefixtures("uncompiled")
def test_default_dtype_and_device(operator: str, form: str, dtype: torch.dtype) -> None:
    if form == "cpu" and native.load() is None:
        pytest.skip("the case without the C++ forms")
    measure = OPERATORS[operator]
    expected = measure(form, dtype)
    for default in (torch.float64, torch.bfloat16, torch.float16):
        torch.set_default_dtype(default)
        equal(measure(form, dtype), expected)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device("meta")
    equal(measure(form, dtype), expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.usefixtures("uncompiled")
def test_autocast(operator: str, form: str, dtype: torch.dtype) -> None:
    """Autocast would form every product of the torch forms in bfloat16."""
    if form == "cpu" and native.load() is None:
        pytest.skip("the case without the C++ forms")
    expected = OPERATORS[operator](form, dtype)
    for low in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=low):
            equal(OPERATORS[operator](form, dtype), expected)


def error(stats: Tensor, expected: Tensor) -> float:
    return ((stats - expected).abs() / expected.abs()).max().item()


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_float32_products_keep_their_precision(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where float32 products may be rounded to fewer bits, the torch forms form them in float64, which is left alone.

    A CPU need not have rounded products; that they are not used shows in errors far under those of float32 sums.
    """
    hidden, weight = torch.randn(4, 1536, generator=random), torch.randn(300, 1536, generator=random) * 0.3
    query, key = torch.randn(1, 2, 1, 1024, generator=random), torch.randn(1, 2, 50, 1024, generator=random)
    states = torch.randn(600, 1, 30, generator=random, dtype=torch.float64).float()
    torch.set_float32_matmul_precision(precision)
    found = vocab_stats(hidden, weight, top_k=3, option_ids=[5], backend="torch")
    expected = vocab_stats(hidden, weight, top_k=3, option_ids=[5], backend="reference")
    assert error(found.entropy_bits, expected.entropy_bits) < 1e-9
    assert torch.equal(found.top_logits, expected.top_logits)
    assert torch.equal(found.option_logits, expected.option_logits)
    rows = [attention_row(query, key, backend=form) for form in ("torch", "reference")]
    assert torch.equal(*rows)
    monkeypatch.setattr(native, "load", lambda: None)
    covariance = Moments(1, 30).update(states).covariance(0)
    assert error(covariance, torch.cov(states[:, 0].double().T)) < 1e-9
    assert torch.get_float32_matmul_precision() == precision


def test_settings_of_other_threads_are_left_alone() -> None:
    """Nothing global is changed and set back: another thread would see it."""
    torch.set_float32_matmul_precision("high")
    seen, stop = set(), threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.add((torch.get_float32_matmul_precision(), torch.get_default_dtype()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(20):
        of_vocab("torch", torch.float32)
        of_attention("torch", torch.float32)
    stop.set()
    watcher.join()
    assert seen == {("high", torch.float32)}
