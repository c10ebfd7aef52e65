"""Where things are inside each transformer: a declarative table, and a structural fallback that the load gate checks.

Guarantees that a site means the same thing in every family: `attn_out` and `mlp_out` are what a block *adds* to the
residual stream, so that resid_pre + attn_out + mlp_out = resid_post wherever all four exist. It prevents the silent faults of
this field: a post-norm state taken for the residual, BLOOM's attention output that already holds the residual, Granite's
outputs before their multiplier, a `resid_mid` read in a parallel block that has none.
"""

from __future__ import annotations

from .architecture import Architecture, describe
from .layouts import LAYER_SITES, LAYOUTS, SITES, Layout, Tap
from .modules import allowed_context, context_length, input_device, input_width, output_width, submodule, unwrapped

__all__ = [
    "LAYER_SITES",
    "LAYOUTS",
    "SITES",
    "Architecture",
    "Layout",
    "Tap",
    "allowed_context",
    "context_length",
    "describe",
    "input_device",
    "input_width",
    "output_width",
    "submodule",
    "unwrapped",
]
