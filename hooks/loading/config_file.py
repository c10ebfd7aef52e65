"""The config of a checkpoint, read as data before any class is made of it.

Guarantees that a config which is not JSON, names no kind of model, needs a program of its own, or claims absurd sizes is refused by
its file's name, and that what it may not say (where to fetch code for its attention) is not followed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import RequestError
from .refusals import printable, refused

_LARGEST = 64 << 20
_SIZES = (
    *("hidden_size", "d_model", "n_embd", "dim", "intermediate_size", "ffn_dim", "n_inner", "vocab_size", "head_dim"),
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_attention_heads", "num_heads", "n_head"),
    *("num_key_value_heads", "num_kv_heads", "max_position_embeddings", "n_positions", "n_ctx", "state_size"),
    *(
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "moe_intermediate_size",
        "conv_kernel",
        "word_embed_proj_dim",
    ),
)
_MUST_BE_POSITIVE = {"hidden_size", "n_embd", "d_model", "vocab_size", "num_hidden_layers", "n_layer"}
_LAYERS = {"num_hidden_layers", "num_layers", "n_layer", "n_layers"}
_LARGEST_SIZE, _MOST_LAYERS = 1 << 31, 10_000


def read_json(path: Path) -> Any:
    """What a JSON file of a checkpoint holds.

    Raises
    ------
    RequestError
        It cannot be read, is not JSON, or is larger than any such file is.
    """
    with refused(lambda reason: f"{path} cannot be read as JSON ({reason}); get the file again from where it came"):
        if not path.is_file():
            raise RequestError(f"{path} is not there or is no file; get the whole checkpoint again")
        if path.stat().st_size > _LARGEST:
            raise RequestError(
                f"{path} holds {path.stat().st_size:,} bytes, far more than such a file does; get it again"
            )
        return json.loads(path.read_bytes())


def read_config(path: Path, name: str) -> dict[str, Any]:
    """The content of `config.json`, checked for what no sound one has.

    Parameters
    ----------
    path : Path
    name : str
        What a message calls the model.

    Raises
    ------
    RequestError
        Naming the file.
    """
    config = read_json(path)
    if not isinstance(config, dict):
        raise RequestError(f"{path} holds a {type(config).__name__}, not the settings of a model; get the file again")
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise RequestError(
            f"{path} names no model_type (found {printable(repr(kind), 60)}), so it is not known which model this is; "
            "get the config that belongs to the weights"
        )
    for key in ("quantization_config", "compression_config", "text_config"):
        if not isinstance(config.get(key), dict | None):
            raise RequestError(
                f"{path} says {key} = {printable(repr(config[key]), 60)}, which is no set of settings; get the file again"
            )
    for part in (config, *(v for v in config.values() if isinstance(v, dict))):
        _check_sizes(part, path)
        _refuse_fetched_code(part, path)
    refuse_remote_code(config, name, kind)
    return config


def _check_sizes(config: Mapping[str, Any], path: Path) -> None:
    for key in _SIZES:
        size = config.get(key)
        if isinstance(size, bool) or not isinstance(size, int | float):
            continue
        least = 1 if key in _MUST_BE_POSITIVE else -1  # -1 stands for "not set" in some families
        if not least <= size < (_MOST_LAYERS if key in _LAYERS else _LARGEST_SIZE):
            raise RequestError(
                f"{path} says {key} = {size:.6g}, which no model has; get the config that belongs to the weights"
            )


def _refuse_fetched_code(config: Mapping[str, Any], path: Path) -> None:
    for key in ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation"):
        chosen = config.get(key)
        names = chosen.values() if isinstance(chosen, dict) else [chosen]
        fetched = next((n for n in names if isinstance(n, str) and "/" in n), None)
        if fetched is not None:
            raise RequestError(
                f"{path} asks for {key} {printable(fetched, 80)!r}, a program that would be fetched and run; "
                "take that line out of the file"
            )


def refuse_remote_code(config: Mapping[str, Any], name: str, kind: str) -> None:
    """Refuse a model that exists as a program beside its weights only (`auto_map`); nobody is asked, nothing is run.

    Where transformers knows the kind of model, its own class is used whatever else lies there.
    """
    from transformers import CONFIG_MAPPING

    if config.get("auto_map") and kind not in CONFIG_MAPPING:
        raise RequestError(
            f"model {name!r} ({printable(kind, 60)}) is a program of its own (auto_map in its config.json), which precollapse does not run; "
            "give a model whose type transformers itself has, or load it yourself and pass the loaded model to Extractor"
        )


def refuse_unsupported(config: Any, name: str) -> None:
    """Refuse encoder-decoder and vision models: they have no pre-first-token boundary of the kind measured here."""
    if getattr(config, "is_encoder_decoder", False):
        raise RequestError(
            f"model {name!r} ({config.model_type}) is an encoder-decoder; precollapse reads decoder-only language models"
        )
    if getattr(config, "vision_config", None) is not None or getattr(config, "audio_config", None) is not None:
        from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

        text = config.get_text_config(decoder=True)
        alone: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(text), None) if text is not config else None
        known = isinstance(alone, type) and alone.__name__ != name
        advice = f"load its language model alone ({alone.__name__})" if known else "give a model of text alone"
        raise RequestError(
            f"model {name!r} ({config.model_type}) takes images or sound; {advice} and pass that to Extractor"
        )
