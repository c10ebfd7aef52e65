"""The folder that a report is written to, looked at before the work begins.

Guarantees that a folder which cannot be made or written to is refused before hours of work are done for it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ..errors import RequestError


def writable_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder, made where it is missing.

    Raises
    ------
    RequestError
        If it cannot be made or written to.
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise RequestError(f"{place} cannot be written ({error.strerror or error}); give a folder that can") from None
    return place
