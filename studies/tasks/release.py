"""A release of the nine tasks on disk: a clone, a folder of it, or .tar.gz files of its parts, read where they lie.

Guarantees that every file is read once, in the order of its name, with nothing unpacked and nothing followed: links and
special files are left out, names that lead elsewhere are left out, and a file that cannot be read is a fault with its name
while the others load.
"""

from __future__ import annotations

import gzip
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import strict_json
from ...errors import RequestError
from .rows import Fault

LARGEST = 64 * 2**20
"""Bytes of one file of a release that are read at most; the largest published one has under a megabyte."""

_NAME = re.compile(r"(?:^|/)datasets/([1-9])/([^/]+)/(.+)\.json$")


@dataclass(frozen=True)
class Record:
    """One JSON file of a release.

    Attributes
    ----------
    file : str
        Its path in the release, `datasets/N/...`.
    task : int
    owner : str
        The folder below the task's: `prompts`, or the model whose chains they are.
    place : str
        The folders below that, joined by `/`: a split, or a method of task 9; "" for none.
    name : str
        The file's name without `.json`.
    content : dict
    """

    file: str
    task: int
    owner: str
    place: str
    name: str
    content: dict[str, Any]


def records(path: str | os.PathLike[str], tasks: tuple[int, ...], faults: list[Fault]) -> Iterator[Record]:
    """Every JSON file of some tasks; one that is no JSON object goes to `faults`.

    Parameters
    ----------
    path : str or path
        A clone of the release, its `datasets` folder or one task's folder in it, a .tar.gz of any of these, or a folder of such
        files.
    tasks : tuple of int
    faults : list of Fault
        Filled as the files are read.

    Raises
    ------
    RequestError
        There is nothing at that place, or nothing of a release in it.
    """
    root = Path(path).expanduser()
    if not root.exists():
        raise RequestError(f"there is nothing at {root}; give the folder or the .tar.gz of the tasks' release")
    if root.is_file():
        archives, folder = [root], None
    else:
        archives = sorted(p for p in root.iterdir() if p.name.endswith((".tar.gz", ".tgz", ".tar")) and p.is_file())
        folder = _datasets(root)
    if not archives and folder is None:
        raise RequestError(
            f"{root} holds no tasks: neither a `datasets` folder nor a .tar.gz of one was found; give the release's folder"
        )
    found = False
    for archive in archives:
        for file, raw in _packed(archive, tasks, faults):
            found = True
            yield from _parsed(file, raw, faults)
    if folder is not None:
        for file, raw in _unpacked(folder, tasks, faults):
            found = True
            yield from _parsed(file, raw, faults)
    if not found and not faults:
        wanted = ", ".join(map(str, tasks))
        raise RequestError(f"{root} holds no file of task {wanted}; files of a release lie in datasets/N/")


def _datasets(root: Path) -> Path | None:
    """The folder that `datasets/` stands in, where `root` is it, is `datasets` itself, or lies right below."""
    if (root / "datasets").is_dir():
        return root
    if root.name == "datasets":
        return root.parent
    if root.parent.name == "datasets" and re.fullmatch("[1-9]", root.name):
        return root.parent.parent
    return None


def _packed(archive: Path, tasks: tuple[int, ...], faults: list[Fault]) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(archive, "r|*") as members:
            for member in members:
                match = _NAME.search(member.name)
                if not match or int(match[1]) not in tasks:
                    continue
                file = member.name[match.start() :].lstrip("/")
                reason = _refused(file, member.isreg(), member.size)
                if reason:
                    faults.append(Fault(file, reason))
                    continue
                content = members.extractfile(member)
                yield file, content.read() if content is not None else b""
    except (tarfile.TarError, OSError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        faults.append(Fault(archive.name, f"the archive cannot be read to its end: {text}"))


def _unpacked(root: Path, tasks: tuple[int, ...], faults: list[Fault]) -> Iterator[tuple[str, bytes]]:
    for task in tasks:
        for folder, names, files in os.walk(root / "datasets" / str(task)):
            names.sort()
            for name in sorted(files):
                path = Path(folder, name)
                file = path.relative_to(root).as_posix()
                if not _NAME.search(file):
                    continue
                try:
                    status = path.lstat()
                    reason = _refused(file, path.is_file() and not path.is_symlink(), status.st_size)
                    if not reason:
                        yield file, path.read_bytes()
                        continue
                except OSError as error:
                    reason = error.strerror or str(error)
                faults.append(Fault(file, reason))


def _refused(file: str, is_file: bool, size: int) -> str:
    """Why a file is left out; "" when it is not."""
    if ".." in file.split("/"):
        return "its name leads out of the release"
    if not is_file:
        return "it is a link or no file; links are not followed"
    if size > LARGEST:
        return f"it has {size:,} bytes, where at most {LARGEST:,} are read"
    return ""


def _parsed(file: str, raw: bytes, faults: list[Fault]) -> Iterator[Record]:
    match = _NAME.search(file)
    assert match is not None
    *folders, name = match[3].split("/")
    try:
        content = strict_json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        faults.append(Fault(file, f"it is not JSON: {' '.join(str(error).split())}"))
        return
    if not isinstance(content, dict):
        faults.append(Fault(file, f"it holds a {type(content).__name__} where an object is expected"))
        return
    yield Record(file, int(match[1]), match[2], "/".join(folders), name, content)
