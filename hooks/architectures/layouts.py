"""The table: where each family keeps its blocks, and where each site is read in a block.

Guarantees that a site means the same thing in every family: `attn_out` and `mlp_out` are what a block *adds* to the residual stream. It
prevents the silent faults of this field: a post-norm state taken for the residual, BLOOM's attention output that already holds the
residual, Granite's outputs before their multiplier, a `resid_mid` read in a parallel block that has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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


BLOCK = {"resid_pre": Tap("", "input"), "resid_post": Tap("", "output")}
PARALLEL = "its attention and MLP read the same input in parallel, so no residual stands between them"
_RECURRENT = "its blocks are recurrent mixers without attention or a separate MLP"


def _sequential(attention: str, projection: str, mid: str, mlp: str = "mlp", **special: Tap) -> dict[str, Tap]:
    return {
        **BLOCK,
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
    ("cohere", "cohere2"): Layout("model.layers", "model.norm", _without(_LLAMA, "resid_mid"), {"resid_mid": PARALLEL}),
    ("phi",): Layout(
        "model.layers",
        "model.final_layernorm",
        _without(_sequential("self_attn", "dense", ""), "resid_mid"),
        {"resid_mid": PARALLEL},
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
        {"resid_mid": PARALLEL},
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
        BLOCK,
        dict.fromkeys(("resid_mid", "attn_out", "mlp_out", "z"), _RECURRENT),
    ),
    ("jamba",): Layout(
        "model.layers",
        "model.final_layernorm",
        {**BLOCK, "resid_mid": Tap("pre_ff_layernorm", "input"), "mlp_out": Tap("feed_forward", "output")},
        dict.fromkeys(("attn_out", "z"), "only some of its blocks have attention"),
    ),
}

LAYOUTS: dict[str, Layout] = {name: layout for names, layout in _TABLE.items() for name in names}
