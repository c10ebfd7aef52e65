"""Where things are inside each transformer: a declarative table, and a structural fallback that the load gate checks.

Guarantees that a site means the same thing in every family: `attn_out` and `mlp_out` are what a block *adds* to the
residual stream, so that resid_pre + attn_out + mlp_out = resid_post wherever all four exist. It prevents the silent faults of
this field: a post-norm state taken for the residual, BLOOM's attention output that already holds the residual, Granite's
outputs before their multiplier, a `resid_mid` read in a parallel block that has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ..errors import RequestError

LAYER_SITES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "z")
SITES = (*LAYER_SITES, "final_norm")


@dataclass(frozen=True)
class Tap:
    """One place to read inside a block.

    Attributes
    ----------
    module : str
        Path of the module relative to the block; "" is the block itself.
    side : {"input", "output"}
        Whether the module's first input or its (first) output is read.
    multiplier : str, optional
        Config attribute that the block multiplies this tensor by before adding it to the residual.
    """

    module: str
    side: str
    multiplier: str | None = None


@dataclass(frozen=True)
class Layout:
    """One row of the table: where a family keeps its blocks, and where each site is read in a block."""

    blocks: str
    norm: str | None
    taps: Mapping[str, Tap]
    absent: Mapping[str, str] = field(default_factory=dict)


_BLOCK = {"resid_pre": Tap("", "input"), "resid_post": Tap("", "output")}
_PARALLEL = "its attention and MLP read the same input in parallel, so no residual stands between them"
_RECURRENT = "its blocks are recurrent mixers without attention or a separate MLP"


def _sequential(attention: str, projection: str, mid: str, mlp: str = "mlp", **special: Tap) -> dict[str, Tap]:
    return {
        **_BLOCK,
        "resid_mid": Tap(mid, "input"),
        "attn_out": Tap(attention, "output"),
        "mlp_out": Tap(mlp, "output"),
        "z": Tap(f"{attention}.{projection}", "input"),
        **special,
    }


def _without(taps: Mapping[str, Tap], *sites: str) -> dict[str, Tap]:
    return {site: tap for site, tap in taps.items() if site not in sites}


_LLAMA = _sequential("self_attn", "o_proj", "post_attention_layernorm")
_SANDWICH = _sequential(
    "self_attn",
    "o_proj",
    "pre_feedforward_layernorm",
    attn_out=Tap("post_attention_layernorm", "output"),
    mlp_out=Tap("post_feedforward_layernorm", "output"),
)

_PRE_NORM = Layout("model.layers", "model.norm", _LLAMA)

_TABLE: dict[tuple[str, ...], Layout] = {
    (
        "llama",
        "mistral",
        "mixtral",
        "ministral",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "gemma",
        "phi3",
        "phimoe",
        "smollm3",
        "starcoder2",
        "deepseek_v2",
        "deepseek_v3",
        "gpt_oss",
        "olmo",
        "olmoe",
        "seed_oss",
        "ernie4_5",
        "arcee",
        "helium",
        "glm",
        "minimax_m2",
        "dots1",
        "hunyuan_v1_dense",
    ): _PRE_NORM,
    ("apertus",): Layout("model.layers", "model.norm", {**_LLAMA, "resid_mid": Tap("feedforward_layernorm", "input")}),
    ("gemma2", "gemma3_text"): Layout("model.layers", "model.norm", _SANDWICH),
    ("olmo2", "olmo3"): Layout("model.layers", "model.norm", {**_SANDWICH, "resid_mid": Tap("mlp", "input")}),
    ("glm4",): Layout(
        "model.layers",
        "model.norm",
        {
            **_LLAMA,
            "attn_out": Tap("post_self_attn_layernorm", "output"),
            "mlp_out": Tap("post_mlp_layernorm", "output"),
        },
    ),
    ("granite",): Layout(
        "model.layers",
        "model.norm",
        {
            **_LLAMA,
            "attn_out": Tap("self_attn", "output", "residual_multiplier"),
            "mlp_out": Tap("mlp", "output", "residual_multiplier"),
        },
    ),
    ("cohere", "cohere2"): Layout(
        "model.layers", "model.norm", _without(_LLAMA, "resid_mid"), {"resid_mid": _PARALLEL}
    ),
    ("phi",): Layout(
        "model.layers",
        "model.final_layernorm",
        _without(_sequential("self_attn", "dense", ""), "resid_mid"),
        {"resid_mid": _PARALLEL},
    ),
    ("stablelm",): _PRE_NORM,
    ("gpt2",): Layout("transformer.h", "transformer.ln_f", _sequential("attn", "c_proj", "ln_2")),
    ("gpt_neo",): Layout("transformer.h", "transformer.ln_f", _sequential("attn", "attention.out_proj", "ln_2")),
    ("gpt_neox",): Layout(
        "gpt_neox.layers", "gpt_neox.final_layer_norm", _sequential("attention", "dense", "post_attention_layernorm")
    ),
    ("gptj",): Layout(
        "transformer.h",
        "transformer.ln_f",
        _without(_sequential("attn", "out_proj", ""), "resid_mid"),
        {"resid_mid": _PARALLEL},
    ),
    ("opt",): Layout(
        "model.decoder.layers",
        "model.decoder.final_layer_norm",
        _sequential("self_attn", "out_proj", "final_layer_norm", mlp="fc2"),
    ),
    # BLOOM's attention and MLP modules return their output with the residual already added: read the projections instead.
    ("bloom",): Layout(
        "transformer.h",
        "transformer.ln_f",
        _sequential(
            "self_attention",
            "dense",
            "post_attention_layernorm",
            attn_out=Tap("self_attention.dense", "output"),
            mlp_out=Tap("mlp.dense_4h_to_h", "output"),
        ),
    ),
    ("falcon",): Layout(
        "transformer.h", "transformer.ln_f", _sequential("self_attention", "dense", "post_attention_layernorm")
    ),
    ("mamba", "mamba2", "falcon_mamba"): Layout(
        "backbone.layers",
        "backbone.norm_f",
        _BLOCK,
        dict.fromkeys(("resid_mid", "attn_out", "mlp_out", "z"), _RECURRENT),
    ),
    ("jamba",): Layout(
        "model.layers",
        "model.final_layernorm",
        {**_BLOCK, "resid_mid": Tap("pre_ff_layernorm", "input"), "mlp_out": Tap("feed_forward", "output")},
        dict.fromkeys(("attn_out", "z"), "only some of its blocks have attention"),
    ),
}

LAYOUTS: dict[str, Layout] = {name: layout for names, layout in _TABLE.items() for name in names}

_LOGIT_MULTIPLIERS = {"cohere": "logit_scale", "cohere2": "logit_scale", "falcon_h1": "lm_head_multiplier"}
_LOGIT_DIVISORS = ("granite", "granitemoe", "granitemoeshared", "granitemoehybrid")


@dataclass(frozen=True)
class Architecture:
    """A loaded model's parts, found and checked.

    Attributes
    ----------
    model_type : str
        The config's model type.
    source : {"table", "structure"}
        Whether the layout comes from the table or was found by structure.
    backbone : nn.Module
        The model without its unembedding; its `last_hidden_state` is the `final_norm` site.
    stack : nn.Module
        The module that runs the blocks and the final norm: the backbone itself, or OPT's decoder inside it.
    blocks : list of nn.Module
        The `L` decoder blocks in order.
    norm : nn.Module or None
        The final norm, where there is one.
    head : nn.Module
        The unembedding module.
    scale, softcap : float
        What the model does to its logits after the unembedding: `softcap * tanh(scale * logits / softcap)`; softcap 0 means none.
    taps : dict of str to Tap
        The layer sites that this model has.
    absent : dict of str to str
        The sites that it lacks, each with the reason.
    heads : int
        Query heads per attention layer, 0 where there is none.
    width : int
        Width of the residual stream (d).
    final_width : int
        Width of what the unembedding reads.
    """

    model_type: str
    source: str
    backbone: nn.Module
    stack: nn.Module
    blocks: list[nn.Module]
    norm: nn.Module | None
    head: nn.Module
    scale: float
    softcap: float
    taps: Mapping[str, Tap]
    absent: Mapping[str, str]
    multipliers: Mapping[str, float]
    heads: int
    width: int
    final_width: int

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that this model has, in DESIGN order."""
        return tuple(site for site in SITES if site == "final_norm" or site in self.taps)

    @property
    def head_width(self) -> int:
        """Width of one head's output before the output projection (`z`)."""
        return self.site_width("z") // self.heads

    def site_width(self, site: str, layer: int = 0) -> int:
        """Values per token at a site: d, all heads together for `z`, what the unembedding reads for `final_norm`.

        The last differs from d where a model projects its states before the unembedding, as OPT-350m does.
        """
        if site == "z":
            return input_width(self.module(layer, "z"))
        return self.width if site != "final_norm" else self.final_width

    def require(self, site: str) -> None:
        """Raise RequestError when this model has no such site, saying why and what it has."""
        if site not in SITES:
            raise RequestError(f"site {site!r} is unknown; choose from {', '.join(SITES)}")
        if site not in self.sites:
            why = self.absent.get(site, "its layout was found by structure only, which gives residual sites")
            raise RequestError(
                f"{self.model_type} models have no site {site!r}: {why}; they have {', '.join(self.sites)}"
            )

    def module(self, layer: int, site: str) -> nn.Module:
        """The module that is hooked for a layer site."""
        return submodule(self.blocks[layer], self.taps[site].module)


