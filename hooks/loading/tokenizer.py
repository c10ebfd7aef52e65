"""A checkpoint's tokenizer, without its programs, or the name of the file that is broken.

transformers and tokenizers answer a damaged file with anything from a KeyError to a panic that names no file; here the files are
looked through for the one that is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import RequestError
from .config_file import read_json
from .refusals import printable, refused

_JSON = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "tokenizer.json")


def load_tokenizer(name: str, location: str, options: Mapping[str, Any]) -> Any:
    """The tokenizer of a checkpoint.

    Parameters
    ----------
    name : str
        What a message calls the model.
    location : str
        A folder or a Hub id.
    options : mapping
        For `AutoTokenizer.from_pretrained`; `trust_remote_code` is False whatever they say.

    Raises
    ------
    RequestError
        There is none, one of its files is broken, or it is a program of its own.
    """
    from transformers import AutoTokenizer

    folder = Path(location) if Path(location).is_dir() else None
    with refused(lambda reason: _sentence(name, folder, reason)):
        try:
            return AutoTokenizer.from_pretrained(location, **{**options, "trust_remote_code": False})
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            if "trust_remote_code" in str(error):
                raise RequestError(
                    f"the tokenizer of model {name!r} is a program of its own (auto_map in its tokenizer_config.json), which precollapse does "
                    "not run; give a model whose tokenizer transformers itself has"
                ) from error
            if folder is not None:
                _refuse_broken(folder)
            raise


def _refuse_broken(folder: Path) -> None:
    """Refuse the first of a folder's tokenizer files that is no JSON object, by its name."""
    for path in (folder / file for file in _JSON):
        if path.exists():
            content = read_json(path)
            if not isinstance(content, dict):
                raise RequestError(
                    f"{path} holds a {type(content).__name__}, not a tokenizer's settings; get the file again"
                )


def _sentence(name: str, folder: Path | None, reason: str) -> str:
    file = None if folder is None else next((folder / f for f in reversed(_JSON) if (folder / f).exists()), None)
    where = f" from {file}" if file is not None else ""
    return (
        f"the tokenizer of model {printable(name)!r} could not be loaded{where} ({reason}); get the tokenizer's files again, or save them "
        "beside the weights with save_pretrained"
    )
