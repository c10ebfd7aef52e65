"""vocab_stats and logits_stats, every CPU form, against torch.distributions in float64 and closed forms."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from precollapse.kernels import VocabStats, logits_stats, native, vocab_stats
from precollapse.kernels.registry import OPERATORS, Tolerance
from precollapse.kernels.vocab_arguments import VocabArguments

ROOT = Path(__file__).parents[1]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Run = Callable[..., VocabStats]


def stats_by(form: str, hidden: Tensor, weight: Tensor, bias: Tensor | None = None, **asked: object) -> VocabStats:
    """vocab_stats by a backend's name, or by "cpu-" and an instruction set's."""
    if not form.startswith("cpu-"):
        return vocab_stats(hidden, weight, bias, backend=form, **asked)  # type: ignore[arg-type]
    arguments = VocabArguments(hidden, weight, bias, **asked)  # type: ignore[arg-type]
    entropy, lse, logits, ids = native.vocab_stats(arguments, form.removeprefix("cpu-"))
    return VocabStats(entropy, lse, logits, ids, torch.empty(len(hidden), 0))


def logits_by(form: str, logits: Tensor, top_k: int = 0) -> VocabStats:
    if not form.startswith("cpu-"):
        return logits_stats(logits, top_k=top_k, backend=form)
    return VocabStats(*native.logits_stats(logits, top_k, form.removeprefix("cpu-")), torch.empty(len(logits), 0))


FORMS = ("reference", "torch", *(f"cpu-{name}" for name in native.forms()))
form_of = pytest.mark.parametrize("form", FORMS)


def bounds_of(operator: str, form: str = "auto", dtype: torch.dtype = torch.float32) -> Mapping[str, Tolerance]:
    """The bounds that a form states; those of "cpu" are every instruction set's."""
    name = form.partition("-")[0]
    registered = OPERATORS[operator]
    return (registered.forms.get(name) or registered.choose(name, torch.device("cpu"), dtype)).accuracy[dtype]


