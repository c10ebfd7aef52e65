"""Moments against numpy, scikit-dimension, closed forms and simulation."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from precollapse.analysis.dimension import effective_dimensionality
from precollapse.kernels import Moments, moment_sums, native
from precollapse.kernels.moment_sums import MOMENTS, MomentSums


def spread(n: int, layers: int, d: int, seed: int = 0, offset: float = 50.0) -> Tensor:
    """Float64 states whose mean is large beside their spread, as in a residual stream."""
    random = torch.Generator().manual_seed(seed)
    scales = torch.linspace(0.1, 3, d, dtype=torch.float64)
    return torch.randn(n, layers, d, generator=random, dtype=torch.float64) * scales + offset


def filled(x: Tensor, batches: list[int]) -> Moments:
    moments = Moments(x.shape[1], x.shape[2])
    for part in x.split(batches):
        moments.update(part)
    return moments


def exact(x: Tensor) -> list[np.ndarray]:
    return [np.cov(x[:, layer].double().numpy(), rowvar=False) for layer in range(x.shape[1])]


@pytest.mark.parametrize("shape", [(300, 2, 40), (90, 1, 33), (17, 3, 16), (30, 2, 64), (700, 1, 129)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_covariance_is_numpys(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    x = spread(*shape).to(dtype)
    n = len(x)
    moments = filled(x, [1, n // 3, 0, n - 1 - n // 3])
    bounds = MOMENTS.choose("auto", torch.device("cpu"), dtype).accuracy[dtype]
    tolerance, mean = bounds["covariance"].relative, bounds["mean"]
    assert moments.count == n
    torch.testing.assert_close(moments.mean, x.double().mean(0), rtol=mean.relative, atol=mean.absolute)
    for layer, covariance in enumerate(exact(x)):
        error = np.linalg.norm(moments.covariance(layer).numpy() - covariance) / np.linalg.norm(covariance)
        assert error < tolerance
        assert moments.trace()[layer].item() == pytest.approx(np.trace(covariance), rel=tolerance)
        ratio = np.trace(covariance) ** 2 / (covariance**2).sum()
        assert moments.participation_ratio()[layer].item() == pytest.approx(ratio, rel=10 * tolerance)


def everything(moments: Moments) -> Tensor:
    parts = [moments.mean.flatten(), moments.trace(), moments.participation_ratio(), moments.participation_ratio(True)]
    return torch.cat([*parts, *(moments.covariance(layer).flatten() for layer in range(moments.n_layers))])


def test_order_batches_and_merging_do_not_matter() -> None:
    x = spread(900, 2, 24, offset=1e4)
    once = everything(filled(x, [900]))
    shuffled = x[torch.randperm(900, generator=torch.Generator().manual_seed(1))]
    ways = [filled(x, [7] * 128 + [4]), filled(x, [1] * 900), filled(shuffled, [450, 450])]
    merged = Moments(2, 24)
    for part in x.split([3, 400, 20, 477]):
        merged.merge(filled(part, [len(part)]))
    backwards = filled(x[500:], [400]).merge(filled(x[:500], [100, 400]))
    for moments in (*ways, merged, backwards):
        torch.testing.assert_close(everything(moments), once, rtol=1e-10, atol=1e-10)


def test_a_shifted_second_half_does_not_cancel() -> None:
    """The pivot of the first batch is far from the data that follow."""
    first, second = spread(300, 1, 20, offset=0.0), spread(700, 1, 20, seed=1, offset=1e5)
    x = torch.cat([first, second])
    for moments in (filled(x, [300, 700]), filled(x, [100] * 10), filled(first, [300]).merge(filled(second, [700]))):
        direct = Moments(1, 20).update(x)
        torch.testing.assert_close(everything(moments), everything(direct), rtol=1e-9, atol=0)


def test_merging_leaves_the_other_alone_and_checks_it() -> None:
    x = spread(200, 1, 8)
    other = filled(x, [200])
    before = everything(other)
    filled(x, [200]).merge(other)
    assert torch.equal(everything(other), before)
    assert Moments(1, 8).merge(Moments(1, 8)).count == 0
    with pytest.raises(ValueError, match="other has L, d = 1, 9; expected 1, 8"):
        other.merge(Moments(1, 9))


@pytest.mark.parametrize("n", [5, 40, 300])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_bytes_hold_everything(n: int, dtype: torch.dtype) -> None:
    x = spread(n, 2, 30).to(dtype)
    moments = filled(x, [n])
    again = Moments.from_bytes(moments.to_bytes())
    assert torch.equal(everything(again), everything(moments)) and again.count == n
    more = spread(100, 2, 30, seed=3).to(dtype)
    torch.testing.assert_close(everything(again.update(more)), everything(moments.update(more)), rtol=0, atol=0)


@pytest.mark.parametrize("parts", [(300, 5), (5,), (300,)])
def test_merging_with_itself_counts_each_row_twice(parts: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    moments, rows = Moments(1, 4), torch.randn(sum(parts), 1, 4)
    for part in rows.split(list(parts)):
        moments.update(part)
    moments.merge(moments)
    twice = Moments(1, 4).update(torch.cat([rows, rows]))
    assert moments.count == 2 * len(rows)
    torch.testing.assert_close(moments.covariance(0), twice.covariance(0), rtol=1e-5, atol=1e-6)


def test_bytes_of_rows_are_no_larger_than_the_rows() -> None:
    x = spread(10, 4, 256).bfloat16()
    assert len(filled(x, [10]).to_bytes()) < x.numel() * 2 + 2000


def test_bad_bytes() -> None:
    for data in (b"", b"not a saved state", Moments(1, 2).to_bytes()[:40]):
        with pytest.raises(ValueError, match="are not a saved Moments"):
            Moments.from_bytes(data)


@pytest.mark.parametrize("n", [10, 80])
def test_bytes_damaged_anywhere(n: int) -> None:
    """A byte changed or a tail lost is found by the archive's checksums, and told by one kind of error."""
    x = spread(n, 1, 12).bfloat16()
    moments = filled(x, [n])
    if n > 12:
        moments._fold()
    data, expected = moments.to_bytes(), everything(moments)
    for place in range(0, len(data), 7):
        bad = data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]
        for given in (bad, data[:place]):
            try:
                again = Moments.from_bytes(given)
            except ValueError as error:
                assert "are not a saved Moments" in str(error)
            else:  # a byte that says nothing: a date, a flag of the archive
                assert torch.equal(everything(again), expected)


