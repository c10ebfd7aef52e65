"""Every registered form keeps the bounds that it states, and the chooser takes the form that one expects.

A form that is registered is tested here by itself, on every dtype that it is made for: nothing needs to be added. Under
TRITON_INTERPRET=1 (the tests of the interpreter run this file, too) the Triton forms are among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from precollapse.kernels import Moments, attention_row, gather_rows, logits_stats, native, registry, vocab_stats
from precollapse.kernels.moment_sums import MOMENTS
from precollapse.kernels.registry import OPERATORS, Needs, Operator, Tolerance

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
Results = Mapping[str, Tensor]
PUBLIC = {"Moments", "attention_row", "gather_rows", "logits_stats", "vocab_stats"}


def of_logits(z: Tensor, stats: object) -> tuple[Results, Results]:
    """What was found of logits z and what torch's own float64 functions say."""
    z = z.double()
    entropy = torch.distributions.Categorical(logits=z).entropy() / math.log(2)
    options = torch.stack([z[:, 1:3].logsumexp(1), z[:, 5]], 1)
    expected = {"entropy_bits": entropy, "logsumexp": z.logsumexp(1), "top_logits": z.topk(4).values}
    return vars(stats), {**expected, "option_logits": options}


def sample_vocab(form: str, dtype: torch.dtype) -> tuple[Results, Results]:
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(3, 33).to(dtype), (torch.randn(97, 33) / 6).to(dtype), torch.randn(97)
    z = 2.0 * (hidden.double() @ weight.double().T + bias)
    z = 5.0 * torch.tanh(z / 5.0)
    return of_logits(z, vocab_stats(hidden, weight, bias, 5.0, 2.0, [[1, 2], [5]], 4, backend=form))


def sample_logits(form: str, dtype: torch.dtype) -> tuple[Results, Results]:
    torch.manual_seed(0)
    z = (torch.randn(3, 700) * 3).to(dtype)
    return of_logits(z, logits_stats(z, [[1, 2], [5]], 4, backend=form))


def sample_attention(form: str, dtype: torch.dtype) -> tuple[Results, Results]:
    torch.manual_seed(0)
    query, key, sinks = torch.randn(2, 6, 5, 24).to(dtype), torch.randn(2, 2, 9, 24).to(dtype), torch.randn(6)
    scores = (query[:, :, -1:].double() @ key.double().repeat_interleave(3, 1).mT / math.sqrt(24))[:, :, 0]
    rows = torch.cat([scores, sinks.double()[None, :, None].expand(2, 6, 1)], 2).softmax(2)[..., :-1]
    return {"row": attention_row(query, key, sinks=sinks, backend=form)}, {"row": rows}


def sample_gather(form: str, dtype: torch.dtype) -> tuple[Results, Results]:
    torch.manual_seed(0)
    x, index, out = torch.randn(3, 5, 70).to(dtype), torch.tensor([0, 4, 2]), torch.zeros(3, 2, 70).to(dtype)
    gather_rows(x, index, out, 1, backend=form)
    return {"rows": out[:, 1]}, {"rows": x[torch.arange(3), index]}


def sample_moments(form: str, dtype: torch.dtype) -> tuple[Results, Results]:
    torch.manual_seed(0)
    x = (torch.randn(320, 2, 40, dtype=torch.float64) * torch.linspace(0.1, 3, 40) + 20).to(dtype)
    moments = Moments(2, 40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MOMENTS, "choose", lambda *_: MOMENTS.forms[form])
        for part in x.split([100, 170, 50]):
            moments.update(part)
        covariance = moments.covariance(1)
    return (
        {"mean": moments.mean, "covariance": covariance},
        {"mean": x.double().mean(0), "covariance": torch.cov(x[:, 1].double().T)},
    )


SAMPLES: dict[str, Callable[[str, torch.dtype], tuple[Results, Results]]] = {
    "vocab_stats": sample_vocab,
    "logits_stats": sample_logits,
    "attention_row": sample_attention,
    "gather_rows": sample_gather,
    "Moments": sample_moments,
}
HERE = [
    (operator.name, form.name, dtype)
    for operator in OPERATORS.values()
    for form in operator.forms.values()
    if not form.needs.refusal(CPU)
    for dtype in form.accuracy
]


@pytest.mark.parametrize(("name", "form", "dtype"), HERE, ids=lambda value: str(value).removeprefix("torch."))
def test_bounds_are_kept(name: str, form: str, dtype: torch.dtype) -> None:
    found, expected = SAMPLES[name](form, dtype)
    bounds = OPERATORS[name].forms[form].accuracy[dtype]
    for result, right in expected.items():
        bound, right = bounds[result], right.double()
        difference = (found[result].double() - right).abs()
        if result == "covariance":  # bounded as a whole
            assert difference.norm() <= bound.relative * right.norm()
        else:
            assert (difference <= bound.relative * right.abs() + bound.absolute).all(), (result, difference.max())


