"""Generates word problems of graded difficulty, so that a study runs with no network and no files.

Guarantees: problem i of a seed is the same however many are asked for; the gold answer is computed with the problem and
is an exact whole number; the wrong options of the multiple-choice form are what typical slips lead to (a forgotten
step, a wrong operation), all different from the answer and from each other; the answer stands once under each letter in
every four problems, so a model that always says one letter is right a quarter of the time. Levels 1 (one step) to 5 (several steps, an
unknown to solve for) take turns, so every sample spans them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from ..errors import RequestError

DEFAULT_COUNT = 100
OPTION_COUNT = 4
LEVELS = 5
_MAX_COUNT = 10_000

_NAMES = (
    "Amina", "Bruno", "Chen", "Dalia", "Emeka", "Farah", "Goran", "Hana", "Ivo", "Jun",
    "Kofi", "Lena", "Mateo", "Nadia", "Otto", "Priya", "Quinn", "Rosa", "Sami", "Tuva",
)  # fmt: skip
_THINGS = (
    "marbles", "stickers", "shells", "postcards", "buttons", "seeds", "coins", "beads", "badges",
    "acorns", "ribbons", "pebbles",
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """A generated problem in both forms.

    Attributes
    ----------
    id : str
        `s{seed}-{number:04d}-L{level}`.
    level : int
        1 (one step) to 5.
    question : str
    answer : str
        A positive whole number.
    options : tuple of str
        `OPTION_COUNT` different numbers in the order shown, the answer among them.
    """

    id: str
    level: int
    question: str
    answer: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class _Draft:
    question: str
    answer: int
    slips: tuple[int, ...]
    """Results of typical mistakes, likeliest first; may repeat each other, equal the answer or be negative."""


def problems(count: int, seed: int = 0) -> list[Problem]:
    """Return the first `count` problems of a seed.

    Raises
    ------
    RequestError
        If `count` is above 10,000.
    """
    if count > _MAX_COUNT:
        raise RequestError(f"{count} generated items were asked for; ask for at most {_MAX_COUNT}")
    questions: set[str] = set()
    items = []
    for number in range(count):
        level = number % LEVELS + 1
        attempt = 0
        while True:
            rng = Random(f"precollapse:{seed}:{number}:{attempt}")
            draft = rng.choice(_TEMPLATES[level - 1])(rng)
            if draft.question not in questions:
                break
            attempt += 1
        questions.add(draft.question)
        identity = f"s{seed}-{number:04d}-L{level}"
        items.append(
            Problem(identity, level, draft.question, str(draft.answer), _options(draft, rng, _place(number, seed)))
        )
    return items


def _place(number: int, seed: int) -> int:
    """Where the answer of a problem stands among its options."""
    block, within = divmod(number, OPTION_COUNT)
    return Random(f"precollapse:places:{seed}:{block}").sample(range(OPTION_COUNT), OPTION_COUNT)[within]


def _options(draft: _Draft, rng: Random, place: int) -> tuple[str, ...]:
    values = [draft.answer]
    for value in draft.slips:
        if value > 0 and value not in values and len(values) < OPTION_COUNT:
            values.append(value)
    step = 10 if draft.answer % 10 == 0 and draft.answer >= 100 else 1
    while len(values) < OPTION_COUNT:
        value = draft.answer + step * rng.choice((-3, -2, -1, 1, 2, 3))
        if value > 0 and value not in values:
            values.append(value)
    answer, *wrong = values
    rng.shuffle(wrong)
    return tuple(map(str, [*wrong[:place], answer, *wrong[place:]]))


# --- level 1: one step, small numbers ---------------------------------------------------------------------------------


def _gain(rng: Random) -> _Draft:
    name, things, a, b = rng.choice(_NAMES), rng.choice(_THINGS), rng.randint(2, 30), rng.randint(2, 20)
    question = f"{name} has {a} {things} and finds {b} more. How many {things} does {name} have now?"
    return _Draft(question, a + b, (abs(a - b), a + b + 1, a + b - 1, a, b))


def _loss(rng: Random) -> _Draft:
    name, things = rng.choice(_NAMES), rng.choice(_THINGS)
    a = rng.randint(12, 45)
    b = rng.randint(2, a - 2)
    question = f"There are {a} {things} in a bowl. {name} takes {b} of them out. How many {things} stay in the bowl?"
    return _Draft(question, a - b, (a + b, a - b + 1, a - b - 1, b))


def _pages(rng: Random) -> _Draft:
    name, a, b = rng.choice(_NAMES), rng.randint(3, 40), rng.randint(3, 40)
    question = (
        f"{name} reads {a} pages on Monday and {b} pages on Tuesday. How many pages does {name} read on the two days?"
    )
    return _Draft(question, a + b, (abs(a - b), a + b + 10, a + b - 1, max(a, b)))


# --- level 2: one multiplication or division --------------------------------------------------------------------------


def _boxes(rng: Random) -> _Draft:
    things, a, b = rng.choice(_THINGS), rng.randint(3, 15), rng.randint(3, 14)
    question = f"Each box holds {a} {things}. How many {things} are in {b} full boxes?"
    return _Draft(question, a * b, (a + b, a * (b - 1), a * (b + 1), a * b + 2))


def _share(rng: Random) -> _Draft:
    name, things, each, friends = rng.choice(_NAMES), rng.choice(_THINGS), rng.randint(3, 15), rng.randint(2, 12)
    total = each * friends
    question = (
        f"{name} shares {total} {things} equally among {friends} friends. How many {things} does each friend get?"
    )
    return _Draft(question, each, (total - friends, each + 1, each - 1, friends, each + 2))


def _times_as_old(rng: Random) -> _Draft:
    younger, older = rng.sample(_NAMES, 2)
    a, k = rng.randint(3, 19), rng.randint(2, 5)
    question = f"{younger} is {a} years old. {older} is {k} times as old. How old is {older}?"
    return _Draft(question, a * k, (a + k, a * (k + 1), a * k - a, a * k + k))


# --- level 3: two or three steps --------------------------------------------------------------------------------------


def _shopping(rng: Random) -> _Draft:
    name = rng.choice(_NAMES)
    a, p, b, q = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 6), rng.randint(5, 15)
    question = (
        f"{name} buys {a} pens for {p} dollars each and {b} notebooks for {q} dollars each. "
        f"How many dollars does {name} spend in total?"
    )
    return _Draft(question, a * p + b * q, (p + q, a * p + q, p + b * q, (a + b) * (p + q), a * q + b * p))


def _bus(rng: Random) -> _Draft:
    a = rng.randint(20, 50)
    off, on = rng.randint(3, 12), rng.randint(2, 15)
    last_off = rng.randint(2, a - off + on - 1)
    question = (
        f"A bus leaves the depot with {a} passengers. At the first stop {off} get off and {on} get on. "
        f"At the second stop {last_off} get off. How many passengers are on the bus then?"
    )
    answer = a - off + on - last_off
    return _Draft(
        question, answer, (a - off - on - last_off, a - off + on, a + off + on - last_off, answer + 2, answer + 1)
    )


def _fence(rng: Random) -> _Draft:
    name, length, width = rng.choice(_NAMES), rng.randint(8, 40), rng.randint(3, 25)
    gate = rng.randint(1, 3)
    question = (
        f"{name} puts a fence around a rectangular garden that is {length} meters long and {width} meters wide, "
        f"and leaves a gap of {gate} meters for a gate. How many meters of fence are needed?"
    )
    around = 2 * (length + width)
    return _Draft(question, around - gate, (around, length + width - gate, length * width, around + gate))


# --- level 4: shares and rates ----------------------------------------------------------------------------------------


def _discount(rng: Random) -> _Draft:
    name, price, percent, count = rng.choice(_NAMES), 20 * rng.randint(2, 12), 5 * rng.randint(1, 10), rng.randint(2, 6)
    off = price * percent // 100
    question = (
        f"A chair costs {price} dollars. Today its price is reduced by {percent} percent. "
        f"How many dollars does {name} pay for {count} chairs today?"
    )
    return _Draft(question, count * (price - off), (count * price - off, price - off, count * off, count * price))


def _tank(rng: Random) -> _Draft:
    minutes, out = rng.randint(6, 30), rng.randint(2, 9)
    net = rng.randint(2, 12)
    volume = net * minutes
    question = (
        f"Water flows into an empty tank of {volume} liters at {net + out} liters per minute "
        f"and leaks out at {out} liters "
        "per minute. After how many minutes is the tank full?"
    )
    return _Draft(question, minutes, (volume // (net + out), volume // out, minutes + out, minutes + 2))


def _leftover(rng: Random) -> _Draft:
    name, things = rng.choice(_NAMES), rng.choice(_THINGS)
    first, second, rest = rng.randint(2, 5), rng.randint(2, 5), rng.randint(2, 9)
    # rest = what stays after giving 1/second of what stays after giving 1/first
    total = rest * first * second
    question = (
        f"{name} has {total} {things} and gives one {_ORDINAL[first]} of them to a sister. "
        f"Then {name} gives one {_ORDINAL[second]} of what is left to a brother. How many {things} does {name} keep?"
    )
    kept = total // first * (first - 1) // second * (second - 1)
    both_of_all = total - total // first - total // second
    return _Draft(
        question, kept, (both_of_all, total // first * (first - 1) // second, total - kept, total // (first * second))
    )


_ORDINAL = {2: "half", 3: "third", 4: "quarter", 5: "fifth"}


# --- level 5: an unknown to solve for ---------------------------------------------------------------------------------


def _legs(rng: Random) -> _Draft:
    hens, goats = rng.randint(3, 25), rng.randint(3, 20)
    heads, legs = hens + goats, 2 * hens + 4 * goats
    question = (
        f"A farmer keeps hens and goats. Together they have {heads} heads and {legs} legs. How many goats are there?"
    )
    return _Draft(question, goats, (hens, legs // 4, legs - 2 * heads, heads // 2))


def _catch_up(rng: Random) -> _Draft:
    hours, slow = rng.randint(2, 6), rng.randint(2, 6)
    lead = rng.randint(1, 3)
    # both cover slow_speed * (hours + lead) = fast_speed * hours kilometers
    slow_speed, fast_speed = slow * hours, slow * (hours + lead)
    question = (
        f"A cart leaves a village at {slow_speed} kilometers per hour. A rider leaves the same village "
        f"{lead} {'hour' if lead == 1 else 'hours'} later on the same road at {fast_speed} kilometers per hour. "
        "How many kilometers from the village does the rider catch up with the cart?"
    )
    answer = fast_speed * hours
    return _Draft(
        question, answer, (slow_speed * hours, fast_speed * lead, answer + slow_speed, fast_speed * (hours + lead))
    )


def _mean(rng: Random) -> _Draft:
    name, count = rng.choice(_NAMES), rng.randint(3, 7)
    before = rng.randint(60, 85)
    rise = rng.randint(1, (99 - before) // (count + 1) + 1)
    after = before + rise
    question = (
        f"After {count} tests {name} has a mean score of {before} points. After one more test the mean is {after} "
        "points. How many points did the last test bring?"
    )
    answer = (count + 1) * after - count * before
    return _Draft(question, answer, (after + rise, 2 * after - before + 1, count * after - (count - 1) * before, after))


_TEMPLATES: tuple[tuple[Callable[[Random], _Draft], ...], ...] = (
    (_gain, _loss, _pages),
    (_boxes, _share, _times_as_old),
    (_shopping, _bus, _fence),
    (_discount, _tank, _leftover),
    (_legs, _catch_up, _mean),
)
