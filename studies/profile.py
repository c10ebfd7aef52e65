"""Where the time of a capture goes, and what it costs over the model alone.

Guarantees that the two sides of each comparison run on the same prompts in the same batches, in turn, so that a busy
machine disturbs both; and that the parts are measured in a pass of their own, since measuring them costs time. This
prevents the usual misreading of a capture rate as a property of the tool where it is one of the model.
"""

from __future__ import annotations

import dataclasses
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import checks, store
from ..destination import local, outside_runs
from ..errors import RequestError
from ..hooks import Extractor, States
from ..hooks.prompts.boundary import Batch, group
from ..hooks.prompts.rendering import Rendered
from ..hooks.running import run_backbone
from ..hooks.sections import recording, section
from . import benchmarks, prompts
from .models import ModelRequest

PARTS = ("backbone", "taps", "attention rows", "head and statistics", "transfer", "store", "other")


@dataclass(frozen=True)
class Profile:
    """What `profile_capture` measured.

    Attributes
    ----------
    model, backend, device, dtype : str
    prompts, tokens, batches : int
        Prompts, their own tokens (no padding), and batches per round.
    computed_tokens : int
        Tokens that were run: padding counts, and a shared prefix counts once.
    threads : int
        CPU threads of torch.
    rounds : int
    seconds, backbone_seconds : float
        Median wall-clock time of a round of capture, and of the bare backbone (no taps, no unembedding) on whole
        prompts in batches of the same token budget.
    cpu_seconds, backbone_cpu_seconds : float
        The same in CPU time of this process, which other programs on the machine disturb less.
    shares : dict of str to float
        Part of a capture's time spent in each of `PARTS`; they sum to 1.
    peak_mib, backbone_peak_mib : float or None
        Peak memory of either: of the device's allocator on a GPU, of the process on a CPU (the model included); None
        where the system keeps no peak that can be reset.
    shared_prefixes : list of dict
        Prefixes that were computed once: `tokens` and `prompts` of each.
    trace : str or None
        Where the Chrome trace of the first batch was written.
    """

    model: str
    backend: str
    device: str
    dtype: str
    prompts: int
    tokens: int
    computed_tokens: int
    batches: int
    threads: int
    rounds: int
    seconds: float
    backbone_seconds: float
    cpu_seconds: float
    backbone_cpu_seconds: float
    shares: dict[str, float]
    peak_mib: float | None
    backbone_peak_mib: float | None
    shared_prefixes: list[dict[str, int]]
    trace: str | None = None

    @property
    def prompts_per_second(self) -> float:
        """Prompts captured per second."""
        return self.prompts / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Prompt tokens captured per second, however many were run for them."""
        return self.tokens / self.seconds

    @property
    def overhead(self) -> float:
        """Wall-clock time over that of the bare backbone, less 1; below 0 where a shared prefix saves more than that."""
        return self.seconds / self.backbone_seconds - 1.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rates = ("prompts_per_second", "tokens_per_second", "overhead")
        return dataclasses.asdict(self) | {name: getattr(self, name) for name in rates}

    def __str__(self) -> str:
        lines = [
            f"{self.model}: backend {self.backend}, {self.dtype} on {self.device}, {self.threads} threads, "
            f"{self.prompts} prompts of {self.tokens} tokens in {self.batches} batches, median of {self.rounds}",
            f"  {'prompts per second':24s}{self.prompts_per_second:10.2f}",
            f"  {'tokens per second':24s}{self.tokens_per_second:10.1f}",
            f"  {'seconds':24s}{self.seconds:10.3f}   bare backbone {self.backbone_seconds:.3f} ({self.overhead:+.1%})",
            f"  {'CPU seconds':24s}{self.cpu_seconds:10.3f}   bare backbone {self.backbone_cpu_seconds:.3f}",
        ]
        if self.peak_mib is not None and self.backbone_peak_mib is not None:
            extra = self.peak_mib / self.backbone_peak_mib - 1
            beside = f"bare backbone {self.backbone_peak_mib:.0f} ({extra:+.1%})"
            lines.append(f"  {'peak memory, MiB':24s}{self.peak_mib:10.0f}   {beside}")
        for shared in self.shared_prefixes:
            lines.append(f"  a prefix of {shared['tokens']} tokens was computed once for {shared['prompts']} prompts")
        lines += [f"  {name:24s}{self.shares[name]:10.1%}" for name in PARTS]
        if self.trace:
            lines.append(f"  trace: {self.trace} (open in Perfetto or chrome://tracing)")
        return "\n".join(lines)


def profile_capture(
    model: str | Extractor = "smollm2-135m-instruct",
    *,
    n: int = 32,
    batch: int | None = None,
    backend: str = "hf",
    dtype: str = "auto",
    device: str | None = None,
    revision: str | None = None,
    benchmark: str = "builtin",
    items: str | Path | None = None,
    regime: str = "baseline",
    sites: tuple[str, ...] = ("resid_post",),
    layers: Any = "all",
    attention: str = "none",
    share_prefix: str = "auto",
    compile: bool | str = False,
    rounds: int = 3,
    seed: int = 0,
    trace: str | Path | None = None,
) -> Profile:
    """Measure a capture of `n` benchmark prompts, and of the bare backbone on the same prompts.

    Parameters
    ----------
    model : str or Extractor
        A name as in `Extractor.from_pretrained`, or an extractor that is loaded already, as it was made.
    n : int
        Prompts.
    batch : int, optional
        Most prompts per batch, as a token budget of `batch` times the longest prompt; None keeps the extractor's own
        budget.
    backend, dtype, device, revision, share_prefix, compile
        As in `Extractor.from_pretrained`; refused beside an extractor.
    benchmark, items, regime, seed
        Where the prompts come from: see `precollapse.studies.benchmarks.load` and `prompts.render`.
    sites, layers, attention
        As in `Extractor.capture`.
    rounds : int
        Timed rounds of each side, after one that is not counted.
    trace : path, optional
        Write a Chrome trace of the first batch here.

    Returns
    -------
    Profile

    Raises
    ------
    RequestError
        If a setting is unknown or out of range, or one that loads a model is given beside a loaded one.
    """
    n, rounds = checks.whole("n", n, least=1), checks.whole("rounds", rounds, least=1)
    batch = checks.optional_whole("batch", batch, least=1)
    if trace is not None:
        trace = outside_runs(local(trace, "--trace"), "--trace")
        if not trace.absolute().parent.is_dir():
            raise RequestError(f"the folder of --trace {trace} does not exist; create it first")
    if isinstance(model, Extractor):
        loading = {
            "backend": (backend, "hf"),
            "dtype": (dtype, "auto"),
            "device": (device, None),
            "revision": (revision, None),
            "share_prefix": (share_prefix, "auto"),
            "compile": (compile, False),
        }
        for name, (setting, usual) in loading.items():
            if setting != usual:
                raise RequestError(
                    f"{name}={setting!r} loads a model, but an extractor that is loaded already was given; make it with that setting, or give the model's name"
                )
    else:
        request = ModelRequest(model, backend, dtype, device, revision, share_prefix=share_prefix, compile=compile)
        request.check_device()
    chosen = [prompts.render(regime, item).text for item in benchmarks.load(benchmark, n, seed, items)]
    extractor = model if isinstance(model, Extractor) else request.load()
    chat = extractor.renderer.has_chat_template
    rendered = extractor.render([[{"role": "user", "content": text}] if chat else text for text in chosen])
    before = extractor.batch_tokens
    try:
        if batch is not None:
            extractor.batch_tokens = batch * max(len(r.token_ids) for r in rendered)
        return _measure(extractor, rendered, sites, layers, attention, rounds, trace)
    finally:
        extractor.batch_tokens = before


def _measure(
    extractor: Extractor,
    rendered: list[Rendered],
    sites: tuple[str, ...],
    layers: Any,
    attention: str,
    rounds: int,
    trace: str | Path | None,
) -> Profile:
    lengths = [len(r.token_ids) for r in rendered]
    cuda = extractor.device.type == "cuda"
    synchronise: Callable[[], Any] | None = torch.cuda.synchronize if cuda else None
    batches = group(lengths, extractor.batch_tokens)

    def capture() -> list[States]:
        return [piece.states for piece in extractor.stream(rendered, sites, layers, attention)]

    def bare() -> None:
        ids = [r.token_ids for r in rendered]
        run_backbone(extractor.backend, ids, batches, extractor.renderer.pad_id, extractor.device)

    def timed(work: Callable[[], Any]) -> tuple[float, float]:
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        if synchronise is not None:
            synchronise()
        return time.perf_counter() - wall, time.process_time() - cpu

    peaks = {"bare": peak_mib(bare, cuda), "capture": peak_mib(capture, cuda)}  # these rounds warm both up
    times: dict[str, list[tuple[float, float]]] = {"bare": [], "capture": []}
    for i in range(rounds):
        sides = (("bare", bare), ("capture", capture))
        for name, work in sides if i % 2 == 0 else sides[::-1]:
            times[name].append(timed(work))

    with recording(synchronise) as recorder, tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        with _tokens_run(extractor) as run:
            pieces = capture()
        whole = time.perf_counter() - start
        start = time.perf_counter()
        _store(Path(folder) / "run.zarr", pieces)
        whole += time.perf_counter() - start
    seconds = {name: recorder.seconds.get(name, 0.0) for name in PARTS[:-1]}
    seconds["other"] = max(whole - sum(seconds.values()), 0.0)
    if trace is not None:
        _write_trace(extractor, [rendered[i] for i in batches[0]], sites, layers, attention, Path(trace))
    manifest = pieces[0].manifest
    wall, cpu = ({k: statistics.median(t[j] for t in rounds_of) for k, rounds_of in times.items()} for j in (0, 1))
    total = sum(seconds.values())
    return Profile(
        model=str(manifest["model"]),
        backend=extractor.backend.name,
        device=manifest["device"],
        dtype=manifest["dtype"],
        prompts=len(rendered),
        tokens=sum(lengths),
        computed_tokens=run[0],
        batches=len(pieces),
        threads=torch.get_num_threads(),
        rounds=rounds,
        seconds=wall["capture"],
        backbone_seconds=wall["bare"],
        cpu_seconds=cpu["capture"],
        backbone_cpu_seconds=cpu["bare"],
        shares={name: value / total for name, value in seconds.items()},
        peak_mib=peaks["capture"],
        backbone_peak_mib=peaks["bare"],
        shared_prefixes=manifest["passes"]["shared_prefixes"],
        trace=None if trace is None else str(trace),
    )


@contextmanager
def _tokens_run(extractor: Extractor) -> Iterator[list[int]]:
    """Count the tokens of the passes that are run; not with a hook, which would keep them from being compiled or shared."""
    count, depth = [0], [0]

    def counting(rows: Callable[..., Any]) -> Callable[..., Any]:
        def counted(batch: Batch, *args: Any, **options: Any) -> Any:
            if not depth[0]:  # a compiled backend may hand a pass on to the plain one
                count[0] += batch.input_ids.numel()
            depth[0] += 1
            try:
                return rows(batch, *args, **options)
            finally:
                depth[0] -= 1

        return counted

    backends = {id(b): b for b in (extractor.backend, extractor.shared_prefixes.backend)}.values()
    for backend in backends:
        backend.rows = counting(backend.rows)  # type: ignore[method-assign]
    try:
        yield count
    finally:
        for backend in backends:
            del backend.rows


def _store(path: Path, pieces: list[States]) -> None:
    """Write the captured sites as a run: one shard, like any study's."""
    n = sum(len(piece) for piece in pieces)
    first = pieces[0]
    states = [{"id": f"{i}", "benchmark": "profile", "regime": "profile", "item_id": f"{i}"} for i in range(n)]
    names = {"torch.float32": "float32", "torch.float16": "float16", "torch.bfloat16": "bfloat16"}
    arrays, specs = {}, {}
    for site, sample in first.sites.items():
        rows = torch.cat([piece.sites[site] for piece in pieces])
        if str(rows.dtype) not in names:
            rows = rows.float()
        dtype = names[str(rows.dtype)]
        layers = None if site == "final_norm" else first.layers
        specs[site] = store.ArraySpec(tuple(sample.shape[1:]), dtype, layers)
        arrays[site] = (rows.view(torch.int16) if dtype == "bfloat16" else rows).numpy()
    with (
        section("store"),
        store.open_writer(
            path,
            plan=store.Plan.build(states, n),
            config={},
            config_defaults={},
            manifest={},
            arrays=specs,
            columns={"entropy_bits": "float64"},
            ragged={},
        ) as writer,
    ):
        entropy = [float(value) for piece in pieces for value in piece.entropy_bits]
        if writer.claim(0):
            writer.write(0, arrays=arrays, table={"entropy_bits": entropy}, ragged={}, blobs={}, seconds=None)


def _write_trace(
    extractor: Extractor, rendered: list[Rendered], sites: tuple[str, ...], layers: Any, attention: str, path: Path
) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if extractor.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with recording(), torch.profiler.profile(activities=activities) as profiler:
        list(extractor.stream(rendered, sites, layers, attention))
    profiler.export_chrome_trace(str(path))


def peak_mib(work: Callable[[], Any], cuda: bool) -> float | None:
    """Peak memory while `work` runs, of the GPU's allocator or of this process; None where it cannot be reset."""
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        work()
        return torch.cuda.max_memory_allocated() / 2**20
    try:
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak of this process back to what it holds now
    except OSError:
        work()
        return None
    work()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