def test_bytes_of_another_make() -> None:
    """A readable archive whose arrays are missing or do not fit."""
    whole = dict(np.load(io.BytesIO(filled(spread(300, 2, 12), [300]).to_bytes())))
    wrong = [("m2_0", None), ("m2_0", np.zeros((2, 12, 11))), ("mean", np.zeros((2, 12), np.float32))]
    for name, value in (*wrong, ("row", np.zeros(3)), ("rows", np.zeros((4, 3, 12)))):
        arrays = {key: kept for key, kept in whole.items() if key != name}
        file = io.BytesIO()
        np.savez(file, **(arrays if value is None else {**arrays, name: value}))
        with pytest.raises(ValueError, match=f"are not a saved Moments .*{name}"):
            Moments.from_bytes(file.getvalue())


def test_a_merge_that_fails_changes_nothing() -> None:
    """States on a device whose rows cannot be fetched: nothing of the accumulators may have been merged before."""
    x = spread(100, 1, 8)
    moments, other = filled(x, [100]), filled(x[:90], [90])
    moments._fold()
    other._fold()
    other.update(x[90:])
    other._held = [rows.to("meta") for rows in other._held]
    before = everything(moments)
    with pytest.raises(NotImplementedError):
        moments.merge(other)
    assert moments.count == 100 and torch.equal(everything(moments), before)


