"""Which kind of place an address names: a local folder or a bucket.

Guarantees that an address of another kind is refused with a sentence, and never taken for the name of a folder.
"""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from ...errors import RequestError
from .local import LocalFiles
from .protocol import Files


def open_files(path: str | os.PathLike[str], owner: str = "") -> Files:
    """The place at `path`: a local folder, or `s3://bucket/prefix` on S3-compatible storage.

    `owner` is the writer on whose behalf files are made; it is part of the names of its unfinished ones.

    Raises
    ------
    RequestError
        No path, or an address of another kind.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise RequestError(f"A run lies at a path, and {path!r} is none: give a folder, or s3://bucket/prefix.")
    text = re.sub(r"^s3:/(?!/)", "s3://", os.fspath(path))  # pathlib folds slashes
    if "://" in text and not text.startswith("file://"):
        from .objects import ObjectFiles

        return ObjectFiles(text)
    return LocalFiles(local_path(text), owner)


def local_path(text: str) -> str:
    """A path, also where it is given as a file:// address.

    Raises
    ------
    RequestError
        An address on another machine, or of another kind.
    """
    if "://" not in text:
        return text
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise RequestError(f"{text} is no place on this machine: give a folder.")
    return unquote(parts.path)