def truth(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy in bits and logsumexp by torch's own float64 functions."""
    z = logits.double()
    return torch.distributions.Categorical(logits=z).entropy() / math.log(2), z.logsumexp(1)


def made(hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: float, softcap: float | None) -> Tensor:
    """Float64 logits, written as the models write them."""
    z = torch.nn.functional.linear(hidden.double(), weight.double(), None if bias is None else bias.double()) * scale
    if softcap is not None:
        z = torch.tanh(z / softcap) * softcap
    return z if bias is None else z.masked_fill(bias == -math.inf, -math.inf)


def close(stats: VocabStats, logits: Tensor, bounds: Mapping[str, Tolerance], hard: str | None = None) -> None:
    """Entropy and logsumexp are as near to those of `logits` as a form's bounds say; `hard` names a hard kind of logits."""
    entropy, lse = truth(logits)
    assert stats.entropy_bits.dtype == torch.float64 and stats.logsumexp.dtype == torch.float64
    for name, found, expected in (("entropy_bits", stats.entropy_bits, entropy), ("logsumexp", stats.logsumexp, lse)):
        relative = bounds[hard or name].relative
        torch.testing.assert_close(found, expected, rtol=relative, atol=bounds[name].absolute)


def peaked() -> Tensor:
    """Rows of about 3e-4 bits: one column far above a few near and many far ones."""
    z = torch.randn(4, 5003) - 30
    z[:, 7:10] = torch.tensor([1.0, 0.5, -0.25])
    z[torch.arange(4), torch.tensor([0, 1234, 5002, 2047])] = 12.7
    return z


def holed(n_holes: slice) -> Tensor:
    z = torch.randn(3, 4096) * 4
    z[:, n_holes] = -math.inf
    return z


CASES: dict[str, Callable[[], Tensor]] = {
    "random": lambda: torch.randn(2, 50257) * 3,
    "tiny entropy": peaked,
    "offset -3000": lambda: torch.randn(3, 3001) - 3000,
    "tiny entropy at -3000": lambda: peaked() - 3000,
    "offset +3000": lambda: torch.randn(3, 3001) + 3000,
    "rising": lambda: torch.linspace(-40, 40, 9001).repeat(2, 1),
    "falling": lambda: torch.linspace(40, -40, 9001).repeat(2, 1),
    "equal maxima": lambda: torch.zeros(2, 2500).index_fill(1, torch.tensor([3, 1200, 2499]), 9.0),
    "one column": lambda: torch.tensor([[3.5], [-7.0]]),
    "two columns": lambda: torch.tensor([[0.0, -20.0], [5.0, 5.0]]),
    "wide range": lambda: torch.randn(2, 7000) * 200,
}


@form_of
@pytest.mark.parametrize("case", CASES)
def test_logits(form: str, case: str) -> None:
    torch.manual_seed(0)
    logits = CASES[case]()
    close(logits_by(form, logits), logits, bounds_of("logits_stats", form))
    # The same logits out of an unembedding: row i of the identity picks its column i.
    columns = stats_by(form, torch.eye(len(logits)), logits.T.contiguous())
    close(columns, logits, bounds_of("vocab_stats", form))


@form_of
@pytest.mark.parametrize("holes", [slice(0, None, 2), slice(0, 2048), slice(2048, None), slice(1, None)])
def test_excluded_columns(form: str, holes: slice) -> None:
    """Half of the columns, whole tiles at either end, and all but one column at minus infinity."""
    torch.manual_seed(0)
    logits = holed(holes)
    kept = torch.isfinite(logits[0])
    expected = logits[:, kept]
    close(logits_by(form, logits), expected, bounds_of("logits_stats", form))
    bias = torch.where(kept, 0.0, -math.inf)
    weight = logits.masked_fill(~torch.isfinite(logits), 5.0).T.contiguous()
    for softcap in (None, 3.0):
        capped = expected if softcap is None else torch.tanh(expected.double() / softcap) * softcap
        close(stats_by(form, torch.eye(3), weight, bias, softcap=softcap), capped, bounds_of("vocab_stats", form))


@form_of
def test_undefined_rows(form: str) -> None:
    logits = torch.randn(4, 700)
    logits[1] = -math.inf
    logits[2, 5] = math.nan
    logits[3, 6] = math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stats = logits_by(form, logits, top_k=2)
    assert stats.undefined.tolist() == [False, True, True, True]
    assert stats.logsumexp[1] == -math.inf and stats.logsumexp[2].isnan() and stats.logsumexp[3] == math.inf
    assert stats.top_ids[2].tolist() == [-1, -1] and stats.top_ids[1].tolist() == [0, 1]
    assert stats.top_ids[3, 0] == 6


def test_asking_for_many_of_the_largest_costs_no_precision() -> None:
    """More than the C++ form keeps: the streamed form that then runs must not do it in float32."""
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(7, 255), torch.randn(1152, 255) / 16, torch.randn(1152) - 3000
    bound = bounds_of("vocab_stats", "reference")["entropy_bits"]
    tolerances = {"rtol": bound.relative, "atol": bound.absolute}
    for options in ({"bias": bias, "scale": 7.5}, {"scale": 20.0}):
        exact = vocab_stats(
            hidden.double(), weight.double(), **{**options, **({"bias": bias.double()} if "bias" in options else {})}
        )
        for k in (256, 257, 1152):
            found = vocab_stats(hidden, weight, top_k=k, **options)
            torch.testing.assert_close(found.entropy_bits, exact.entropy_bits, **tolerances)
            torch.testing.assert_close(found.logsumexp, exact.logsumexp, **tolerances)
        logits = hidden @ weight.T * 20
        exact = logits_stats(logits, backend="reference")
        for k in (256, 257):
            found = logits_stats(logits, top_k=k)
            torch.testing.assert_close(found.entropy_bits, exact.entropy_bits, **tolerances)


@form_of
def test_a_huge_scale_leaves_one_column(form: str) -> None:
    torch.manual_seed(0)
    found = stats_by(form, torch.randn(3, 32), torch.randn(500, 32), scale=1e10)
    torch.testing.assert_close(found.entropy_bits, torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-6)


def test_undefined_rows_are_told() -> None:
    with pytest.warns(RuntimeWarning, match="1 of 2 rows have no distribution"):
        logits_stats(torch.stack([torch.zeros(9), torch.full((9,), -math.inf)]))


@form_of
def test_closed_forms(form: str) -> None:
    for columns in (32768, 128256):
        uniform = logits_by(form, torch.full((1, columns), -2.5))
        assert uniform.entropy_bits.item() == math.log2(columns)
    assert stats_by(form, torch.zeros(1, 4), torch.randn(32768, 4)).entropy_bits.item() == 15.0
    sure = logits_by(form, torch.full((1, 999), -math.inf).index_fill(1, torch.tensor([77]), 4.0))
    assert sure.entropy_bits.item() == 0.0 and sure.logsumexp.item() == 4.0
    # p = (1 - q, q): H = -(1 - q) log2(1 - q) - q log2 q
    q = 1e-7
    pair = logits_by(form, torch.tensor([[math.log1p(-q) - math.log(q), 0.0]]))
    z = math.exp(float(torch.tensor(math.log1p(-q) - math.log(q))))
    q = 1 / (1 + z)
    assert pair.entropy_bits.item() == pytest.approx(
        -((1 - q) * math.log1p(-q) + q * math.log(q)) / math.log(2), rel=1e-6
    )


SHAPES = [(1, 64, 3000), (2, 100, 257), (7, 33, 1153), (8, 128, 2000), (9, 40, 192), (33, 300, 777), (70, 16, 200)]


@form_of
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products(form: str, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    n, d, columns = shape
    hidden, weight = torch.randn(n, d).to(dtype), (torch.randn(columns, d) / math.sqrt(d)).to(dtype)
    bias = torch.randn(columns).masked_fill(torch.rand(columns) < 0.2, -math.inf)
    bounds = bounds_of("vocab_stats", form, dtype)
    top = bounds["top_logits"]
    for asked in ({}, {"scale": 3.0, "softcap": 4.0}, {"softcap": 1000.0}):
        for offset in (None, bias):
            stats = stats_by(form, hidden, weight, offset, top_k=5, **asked)
            z = made(hidden, weight, offset, asked.get("scale", 1.0), asked.get("softcap"))
            finite = torch.isfinite(z[0])
            close(stats, z[:, finite], bounds)
            values, ids = z.topk(5)
            assert torch.equal(stats.top_ids, ids)
            torch.testing.assert_close(stats.top_logits, values.float(), rtol=top.relative, atol=top.absolute)


@form_of
def test_scale_and_softcap_are_not_rounded(form: str) -> None:
    """0.1 and 30.1 as float32 are off by more than 1e-8; the largest logits, formed in float64, must not show that."""
    torch.manual_seed(2)
    hidden, row = torch.randn(6, 64), torch.randn(64) * 50
    weight = torch.stack([row, -row])  # the larger of two logits this far apart is the logsumexp
    for asked in ({"scale": 0.1}, {"softcap": 30.1}, {"scale": 0.1, "softcap": 30.1}):
        lse = stats_by(form, hidden, weight, **asked).logsumexp
        expected = made(hidden, weight, None, asked.get("scale", 1.0), asked.get("softcap")).logsumexp(1)
        assert ((lse - expected) / expected).abs().max() < bounds_of("vocab_stats", form)["one column"].relative


@form_of
def test_few_columns_carry_the_entropy(form: str) -> None:
    """Logits of 40 from sums of 1536 products: float32 sums alone would be off by several 1e-6."""
    torch.manual_seed(2)
    hidden, weight = torch.randn(20, 1536), torch.randn(900, 1536) * 0.3
    logits = made(hidden, weight, None, 1.0, None)
    close(stats_by(form, hidden, weight), logits, bounds_of("vocab_stats", form), "large logits")


@form_of
def test_common_offset_in_the_bias(form: str) -> None:
    torch.manual_seed(3)
    hidden, weight, bias = torch.randn(3, 32), torch.randn(500, 32) * 0.3, torch.randn(500) - 3000
    logits = made(hidden, weight, bias, 1.0, None)
    close(stats_by(form, hidden, weight, bias), logits, bounds_of("vocab_stats", form))


@form_of
def test_logits_dtype_is_the_models_rounding(form: str) -> None:
    """As a bfloat16 model computes: the head's output, scale, division, tanh and product each rounded."""
    torch.manual_seed(4)
    hidden, weight = torch.randn(6, 64).bfloat16(), (torch.randn(2000, 64) / 4).bfloat16()
    z = (hidden.double() @ weight.double().T).bfloat16()
    z = torch.tanh((z * 2.0) / 5.0) * 5.0
    stats = stats_by(form, hidden, weight, scale=2.0, softcap=5.0, logits_dtype="bfloat16")
    entropy, _ = truth(z)
    bound = bounds_of("vocab_stats", form, torch.bfloat16)["rounded logits"]
    torch.testing.assert_close(stats.entropy_bits, entropy, rtol=bound.relative, atol=bound.absolute)
    unrounded = stats_by(form, hidden, weight, scale=2.0, softcap=5.0).entropy_bits
    assert ((unrounded - entropy).abs() > 10 * (stats.entropy_bits - entropy).abs()).float().mean() > 0.5


@form_of
@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k_with_ties(form: str, dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    logits = torch.randint(-4, 5, (3, 40000)).to(dtype)
    stats = logits_by(form, logits, top_k=40)
    values, ids = logits.double().sort(dim=1, descending=True, stable=True)
    assert torch.equal(stats.top_ids, ids[:, :40]) and torch.equal(stats.top_logits.double(), values[:, :40])


def test_top_k_of_everything() -> None:
    logits = torch.randn(2, 1500)
    stats = logits_stats(logits, top_k=1500)
    assert torch.equal(stats.top_ids, logits.argsort(1, descending=True))
    weight = torch.randn(600, 8)
    assert vocab_stats(torch.randn(2, 8), weight, top_k=600).top_ids.sort(1).values.tolist() == [list(range(600))] * 2


def test_options() -> None:
    torch.manual_seed(6)
    hidden, weight, bias = torch.randn(3, 20), torch.randn(50, 20), torch.randn(50)
    z = made(hidden, weight, bias, 0.5, 6.0)
    ids = torch.tensor([[1, 2], [3, -1], [49, 0]])
    stats = vocab_stats(hidden, weight, bias, softcap=6.0, scale=0.5, option_ids=ids)
    expected = z.gather(1, ids.clamp_min(0)).masked_fill(ids < 0, math.nan).float()
    torch.testing.assert_close(stats.option_logits, expected, equal_nan=True)
    grouped = vocab_stats(hidden, weight, bias, softcap=6.0, scale=0.5, option_ids=[[1, 2, 2], [7]]).option_logits
    torch.testing.assert_close(grouped[:, 0], z[:, 1:3].logsumexp(1).float())
    torch.testing.assert_close(grouped[:, 1], z[:, 7].float())
    forms = torch.tensor([[[4, 4], [5, -1]]] * 3)
    same = logits_stats(z, option_ids=forms).option_logits
    torch.testing.assert_close(same, z[:, 4:6].float())


def test_options_by_numpy() -> None:
    """Ids as a pandas or numpy user has them: arrays, their elements, lists of arrays."""
    torch.manual_seed(6)
    logits = torch.randn(3, 20)
    expected = logits_stats(logits, option_ids=[1, 2]).option_logits
    for ids in (np.array([1, 2]), list(np.array([1, 2])), torch.tensor([1, 2]), np.array([[1, 2]] * 3, dtype=np.int32)):
        assert torch.equal(logits_stats(logits, option_ids=ids).option_logits, expected)
    groups = logits_stats(logits, option_ids=[[1, 2], [3]]).option_logits
    for ids in ([np.array([1, 2]), np.array([3])], [torch.tensor([1, 2]), (np.int32(3),)], [range(1, 3), 3]):
        assert torch.equal(logits_stats(logits, option_ids=ids).option_logits, groups)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["reference", "torch", "auto"])
def test_shapes_and_strides(backend: str) -> None:
    torch.manual_seed(7)
    empty = vocab_stats(torch.empty(0, 8), torch.randn(30, 8), top_k=2, option_ids=[1, 2], backend=backend)
    assert empty.entropy_bits.shape == (0,) and empty.top_ids.shape == (0, 2) and empty.option_logits.shape == (0, 2)
    assert logits_stats(torch.empty(0, 8), top_k=3, backend=backend).top_ids.shape == (0, 3)
    hidden, weight = torch.randn(6, 48), torch.randn(400, 48)
    plain = vocab_stats(hidden, weight, top_k=3, backend=backend)
    spread = torch.randn(12, 96)
    spread[::2, ::2] = hidden
    wide = torch.randn(400, 60)
    wide[:, :48] = weight
    for other in (
        vocab_stats(spread[::2, ::2], wide[:, :48], top_k=3, backend=backend),
        vocab_stats(hidden, weight.T.contiguous().T, top_k=3, backend=backend),
    ):
        torch.testing.assert_close(other.entropy_bits, plain.entropy_bits, rtol=2e-6, atol=0)
        assert torch.equal(other.top_ids, plain.top_ids)
    logits = torch.randn(400, 6)
    assert torch.equal(
        logits_stats(logits.T, backend=backend).entropy_bits,
        logits_stats(logits.T.contiguous(), backend=backend).entropy_bits,
    )


def test_many_rows_and_a_real_vocabulary() -> None:
    torch.manual_seed(8)
    hidden, weight = torch.randn(4096, 8), torch.randn(1000, 8)
    close(vocab_stats(hidden, weight), made(hidden, weight, None, 1.0, None), bounds_of("vocab_stats"))
    bounds = bounds_of("vocab_stats", "auto", torch.bfloat16)
    for columns in (49152, 128256, 152064, 256000):
        hidden, weight = torch.randn(2, 16).bfloat16(), torch.randn(columns, 16).bfloat16()
        close(vocab_stats(hidden, weight), made(hidden, weight, None, 1.0, None), bounds)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_results_do_not_depend_on_threads() -> None:
    torch.manual_seed(9)
    hidden, weight, logits = torch.randn(5, 64), torch.randn(20000, 64), torch.randn(3, 200000)
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append((vocab_stats(hidden, weight, top_k=4), logits_stats(logits, top_k=4)))
    for stats in found[1:]:
        for mine, first in zip(stats, found[0], strict=True):
            assert torch.equal(mine.entropy_bits, first.entropy_bits) and torch.equal(mine.logsumexp, first.logsumexp)
            assert torch.equal(mine.top_logits, first.top_logits) and torch.equal(mine.top_ids, first.top_ids)


@pytest.mark.skipif(not native.forms() or sys.platform != "linux", reason="needs the C++ forms, and /proc")
def test_memory_does_not_grow_with_the_vocabulary() -> None:
    """[n, V] would be 64 x 100000 floats, 25 MB; the peak may grow by 5."""
    script = """
import torch
from precollapse.kernels import vocab_stats
def resident(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field))
def growth(call):
    with open("/proc/self/clear_refs", "w") as marks:
        marks.write("5")  # the high-water mark starts again
    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before
hidden, weight = torch.randn(64, 64), torch.randn(100000, 64)
vocab_stats(hidden, weight[:2000], top_k=5)
print(growth(lambda: vocab_stats(hidden, weight, top_k=5)), growth(lambda: hidden @ weight.T))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    ours, torchs = map(int, done.stdout.split())
    assert ours < 5 * 1024 < torchs


@pytest.fixture(scope="module")
def wide_forms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """csrc built so that the 16-lane forms run on any x86-64 with AVX2, their vectors made of two narrower ones."""
    if shutil.which("g++") is None or "avx2" not in native.forms():
        pytest.skip("needs g++ and a processor with AVX2")
    folder = tmp_path_factory.mktemp("wide")
    flags = ["-O1", "-std=c++17", "-fPIC", "-w", "-ffp-contract=fast", "-mavx2", "-mfma", "-DPC_EMULATE"]
    names = ("form_portable", "form_avx512", "form_avx512_bf16", "precollapse")
    have = ["-DPC_HAVE_AVX512", "-DPC_HAVE_AVX512_BF16"]
    jobs = [
        subprocess.Popen(["g++", *flags, *have, "-c", ROOT / "csrc" / f"{name}.cpp", "-o", folder / f"{name}.o"])
        for name in names
    ]
    assert [job.wait() for job in jobs] == [0] * len(names)
    built = folder / "wide.so"
    subprocess.run(["g++", "-shared", "-pthread", "-o", built, *(folder / f"{name}.o" for name in names)], check=True)
    library = ctypes.CDLL(str(built))
    native.declare(library)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_open", lambda: library)
        yield


@pytest.mark.usefixtures("wide_forms")
@pytest.mark.parametrize("form", ["cpu-avx512", "cpu-avx512_bf16"])
def test_wide_forms_do_the_same(form: str) -> None:
    """The logic of the AVX-512 forms; their instructions need a processor that has them."""
    for dtype in DTYPES:
        for shape in ((1, 64, 500), (3, 100, 257), (8, 33, 1153), (11, 70, 192), (40, 300, 77)):
            test_products(form, shape, dtype)
    for case in ("tiny entropy", "offset -3000", "rising", "one column"):
        test_logits(form, case)
    test_top_k_with_ties(form, torch.bfloat16)
