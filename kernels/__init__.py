"""Operators on hidden states and logits: exact statistics without the big intermediate tensors.

Each is registered under ``torch.ops.precollapse`` with a fake form, and has several forms behind one name: float64
torch as the truth, plain torch, C++ for the CPU and Triton for GPUs; ``backend="auto"`` chooses.
"""

from __future__ import annotations

# The repository root is the package, so with the root on sys.path (as `python` started there has it) transformers finds this
# folder when it looks for the PyPI package `kernels`. Imported by that name it stays empty, which counts as absent there; loading
# the operators twice would end in an error.
if __name__ != "kernels":
    from .attention_row import attention_row
    from .gather_rows import gather_rows
    from .logits_stats import logits_stats
    from .moments import Moments
    from .vocab_statistics import VocabStats
    from .vocab_stats import vocab_stats

__all__ = ["Moments", "VocabStats", "attention_row", "gather_rows", "logits_stats", "vocab_stats"]
