"""The day that a chat template writes into a prompt, as a setting.

Guarantees that a template which asks for today's date gets the day it is told: a run that is continued tomorrow makes the same prompts.
The clock itself cannot be handed to a template (only plain values can), so one that knows the day is put before its text.
"""

from __future__ import annotations

import datetime

_ASKS = "strftime_now"
_DIRECTIVES = "aAbBdeHIjmMpSuwyYFDTcxXZzfGVUW"


def knows_date(template: str) -> bool:
    """Whether a template asks for the date.

    Examples
    --------
    >>> knows_date("Today: {{ strftime_now('%d %b %Y') }}"), knows_date("{{ messages[0].content }}")
    (True, False)
    """
    return _ASKS in template


def on_day(template: str, day: datetime.date) -> str:
    """The template with a clock that stands at the beginning of a day; a template that asks for no date as it is.

    Every directive of `strftime` is written out once, and replaced in the format that the template gives.
    """
    if not knows_date(template):
        return template
    begin = datetime.datetime(day.year, day.month, day.day)
    replaced = "".join(
        f" | replace({'%' + directive!r}, {begin.strftime('%' + directive)!r})"
        for flag in ("-", "")
        for directive in (flag + letter for letter in _DIRECTIVES)
        if begin.strftime("%" + directive) != "%" + directive
    )
    return (
        f"{{%- macro {_ASKS}(format) -%}}{{{{ format{replaced} | replace('%%', '%') }}}}{{%- endmacro %}}\n{template}"
    )
