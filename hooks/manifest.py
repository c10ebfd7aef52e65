"""What produced a capture, as plain values that a run keeps.

Guarantees that whatever changes a state (model, revision, tokenizer, dtype, attention, batching, steering, a change after loading) is
said beside it.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import torch


def manifest_of(extractor: Any) -> dict[str, Any]:
    """Model, tokenizer, backend, dtype, attention implementation, versions and the result of the check at load, of an `Extractor`."""
    import transformers

    from .. import __version__

    config = extractor.model.config
    architecture = extractor.backend.architecture
    return {
        "model": extractor.source.name
        if extractor.source
        else (getattr(config, "_name_or_path", "") or type(extractor.model).__name__),
        "model_revision": extractor.source.revision if extractor.source else getattr(config, "_commit_hash", None),
        **(
            {"checkpoint_prefix": extractor.source.checkpoint_prefix}
            if extractor.source and extractor.source.checkpoint_prefix
            else {}
        ),
        **({"changed_after_loading": True} if extractor._changed else {}),
        "model_type": architecture.model_type,
        "architecture_source": architecture.source,
        "n_layers": extractor.n_layers,
        "d_model": architecture.width,
        "heads": architecture.heads,
        "vocabulary": int(config.get_text_config(decoder=True).vocab_size),
        "tokenizer": type(extractor.tokenizer).__name__,
        "tokenizer_hash": extractor.renderer.tokenizer_hash,
        **extractor.renderer.describe(),
        "backend": extractor.backend.name,
        "dtype": str(extractor.model.dtype).removeprefix("torch."),
        "device": str(extractor.device),
        "attention_implementation": getattr(config, "_attn_implementation", None),
        "batch_tokens": extractor.batch_tokens,
        "share_prefix": extractor.share_prefix,
        "compile": extractor.compiler,
        "gate": None if extractor.gate_report is None else extractor.gate_report.as_dict(),
        **({"steering": [s.describe() for s in extractor.steerings]} if extractor.steerings else {}),
        "versions": {
            "precollapse": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
        },
    }
