"""A `Moments` as bytes: an uncompressed .npz without pickles.

Guarantees that what was saved is read whole or refused with one kind of error: bytes that are damaged, cut off or of
another make never become sums of no set of states.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from . import precision
from .moment_sums import TILE, MomentSums

FORMAT = 1


def to_bytes(sums: MomentSums, held: list[Tensor]) -> bytes:
    """The sums, and the rows [n, L, d] that are held beside them, in one or more parts of one dtype or several."""
    arrays: dict[str, np.ndarray] = {"format": np.array([FORMAT, sums.n_layers, sums.d, sums.count])}
    if sums.count:
        assert sums.m2 is not None and sums.pivot is not None
        for name in ("mean", "pivot", "square", "cube", "fourth"):
            arrays[name] = getattr(sums, name).cpu().numpy()
        for low in range(0, sums.d, TILE):
            arrays[f"m2_{low}"] = sums.m2[:, low : low + TILE, low:].cpu().numpy()
    if held:
        with precision.no_autocast(torch.device("cpu")):
            rows = torch.cat([part.cpu() for part in held])
        bits = rows.dtype == torch.bfloat16
        arrays["rows_bfloat16" if bits else "rows"] = (rows.view(torch.int16) if bits else rows).numpy()
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def from_bytes(data: bytes, device: torch.device | str) -> tuple[MomentSums, list[Tensor]]:
    """The sums and the held rows that `to_bytes` wrote.

    Raises
    ------
    ValueError
        When the bytes are not such a state, or of a newer format.
    """
    try:
        arrays = np.load(io.BytesIO(data), allow_pickle=False)
        version, n_layers, d, count = (int(value) for value in arrays["format"])
    except Exception as error:
        raise _unreadable(data, error) from error
    if version > FORMAT:
        raise ValueError(f"Moments.from_bytes: format {version} is newer than {FORMAT}; update precollapse.")
    try:
        return _read(arrays, n_layers, d, count, device)
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise _unreadable(data, error) from error


def _read(
    arrays: Mapping[str, np.ndarray], n_layers: int, d: int, count: int, device: torch.device | str
) -> tuple[MomentSums, list[Tensor]]:
    unread = set(arrays) - {"format"}

    def array(name: str, dtypes: tuple[str, ...], *shape: int | None) -> Tensor:
        values = arrays[name]
        unread.remove(name)
        fits = len(values.shape) == len(shape) and all(b in (None, a) for a, b in zip(values.shape, shape, strict=True))
        if values.dtype not in dtypes or not fits:
            raise ValueError(f"{name} is {values.dtype} of shape {values.shape}")
        return torch.from_numpy(values)

    sums, held = MomentSums(n_layers, d, device), []
    sums.count = count
    if count:
        for name in ("mean", "pivot", "cube"):
            setattr(sums, name, array(name, ("float64",), n_layers, d).to(device))
        for name in ("square", "fourth"):
            setattr(sums, name, array(name, ("float64",), n_layers).to(device))
        sums.allocate()
        assert sums.m2 is not None
        for low in range(0, d, TILE):
            part = array(f"m2_{low}", ("float64",), n_layers, min(TILE, d - low), d - low)
            sums.m2[:, low : low + TILE, low:] = part.to(device)
    if "rows" in arrays:
        held = [array("rows", ("float64", "float32", "float16"), None, n_layers, d).to(device)]
    elif "rows_bfloat16" in arrays:
        held = [array("rows_bfloat16", ("int16",), None, n_layers, d).view(torch.bfloat16).to(device)]
    if unread:  # rows under a damaged name would be lost without a word
        raise ValueError(f"{', '.join(sorted(unread))} unknown")
    return sums, held


def _unreadable(data: bytes, error: Exception) -> ValueError:
    return ValueError(f"Moments.from_bytes: these {len(data)} bytes are not a saved Moments ({error}).")