def test_memory_that_runs_out_before_an_update_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = spread(300, 1, 8)
    moments = filled(x[:200], [200])
    assert moments._sums.m2 is None  # the next update is the first to need it
    before = moments.mean

    def none_left(*_shape: int) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(moments._sums, "zeros", none_left)
        with pytest.raises(MemoryError):
            moments.update(x[200:])
    assert moments.count == 200 and torch.equal(moments.mean, before)
    moments.update(x[200:])
    np.testing.assert_allclose(moments.covariance(0), np.cov(x[:, 0].numpy().T), rtol=1e-10)


@pytest.mark.parametrize("n", [20, 300, 600])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_ratio_of_rounding_is_none(n: int, dtype: torch.dtype) -> None:
    """All states but one agree: the unbiased estimate is 0 / 0, of which only rounding is left, -15 say."""
    for seed in range(4):
        random = torch.Generator().manual_seed(seed)
        x = torch.randn(n, 2, 64, generator=random, dtype=dtype)
        x[:, 0] = torch.randn(64, generator=random, dtype=dtype)
        x[3, 0] = torch.randn(64, generator=random, dtype=dtype)
        moments = Moments(2, 64).update(x)
        found, stored = moments.participation_ratio(unbiased=True), effective_dimensionality(x.numpy())
        assert found[0].isnan() and np.isnan(stored.unbiased[0])
        np.testing.assert_allclose(found[1], stored.unbiased[1], rtol=1e-5)
        np.testing.assert_allclose(moments.aggregate(unbiased=True), stored.aggregate_unbiased, rtol=1e-5)


