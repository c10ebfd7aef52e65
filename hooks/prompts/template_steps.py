"""Whether a chat template has a step that a clock cannot stop: one whose result may be far larger than what goes in.

Guarantees nothing of what such a step does; it only says for which templates each conversation has to be tried in a process of its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

_WIDE = {
    "center",
    "ljust",
    "rjust",
    "zfill",
    "expandtabs",
    "format",
    "format_map",
    "indent",
    "wordwrap",
    "batch",
    "round",
}
"""Filters and methods that make a text, a list or a number as long as they are told."""
_GROWING = {"replace", "join"}
"""Those that make a text longer each time when it is put to itself."""


@lru_cache(maxsize=64)
def has_unbounded_steps(template: str) -> bool:
    """Whether a template has a power, a product, a width, a format, or a loop that puts a text to itself.

    Examples
    --------
    >>> has_unbounded_steps("{{ messages[0].content ~ eos_token }}"), has_unbounded_steps("{{ 'a' * 10 ** 12 }}")
    (False, True)
    >>> has_unbounded_steps("{{ loop.index0 % 2 }}"), has_unbounded_steps("{% set a = '%099d' %}{{ a % 1 }}")
    (False, True)
    """
    from jinja2 import Environment, TemplateSyntaxError, nodes
    from jinja2.ext import loopcontrols

    from .template_trial import Generation

    try:
        parsed = Environment(extensions=[loopcontrols, Generation]).parse(template)
    except TemplateSyntaxError:
        return False  # it renders nothing
    if next(parsed.find_all((nodes.Pow, nodes.Mul)), None) is not None or any(map(_is_wide, _steps(parsed))):
        return True
    if next(parsed.find_all(nodes.Mod), None) is not None and any("%" in text for text in _texts(parsed)):
        return True  # of numbers it is a rest, of a text its format
    return any(
        _grows(kept.node) for loop in parsed.find_all((nodes.For, nodes.Macro)) for kept in loop.find_all(nodes.Assign)
    )


def _steps(part: Any) -> list[Any]:
    from jinja2 import nodes

    return [*part.find_all((nodes.Filter, nodes.Getattr, nodes.Getitem)), part]


def _texts(parsed: Any) -> list[str]:
    from jinja2 import nodes

    texts = [part.value for part in parsed.find_all(nodes.Const)] + [
        part.data for part in parsed.find_all(nodes.TemplateData)
    ]
    return [text for text in texts if isinstance(text, str)]


def _is_wide(step: Any) -> bool:
    from jinja2 import nodes

    if isinstance(step, nodes.Filter) and step.name == "tojson":  # its indent and separators
        return bool(step.args or step.kwargs or step.dyn_args or step.dyn_kwargs)
    return _name(step) in _WIDE


def _name(step: Any) -> str:
    from jinja2 import nodes

    if isinstance(step, nodes.Getitem):
        return str(step.arg.value) if isinstance(step.arg, nodes.Const) else ""
    return str(getattr(step, "name", None) or getattr(step, "attr", ""))


def _grows(value: Any) -> bool:
    """Whether what is assigned holds something twice, or is made by a step that makes texts longer."""
    from jinja2 import nodes

    steps = _steps(value)
    if any(_name(step) in _GROWING for step in steps if isinstance(step, nodes.Filter | nodes.Getattr | nodes.Getitem)):
        return True
    used = [repr(part) for part in (*value.find_all((nodes.Name, nodes.Getattr)), value)]
    sums = (
        isinstance(value, nodes.Concat | nodes.Add) or next(value.find_all((nodes.Concat, nodes.Add)), None) is not None
    )
    return sums and len(set(used)) < len(used)
