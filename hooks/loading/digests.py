"""Which bytes a local model consists of: SHA-256 over every file that decides its numbers or its prompts.

Guarantees that a run is not continued with another model: weights wherever the index finds them, config, tokenizer and templates all
count. The digest of a folder whose files were all covered before is what it was.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ... import atomic
from .cache import cache_folder

_IDENTITY = (".safetensors", ".bin", ".json", ".jinja", ".txt", ".model", ".tiktoken")
_LARGE = 16 << 20
_LARGEST_INDEX = 256 << 20


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_revision(folder: Path) -> str:
    """Identity of a local model, `sha256:...`: the content of every file that decides its numbers or its prompts.

    Weights, config, generation config, tokenizer and chat templates all count: a study that was resumed with any of them changed
    would mix two models.
    """
    return _digest(_named_files(folder, [*_beside(folder), *_below(folder)]))


def former_revision(folder: Path) -> str:
    """Identity of the same folder as it was formed before files in subfolders counted."""
    return _digest(_named_files(folder, _beside(folder)))


def _digest(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, path in files:
        digest.update(f"{name}:{remembered_digest(path)}\n".encode(errors="surrogateescape"))
    return f"sha256:{digest.hexdigest()}"


def _named_files(folder: Path, paths: Iterable[Path]) -> list[tuple[str, Path]]:
    return [(path.relative_to(folder).as_posix(), path) for path in paths]


def _beside(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_file() and p.suffix in _IDENTITY)


def _below(folder: Path) -> list[Path]:
    """What transformers reads from subfolders: shards that an index names, and the additional chat templates."""
    paths = set((folder / "additional_chat_templates").glob("*.jinja"))
    for index in sorted(folder.glob("*.index.json")):
        try:
            if index.stat().st_size > _LARGEST_INDEX:
                continue
            names = set(json.loads(index.read_bytes())["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # not an index; loading it says so
        for name in names:
            parts = PurePosixPath(name).parts if isinstance(name, str) and "\0" not in name else ()
            if len(parts) > 1 and ".." not in parts and not name.startswith("/"):
                paths.add(folder.joinpath(*parts))
    return sorted(p for p in paths if p.is_file())


def remembered_digest(path: Path) -> str:
    """SHA-256 of a file; of a large one remembered by path, size and times of change, so that it is read once."""
    facts = path.stat()
    if facts.st_size < _LARGE:
        return file_digest(path)
    key = f"{path.resolve()}\n{facts.st_size}\n{facts.st_mtime_ns}\n{facts.st_ctime_ns}\n{facts.st_ino}"
    memory = cache_folder() / "digests" / hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()
    try:
        text = memory.read_text().strip()
        if len(text) == 64:
            return text
    except OSError:
        pass
    digest = file_digest(path)
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(memory, digest)
    except OSError:
        pass  # it is only a memory; next time the file is read again
    return digest
