"""Where a command may write: looked at before a model is loaded or anything is computed.

A leaf that any folder may import. Guarantees that results never land inside a run (whose files are counted and checked), that an
address on another machine never becomes a folder named `s3:`, that `~` is the home folder however it was given, and that a
place which cannot be written is refused before hours of work are done for it.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from .errors import RequestError

PLAN = "plan.json"
"""What a folder holds that is a run: `store.layout` names it so."""
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # two letters at least: C:/ is a drive


def is_address(place: str | os.PathLike[str]) -> bool:
    """Whether a place is an address such as s3://bucket/prefix; pathlib folds its slashes into one."""
    return _ADDRESS.match(os.fspath(place)) is not None


def local(place: str | os.PathLike[str], what: str = "--out") -> Path:
    """A place on this machine, with `~` for the home folder.

    Raises
    ------
    RequestError
        It is an address, or no name at all.
    """
    text = os.fspath(place)
    if not isinstance(text, str) or not text or "\0" in text:
        raise RequestError(f"{what} {text!r} names no folder; give the path of one")
    if is_address(text):
        raise RequestError(f"{what} {text} is an address, and this is written to a folder of this machine; give a path")
    return Path(os.path.expanduser(text))


def outside_runs(place: Path, what: str = "--out", itself: bool = True) -> Path:
    """The place, unless a run holds it (or, where `itself` counts, it is a run).

    Raises
    ------
    RequestError
        It lies in a run.
    """
    real = Path(os.path.realpath(place))
    for folder in (real, *real.parents) if itself else real.parents:
        try:
            holds = (folder / PLAN).is_file()
        except OSError:  # a name too long, a folder that may not be read: whoever writes there says it
            continue
        if holds:
            raise RequestError(
                f"{what} {place} lies in the run {folder}, whose files are its own; give a folder outside of it"
            )
    return place


def writable(place: Path, what: str = "--out") -> Path:
    """The place, after a file was made and removed in it, or in the nearest folder above it that there is.

    Raises
    ------
    RequestError
        Nothing can be written there.
    """
    try:
        nearest = place
        while not os.path.lexists(nearest) and nearest != nearest.parent:
            nearest = nearest.parent
        if not nearest.is_dir():
            raise RequestError(f"{what} {place} cannot be written: {nearest} is not a folder; give another place")
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise RequestError(
            f"{what} {place} cannot be written ({error.strerror or error}); give another place"
        ) from None
    return place


def for_results(place: str | os.PathLike[str], what: str = "--out") -> Path:
    """The folder on this machine that results may be written to, whether or not it is there yet.

    Raises
    ------
    RequestError
        It is an address, lies in a run, or cannot be written.
    """
    return writable(outside_runs(local(place, what), what), what)


def for_a_run(place: str | os.PathLike[str], what: str = "--out") -> str:
    """The place that a run may be made at or gone on with; addresses are left to the store, which serves some.

    Raises
    ------
    RequestError
        It lies in another run.
    """
    if is_address(place):
        return os.fspath(place)
    return os.fspath(outside_runs(local(place, what), what, itself=False))
