"""Turns an item into the text of the user turn, under a prompting regime.

Guarantees: the named templates are those of the study reproduced, to the letter and line break; the item's text is put
in once and never read as a template, so a question that holds braces or the word `{choices}` stays as it is; the
character span of every part is returned with the text, for summaries of where attention goes.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import strict_yaml
from ..checks import shown
from ..errors import RequestError
from .items import CHOICE, FREE, Item

DEFAULT_MAX_NEW_TOKENS = 512


@dataclass(frozen=True)
class Regime:
    """A way of prompting.

    Attributes
    ----------
    name : str
    free : str or None
        Template for free response, with `{question}` once. None: the regime has no such form.
    choice : str or None
        Template for multiple choice, with `{question}` and `{choices}` once each. None: the regime has no such form.
    max_new_tokens : int
        How many tokens a model may write under this regime unless the user says otherwise.
    system : str
        A system text before the conversation; "" for none.
    turns : tuple of (str, str)
        What the user said and the assistant answered before the item: solved examples.
    prefill : str
        How the assistant's answer begins; the model goes on from there, and what is graded begins with it.
    stop : tuple of str, optional
        Texts before which an output ends.

    Notes
    -----
    `{{name}}` stands for the literal text `{name}`; other braces are literal.
    """

    name: str
    free: str | None
    choice: str | None
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    system: str = ""
    turns: tuple[tuple[str, str], ...] = ()
    prefill: str = ""
    stop: tuple[str, ...] | None = None

    def template(self, format: str) -> str:
        """Return the template for `"free"` or `"choice"` items.

        Raises
        ------
        RequestError
            If the regime has no template of that format.
        """
        template = self.choice if format == CHOICE else self.free
        if template is None:
            raise RequestError(
                f"regime {self.name!r} has no template for {_FORMAT_NAMES[format]}; add {format!r} to it"
            )
        return template

    def has_template(self, format: str) -> bool:
        """Whether there is a template for `"free"` or `"choice"` items."""
        return (self.choice if format == CHOICE else self.free) is not None

    def template_hash(self, format: str) -> str:
        """Return the first 16 hexadecimal digits of the SHA-256 of the template for `"free"` or `"choice"` items, with what stands
        around it, if anything does."""
        around = [self.system, *(text for turn in self.turns for text in turn), self.prefill]
        parts = [self.template(format), *(around if any(around) else ())]
        return hashlib.sha256("\0".join(parts).encode("utf-8")).hexdigest()[:16]

    def headings(self) -> tuple[str, ...]:
        """What its templates write on a new line before a question and its options, such as `Problem:`: a model that writes one
        has begun the next item."""
        found: dict[str, None] = {}
        for template in filter(None, (self.free, self.choice)):
            for mark in _PLACEHOLDER.finditer(template):
                heading = template[: mark.start()].rpartition("\n")[2].strip()
                if mark["name"] and heading:
                    found["\n" + heading] = None
        return tuple(found)


@dataclass(frozen=True)
class Prompt:
    """A rendered user turn.

    Attributes
    ----------
    text : str
    spans : dict of str to (int, int)
        Character range [start, end) in `text` of each part, in order of appearance: `instruction` (up to the blank line
        before the item), `question`, `choices` (all options) and `option:A`, `option:B`, ... (one line each), `cue`
        (what follows the item, such as `Answer:`). A part that a template lacks is left out.
    template_hash : str
        Of the template that was filled in.
    """

    text: str
    spans: dict[str, tuple[int, int]]
    template_hash: str

    def __str__(self) -> str:
        return self.text


_FORMAT_NAMES = {FREE: "free response", CHOICE: "multiple choice"}

_FREE_COT = (
    "Solve this math problem step by step. Show your\n"
    "reasoning, then give the final answer after ####.\n"
    "\n"
    "Problem: {question}\n"
    "Solution:"
)
_FREE_BABBLE = (
    "Given this math problem, write a long stream of\n"
    "consciousness about numbers, calculations, and\n"
    "mathematical concepts. Do NOT solve the problem -\n"
    "just write loosely related mathematical musings\n"
    "for about 100 words.\n"
    "\n"
    "Problem: {question}\n"
    "Stream of consciousness:"
)
_CHOICE_COT_OPEN = (
    "Think step by step, then choose the correct option.\n"
    "At the end, reply with only one letter from the\n"
    "available choices.\n"
    "\n"
    "Question: {question}\n"
    "Choices: {choices}\n"
    "Reasoning:"
)
_CHOICE_BABBLE_OPEN = (
    "Write a long stream of consciousness about the topic\n"
    "and the possible answers. Do NOT solve the problem.\n"
    "At the end, still output exactly one letter from the\n"
    "available choices.\n"
    "\n"
    "Question: {question}\n"
    "Choices: {choices}\n"
    "Stream of consciousness:"
)

REGIMES: Mapping[str, Regime] = {
    regime.name: regime
    for regime in (
        Regime(
            "baseline",
            free="Solve this math problem. Give only the final\nnumerical answer.\n\nProblem: {question}\nAnswer:",
            choice=(
                "Choose the correct option. Reply with only one\n"
                "letter from the available choices.\n"
                "\n"
                "Question: {question}\n"
                "Choices: {choices}\n"
                "Answer:"
            ),
            max_new_tokens=50,
        ),
        Regime("cot", free=_FREE_COT, choice=f"{_CHOICE_COT_OPEN}\nFinal answer:"),
        Regime("babble", free=_FREE_BABBLE, choice=f"{_CHOICE_BABBLE_OPEN}\nFinal answer:"),
        # The printed multiple-choice forms end in "Final answer:" and so ask for the answer before any reasoning. The
        # open forms let the answer come last. The printed free-response forms are open already, so both names share
        # them.
        Regime("cot-open", free=_FREE_COT, choice=_CHOICE_COT_OPEN),
        Regime("babble-open", free=_FREE_BABBLE, choice=_CHOICE_BABBLE_OPEN),
    )
}
"""The named regimes."""


def get(name: str, regimes: Mapping[str, Regime] = REGIMES) -> Regime:
    """Return a regime by name.

    Raises
    ------
    RequestError
        If there is none of that name.
    """
    if name not in regimes:
        raise RequestError(f"unknown regime {name!r}; known: {', '.join(regimes)}; add your own from a YAML file")
    return regimes[name]


def render(regime: str | Regime, item: Item, regimes: Mapping[str, Regime] = REGIMES) -> Prompt:
    """Fill an item into a regime's template.

    Parameters
    ----------
    regime : str or Regime
    item : Item
    regimes : mapping of str to Regime
        Where a regime given by name is looked up; `load_regimes` returns one.

    Returns
    -------
    Prompt

    Raises
    ------
    RequestError
        If the regime is unknown, or has no template for the item's format.

    Examples
    --------
    >>> from precollapse.studies import benchmarks, prompts
    >>> item = benchmarks.load("builtin", n=1)[0]
    >>> item.question in prompts.render("baseline", item).text
    True
    """
    if isinstance(regime, str):
        regime = get(regime, regimes)
    template = regime.template(item.format)
    pieces: list[str] = []
    length = 0
    spans: dict[str, tuple[int, int]] = {}
    last_part_end = 0

    def add(text: str) -> None:
        nonlocal length
        pieces.append(text)
        length += len(text)

    position = 0
    for mark in _PLACEHOLDER.finditer(template):
        add(template[position : mark.start()])
        position = mark.end()
        if mark["literal"]:
            add(f"{{{mark['literal']}}}")
            continue
        if not spans:
            spans |= _instruction("".join(pieces))
        start = length
        if mark["name"] == "question":
            add(item.question)
            spans["question"] = start, length
        else:
            options: dict[str, tuple[int, int]] = {}
            for label, option in (item.choices or {}).items():
                add("\n" if options else "")
                option_start = length
                add(f"{label}) {option}")
                options[f"option:{label}"] = option_start, length
            spans |= {"choices": (start, length), **options}
        last_part_end = length
    add(template[position:])
    text = "".join(pieces)
    cue = text[last_part_end:].strip()
    if cue:
        start = text.index(cue, last_part_end)
        spans["cue"] = start, start + len(cue)
    return Prompt(text, spans, regime.template_hash(item.format))


def conversation(regime: Regime, prompt: Prompt) -> list[dict[str, str]]:
    """A prompt as chat messages: the regime's system text and turns, the item, and how the answer begins."""
    before = [{"role": "system", "content": regime.system}] if regime.system else []
    for asked, answered in regime.turns:
        before += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    begun = [{"role": "assistant", "content": regime.prefill}] if regime.prefill else []
    return [*before, {"role": "user", "content": prompt.text}, *begun]


