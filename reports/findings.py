"""What the numbers of a report say, in sentences: each with its number, its interval and its n.

Guarantees that a sentence names only what its interval carries, says of how many cells the one it names was chosen, and that what
cannot be said is said to be so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from ..analysis import statistics
from ..analysis.cells import CellResult, RunAnalysis
from ..analysis.statistics import Interval
from .tables.shown import FEW
from .tables.texts import between, p_value

CHANCE = 0.5


def study_findings(analyses: Sequence[RunAnalysis], transfer: pd.DataFrame) -> tuple[str, ...]:
    """Three to six sentences about a study."""
    cells = [cell for analysis in analyses for cell in analysis.cells if len(cell.states)]
    several = len({c.model for c in cells}) > 1, len({c.benchmark for c in cells}) > 1
    made = (
        _accuracy(cells, several),
        _entropy(cells, several),
        _probe(cells, several),
        _transfer(cells, transfer),
        _known(cells, several),
        _unsaid(cells, several),
    )
    return tuple(text for text in made if text)


def steering_findings(table: pd.DataFrame, names: dict[str, str]) -> tuple[str, ...]:
    """What a vector moved beyond random directions, at its largest scales."""
    pooled = table[(table["direction"] == "vector") & table["beyond_random"].notna()] if len(table) else table
    said, unsaid = [], []
    for (benchmark, regime, metric), rows in pooled.groupby(["benchmark", "regime", "metric"], sort=False):
        row = rows.iloc[int(rows["scale"].abs().to_numpy().argmax())]
        value = Interval(row["beyond_random"], row["beyond_lower"], row["beyond_upper"])
        where = f"{names.get(str(metric), str(metric))} ({benchmark}, {regime}; n = {int(row['n'])} items)"
        if _beyond(value, 0.0):
            text = between(value, 3, signed=True)
            said.append(
                f"At scale {row['scale']:+g} the vector changes {where} by {text} beyond the random directions."
            )
        else:
            unsaid.append(where)
    if unsaid:
        said = said[:5]
        said.append(
            f"Nothing can be said about {_listed(unsaid[:4])}{_more(unsaid, 4)}: the interval beyond random directions holds 0."
        )
    return tuple(said[:6])


def _accuracy(cells: Sequence[CellResult], several: tuple[bool, bool]) -> str:
    known = [c for c in cells if c.accuracy.defined]
    if not known:
        return ""
    best, worst = (pick(known, key=lambda c: c.accuracy.estimate) for pick in (max, min))
    first = f"{between(best.accuracy, 1, 100)} % of the answers are right under {_cell(best, several)} (n = {len(best.states)})"
    if best is worst or best.accuracy.estimate == worst.accuracy.estimate:
        return f"{first}{', in every cell' if len(known) > 1 else ''}."
    last = f"{between(worst.accuracy, 1, 100)} % under {_cell(worst, several)} (n = {len(worst.states)})"
    return f"{first}, the most of {len(known)} cells, and {last}, the least."


def _entropy(cells: Sequence[CellResult], several: tuple[bool, bool]) -> str:
    changed = [c for c in cells if c.change is not None and c.change.change.defined]
    clear = [c for c in changed if _beyond(c.change.change, 0.0)]  # type: ignore[union-attr]
    if not changed:
        return ""
    if not clear:
        return f"No regime changes H beyond its interval ({len(changed)} cells against their baseline)."
    best = max(clear, key=lambda c: abs(c.change.change.estimate))  # type: ignore[union-attr]
    change = best.change.change  # type: ignore[union-attr]
    return (
        f"H before the first token changes in {len(clear)} of {len(changed)} cells against their baseline, most under "
        f"{_cell(best, several)}: {between(change, 2, signed=True)} bits (n = {change.n} pairs)."
    )


def _probe(cells: Sequence[CellResult], several: tuple[bool, bool]) -> str:
    read = [c for c in cells if c.probe is not None and c.probe.defined and _rarer(c) >= FEW]
    if not read:
        return ""
    clear = [c for c in read if c.probe.shown.lower > CHANCE]  # type: ignore[union-attr]
    if not clear:
        return f"No probe of a correct answer has an interval above 0.5 ({len(read)} cells)."
    best = max(clear, key=lambda c: c.probe.shown.lower)  # type: ignore[union-attr]
    probe = best.probe
    assert probe is not None
    return (
        f"A correct answer can be read from the state in {len(clear)} of {len(read)} cells (interval above 0.5); best under "
        f"{_cell(best, several)}: test AUROC {between(probe.shown)} (n = {probe.n_test} test states, {probe.test_positives} right; "
        f"shuffled labels {probe.shuffle_auroc:.2f}, p = {p_value(probe.shuffle_p)})."
    )


def _transfer(cells: Sequence[CellResult], table: pd.DataFrame) -> str:
    if not len(table):
        return ""
    enough = {(c.model, c.benchmark, c.regime) for c in cells if c.probe is not None and _rarer(c) >= FEW}
    other = table[(table["over"] == "regimes") & (table["train"] != table["test"]) & table["auroc"].notna()]
    tested = zip(other["model"], other["within"], other["test"], strict=True)
    other = other[[key in enough for key in tested]]
    if not len(other):
        return ""
    clear = other[other["lower"] > CHANCE]
    if not len(clear):
        return f"No probe reads another regime with an interval above 0.5 ({len(other)} pairs)."
    row = clear.iloc[int(clear["lower"].to_numpy().argmax())]
    value = Interval(float(row["auroc"]), float(row["lower"]), float(row["upper"]))
    return (
        f"{len(clear)} of {len(other)} transfers to another regime have an interval above 0.5; best, trained on "
        f"{row['train']} and tested on {row['test']} ({row['within']}): AUROC {between(value)} (n = {int(row['n_test'])} test states)."
    )


def _known(cells: Sequence[CellResult], several: tuple[bool, bool]) -> str:
    tested = [c for c in cells if c.options is not None and math.isfinite(c.options.test.p_value)]
    if not tested:
        return ""
    adjusted = statistics.holm([c.options.test.p_value for c in tested]).adjusted  # type: ignore[union-attr]
    place = min(range(len(tested)), key=lambda i: adjusted[i])
    cell, o = tested[place], tested[place].options
    assert o is not None
    if adjusted[place] >= 0.05:
        return (
            f"Best option before the first token and answer given differ in accuracy in none of {len(tested)} cells "
            f"(smallest McNemar p, Holm-adjusted: {p_value(adjusted[place])})."
        )
    return (
        f"Under {_cell(cell, several)} the best option before the first token is right in {between(o.choice_accuracy, 1, 100)} % "
        f"and the answer given in {between(o.answer_accuracy, 1, 100)} % (n = {o.n}): {o.knew_not_said} knew and did not say, "
        f"{o.said_not_knew} said and did not know (McNemar p = {p_value(adjusted[place])}, Holm over {len(tested)} cells)."
    )


def _unsaid(cells: Sequence[CellResult], several: tuple[bool, bool]) -> str:
    parts = []
    unread = [c for c in cells if c.probe is not None and (not c.probe.defined or _rarer(c) < FEW)]
    if unread:
        named = _listed([_cell(c, several) for c in unread[:4]]) + _more(unread, 4)
        parts.append(
            f"whether a correct answer can be read from the state under {named} (fewer than {FEW} test states of a kind)"
        )
    unclear = [
        c for c in cells if c.change is not None and c.change.change.defined and not _beyond(c.change.change, 0.0)
    ]
    if unclear:
        named = _listed([_cell(c, several) for c in unclear[:4]]) + _more(unclear, 4)
        parts.append(f"a change of H under {named} (the interval holds 0)")
    return f"Nothing can be said about {'; nor about '.join(parts)}." if parts else ""


def _rarer(cell: CellResult) -> int:
    """Test states of the rarer outcome."""
    assert cell.probe is not None
    return int(min(cell.probe.test_positives, cell.probe.n_test - cell.probe.test_positives))


def _beyond(value: Interval, reference: float) -> bool:
    return bool(value.lower > reference or value.upper < reference)


def _cell(cell: CellResult, several: tuple[bool, bool]) -> str:
    extra = [
        name for name, wanted in zip((cell.benchmark, cell.model), (several[1], several[0]), strict=True) if wanted
    ]
    return f"{cell.regime} ({', '.join(extra)})" if extra else cell.regime


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"


def _more(names: Sequence[Any], shown: int) -> str:
    return f" and {len(names) - shown} more" if len(names) > shown else ""