def context_length(config: Any) -> int | None:
    """Most tokens that a model was built for, where its config says."""
    if config is None:
        return None
    config = config.get_text_config(decoder=True)
    for name in ("max_position_embeddings", "n_positions", "seq_length"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def input_width(module: Any) -> int:
    """Input width of an output projection, plain or quantised, Linear or GPT-2's Conv1D.

    Raises
    ------
    RequestError
        If the module is of a kind that does not say it.
    """
    module = unwrapped(module)
    width = _declared_width(module)
    if width:
        return width
    if isinstance(getattr(module, "nf", None), int) and getattr(module.weight, "ndim", 0) == 2:
        return int(module.weight.shape[0])  # GPT-2's Conv1D, whose weight is [input, output]
    raise RequestError(
        f"{type(module).__name__} does not say how wide its input is, so `z` cannot be read there; leave that site out"
    )


def output_width(module: Any) -> int | None:
    """Output width of an unembedding, plain or packed; None where it does not say."""
    module = unwrapped(module)
    for name in ("out_features", "outfeatures"):
        if isinstance(value := getattr(module, name, None), int):
            return value
    weight: Any = getattr(module, "weight", None)
    return int(weight.shape[0]) if getattr(weight, "ndim", 0) == 2 else None


def _declared_width(module: Any) -> int | None:
    """The input width that a module declares; packed weights have other shapes than the matrix they stand for."""
    for name in ("in_features", "infeatures", "nx"):
        if isinstance(value := getattr(unwrapped(module), name, None), int):
            return value
    return None


def unwrapped(module: Any) -> Any:
    """The module inside a wrapper that keeps it as `original_component`, as TransformerLens' do; else the module itself."""
    while isinstance(inner := getattr(module, "original_component", None), nn.Module):
        module = inner
    return module


def submodule(root: nn.Module, path: str) -> nn.Module:
    """`root.a.b` for the path "a.b", looking into wrappers; root itself for "".

    Raises
    ------
    AttributeError
        If there is no such module.
    """
    module = root
    for name in path.split(".") if path else ():
        inner = unwrapped(module)
        module = getattr(inner, name)
        if not isinstance(module, nn.Module):
            raise AttributeError(f"{name} of {type(inner).__name__} is no module")
    return module


def describe(model: Any) -> Architecture:
    """Find a Hugging Face causal language model's parts.

    Parameters
    ----------
    model : transformers.PreTrainedModel

    Returns
    -------
    Architecture

    Raises
    ------
    RequestError
        If no stack of blocks or no unembedding can be found, or the model is of an unsupported kind.
    """
    config = model.config.get_text_config(decoder=True)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    backbone = getattr(model, "base_model", None)
    if backbone is model:  # a class that calls its text part otherwise than its attribute
        backbone = getattr(model, "model", None)
    if head is None or backbone is None or backbone is model:
        raise RequestError(
            f"{type(model).__name__} has no unembedding over a backbone; precollapse needs a causal language model such as AutoModelForCausalLM gives"
        )
    layout = LAYOUTS.get(config.model_type)
    source = "table"
    if layout is None:
        layout, source = _by_structure(model, config), "structure"
    try:
        blocks = list(submodule(model, layout.blocks))  # type: ignore[call-overload]
    except AttributeError as error:
        raise RequestError(
            f"{type(model).__name__} calls itself {config.model_type} but has no {layout.blocks}; pass the plain Hugging Face model, not a wrapped one"
        ) from error
    taps, absent = _checked_taps(layout, blocks, config)
    return Architecture(
        model_type=config.model_type,
        source=source,
        backbone=backbone,
        stack=submodule(model, layout.blocks.rpartition(".")[0]),
        blocks=blocks,
        norm=_optional(model, layout.norm),
        head=head,
        scale=_logit_scale(model, config),
        softcap=float(getattr(config, "final_logit_softcapping", None) or 0.0),
        taps=taps,
        absent=absent,
        multipliers={t.multiplier: float(getattr(config, t.multiplier)) for t in taps.values() if t.multiplier},
        heads=int(getattr(config, "num_attention_heads", 0) or 0)
        if "z" in taps or "attn_out" in taps or source == "structure"
        else 0,
        width=int(config.hidden_size),
        final_width=int(
            _declared_width(head) or getattr(config, "word_embed_proj_dim", None) or config.hidden_size  # OPT's name
        ),
    )


def _checked_taps(layout: Layout, blocks: list[nn.Module], config: Any) -> tuple[dict[str, Tap], dict[str, str]]:
    """Drop the sites that this very model lacks (parallel variants, blocks that differ), with the reason."""
    taps, absent = dict(layout.taps), dict(layout.absent)
    parallel = (
        getattr(config, "use_parallel_residual", False)
        or getattr(config, "parallel_attn", False)
        or (config.model_type == "falcon" and getattr(config, "new_decoder_architecture", False))
    )
    if parallel and "resid_mid" in taps:
        taps.pop("resid_mid")
        absent["resid_mid"] = _PARALLEL
    if config.model_type == "opt" and not getattr(config, "do_layer_norm_before", True):
        for site in ("resid_mid", "attn_out", "mlp_out"):
            taps.pop(site, None)
            absent[site] = "this post-norm OPT normalises the residual stream itself after each addition"
    if getattr(config, "apply_residual_connection_post_layernorm", False):
        for site in ("resid_mid", "attn_out", "mlp_out"):
            taps.pop(site, None)
            absent[site] = "this variant adds to the normalised residual, so the parts do not sum to the block's output"
    for site, tap in list(taps.items()):
        for layer, block in enumerate(blocks):
            if _optional(block, tap.module) is None:
                taps.pop(site)
                absent[site] = f"block {layer} ({type(block).__name__}) has no {tap.module}"
                break
    return taps, absent


def _by_structure(model: Any, config: Any) -> Layout:
    """The longest list of modules that is as long as the config says and holds residual blocks."""
    wanted = int(getattr(config, "num_hidden_layers", 0) or 0)
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == wanted and wanted > 0 and "." in name
    ]
    if not found:
        raise RequestError(
            f"the blocks of {type(model).__name__} ({config.model_type}) could not be found: no module list of {wanted} blocks; this architecture is not supported"
        )
    name = min((name for name, _ in found), key=lambda text: text.count("."))
    parent = name.rpartition(".")[0]
    norms = [
        f"{parent}.{child}"
        for child, module in model.get_submodule(parent).named_children()
        if "norm" in type(module).__name__.lower() and "emb" not in child
    ]
    return Layout(name, norms[-1] if norms else None, _BLOCK)


def _optional(root: Any, path: str | None) -> nn.Module | None:
    if path is None:
        return None
    try:
        return submodule(root, path)
    except AttributeError:
        return None


def _logit_scale(model: Any, config: Any) -> float:
    if config.model_type in _LOGIT_MULTIPLIERS:
        return float(getattr(config, _LOGIT_MULTIPLIERS[config.model_type]) or 1.0)
    if config.model_type in _LOGIT_DIVISORS:
        return 1.0 / float(config.logits_scaling)
    return 1.0