def test_every_operator_is_registered_and_sampled() -> None:
    assert set(OPERATORS) == set(SAMPLES) == PUBLIC
    assert native.forms() == () or ("vocab_stats", "cpu", torch.float32) in HERE


@pytest.mark.parametrize("name", OPERATORS)
def test_a_form_states_what_it_takes(name: str) -> None:
    """Bounds only for dtypes that it takes; no two of a rank that could both be taken on one device."""
    forms = list(OPERATORS[name].forms.values())
    for form in forms:
        assert form.accuracy and set(form.accuracy) <= set(form.dtypes)
        assert len({frozenset(bounds) for bounds in form.accuracy.values()}) == 1, "the same results for every dtype"
    places = [(form.rank, device) for form in forms for device in form.needs.devices or ("cpu", "cuda")]
    assert len(places) == len(set(places))


CHOICES = {
    "vocab_stats": {"cpu": "cpu", "cuda": "triton", "meta": "torch", "double": "reference", "neither": "torch"},
    "logits_stats": {"cpu": "cpu", "cuda": "triton", "meta": "torch", "double": "reference", "neither": "torch"},
    "attention_row": {"cpu": "torch", "cuda": "triton", "meta": "torch", "double": "reference", "neither": "torch"},
    "gather_rows": {"cpu": "torch", "cuda": "triton", "meta": "torch", "double": "torch", "neither": "torch"},
    "Moments": {"cpu": "cpu", "cuda": "triton", "meta": "torch", "double": "reference", "neither": "torch"},
}


@pytest.mark.parametrize("name", CHOICES)
def test_what_auto_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By device and dtype where everything is installed, and without the library and triton."""
    choose, expected = OPERATORS[name].choose, CHOICES[name]
    monkeypatch.setattr(native, "load", lambda: object())
    monkeypatch.setattr(registry, "has_triton", lambda: True)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for device in ("cpu", "cuda", "meta"):
            assert choose("auto", torch.device(device), dtype).name == expected[device]
    assert choose("auto", CPU, torch.float64).name == expected["double"]
    monkeypatch.setattr(native, "load", lambda: None)
    monkeypatch.setattr(registry, "has_triton", lambda: False)
    for place in (CPU, CUDA):
        assert choose("auto", place, torch.float32).name == expected["neither"]


def test_a_form_of_a_higher_rank_is_taken_where_it_runs() -> None:
    operator = Operator("sample")
    del OPERATORS["sample"]
    bounds = {torch.float32: {"result": Tolerance(0.0)}}
    wide = Needs(("cpu",), lambda device: "" if device.type == "cpu" else ", but its library is not there.")
    operator.form("plain", rank=0, accuracy={**bounds, torch.float16: bounds[torch.float32]})(lambda: "plain")
    operator.form("fast", rank=1, accuracy=bounds, needs=wide, dtypes=(torch.float32,))(lambda: "fast")
    assert operator.choose("auto", CPU, torch.float32).run() == "fast"
    assert operator.choose("auto", CPU, torch.float16).run() == "plain"
    assert operator.choose("auto", CUDA, torch.float32).run() == "plain"
    assert operator.choose("plain", CPU, torch.float64).name == "plain"  # by name it may be given all that it takes
    for backend, device, dtype, message in (
        ("slow", CPU, torch.float32, r"sample: backend='slow' is not one of \('auto', 'plain', 'fast'\)\."),
        ("fast", CUDA, torch.float32, "sample: backend='fast' was asked for, but its library is not there"),
        ("fast", CPU, torch.float16, "sample: backend='fast' has no float16 form; use 'reference' or 'auto'"),
        ("auto", CPU, torch.float64, "sample: no form is made for torch.float64 on cpu"),
    ):
        with pytest.raises(ValueError, match=message):
            operator.choose(backend, device, dtype)


def test_forms_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    choose = OPERATORS["vocab_stats"].choose
    with pytest.raises(ValueError, match="backend='cpu' was asked for tensors on cuda; use 'auto', or move them"):
        choose("cpu", CUDA, torch.float32)
    monkeypatch.setattr(registry, "has_triton", lambda: True)
    with pytest.raises(ValueError, match="backend='triton' was asked for tensors on the CPU; use 'auto', or move"):
        choose("triton", CPU, torch.float32)
    monkeypatch.setattr(registry, "has_triton", lambda: False)
    with pytest.raises(ValueError, match="backend='triton' was asked for, but triton is not installed: pip install"):
        choose("triton", CUDA, torch.float32)
