"""Whether a run may be continued: the settings asked for against those that it was started with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import RequestError
from ..schema import joined_id
from .run_plan import RunPlan

_ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """One field that differs; a value of "(absent)" stands for a field that one side lacks."""

    field: str
    stored: Any
    asked: Any


class ConfigMismatch(RequestError):
    """The run was started with other settings. `differences` lists each field with the stored and the asked value, checksums last."""

    def __init__(self, path: str, differences: list[Difference]) -> None:
        self.differences = sorted(differences, key=_is_checksum)
        listed = "; ".join(
            f"{d.field}: stored {_short(d.stored)}, asked {_short(d.asked)}" for d in self.differences[:_MOST]
        )
        count = len(differences)
        counted = "" if count == 1 else f"{count} differ, the first: " if count > _MOST else f"{count} differ: "
        more = "; --json lists them all" if count > _MOST else ""
        super().__init__(
            f"{path} was started with other settings ({counted}{listed}{more}): give the same ones, or another path."
        )


_MOST = 3
"""Differences that a sentence names."""


def _is_checksum(difference: Difference) -> bool:
    """Whether a field says by a checksum what another says in words."""
    return any(word in difference.field.lower() for word in ("hash", "sha256", "digest", "checksum", "fingerprint"))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) and value == "(absent)" else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def differences(stored: RunPlan, asked: RunPlan) -> list[Difference]:
    """Every setting that would change the numbers or the shape of the run.

    A setting that one side lacks counts as being at its default there, if the other side knows a default for it; a run
    started before a setting existed can so be continued. Table columns may be added (they are missing in the shards
    committed before), nothing may be taken away.
    """
    fields = []
    for key in sorted(stored.config.keys() | asked.config.keys()):
        have = stored.config.get(key, asked.config_defaults.get(key, _ABSENT))
        want = asked.config.get(key, stored.config_defaults.get(key, _ABSENT))
        if have is _ABSENT or want is _ABSENT or have != want:
            fields.append(_difference(f"config.{key}", have, want))
    for kind in ("arrays", "ragged", "columns"):
        have_all, want_all = getattr(stored, kind), getattr(asked, kind)
        for name in sorted(have_all.keys() | want_all.keys()):
            have, want = have_all.get(name, _ABSENT), want_all.get(name, _ABSENT)
            if have is _ABSENT and kind == "columns":
                continue
            if kind == "arrays" and have is not _ABSENT and want is not _ABSENT:
                for part in ("shape", "dtype", "layers"):
                    if getattr(have, part) != getattr(want, part):
                        fields.append(_difference(f"arrays.{name}.{part}", getattr(have, part), getattr(want, part)))
            elif have != want:
                fields.append(_difference(f"{kind}.{name}", have, want))
    if stored.plan.shard_size != asked.plan.shard_size:
        fields.append(_difference("shard_size", stored.plan.shard_size, asked.plan.shard_size))
    fields += _state_differences(stored, asked)
    return fields


def _state_differences(stored: RunPlan, asked: RunPlan) -> list[Difference]:
    have, want = stored.plan, asked.plan
    cells = [[(c.benchmark, c.regime, c.states) for c in plan.cells] for plan in (have, want)]
    if cells[0] != cells[1]:
        return [Difference("cells", *([f"{b}/{r} x {n}" for b, r, n in side] for side in cells))]
    for kind in ("ids", "item_ids"):
        for row, (a, b) in enumerate(zip(getattr(have, kind), getattr(want, kind), strict=True)):
            if a != b and not (kind == "ids" and stored.format == 1 and a == joined_id(b)):
                return [Difference(f"{kind}[{row}]", a, b)]
    return []


def _difference(field: str, stored: Any, asked: Any) -> Difference:
    return Difference(field, *("(absent)" if value is _ABSENT else value for value in (stored, asked)))
