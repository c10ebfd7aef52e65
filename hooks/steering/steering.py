"""Steering: change a site of a running model along a vector, in capture and in generation.

Guarantees: the change is exactly the one asked for, at the positions asked for, whatever the padding, the batching or
the cache; several steerings nest, and what is captured is the changed state; the hooks are gone afterwards, however
the block ends, and nobody else's are touched. A steering that changed nothing raises, so that a wrong layer, a pass
that bypassed the hook, or a vector lost in rounding is never reported as "no effect".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .applied import Applied
from .change import Change


@dataclass(frozen=True, eq=False)
class Steering(Change):
    """A change to one site of one layer. `with steering.on(extractor):` puts it in place.

    With h the site's value, v the vector, u = v / |v| and s the scale:

    * `add`: h + s v
    * `ablate`: h - s (h . u) u; s = 1 removes the component along v
    * `project`: h + s ((h . u) u - h); s = 1 keeps nothing but the component along v
    * `replace`: h + s (v - h); s = 1 puts v in its place

    Parameters
    ----------
    site : str
        A layer site that the model has, or "final_norm".
    layer : int or None
        Block number, negative from the end; None for final_norm.
    vector : array [d]
        Width of the residual stream; for `z`, [H * d_head] or [H, d_head]. One vector for all prompts, or one per
        prompt: [n, d] (`z`: [n, H, d_head]).
    scale : float or array [n]
        One for all prompts, or one per prompt of the call, in the caller's order.
    positions : str or sequence of int
        "all": every token, prompt and generated. "prompt": prompt tokens. "boundary": the last prompt token.
        "generated": tokens that the model wrote and reads again; the first of them is therefore still chosen by the
        unsteered boundary. "response": the boundary and the generated tokens, so that every written token is chosen
        under steering. Or numbers of prompt tokens, counted from the prompt's own first (0) or from its end (-1 is the
        boundary).
    mode : {"add", "ablate", "project", "replace"}

    Raises
    ------
    RequestError
        If a name is unknown, or the vector or a scale is empty, not finite or, where a direction is needed, zero.

    Notes
    -----
    The arithmetic is in float32 (float64 for float64 models) and rounded once to the model's dtype. Inner steerings
    act after outer ones. The model's own `generate` works inside the block too; there, a scale or vector per prompt
    needs one row per prompt, and positions other than "all" need a key/value cache, by which prompt and output are told
    apart.

    Examples
    --------
    >>> import precollapse as pc
    >>> from precollapse.hooks import Steering
    >>> ex = pc.Extractor.from_pretrained("smollm2-135m-instruct")
    >>> before = ex.capture("Is fire cold?")
    >>> direction = before.resid_post[0, 1]
    >>> with Steering("resid_post", 1, direction, scale=2.0).on(ex):
    ...     after = ex.capture("Is fire cold?")
    >>> bool((after.resid_post[0, 1] - 3 * direction).abs().max() < 1e-3 * direction.abs().max())
    True
    """

    def check_model(self, extractor: Any) -> None:
        """Raise RequestError when an extractor's model cannot take this steering; nothing is put in place."""
        Applied(self, extractor)

    @contextmanager
    def on(self, extractor: Any) -> Iterator[Steering]:
        """Steer every pass of an extractor's model inside the block: captures, generation, and the model's own calls.

        Parameters
        ----------
        extractor : Extractor

        Raises
        ------
        RequestError
            On entry, if the model lacks the site or layer, the vector has another width, or the backend cannot be
            steered.
        CaptureError
            If a pass did not go through the steered module; and at the end of the block, if values were made that are
            not finite, or nothing was changed although a scale is not 0.
        """
        applied = Applied(self, extractor)
        handles: list[Any] = []
        try:
            extractor.steerings.append(self)
            applied.attach(handles)
            yield self
            applied.finish()
        finally:
            for handle in handles:
                handle.remove()
            extractor.steerings[:] = [s for s in extractor.steerings if s is not self]
