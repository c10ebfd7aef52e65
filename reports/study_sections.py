"""Which table and which figures of a study stand together, under which heading.

Guarantees that every table and every figure stands on the page once, a figure beside the table that it draws; one that no heading
asks for gets a section of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from .document import Block, Section
from .figures import Figure
from .tables import Shown

_TOGETHER: tuple[tuple[str, tuple[str, ...], tuple[str, ...], bool], ...] = (
    ("Before the first token", ("Before the first token",), ("entropy", "entropy_change", "formats"), True),
    ("Outcomes and recoverability", ("Outcomes and recoverability",), ("accuracy", "auroc", "heatmaps"), True),
    ("Known and said", ("Options: known, said",), ("said",), True),
    ("Transfer", ("Transfer",), ("transfer_regimes", "transfer_benchmarks"), True),
    ("Robustness of the probe", ("Robustness of the probe",), ("auroc_by_layer", "calibration"), False),
    ("Tests", ("Tests",), (), True),
    ("What else predicts a correct answer", ("What else predicts a correct answer",), (), False),
    ("Dimension", (), ("dimension_by_layer", "dimension_by_items"), False),
    ("Attention", ("Attention",), ("attention",), False),
)


def study_sections(tables: Sequence[Shown], figures: Sequence[Figure]) -> tuple[Section, ...]:
    """Sections in the order shown; those without a block are left out."""
    left = {table.title: table for table in tables}
    drawn = {figure.name: figure for figure in figures}
    sections = []
    for title, titles, names, open_ in _TOGETHER:
        blocks: list[Block] = [left.pop(name) for name in titles if name in left]
        blocks += [drawn.pop(name) for name in names if name in drawn]
        if blocks:
            sections.append(Section(title, tuple(blocks), open_))
    sections += [Section(title, (table,), False) for title, table in left.items()]
    if drawn:
        sections.append(Section("Further figures", tuple(drawn.values()), False))
    return tuple(sections)
