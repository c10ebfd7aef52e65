"""A loaded model's parts: found by the table or by structure, and checked against the model at hand.

Guarantees that a site which this very model lacks (a parallel variant, a block that differs) is dropped with the reason, so that
resid_pre + attn_out + mlp_out = resid_post wherever all four exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ...errors import RequestError
from .layouts import BLOCK, LAYOUTS, PARALLEL, SITES, Layout, Tap
from .modules import declared_width, input_width, optional_submodule, submodule

_LOGIT_MULTIPLIERS = {
    **dict.fromkeys(("cohere", "cohere2", "cohere2_moe", "cohere_compass"), "logit_scale"),
    "falcon_h1": "lm_head_multiplier",
    "hyperclovax": "logits_scaling",
}
_LOGIT_DIVISORS = (
    "granite",
    "granite_swa",
    "granitemoe",
    "granitemoe_swa",
    "granitemoeshared",
    "granitemoehybrid",
    "minicpm3",
)
_SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
_BEFORE_HEAD = ("cls.predictions.transform",)
"""What BERT's decoders have between the backbone and the unembedding."""


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
    before_head : nn.Module or None
        What runs between the backbone and the unembedding, where a family has that.
    vocabulary : int or None
        How many of the unembedding's columns are tokens, where the config says that the others are padding.
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
    before_head: nn.Module | None
    vocabulary: int | None
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
        norm=optional_submodule(model, layout.norm),
        head=head,
        before_head=_before_head(model, config),
        vocabulary=getattr(config, "unpadded_vocab_size", None),
        scale=_logit_scale(model, config),
        softcap=next((float(cap) for name in _SOFTCAPS if (cap := getattr(config, name, None))), 0.0),
        taps=taps,
        absent=absent,
        multipliers={t.multiplier: float(getattr(config, t.multiplier)) for t in taps.values() if t.multiplier},
        heads=int(getattr(config, "num_attention_heads", 0) or 0)
        if "z" in taps or "attn_out" in taps or source == "structure"
        else 0,
        width=int(config.hidden_size),
        final_width=int(
            declared_width(head) or getattr(config, "word_embed_proj_dim", None) or config.hidden_size  # OPT's name
        ),
    )


def _before_head(model: Any, config: Any) -> nn.Module | None:
    if config.model_type == "modernbert-decoder":
        return optional_submodule(model, "lm_head")
    return next((found for name in _BEFORE_HEAD if (found := optional_submodule(model, name)) is not None), None)


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
        absent["resid_mid"] = PARALLEL
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
            if optional_submodule(block, tap.module) is None:
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
    return Layout(name, norms[-1] if norms else None, BLOCK)


def _logit_scale(model: Any, config: Any) -> float:
    if config.model_type in _LOGIT_MULTIPLIERS:
        return float(getattr(config, _LOGIT_MULTIPLIERS[config.model_type]) or 1.0)
    if config.model_type in _LOGIT_DIVISORS:
        return 1.0 / float(config.logits_scaling)
    return 1.0
