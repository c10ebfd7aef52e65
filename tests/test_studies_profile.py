"""The profile: parts that add up, numbers that agree with what ran, a trace that opens, and the model left as found."""

from __future__ import annotations

import json

import pytest

from precollapse import Extractor
from precollapse.errors import RequestError
from precollapse.perf.small_models import small_model, small_tokenizer
from precollapse.studies.profile import PARTS, profile_capture


@pytest.fixture(scope="module")
def extractor() -> Extractor:
    model = small_model("llama")
    model.config.max_position_embeddings = 4096
    return Extractor(model, small_tokenizer(), check=False)


def test_parts_add_up_and_counts_are_those_of_the_prompts(extractor):
    got = profile_capture(extractor, n=5, rounds=1, attention="summary")
    assert set(got.shares) == set(PARTS)
    assert sum(got.shares.values()) == pytest.approx(1)
    assert min(got.shares.values()) >= 0
    for part in ("backbone", "taps", "attention rows", "head and statistics", "transfer", "store"):
        assert got.shares[part] > 0
    assert got.prompts == 5
    assert got.computed_tokens >= got.tokens - sum(s["tokens"] * (s["prompts"] - 1) for s in got.shared_prefixes)
    assert got.prompts_per_second == pytest.approx(5 / got.seconds)
    assert got.overhead == pytest.approx(got.seconds / got.backbone_seconds - 1)
    assert got.peak_mib is None or got.peak_mib > 10
    text = str(got)
    assert "bare backbone" in text
    assert all(part in text for part in PARTS)
    assert json.loads(json.dumps(got.as_dict()))["prompts"] == 5


def test_what_is_counted_is_what_is_measured():
    """Counting with a hook kept the passes it counted from being compiled, or from sharing a prefix."""
    model = small_model("llama")
    model.config.max_position_embeddings = 4096
    for settings in ({"compile": "eager"}, {"share_prefix": "always"}):
        ex = Extractor(model, small_tokenizer(), check=False, **settings)
        seen = []
        for name, backend in (("outer", ex.backend), ("shared", ex.shared_prefixes.backend)):
            rows = backend.rows

            def noting(batch, *args, rows=rows, name=name, seen=seen, **options):
                got = rows(batch, *args, **options)
                seen.append((name, dict(got.notes)))
                return got

            backend.rows = noting
        got = profile_capture(ex, n=4, rounds=1)
        assert got.computed_tokens > 0
        if "compile" in settings:
            assert not any("not_compiled" in notes for name, notes in seen if name == "outer")
        else:
            assert got.shared_prefixes and got.computed_tokens < got.tokens


def test_attention_costs_nothing_when_not_asked(extractor):
    assert profile_capture(extractor, n=2, rounds=1).shares["attention rows"] == 0


def test_batch_bounds_the_prompts_of_a_batch_and_is_put_back(extractor):
    before = extractor.batch_tokens
    extractor.share_prefix = "never"
    try:
        assert profile_capture(extractor, n=6, batch=1, rounds=1).batches == 6
        assert profile_capture(extractor, n=6, batch=6, rounds=1).batches < 4
    finally:
        extractor.share_prefix = "auto"
    assert extractor.batch_tokens == before


def test_a_trace_within_a_run_is_refused_before_anything_runs(extractor, tmp_path):
    (tmp_path / "run.zarr").mkdir()
    (tmp_path / "run.zarr" / "plan.json").write_text("{}")
    with pytest.raises(RequestError, match="lies in the run"):
        profile_capture(extractor, n=2, rounds=1, trace=tmp_path / "run.zarr" / "trace.json")
    assert len(list((tmp_path / "run.zarr").iterdir())) == 1


def test_the_trace_is_chrome_json_with_named_parts(extractor, tmp_path):
    got = profile_capture(extractor, n=2, rounds=1, trace=tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event.get("name") for event in events}
    assert {"precollapse: backbone", "precollapse: taps", "precollapse: head and statistics"} <= names
    assert got.trace == str(tmp_path / "trace.json")


def test_nothing_stays_hooked(extractor):
    profile_capture(extractor, n=2, rounds=1)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in extractor.model.modules())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n": 0}, "n must be a whole number of at least 1, found 0"),
        ({"batch": 0}, "batch must be a whole number of at least 1"),
        ({"rounds": 0}, "rounds must be"),
        ({"trace": "no/such/folder/trace.json"}, "the folder of --trace no/such/folder/trace.json does not exist"),
        ({"regime": "nonsense"}, "nonsense"),
        ({"share_prefix": "never"}, "share_prefix='never' loads a model, but an extractor that is loaded already"),
        ({"compile": True}, "compile=True loads a model"),
        ({"dtype": "bfloat16"}, "dtype='bfloat16' loads a model"),
        ({"backend": "nnsight"}, "backend='nnsight' loads a model"),
        ({"device": "cpu"}, "device='cpu' loads a model"),
        ({"revision": "main"}, "revision='main' loads a model"),
    ],
)
def test_bad_settings_are_refused(extractor, settings, message):
    with pytest.raises(RequestError, match=message):
        profile_capture(extractor, **settings)
