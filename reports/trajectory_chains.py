"""Single chains of a report: each with its question, its own answer and its entropies, drawn.

Guarantees that a point shows the text between two boundaries as it was stored, and the answers that followed it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pandas as pd

from ..store import Run
from .document import Drawing
from .figures.chains import chain_drawing

SHOWN_CHAINS = 12
QUESTION_CHARACTERS = 300


def chain_drawings(run: Run, epsilon: float) -> Iterator[Drawing]:
    """The first chains of a run, each under every measure that it has."""
    states = run.states
    for i in range(min(SHOWN_CHAINS, len(states))):
        state = states.iloc[i]
        text = str(state["chain"])
        graded = "" if pd.isna(state["correct"]) else (", right" if state["correct"] else ", wrong")
        lines = [str(state["question"])[:QUESTION_CHARACTERS], f"own answer: {state['answer']}{graded}"]
        if "entropies" in run.ragged_arrays:
            prefixes = json.loads(state["continuations"])
            notes = ["answers: " + ", ".join(str(c["answer"]) for c in prefix) for prefix in prefixes]
            units = _units(run, i, "boundary_characters", text)
            entropies = run.ragged("entropies", i).tolist()
            yield Drawing(chain_drawing(str(state["id"]), lines, entropies, units, notes, epsilon=epsilon))
        if "forced_entropies" in run.ragged_arrays:
            choices = json.loads(state["forced_choices"])[0] or [""] * len(run.ragged("forced_boundaries", i))
            mass = run.ragged("forced_mass", i)[0]
            notes = [f"choice: {c}, option mass {m:.3f}" for c, m in zip(choices, mass, strict=True)]
            units = _units(run, i, "forced_boundary_characters", text)
            entropies = run.ragged("forced_entropies", i)[0].tolist()
            lines_forced = [*lines, "forced"]
            yield Drawing(chain_drawing(str(state["id"]), lines_forced, entropies, units, notes, epsilon=epsilon))


def _units(run: Run, i: int, name: str, text: str) -> list[str]:
    """The text between neighbouring boundaries."""
    cuts = [int(c) for c in run.ragged(name, i)]
    return [text[(cuts[k - 1] if k else 0) : cut].strip() for k, cut in enumerate(cuts)]