def plain_text(regime: Regime, prompt: Prompt) -> tuple[str, int, list[tuple[int, int]]]:
    """A prompt as one text, its parts with a blank line between; where the prompt itself begins; and where the item's own words stand.

    An answer follows its question after a blank, as after `Answer:`.
    """
    before = [regime.system] if regime.system else []
    before += [f"{asked} {answered}" for asked, answered in regime.turns]
    head = "".join(f"{part}\n\n" for part in before)
    words = [prompt.spans[name] for name in ("question", "choices") if name in prompt.spans]
    text = head + prompt.text + (f" {regime.prefill}" if regime.prefill else "")
    return text, len(head), [(start + len(head), end + len(head)) for start, end in words]


_PLACEHOLDER = re.compile(r"\{\{(?P<literal>[A-Za-z_]\w*)\}\}|\{(?P<name>[A-Za-z_]\w*)\}")


def _instruction(before_item: str) -> dict[str, tuple[int, int]]:
    """Span the text before the item, without the `Problem: ` of the item's own paragraph or white space around it."""
    instruction = before_item.rpartition("\n\n")[0] if "\n\n" in before_item else before_item
    start = len(instruction) - len(instruction.lstrip())
    end = len(instruction.rstrip())
    return {"instruction": (start, end)} if end > start else {}


# --- a user's regimes -------------------------------------------------------------------------------------------------


