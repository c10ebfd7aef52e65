"""Small random models of every supported family, and a tokenizer for them: nothing is downloaded.

Guarantees that each family is tried in the form that makes it special (grouped heads, a sliding window shorter than the
prompt, softcaps, sinks, logit scales, multipliers other than 1), and that its weights are large enough for a wrong norm, window or
scale to show: at the usual initialisation, attention is nearly uniform and such faults hide below the tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from precollapse.errors import RequestError

_CHARACTERS = [chr(c) for c in range(32, 127)] + ["\n"]
_SPECIAL = ["<pad>", "<s>", "</s>"]
VOCABULARY = len(_CHARACTERS) + len(_SPECIAL)


@dataclass(frozen=True)
class Family:
    """One family's small configuration.

    Attributes
    ----------
    model_type : str
        Transformers' name of the family.
    settings : dict
        What its config is given beside the common sizes.
    note : str
        What this configuration exercises.
    """

    model_type: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


_GQA = {"num_key_value_heads": 2}
_MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_EXPERTS = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
}
_MLA = {
    **_EXPERTS,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}
_SSM = {"state_size": 8, "expand": 2, "conv_kernel": 4}

FAMILIES: dict[str, Family] = {
    "llama": Family("llama", _GQA, "grouped-query heads"),
    "mistral": Family("mistral", {**_GQA, "sliding_window": 5}, "sliding window of 5"),
    "mixtral": Family("mixtral", {**_GQA, "num_local_experts": 4, "num_experts_per_tok": 2}, "experts"),
    "qwen2": Family("qwen2", _GQA, "biases on q, k, v"),
    "qwen2_moe": Family(
        "qwen2_moe", {**_GQA, **_MOE, "shared_expert_intermediate_size": 32}, "experts with a shared one"
    ),
    "qwen3": Family("qwen3", {**_GQA, "head_dim": 16}, "norms on q and k, heads wider than d/H"),
    "qwen3_moe": Family("qwen3_moe", {**_GQA, **_MOE, "head_dim": 16}, "experts"),
    "gemma": Family("gemma", {"num_key_value_heads": 1, "head_dim": 16}, "one key head, scaled embeddings"),
    "gemma2": Family(
        "gemma2",
        {
            **_GQA,
            "head_dim": 16,
            "sliding_window": 5,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "query_pre_attn_scalar": 20,
        },
        "both softcaps, alternating window, norms after each part",
    ),
    "gemma3": Family(
        "gemma3_text",
        {**_GQA, "head_dim": 16, "sliding_window": 5, "sliding_window_pattern": 2, "query_pre_attn_scalar": 20},
        "alternating window, two rotary bases",
    ),
    "phi3": Family("phi3", {**_GQA, "sliding_window": 5, "pad_token_id": 0}, "fused projections, window"),
    "gpt2": Family("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "learnt positions, scores scaled by layer"),
    "gpt_neo": Family(
        "gpt_neo",
        {"attention_types": [[["global", "local"], 1]], "window_size": 5, "num_layers": 2, "num_heads": 4},
        "local attention",
    ),
    "gpt_neox": Family("gpt_neox", {"use_parallel_residual": True, "rotary_pct": 0.5}, "parallel residual"),
    "gpt_neox-sequential": Family(
        "gpt_neox", {"use_parallel_residual": False, "rotary_pct": 0.5}, "sequential residual"
    ),
    "gptj": Family("gptj", {"rotary_dim": 4}, "parallel residual, bias on the unembedding"),
    "opt": Family(
        "opt",
        {"ffn_dim": 64, "word_embed_proj_dim": 32, "do_layer_norm_before": True},
        "learnt positions with an offset",
    ),
    "opt-post-norm": Family(
        "opt", {"ffn_dim": 64, "word_embed_proj_dim": 32, "do_layer_norm_before": False}, "norm after each addition"
    ),
    "opt-projected": Family(
        "opt",
        {"ffn_dim": 64, "word_embed_proj_dim": 16, "do_layer_norm_before": False},
        "states projected to half their width before the unembedding (OPT-350m)",
    ),
    "bloom": Family("bloom", {}, "ALiBi, residual added inside the attention module"),
    "falcon": Family(
        "falcon",
        {"multi_query": True, "parallel_attn": True, "new_decoder_architecture": False},
        "multi-query, parallel",
    ),
    "falcon-alibi": Family(
        "falcon",
        {"multi_query": False, "parallel_attn": False, "alibi": True, "new_decoder_architecture": False, "bias": True},
        "ALiBi, sequential",
    ),
    "falcon-new": Family(
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 2},
        "grouped heads, two norms",
    ),
    "olmo2": Family("olmo2", _GQA, "norms after each part only"),
    "olmo3": Family("olmo3", {**_GQA, "sliding_window": 5}, "norms after each part only, window"),
    "cohere": Family("cohere", {**_GQA, "logit_scale": 0.25}, "parallel, logit scale"),
    "cohere2": Family(
        "cohere2", {**_GQA, "logit_scale": 0.25, "sliding_window": 5, "head_dim": 8}, "parallel, logit scale, window"
    ),
    "granite": Family(
        "granite",
        {
            **_GQA,
            "logits_scaling": 4.0,
            "residual_multiplier": 0.5,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
        },
        "four multipliers",
    ),
    "stablelm": Family("stablelm", {**_GQA, "use_qkv_bias": True}, "partial rotary, layer norms"),
    "stablelm-parallel": Family("stablelm", {**_GQA, "use_parallel_residual": True}, "parallel residual"),
    "starcoder2": Family("starcoder2", {**_GQA, "sliding_window": 5}, "layer norms, biases, window"),
    "phi": Family("phi", {}, "parallel, bias on the unembedding"),
    "ministral": Family("ministral", {**_GQA, "sliding_window": 5, "head_dim": 8}, "window"),
    "phimoe": Family(
        "phimoe",
        {**_GQA, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5, "lm_head_bias": True},
        "experts, layer norms, window, bias on the unembedding",
    ),
    "olmo": Family("olmo", {**_GQA, "clip_qkv": 2.0}, "norms without weights, clipped projections"),
    "olmoe": Family("olmoe", {**_GQA, "num_experts": 4, "num_experts_per_tok": 2}, "experts, norms on q and k"),
    "seed_oss": Family("seed_oss", {**_GQA, "head_dim": 8, "attention_bias": True}, "biases on q, k, v"),
    "ernie4_5": Family("ernie4_5", {**_GQA, "head_dim": 8}, "interleaved rotary"),
    "arcee": Family("arcee", _GQA, "squared ReLU"),
    "helium": Family("helium", {**_GQA, "head_dim": 8}, "interleaved rotary"),
    "minimax_m2": Family(
        "minimax_m2",
        {**_GQA, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "rotary_dim": 8},
        "experts, partial rotary, norms on q and k",
    ),
    "dots1": Family(
        "dots1",
        {
            **_GQA,
            "head_dim": 16,
            **_EXPERTS,
        },
        "experts after a dense block, norms on q and k",
    ),
    "hunyuan_v1_dense": Family("hunyuan_v1_dense", {**_GQA, "head_dim": 16}, "norms on q and k after rotary"),
    "apertus": Family(
        "apertus",
        {
            **_GQA,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
        "xIELU, scaled rotary, norms named by part",
    ),
    "deepseek_v2": Family("deepseek_v2", {**_MLA, "topk_method": "greedy"}, "latent attention, experts"),
    "deepseek_v3": Family("deepseek_v3", _MLA, "latent attention (values narrower than keys), experts"),
    "gpt_oss": Family(
        "gpt_oss",
        {**_GQA, "head_dim": 16, "sliding_window": 5, "num_local_experts": 4, "num_experts_per_tok": 2},
        "attention sinks, window",
    ),
    "glm": Family("glm", {**_GQA, "head_dim": 8, "pad_token_id": 0}, "interleaved rotary"),
    "glm4": Family("glm4", {**_GQA, "head_dim": 8, "pad_token_id": 0}, "norms before and after each part"),
    "smollm3": Family(
        "smollm3", {**_GQA, "no_rope_layer_interval": 2, "pad_token_id": 0}, "layers without rotary embedding"
    ),
    "mamba": Family("mamba", {**_SSM, "time_step_rank": 4}, "no attention"),
    "falcon_mamba": Family("falcon_mamba", {**_SSM, "time_step_rank": 4}, "no attention, norms inside the mixer"),
    "mamba2": Family("mamba2", {**_SSM, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8}, "no attention"),
    "jamba": Family(
        "jamba",
        {
            **_GQA,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "mamba_d_state": 8,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
        "attention in every second block only",
    ),
    "bamba": Family(
        "bamba",
        {
            **_GQA,
            "attn_layer_indices": [1],
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_n_groups": 2,
            "mamba_d_state": 8,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_chunk_size": 8,
        },
        "not in the table: found by structure",
    ),
    "exaone4": Family(
        "exaone4", {**_GQA, "sliding_window": 5, "sliding_window_pattern": 2}, "not in the table: found by structure"
    ),
    "nemotron": Family("nemotron", {**_GQA, "head_dim": 8}, "not in the table: found by structure"),
}


def small_model(
    family: str, attention: str | None = None, dtype: torch.dtype = torch.float32, layers: int = 2, seed: int = 0
) -> Any:
    """A random causal language model of a family: `layers` blocks of width 32, 4 heads, a vocabulary of 99.

    Parameters
    ----------
    family : str
        A key of `FAMILIES`.
    attention : str, optional
        Attention implementation; None leaves transformers' choice.
    dtype : torch.dtype
        Weights are drawn in float64 and rounded, so that all dtypes hold the same model.
    layers : int
    seed : int

    Returns
    -------
    transformers.PreTrainedModel
        In evaluation mode.

    Raises
    ------
    RequestError
        If the family is unknown, or has no such attention implementation.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    if family not in FAMILIES:
        raise RequestError(f"family {family!r} is unknown; choose from {', '.join(FAMILIES)}")
    wanted = FAMILIES[family]
    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "initializer_range": 0.15,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    config = AutoConfig.for_model(wanted.model_type, **{**common, **wanted.settings})
    options = {} if attention is None else {"attn_implementation": attention}
    if dtype is torch.float64:
        options["experts_implementation"] = "eager"  # torch's grouped product of matrices has no float64
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float64, **options)
        _disturb(model)
    except ValueError as error:
        raise RequestError(
            f"{family} cannot be built with attention {attention!r} ({str(error).splitlines()[0]})"
        ) from error
    finally:
        torch.random.set_rng_state(generator_state)
    return model.to(dtype).eval().requires_grad_(False)


def _disturb(model: Any) -> None:
    """Move norms and biases off their neutral values of one and zero, which would hide a norm that is read too late."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and name.rpartition(".")[2] in ("weight", "bias", "sinks"):
                parameter.add_(0.3 * torch.randn_like(parameter))


def small_tokenizer(padding_side: str = "left", chat_template: str | None = None) -> Any:
    """A tokenizer with one token per printable character, for the vocabulary of `small_model`; it writes no BOS by itself."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([*_SPECIAL, *_CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side=padding_side
    )
    if chat_template is not None:
        made.chat_template = chat_template
    return made
