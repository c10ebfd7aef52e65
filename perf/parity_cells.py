"""A cell of the parity matrix: one combination, what came of it, and what arithmetic explains.

Guarantees that the matrix and its page judge by the same bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

DTYPES = {"float32": torch.float32, "float64": torch.float64}
LAYERS = 2
PROMPTS = 16

# Largest differences that arithmetic explains: states (relative), entropy (bits), attention rows (absolute).
# RMS norms and eager softmaxes of transformers compute in float32 whatever the dtype, and so do TransformerLens' norms and
# attention: only families with layer norms under sdpa are float64 throughout. Rows are float32 everywhere.
TOLERANCES = {
    ("float32", False): (1e-5, 2e-5, 3e-6),
    ("float64", False): (2e-6, 2e-6, 1e-6),
    ("float32", True): (3e-5, 5e-5, 5e-6),
    ("float64", True): (1e-5, 1e-5, 2e-6),
}


@dataclass(frozen=True)
class MatrixCell:
    """One combination and what came of it.

    Attributes
    ----------
    family, backend, implementation, dtype, padding : str
        `padding` "none" is one prompt at a time; "right" and "left" are one batch of 16 prompts of mixed lengths.
    states, entropy, rows : float
        Largest differences; NaN where not measured. See `TOLERANCES` for units.
    skipped : str
        Why the cell was not measured, else "".
    """

    family: str
    backend: str
    implementation: str
    dtype: str
    padding: str
    states: float = float("nan")
    entropy: float = float("nan")
    rows: float = float("nan")
    skipped: str = ""

    @property
    def failed(self) -> bool:
        """Whether a difference is larger than arithmetic explains."""
        if self.skipped:
            return False
        states, entropy, rows = TOLERANCES[self.dtype, self.backend == "transformer_lens"]
        return not (self.states <= states and self.entropy <= entropy) or self.rows > rows