def load_regimes(path: str | Path) -> dict[str, Regime]:
    """Read regimes from a YAML file and return them after the named ones.

    The file maps each regime's name to `free` and/or `choice` (templates) and optionally `max_new_tokens`, `system` (a text),
    `turns` (a list of `user` and `assistant`), `prefill` (how the answer begins) and `stop` (texts before which an output ends).

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    dict of str to Regime
        `REGIMES` and the file's.

    Raises
    ------
    RequestError
        If the file is missing, is not YAML of that shape, reuses a name, or a template lacks a placeholder, repeats one
        or has one that is unknown.
    """
    try:
        raw = Path(path).read_bytes()
    except FileNotFoundError:
        raise RequestError(f"the regimes file {str(path)!r} does not exist") from None
    except OSError as error:
        raise RequestError(f"the regimes file {str(path)!r} cannot be read: {error.strerror or error}") from None
    content, _ = strict_yaml.parse(raw, f"the regimes file {str(path)!r}")
    if not isinstance(content, dict) or not content:
        raise RequestError(f"{path}: the file must map regime names to their templates; found {_kind(content)}")
    return {**REGIMES, **{name: _regime(name, settings, str(path)) for name, settings in content.items()}}


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_SETTINGS = ("free", "choice", "max_new_tokens", "system", "turns", "prefill", "stop")


def _regime(name: Any, settings: Any, path: str) -> Regime:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(f"{path}: a regime's name must be letters, digits, '_', '.' and '-'; found {shown(name)}")
    if name in REGIMES:
        raise RequestError(
            f"{path}: regime {name!r} is one of the named ones ({', '.join(REGIMES)}); choose another name"
        )
    here = f"{path}: regime {name!r}"
    if not isinstance(settings, dict) or not settings:
        raise RequestError(f"{here} must have 'free' and/or 'choice'; found {_kind(settings)}")
    if unknown := [key for key in settings if key not in _SETTINGS]:
        raise RequestError(f"{here} has the unknown setting {shown(unknown[0])}; known: {', '.join(_SETTINGS)}")
    free, choice = settings.get("free"), settings.get("choice")
    if free is None and choice is None:
        raise RequestError(f"{here} has no template; give 'free' and/or 'choice'")
    limit = settings.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise RequestError(f"{here}: 'max_new_tokens' must be a whole number of at least 1; found {shown(limit)}")
    for form, template, required in ((FREE, free, ("question",)), (CHOICE, choice, ("question", "choices"))):
        if template is not None:
            _check_template(template, required, f"{here}, {form!r}")
    texts = {key: settings.get(key, "") for key in ("system", "prefill")}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise RequestError(f"{here}: {key!r} must be text; found {_kind(text)}")
    if texts["prefill"] and texts["prefill"][-1].isspace():
        _warn_of_end(f"{here}: the prefill", texts["prefill"])
    stop = settings.get("stop")
    stops = [stop] if isinstance(stop, str) else stop
    if stops is not None and not (isinstance(stops, list) and all(isinstance(text, str) and text for text in stops)):
        raise RequestError(f"{here}: 'stop' must be a text or a list of texts; found {shown(stop)}")
    return Regime(
        name,
        free,
        choice,
        limit,
        texts["system"],
        _turns(settings.get("turns", []), here),
        texts["prefill"],
        None if stops is None else tuple(stops),
    )


def _turns(turns: Any, here: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(turns, list) or not all(
        isinstance(turn, dict)
        and set(turn) == {"user", "assistant"}
        and all(isinstance(t, str) and t for t in turn.values())
        for turn in turns
    ):
        raise RequestError(
            f"{here}: 'turns' must be a list of entries with 'user' and 'assistant', both text; found {shown(turns)}"
        )
    return tuple((turn["user"], turn["assistant"]) for turn in turns)


def _warn_of_end(what: str, text: str) -> None:
    """Warn where a text ends in white space, which most tokenizers put before the next word."""
    end = "a line break" if text.endswith("\n") else "a blank"
    advice = (
        "in YAML write |- instead of | to leave it out" if text.endswith("\n") else "take it away if it is not meant"
    )
    warnings.warn(f"{what} ends in {end}, which becomes the end of the prompt; {advice}", UserWarning, stacklevel=5)


def _check_template(template: Any, required: tuple[str, ...], here: str) -> None:
    if not isinstance(template, str):
        raise RequestError(f"{here}: the template must be text; found {_kind(template)}")
    names = [mark["name"] for mark in _PLACEHOLDER.finditer(template) if mark["name"]]
    for name in names:
        if name not in required:
            raise RequestError(
                f"{here}: unknown placeholder {{{name}}}; known: {', '.join(f'{{{known}}}' for known in required)}; "
                f"write {{{{{name}}}}} for the literal text"
            )
    for name in required:
        if names.count(name) != 1:
            raise RequestError(
                f"{here}: the template must hold {{{name}}} exactly once; found it {names.count(name)} times"
            )
    if template[-1:].isspace():
        _warn_of_end(f"{here}: the template", template)


def _kind(value: Any) -> str:
    names = {dict: "an empty mapping", list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
