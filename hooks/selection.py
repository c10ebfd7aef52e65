"""Sites that a caller may ask for, by name (layers: see `precollapse.layers`).

Guarantees that a site that does not exist is refused with what does exist, and that nothing that was asked for is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import RequestError
from .architectures import Architecture


def resolve_sites(sites: Any, architecture: Architecture, available: Iterable[str], backend: str) -> tuple[str, ...]:
    """Check the asked sites against the model and the backend; a single name stands for itself.

    Raises
    ------
    RequestError
        If a site is unknown, absent from this model, not given by this backend, or named twice.
    """
    if sites is None or not isinstance(sites, str | Iterable):
        raise RequestError(f"sites must be names such as ('resid_post',), or () for none, found {sites!r}")
    names = (sites,) if isinstance(sites, str) else tuple(sites)
    available = tuple(available)
    for name in names:
        architecture.require(name)
        if name not in available:
            raise RequestError(
                f"backend {backend!r} cannot give site {name!r} of this model; it gives {', '.join(available)}, and backend 'hf' gives {', '.join(architecture.sites)}"
            )
    if len(set(names)) != len(names):
        raise RequestError(f"sites {list(names)} name one site twice; name each once")
    return names
