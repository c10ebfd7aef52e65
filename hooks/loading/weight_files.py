"""Which files hold a checkpoint's weights, and what their headers say: names, shapes and dtypes, before one number is read.

Guarantees that a file that is cut, empty, garbage, a pickle of more than tensors, or missing is refused by its name, that no index leads
out of the checkpoint, and that no file's claim about itself makes anything large.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from ...errors import RequestError
from .config_file import read_json
from .refusals import printable, refused

_WHOLE = ("model.safetensors", "pytorch_model.bin")
NAMES = tuple(name for whole in _WHOLE for name in (whole, f"{whole}.index.json"))
"""Names under which weights are looked for, in transformers' order."""
_DISTRIBUTED = re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors")
_AGAIN = "get the whole file again from where it came"


def local_weight_files(folder: Path, config: dict[str, Any]) -> list[Path]:
    """The files that hold the weights of a folder, as transformers chooses them.

    Raises
    ------
    RequestError
        There are none, one is missing, or an index is no index or leads out of the folder.
    """
    if any(_DISTRIBUTED.fullmatch(path.name) for path in folder.iterdir()):
        raise RequestError(
            f"folder {folder} holds a distributed checkpoint (shard-*-model-*.safetensors), which belongs to the processes that wrote it; "
            "save the model with save_pretrained and give that folder"
        )
    chosen = chosen_name(config, folder)
    names = NAMES if chosen is None else (chosen,)
    first = next((folder / name for name in names if (folder / name).is_file()), None)
    if first is None:
        raise RequestError(
            f"folder {folder} holds no weights ({' or '.join(names[::2])}); give a folder made by save_pretrained"
        )
    if not first.name.endswith(".index.json"):
        return [first]
    shards = [folder / name for name in shard_names(first)]
    missing = [path for path in shards if not path.is_file()]
    if missing:
        raise RequestError(
            f"{first} names {len(shards)} files, of which {len(missing)} are not there: {missing[0]} first; get the missing files"
        )
    return shards


def hub_weight_files(location: str, revision: str, config: dict[str, Any]) -> list[Path]:
    """The files that hold the weights of a Hub model, fetched into the Hub's cache; none where they cannot be had.

    Raises
    ------
    RequestError
        An index is no index or leads out of the repository.
    """
    from transformers.utils.hub import cached_file, cached_files

    chosen = chosen_name(config, location)
    quietly: dict[str, Any] = {
        "revision": revision,
        "_raise_exceptions_for_missing_entries": False,
        "_raise_exceptions_for_connection_errors": False,
    }
    for name in NAMES if chosen is None else (chosen,):
        path = cached_file(location, name, **quietly)
        if path is not None:
            if not name.endswith(".index.json"):
                return [Path(path)]
            shards = cached_files(location, shard_names(Path(path)), **quietly)
            return [Path(shard) for shard in shards or ()]
    return []


def chosen_name(config: dict[str, Any], where: object) -> str | None:
    """The weights' file that the config itself names (`transformers_weights`), if it does."""
    name = config.get("transformers_weights")
    if name is None:
        return None
    if not isinstance(name, str) or not name.endswith((".safetensors", ".safetensors.index.json")) or _leads_out(name):
        raise RequestError(
            f"the config.json of {where} names {printable(repr(name), 80)} as its weights, which is no safetensors file of the checkpoint; "
            "take transformers_weights out of it"
        )
    return name


def shard_names(index: Path) -> list[str]:
    """The files that an index of shards names, each once and in order.

    Raises
    ------
    RequestError
        It is no index, or a name leads out of the checkpoint.
    """
    content = read_json(index)
    shards = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(shards, dict) or not shards or not all(isinstance(name, str) for name in shards.values()):
        raise RequestError(f"{index} is no index of weights (it has no weight_map of names); get the file again")
    if not isinstance(content.get("metadata"), dict):
        raise RequestError(f"{index} is no index of weights (it has no metadata); get the file again")
    names = sorted(set(shards.values()))
    suffix = ".safetensors" if index.name.endswith(".safetensors.index.json") else ".bin"
    for name in names:
        if _leads_out(name) or not name.endswith(suffix):
            raise RequestError(
                f"{index} names {printable(name, 80)!r}, which is no {suffix} file of this checkpoint; do not use it"
            )
    return names


def _leads_out(name: str) -> bool:
    return name.startswith("/") or ".." in PurePosixPath(name).parts or "\\" in name or "\0" in name or ":" in name


def tensors_of(files: Iterable[Path]) -> dict[str, Any]:
    """Every tensor of a checkpoint by name, on torch's meta device: its shape and dtype, none of its numbers.

    Raises
    ------
    RequestError
        Naming the file that is not whole, or not what it should be.
    """
    tensors: dict[str, Any] = {}
    for path in files:
        if path.stat().st_size == 0:
            raise RequestError(f"{path} is empty; {_AGAIN}")
        tensors |= _safetensors(path) if path.suffix == ".safetensors" else _pickled(path)
    return tensors


def _safetensors(path: Path) -> dict[str, Any]:
    import torch
    from safetensors import safe_open

    with refused(lambda reason: f"{path} is no whole safetensors file ({reason}); {_AGAIN}"):
        with safe_open(path, framework="pt") as file:  # checks that the tensors fill the file, no more and no less
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: torch.empty(part.get_shape(), dtype=_dtype(part.get_dtype()), device="meta")
                for name, part in slices.items()
            }


def _dtype(name: str) -> Any:
    from transformers.modeling_utils import str_to_torch_dtype

    if name not in str_to_torch_dtype:
        raise ValueError(f"a tensor has the dtype {name}")
    return str_to_torch_dtype[name]


def _pickled(path: Path) -> dict[str, Any]:
    import torch

    sentence = (
        f"{path} does not hold plain tensors alone: it is cut, garbage, or a pickle that could run code, and is not read; "
        "get the checkpoint as safetensors from where it came"
    )
    with refused(lambda reason: sentence):
        options = {"mmap": True} if zipfile.is_zipfile(path) else {}
        content = torch.load(path, map_location="meta", weights_only=True, **options)
        if not isinstance(content, dict):
            raise RequestError(sentence)
        strangers = [name for name, t in content.items() if not (isinstance(name, str) and isinstance(t, torch.Tensor))]
        if strangers:
            raise RequestError(
                f"{path} holds {printable(repr(strangers[0]), 60)} beside tensors, so it is not a model's weights but what a training "
                "program wrote; save the model with save_pretrained and give that folder"
            )
        return {name: tensor.detach() for name, tensor in content.items()}