def test_a_layer_that_does_not_vary_has_no_weight() -> None:
    y = torch.randn(300, 3, 8, generator=torch.Generator().manual_seed(0))
    y[:, 0] = 0.1
    stored = effective_dimensionality(y.numpy())
    for unbiased, expected in ((False, stored.aggregate), (True, stored.aggregate_unbiased)):
        np.testing.assert_allclose(Moments(3, 8).update(y).aggregate(unbiased), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_states_seen_in_inference_mode(dtype: torch.dtype) -> None:
    """Tensors made in inference mode may not be changed outside it: accumulators are none of them."""
    x = spread(900, 2, 4).to(dtype)
    with torch.inference_mode():
        moments = Moments(2, 4).update(x[:300].clone())
        other = Moments(2, 4).update(x[600:].clone())
    moments.update(x[300:600]).merge(other)
    for layer, expected in enumerate(exact(x)):
        np.testing.assert_allclose(moments.covariance(layer), expected, rtol=1e-4 if dtype == torch.float32 else 1e-10)


def test_sums_that_an_update_left_half_way_are_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    x = spread(300, 2, 8)
    moments, add = filled(x, [300]), moment_sums._add_product

    def second_layer_fails(sums: MomentSums, layer: int, *rest: Any) -> None:
        if layer:
            raise MemoryError
        add(sums, layer, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(moment_sums, "_add_product", second_layer_fails)
        with pytest.raises(MemoryError):
            moments.update(x.double())
    for use in (
        lambda: moments.count,
        lambda: moments.mean,
        lambda: moments.covariance(0),
        lambda: moments.participation_ratio(),
        lambda: moments.update(x),
        lambda: moments.merge(filled(x, [300])),
        lambda: filled(x, [300]).merge(moments),
        lambda: moments.to_bytes(),
    ):
        with pytest.raises(RuntimeError, match="stopped half way"):
            use()


def test_many_layers_in_place() -> None:
    """32 layers: the accumulators are allocated once and updated where they lie."""
    x = spread(600, 32, 512).float()
    moments = Moments(32, 512).update(x[:520])
    sums = moments._sums
    assert sums.m2 is not None
    places = [part.data_ptr() for part in (sums.m2, sums.mean, sums.cube)]
    moments.update(x[520:560]).update(x[560:])
    moments._fold()
    assert moments._sums is sums and [part.data_ptr() for part in (sums.m2, sums.mean, sums.cube)] == places
    bound = MOMENTS.forms["torch"].accuracy[torch.float32]["covariance"].relative
    for layer in (0, 31):
        expected = np.cov(x[:, layer].double().numpy(), rowvar=False)
        error = np.linalg.norm(moments.covariance(layer).numpy() - expected) / np.linalg.norm(expected)
        assert error < bound


def test_scikit_learn_agrees() -> None:
    covariance = pytest.importorskip("sklearn.covariance", reason="scikit-learn is not installed")
    x = spread(300, 2, 20)
    moments = filled(x, [150, 150])
    for layer in range(2):
        expected = torch.from_numpy(covariance.empirical_covariance(x[:, layer].numpy())) * 300 / 299
        torch.testing.assert_close(moments.covariance(layer), expected, rtol=1e-9, atol=1e-9)


def test_few_states() -> None:
    moments = Moments(2, 5)
    assert moments.mean.isnan().all() and moments.trace().isnan().all() and moments.covariance(0).isnan().all()
    moments.update(torch.ones(1, 2, 5))
    assert moments.mean.eq(1).all() and moments.participation_ratio().isnan().all()
    moments.update(torch.zeros(2, 2, 5))
    assert moments.participation_ratio()[0].item() == pytest.approx(1.0)
    assert moments.participation_ratio(unbiased=True).isnan().all()


def test_gram_form_says_the_same() -> None:
    """Fewer rows than dimensions are kept as rows; folding them in must change nothing."""
    x = spread(30, 2, 64)
    gram = filled(x, [30])
    folded = filled(x, [30])
    folded._fold()
    torch.testing.assert_close(everything(gram), everything(folded), rtol=1e-10, atol=1e-10)


def test_closed_forms() -> None:
    """k equal eigenvalues give k; a geometric spectrum gives (1 + q)(1 - q^d) / ((1 - q)(1 + q^d))."""
    for k in (1, 3, 10):
        axes = torch.eye(10, dtype=torch.float64)[:k]
        x = torch.cat([axes, -axes])
        assert Moments(1, 10).update(x).participation_ratio()[0].item() == pytest.approx(k, rel=1e-12)
    eigenvalues = 0.9 ** torch.arange(200, dtype=torch.float64)
    axes = torch.diag(eigenvalues.sqrt())
    x = torch.cat([axes, -axes])
    assert Moments(1, 200).update(x).participation_ratio()[0].item() == pytest.approx(19.0, abs=1e-3)


def test_isotropic_gaussian_by_simulation() -> None:
    """E tr(C)^2 / E tr(C^2) of the sample covariance is (d + 2/m) / (1 + (d + 1)/m), m = n - 1."""
    n, d, m = 21, 60, 20
    ratios = torch.stack(
        [Moments(1, d).update(torch.randn(n, d, dtype=torch.float64)).participation_ratio() for _ in range(60)]
    )
    assert ratios.mean().item() == pytest.approx((d + 2 / m) / (1 + (d + 1) / m), rel=0.02)


def test_unbiased_estimates_are_unbiased() -> None:
    """Against the definition: averages over all tuples of distinct states, which have no bias."""
    x = torch.randn(7, 4, dtype=torch.float64) ** 3 + 2
    n = len(x)
    square_of_trace, trace_of_square, count = 0.0, 0.0, 0
    for i in range(n):
        for j in range(n):
            for k in range(n):
                for q in range(n):
                    if len({i, j, k, q}) == 4:
                        a, b = x[i] - x[j], x[k] - x[q]
                        square_of_trace += float((a @ a) * (b @ b)) / 4
                        trace_of_square += float((a @ b) ** 2) / 4
                        count += 1
    expected = square_of_trace / trace_of_square
    assert Moments(1, 4).update(x).participation_ratio(unbiased=True)[0].item() == pytest.approx(expected, rel=1e-9)


def test_unbiased_is_near_the_truth_where_the_plug_in_is_not() -> None:
    d, n = 200, 60
    eigenvalues = 0.95 ** torch.arange(d, dtype=torch.float64)
    true = eigenvalues.sum().item() ** 2 / eigenvalues.square().sum().item()
    torch.manual_seed(0)
    plug_in, unbiased = [], []
    for _ in range(30):
        moments = Moments(1, d).update(torch.randn(n, d, dtype=torch.float64) * eigenvalues.sqrt())
        plug_in.append(moments.participation_ratio()[0].item())
        unbiased.append(moments.participation_ratio(unbiased=True)[0].item())
    assert abs(np.mean(unbiased) - true) < 0.05 * true < abs(np.mean(plug_in) - true)


def test_aggregate_weighs_layers_by_their_trace() -> None:
    x = spread(50, 3, 12)
    x[:, 2] *= 10
    covariances = exact(x)
    traces = np.array([np.trace(c) for c in covariances])
    ratios = np.array([np.trace(c) ** 2 / (c**2).sum() for c in covariances])
    assert filled(x, [50]).aggregate() == pytest.approx((traces * ratios).sum() / traces.sum(), rel=1e-9)


def test_scikit_dimension_agrees() -> None:
    skdim = pytest.importorskip("skdim", reason="scikit-dimension is not installed")
    x = spread(200, 1, 20)
    expected = skdim.id.lPCA(ver="participation_ratio").fit(x[:, 0].numpy()).dimension_
    assert filled(x, [200]).participation_ratio()[0].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("form", native.forms())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_compiled_form(form: str, dtype: torch.dtype) -> None:
    x = spread(300, 1, 50)[:, 0].to(dtype)
    mean, cube, m2 = (torch.zeros(*shape, dtype=torch.float64) for shape in ((50,), (50,), (50, 50)))
    square, fourth = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    pivot = x[:9].double().mean(0)
    for part, seen in ((x[:9], 0), (x[9:], 9)):
        native.moments_update(part, seen, pivot, mean, m2, square, cube, fourth, form)
    y = x.double() - pivot
    torch.testing.assert_close(mean, x.double().mean(0), rtol=1e-12, atol=1e-12)
    expected = torch.from_numpy(np.cov(x.double().numpy(), rowvar=False)) * 299
    bound = MOMENTS.forms["cpu"].accuracy[dtype]["covariance"].relative
    assert (m2 - expected).triu().norm() < bound * expected.norm()
    torch.testing.assert_close(square, y.square().sum().view(1), rtol=1e-12, atol=0)
    torch.testing.assert_close(cube, y.square().sum(1) @ y, rtol=1e-10, atol=1e-7)
    torch.testing.assert_close(fourth, y.square().sum(1).square().sum().view(1), rtol=1e-12, atol=0)


def test_bad_input() -> None:
    moments = Moments(2, 5)
    with pytest.raises(ValueError, match=r"x has shape \(3, 2, 4\); axis 2 must be 5"):
        moments.update(torch.zeros(3, 2, 4))
    with pytest.raises(ValueError, match="axis 1 must be 2, the number of layers"):
        moments.update(torch.zeros(3, 3, 5))
    with pytest.raises(TypeError, match="x must be one of .* found int64"):
        moments.update(torch.zeros(3, 2, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match="layer must lie in"):
        moments.covariance(2)
    with pytest.raises(ValueError, match="layer must lie in .* found '0'"):
        moments.covariance("0")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="other must be a Moments, found NoneType"):
        moments.merge(None)  # type: ignore[arg-type]
    for sizes in ((0, 5), (2.0, 5), (2, "5"), (True, 5)):
        with pytest.raises(ValueError, match="at least 1"):
            Moments(*sizes)  # type: ignore[arg-type]
    assert math.isnan(moments.aggregate())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [2, 20, 700])
@pytest.mark.parametrize("value", [14.62, 0.1, -3e5])
def test_states_that_do_not_vary_have_no_participation_ratio(value, n, dtype):
    """Held rows and folded ones alike; the batches' means differ from the value by rounding."""
    moments = Moments(2, 16)
    for part in torch.full((n, 2, 16), value, dtype=dtype).split(7):
        moments.update(part)
    for unbiased in (False, True):
        assert moments.participation_ratio(unbiased).isnan().all()
    varied = torch.full((n, 2, 16), value, dtype=torch.float64)
    varied[0, 0, 0] += 0.1 * abs(value)
    found = Moments(2, 16).update(varied).participation_ratio()
    assert found[0] == pytest.approx(1.0, rel=1e-3) and found[1].isnan()
